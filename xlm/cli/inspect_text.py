"""Look at text before building on it: dirt of twenty kinds by language, with examples.

    xlm inspect TEXT --output=DIR [--tokenizer=FILE] [--fail_on=0.05]
    xlm inspect TEXT --output=DIR --parallel='bitext/*.tsv' [--encoder=RUN]

TEXT is a folder of <lang>.txt or <lang>.jsonl files (docs/corpus_format.md). Its TSV files, or
those of --parallel, are parallel text, whose pairs the command inspects. DIR gets report.html and
report.md to read, and inspection.json with the same data. The command prints the worst findings.
Rerun it to resume with the remaining files.
"""

import collections
import functools
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from absl import flags, logging

from input_pipeline import corpus, sources, tokenization
from input_pipeline import preparation_plan as plans
from input_pipeline.inspection import files, findings, page, pairs
from input_pipeline.sources import CorpusSpec, ParallelSource, TextFile
from xlm.common import artifacts, console, executors, html_report, outputs, packages

_TOKENIZER = flags.DEFINE_string("tokenizer", None, "Also count tokens and unknown characters.")
_FAIL_ON = flags.DEFINE_float(
    "fail_on", None, "End with status 1 if a finding is more than this share of a language.",
    lower_bound=0.0, upper_bound=1.0,
)  # fmt: skip
_NEAR_COPIES = flags.DEFINE_bool("near_copies", True, "Also look for nearly equal passages.")
_WORKERS = flags.DEFINE_integer("num_workers", 1, "Processes that inspect files.", lower_bound=1)
executors.define_flags()
_PARALLEL = flags.DEFINE_list(
    "parallel", None, "Parallel text as corpus.parallel names it, below TEXT; its .tsv files."
)
_ENCODER = flags.DEFINE_string(
    "encoder", None, "Also score pairs by this encoder: a run of xlm train, or an exported folder."
)
_OUTPUT = outputs.define_flags("The folder of the report.")

OPTIONS = {"required": ("output",)}

_FORMAT = 3  # version of the parts for a resumed inspection
_TOKENIZED_LINES = 2000
_SCORED_PAIRS = 1000  # of each pair of languages


def main(argv: Sequence[str]) -> None:
    if len(argv) != 2:
        raise ValueError(f"name one folder of text, not {argv[1:4]}: xlm inspect TEXT --output=DIR")
    spec = CorpusSpec(root=argv[1], text=("",))
    found, parallel = sources.find_text(spec, with_empty=True), _find_parallel(argv[1])
    if found or not parallel:
        corpus.check_found(spec, {one.language for one in found})
    with (
        executors.chosen(_WORKERS.value, "--num_workers", _OUTPUT.value) as executor,
        outputs.folder(_OUTPUT.value, [argv[1]]) as aside,
    ):
        languages = _inspect(found, aside, executor) if found else []
        bitext = _inspect_pairs(parallel, aside) if parallel else []
        artifacts.write_json(aside / "inspection.json", {"languages": languages, "pairs": bitext})
        html_report.write(aside, page.report(languages, bitext))
    print(page.summary([*languages, *bitext]))
    print(f"report: {pathlib.Path(_OUTPUT.value, html_report.PAGE)}")
    worst = page.worst([*languages, *bitext])
    if _FAIL_ON.value is not None and worst and worst[0][1]["share"] > _FAIL_ON.value:
        sys.exit(1)


