"""The vocabulary of a run: one model of a tokenizer, with a report, from text per language."""

import dataclasses
import hashlib
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from absl import logging
from ml_collections import ConfigDict

from input_pipeline.corpus import load_corpus
from input_pipeline.sources import CorpusSpec
from vocap import choosing, report
from vocap.building import CACHE_VERSION, Source, source_digest
from vocap.comparison import Score
from vocap.text_rules import TextRules
from xlm.common import artifacts, console, html_report, places, tables
from xlm.experiment import cleaned_text, counted_text, schema, text_warnings
from xlm.experiment import data as builders
from xlm.interop import vocabulary


def run(config: ConfigDict, folders: builders.Folders) -> None:
    """Build the vocabulary, or take an existing one, unless that is done."""
    if config.vocab.tokenizer:
        _take(places.fetched(config.vocab.tokenizer), folders)
        return
    settings = builders.vocabulary_settings(config)
    cache = folders.vocab / "cache" / f"v{CACHE_VERSION}"
    train, heldout, origin, spec = _sources(config, folders, settings, cache)
    if settings.files:
        origin["files"] = {path: source_digest(pathlib.Path(path)) for path in settings.files}
    parallel = builders.parallel_sentences(config)
    if parallel:
        _check_parallel(parallel, train)
        origin["parallel"] = artifacts.fingerprint(parallel)
    own = {k: v for k, v in dataclasses.asdict(settings).items() if k != "num_workers"}
    defaults = schema.defaults_of_records()
    defaults["vocab"]["initial_sizes"] = {}  # read from vocab.allocation
    # Do not replace the tokenizer of a packed dataset and a trained model.
    stage = artifacts.open_stage(
        folders.vocab, {**origin, "vocab": own}, defaults=defaults,
        uncompared=builders.PLACE_OF_TEXT, replace=lambda: not folders.has_rows,
    )  # fmt: skip
    path, other = folders.tokenizer, folders.byte_tokenizer
    if settings.method == "byte_bpe":
        path, other = other, path
    if stage.done and path.exists():
        logging.info("%s is up to date", folders.vocab)
        return
    # A vocabulary of other settings stays until the new one is complete.
    with stage.locked(claims=False):
        text = {} if spec is None else text_warnings.look(config, folders, spec)
        chosen = choosing.build(train, heldout, settings, cache, _progress, parallel)
        stage.claim()
        artifacts.write_bytes(path, chosen.built.model)
        other.unlink(missing_ok=True)
        report.write_report(folders.vocab, chosen.built, chosen.settings, chosen.candidates)
        artifacts.write_json(folders.text_record, text)
        stage.finish()
    pieces = f"{settings.target_size:,} pieces in {len(train)} languages"
    print(
        pieces, _costs(chosen.built.scores), f"report: {folders.vocab / html_report.PAGE}", sep="\n"
    )


def _costs(scores: Mapping[str, Mapping[str, Score]]) -> str:
    """Describe the tokens of a sentence by method, and the extremes of languages by the first."""
    costs = {k: [(one.tokens_per_sentence, x) for x, one in v.items()] for k, v in scores.items()}
    means = ", ".join(f"{tables.mean_of(c for c, _ in v):.1f} by {k}" for k, v in costs.items())
    first = sorted(next(iter(costs.values()), []))
    shown = (f"{cost:.1f} in {language}" for cost, language in (*first[:1], *first[1:][-1:]))
    return f"tokens a sentence: {means or 'no text is held out'}; {' to '.join(shown)}".rstrip("; ")


def _check_parallel(parallel: Mapping[str, Any], languages: Iterable[str]) -> None:
    if missing := sorted(set(languages) - set(parallel)):
        raise ValueError(
            f"vocab.parallel has no text of {', '.join(missing)}; add files <lang>.txt, or leave "
            "the languages out of corpus.languages"
        )


def _take(path: pathlib.Path, folders: builders.Folders) -> None:
    """Write an existing tokenizer where a built one would be."""
    try:
        model = vocabulary.sentencepiece_model(path)
    except ValueError as error:
        raise ValueError(f"vocab.tokenizer: {error}") from error
    digest = hashlib.sha256(model).hexdigest()
    stage = artifacts.open_stage(
        folders.vocab, {"tokenizer": digest}, replace=lambda: not folders.has_rows
    )
    if stage.done and folders.tokenizer.exists():
        logging.info("%s is up to date", folders.vocab)
        return
    with stage.locked():
        artifacts.write_bytes(folders.tokenizer, model)
        folders.byte_tokenizer.unlink(missing_ok=True)
        report.remove(folders.vocab)
        stage.finish()
    print(f"{folders.tokenizer}: {len(vocabulary.vocabulary(model).pieces):,} pieces of {path}")


def _sources(
    config: ConfigDict, folders: builders.Folders, rules: TextRules, cache: pathlib.Path
) -> tuple[Mapping[str, Source], Mapping[str, Source], dict, CorpusSpec | None]:
    """Return training and held-out text by language, and the settings that identify the text.

    The last result is the corpus to read, cleaned if the config has rules; None for tables.
    """
    if config.vocab.tables:
        train, heldout = builders.count_tables(config)
        digests = {path.name: source_digest(path) for path in (*train.values(), *heldout.values())}
        return train, heldout, {"tables": digests}, None
    spec, record = cleaned_text.run(config, folders)
    reader = ""
    if config.vocab.trainer == "sentencepiece":
        reader = "vocab.trainer='sentencepiece'"
    if "byte_bpe" in (config.vocab.method, *config.vocab.compare):
        reader = "the method byte_bpe"
    if counted_text.is_streamed(spec, folders, reader):
        folders.vocab.mkdir(parents=True, exist_ok=True)
        # Keeps out a build, which removes files of killed processes.
        with artifacts.locked(folders.vocab, is_shared=True):
            found = counted_text.count(
                spec, cache / "counted", rules.rules, config.vocab.num_workers, _progress
            )
        origin = {**record, "text": found.digest}
        return found.train, found.heldout, origin, spec
    corpus = load_corpus(spec)
    held_out = [language for language, some in corpus.heldout.items() if some]
    return (
        {language: corpus.sentences(language) for language in corpus.train},
        {language: corpus.sentences(language, "heldout") for language in held_out},
        {**record, "text": corpus.digest()},
        spec,
    )


def _progress(items: Iterable, name: str, total: int) -> Iterable:
    return console.bar(items, "vocabulary", total, name)
