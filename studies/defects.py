"""Does robust sampling find planted defects? (XY-LENT Section 6.6, Figure 4)

    python -m studies.defects --config=configs/xy_lent.py:small_defects,DATA --workdir=runs/defects

Writes WORKDIR/corpus, which is DATA with three pairs of --folder damaged by
`studies.planted_defects`: shuffled sentences, near copies, a wrong language. On DATA as it is and
on the damaged corpus, with one vocabulary, trains for every seed

- `baseline`: with the base distribution (`robust.rho` 0), which records the losses of the pairs;
- `robust`: re-weighted in ten phases, rho 0.05, no pair below 0.2 of its base weight;
- `excess`: the same by the losses less those of the `baseline` of the same corpus and seed, which
  leaves what that run has not learned, and so may hide a pair that is hard for both.

Each is reported by `tools.pair_weights`, with examples of the pairs at both ends. The tables of
WORKDIR/report have the ranks of the planted pairs among all, by weight and by loss beyond their
languages (`evaluation.pair_excess`), those of the same pairs undamaged beside them, the pairs at
the ends of the undamaged corpus, to be looked at, and the held-out scores with and without
re-weighting.

If it is run again after a stop, it completes missing runs; --report_only prints the table of
finished runs.

Hardware: 2 CPU cores, some hours; --workers=1 --nopin on an accelerator.
"""

import dataclasses
import functools
import os
import pathlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import flags
from ml_collections import ConfigDict

from common import artifacts, entry_point
from evaluation.pair_excess import ranked_by_excess
from studies import planted_defects, runs
from studies.downstream import detectable, spread
from studies.planted_defects import Defect
from studies.runs import Job
from training.metrics import read_metrics

CORPORA = {"planted": "damaged", "clean": "as it is"}
_ROBUST = {
    "robust.num_phases": 10,
    "robust.rho": 0.05,
    "robust.min_ratio": 0.2,
    # Losses of the last hundred batches of a pair, or the noise of single sentences hides its own.
    "robust.rate": 0.01,
}
# Label and changed keys of each run, by name, in the order of training.
KINDS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "baseline": ("by loss, not re-weighted", {**_ROBUST, "robust.rho": 0.0}),
    "robust": ("robust, without a baseline", _ROBUST),
    "excess": ("robust, losses less the baseline's", _ROBUST),
}
# Titles and forms of the held-out scores, by their names in the metrics.
SCORES = {
    "eval/loss": ("generator's loss, nats a token", "{:.3f}"),
    "rtd/unigram/auc": ("AUC on unigram samples", "{:.3f}"),
}
_SEED_OF_DAMAGE = 0
NUM_ENDS = 10


@dataclasses.dataclass(frozen=True)
class Study:
    """Settings of the study.

    Attributes:
      config: config of all runs.
      workdir: folder of the results.
      folder: of the pair files, below `corpus.root`.
      defects: to plant.
      seeds: of training.
      workers: number of parallel runs.
      pin: whether each run is pinned to one core and one thread.
    """

    config: ConfigDict
    workdir: pathlib.Path
    folder: str
    defects: Sequence[Defect]
    seeds: Sequence[int]
    workers: int
    pin: bool

    def root(self, corpus: str) -> pathlib.Path:
        """Return the folder of a corpus of `CORPORA`."""
        data = pathlib.Path(self.config.corpus.root)
        return (self.workdir / "corpus" if corpus == "planted" else data).absolute()

    def run(self, corpus: str, kind: str, seed: int) -> pathlib.Path:
        """Return the working directory of a run."""
        return self.workdir / "runs" / corpus / kind / f"seed{seed}"

    def call(
        self,
        script: Sequence[str],
        corpus: str,
        workdir: pathlib.Path,
        change: Mapping[str, Any] | None = None,
    ) -> None:
        """Run a stage on a corpus, under the config of this command."""
        runs.call(
            script,
            runs.own_config(),
            {"corpus.root": self.root(corpus), **(change or {})},
            workdir,
            log=workdir / "log.txt",
            compiled=self.workdir / "compiled",
            one_thread=self.pin,
        )


def prepare(study: Study) -> None:
    """Plant the defects, and pack both corpora with the vocabulary of the undamaged one."""
    clean, planted = (study.workdir / "data" / corpus for corpus in ("clean", "planted"))
    planted_defects.plant(
        study.root("clean"), study.folder, study.root("planted"), study.defects, _SEED_OF_DAMAGE
    )
    study.call(["build_vocab.py"], "clean", clean)
    planted.mkdir(parents=True, exist_ok=True)
    if not (planted / "vocab").is_symlink():
        (planted / "vocab").symlink_to(os.path.relpath(clean / "vocab", planted))
    for corpus in CORPORA:
        study.call(["prepare_data.py"], corpus, study.workdir / "data" / corpus)