def _inspect(
    every: Sequence[TextFile], aside: pathlib.Path, executor: executors.Executor
) -> list[dict[str, Any]]:
    states = [(one.language, *plans.states([one.path])) for one in every]
    folder = outputs.parts(aside, artifacts.fingerprint(_FORMAT, _NEAR_COPIES.value, states))
    found: dict[str, dict[pathlib.Path, pathlib.Path]] = collections.defaultdict(dict)
    for i, one in enumerate(every):
        found[one.language][one.path] = folder / f"{i:06d}.npz"
    blocks, scripts, identifier = files.learn({one: [*parts] for one, parts in found.items()})
    tokens = _tokenize(blocks) if _TOKENIZER.value else {}
    identifier.save(model := folder / "identifier.npz")
    jobs = [
        (path.absolute(), part, own, scripts[language], model, _NEAR_COPIES.value)
        for own, (language, parts) in enumerate(found.items())
        for path, part in parts.items()
        if not part.exists()
    ]
    if len(jobs) < len(every):
        logging.info("%d of %d files were inspected before", len(every) - len(jobs), len(every))
    executors.complete(
        executor, files.inspect_to, jobs, lambda _, part, *__: part.exists(), "inspect", folder
    )
    return [
        findings.of_language(
            language, [*parts], map(files.FileReport.load, parts.values()), identifier,
            scripts[language], tokens.get(language),
        )
        for language, parts in found.items()
    ]  # fmt: skip


def _find_parallel(root: str) -> list[ParallelSource]:
    if _PARALLEL.value is not None:
        return sources.find_parallel(CorpusSpec(root=root, parallel=tuple(_PARALLEL.value)))
    found = []
    for path in sorted(pathlib.Path(root).glob("*.tsv*")):
        try:
            found += sources.find_parallel(CorpusSpec(root=root, parallel=(path.name,)))
        except ValueError as error:
            logging.warning("left out: %s", error)
    return found


def _inspect_pairs(found: Sequence[ParallelSource], aside: pathlib.Path) -> list[dict[str, Any]]:
    """Return the record of each pair of languages of each source."""
    states = [(one.name, plans.states(one.files)) for one in found]
    number = _SCORED_PAIRS if _ENCODER.value else 0
    folder = outputs.parts(aside, artifacts.fingerprint(_FORMAT, number, states))
    learn, records = functools.cache(lambda: pairs.learn_languages(found)), []
    for i, one in enumerate(console.bar(found, "pairs", len(found), "sources")):
        if not (part := folder / f"pairs-{i:06d}.json").exists():
            examined = pairs.examine(one, learn(), sources.PAIR_RULES, number)
            artifacts.write_json(part, {"pairs": findings.of_pairs(one, examined)})
        records += artifacts.read_json(part)["pairs"]
    for record in console.bar(records, "score", number and len(records), "pairs"):
        if sample := record.pop("sample"):
            record["encoder"], margins = _encoder_scores()(sample)
            worst = np.argsort(margins, kind="stable")[: files.EXAMPLES].tolist()
            record["least_margins"] = [[float(margins[i]), *sample[i]] for i in worst]
    return records


@functools.cache
def _encoder_scores() -> Callable[[Sequence], tuple[dict[str, float], np.ndarray]]:
    with packages.needed("--encoder"):
        from xlm.evaluation.pair_scores import pair_scores
        from xlm.experiment.encoder import Encoder
    encoder = Encoder.load(_ENCODER.value)
    return lambda sample: pair_scores(sample, encoder.encode, encoder.loss)


def _tokenize(blocks: Mapping[str, files.Block]) -> dict[str, dict[str, Any]]:
    """Return tokens, words and unknown characters, with their names, of each sample."""
    from xlm.interop.segmenter import read_segmenter

    segmenter, result = read_segmenter(pathlib.Path(_TOKENIZER.value)), {}
    for language, block in blocks.items():
        step = len(block.lines) // _TOKENIZED_LINES + 1
        text = [block.text(i) for i in range(0, len(block.lines), step)]
        ids = segmenter.encode(text)
        unknown = tokenization.unknown_characters(segmenter.encode, segmenter.unknown, text)
        result[language] = {
            "tokens": sum(map(len, ids)),
            "unknown_tokens": sum(segmenter.unknown == i for one in ids for i in one),
            "words": sum(len(line.split()) for line in text),
            "unknown": dict([*unknown.items()][:20]),
        }
    return result