def train(study: Study, corpus: str, kind: str, seed: int) -> bool:
    """Train and report a run, unless finished; return whether there was anything to do."""
    folder = study.run(corpus, kind, seed)
    if (folder / "record.json").exists():
        return False
    runs.share_data(study.workdir / "data" / corpus, folder)
    change: dict[str, Any] = {**KINDS[kind][1], "train.seed": seed}
    if kind == "excess":
        record = study.run(corpus, "baseline", seed) / "train" / "pair_weights.json"
        change["robust.baseline"] = record.absolute()
    for script in (["train.py"], ["-m", "tools.pair_weights"]):
        study.call(script, corpus, folder, change)
    artifacts.write_json(folder / "record.json", last_scores(folder / "train" / "metrics.jsonl"))
    return True


def last_scores(metrics: pathlib.Path) -> dict[str, float]:
    """Return the scores of the last evaluation in training, by the names of `SCORES`."""
    found: dict[str, float] = {}
    for one in read_metrics(metrics):
        found |= {name: one[name] for name in SCORES if name in one}
    return found


def do_study(study: Study) -> None:
    """Execute all runs, of a seed those with a baseline after the others.

    Raises:
      ValueError: runs failed; all others have been executed.
    """
    prepare(study)
    errors = []
    for seed in study.seeds:
        for kinds in (("baseline", "robust"), ("excess",)):
            errors += runs.do_all(
                [
                    Job(
                        f"{corpus}, {kind}, seed {seed}",
                        functools.partial(train, study, corpus, kind, seed),
                    )
                    for corpus in CORPORA
                    for kind in kinds
                ],
                workers=study.workers,
                pin=study.pin,
            )
    if errors:
        raise ValueError(f"{len(errors)} runs failed: {errors[0]}")


# Report.


@dataclasses.dataclass(frozen=True)
class Ranks:
    """Rankings of the pairs of a run, see `evaluation.pair_report`.

    Attributes:
      pairs: the most up-weighted first.
      ratios: p / q of each pair in the last phase.
      losses: of each pair at the last phase; None if it was not seen.
      excess: loss of each pair beyond its languages, the highest first.
    """

    pairs: Sequence[str]
    ratios: Mapping[str, float]
    losses: Mapping[str, float | None]
    excess: Mapping[str, float]

    def place(self, pair: str) -> int:
        """Return the rank of a pair from the up-weighted end, 1 for the first.

        Raises:
          ValueError: the run does not draw it.
        """
        if pair not in self.pairs:
            raise ValueError(f"the runs have no pair {pair}; plant defects in pairs of the config")
        return self.pairs.index(pair) + 1

    def place_by_excess(self, pair: str) -> int | None:
        """Return the rank of a pair by its excess, 1 for the highest; None if it has none."""
        return list(self.excess).index(pair) + 1 if pair in self.excess else None


def read_ranks(study: Study, corpus: str, kind: str) -> dict[int, Ranks]:
    """Read the rankings of finished runs, by seed."""
    found = {}
    for seed in study.seeds:
        path = study.run(corpus, kind, seed) / "report" / "pairs" / "pair_weights.json"
        if path.exists():
            results = artifacts.read_json(path)
            pairs = results["pairs"]
            found[seed] = Ranks(
                [one["pair"] for one in pairs],
                {one["pair"]: one["ratio"] for one in pairs},
                {one["pair"]: one["loss"] for one in pairs},
                ranked_by_excess(results["excess"]),
            )
    return found


def write_report(study: Study) -> str:
    """Write the tables of finished runs; return the text.

    Raises:
      ValueError: there are none.
    """
    found = {
        (corpus, kind): ranks
        for kind in KINDS
        for corpus in CORPORA
        if (ranks := read_ranks(study, corpus, kind))
    }
    if not found:
        raise ValueError(f"{study.workdir} has no finished runs to report")
    count = len(next(iter(next(iter(found.values())).values())).pairs)
    parts = ["# Planted defects", _NOTE.format(count=count), rank_table(study, found, _cell)]
    parts += [_EXCESS_NOTE, rank_table(study, found, _excess_cell)]
    for kind, (title, _) in KINDS.items():
        if ("clean", kind) in found:
            parts.append(f"## Ends of the corpus as it is: {title}")
            if kind != "baseline":
                parts.append(ends({s: one.ratios for s, one in found["clean", kind].items()}))
            parts += ["Beyond their languages:"]
            parts.append(ends({s: one.excess for s, one in found["clean", kind].items()}))
            parts += [
                f"Text: `{study.run('clean', kind, seed) / 'report' / 'pairs' / 'report.md'}`"
                for seed in found["clean", kind]
            ]
    parts += ["## Cost", score_table(study, list(found))]
    text = "\n\n".join(parts) + "\n"
    artifacts.write_text(study.workdir / "report" / "report.md", text)
    return text


_NOTE = """\
Rank of the damaged pairs among all {count}, of each seed: 1 is the most up-weighted one, {count}
the most down-weighted one; then the mean loss and the mean p / q in the last phase. A defect is
found if it is at an end where the same pair of the corpus as it is, in the line below, is not.
Without re-weighting pairs are ranked by their loss."""

_EXCESS_NOTE = """\
Rank by the loss beyond what the other pairs of the two languages predict, 1 for the highest, and
the mean of that loss. Sentences that are easy to predict, such as copies, are at the other end."""


def rank_table(
    study: Study,
    found: Mapping[tuple[str, str], Mapping[int, Ranks]],
    cell: Callable[[str, Sequence[Ranks]], str],
) -> str:
    """Return a Markdown table: a cell for each damaged pair, a line per run."""
    titles = [
        f"{_name(defect)}: {defect.kind.replace('_', ' ')} {defect.language}".rstrip()
        for defect in study.defects
    ]
    lines = [
        f"| run | corpus | seeds | {' | '.join(titles)} |",
        "|---|---|---:|" + "---|" * len(titles),
    ]
    for (corpus, kind), by_seed in found.items():
        cells = [cell(_name(defect), list(by_seed.values())) for defect in study.defects]
        start = [KINDS[kind][0], CORPORA[corpus], str(len(by_seed))]
        lines.append(f"| {' | '.join([*start, *cells])} |")
    return "\n".join(lines)


def _name(defect: Defect) -> str:
    """Return the name of a pair in the packed dataset, where languages are sorted."""
    return "-".join(sorted(defect.pair.split("-")))


def _cell(pair: str, some: Sequence[Ranks]) -> str:
    places = ", ".join(str(one.place(pair)) for one in some)
    losses = [loss for one in some if (loss := one.losses[pair]) is not None]
    mean = f"{statistics.fmean(losses):.3f}" if losses else "not seen"
    return f"{places}; {mean}; {statistics.fmean(one.ratios[pair] for one in some):.2f}"


def _excess_cell(pair: str, some: Sequence[Ranks]) -> str:
    places = [one.place_by_excess(pair) for one in some]
    if None in places:
        return "no other pairs"
    mean = statistics.fmean(one.excess[pair] for one in some)
    return f"{', '.join(map(str, places))}; {mean:+.2f}"


def ends(by_seed: Mapping[int, Mapping[str, float]], number: int = NUM_ENDS) -> str:
    """Return a Markdown table: the pairs at both ends under each seed, the most extreme first.

    Args:
      by_seed: values of the pairs, in the order of their ranks.
      number: pairs at an end.
    """
    lines = ["| seed | highest | lowest |", "|---:|---|---|"]
    for seed, values in by_seed.items():
        pairs = list(values)
        first, last = (
            ", ".join(f"{pair} {values[pair]:.2f}" for pair in some[:number])
            for some in (pairs, pairs[::-1])
        )
        lines.append(f"| {seed} | {first} | {last} |")
    return "\n".join(lines)


def score_table(study: Study, some: Sequence[tuple[str, str]]) -> str:
    """Return a Markdown table of the held-out scores: mean (least to largest) over the seeds."""
    values = {
        one: [
            artifacts.read_json(path)
            for seed in study.seeds
            if (path := study.run(*one, seed) / "record.json").exists()
        ]
        for one in some
    }
    lines = [
        f"| run | corpus | {' | '.join(title for title, _ in SCORES.values())} |",
        "|---|---|" + "---:|" * len(SCORES),
    ]
    for (corpus, kind), records in values.items():
        cells = [
            "{} ({})".format(*spread([record[name] for record in records], form))
            for name, (_, form) in SCORES.items()
        ]
        lines.append(f"| {KINDS[kind][0]} | {CORPORA[corpus]} | {' | '.join(cells)} |")
    differences = [
        detectable([[record[name] for record in one] for one in values.values()], form)
        for name, (_, form) in SCORES.items()
    ]
    return "\n".join([*lines, f"| detectable | | {' | '.join(differences)} |"])


def main(_) -> None:
    given = flags.FLAGS
    study = Study(
        given.config,
        pathlib.Path(given.workdir),
        given.folder,
        planted_defects.defects_of(given.shuffled, given.near_copies, given.wrong_language),
        [int(seed) for seed in given.seeds],
        given.workers,
        given.pin,
    )
    if not given.report_only:
        runs.claim(study.workdir, given.config)
        do_study(study)
    print(write_report(study))
    print(f"report: {(study.workdir / 'report' / 'report.md').absolute()}")


if __name__ == "__main__":
    runs.define_flags("Of all runs.", "Of parameters, samples and order of the data.")
    flags.DEFINE_string("folder", "tatoeba_bitext", "Folder of the pair files, below corpus.root.")
    flags.DEFINE_list("shuffled", ["de-fr"], "Pairs whose sentences change places.")
    flags.DEFINE_list("near_copies", ["en-nl"], "Pairs whose second side becomes nearly the first.")
    flags.DEFINE_list("wrong_language", ["es-it:fi"], "Pairs and languages, de-en:fi.")
    entry_point.run(main)
