"""XY-LENT in small: learning, ablations, the arms of Table 2, sampling of pairs, fine-tuning.

    python -m studies.xy_lent --config=configs/xy_lent.py:small,DATA --workdir=runs/xy_lent

Pre-trains the arms of `xy_lent_settings` for equal steps under every seed, by the ordinary stages.
An arm is --config with the keys changed that `configs.xy_lent.SMALL` gives it; arms with equal
`corpus`, `vocab` and `store` share a vocabulary and packed rows. An arm that has been trained is
evaluated: generator or masked LM by exact loss, discriminators by their AUC on their own
generator's samples, on unigram samples, and on those of one generator for all, that of `small`
under seed 0, which is therefore always trained. Encoders of another vocabulary have no
score on the latter. The arms of `TUNED` groups are then fine-tuned on English, see
`studies.xy_lent_tasks`.

Tables and plots go to WORKDIR/report. If it is run again after a stop, it completes missing runs,
and pre-trains only where one is missing, see `studies.records`: what an arm gives under a seed is
whole before the next one begins. --arms, --seeds and --tasks choose, --report_only prints the
tables of finished runs.

Hardware: 2 CPU cores, some hours; --workers=1 --nopin on an accelerator.
"""

import contextlib
import functools
import pathlib
import threading
from typing import Any

from absl import flags

from common import artifacts, entry_point
from configs.xy_lent import SMALL
from studies import runs, xy_lent_report, xy_lent_tasks
from studies.runs import Job
from studies.xy_lent_settings import GROUPS, LABELS, REFERENCE, Study, data_name

_FROZEN = (REFERENCE, 0)  # arm and seed of the generator that all discriminators are scored on
# Whichever arm needs it first trains it, and the others wait.
_frozen_in_training = threading.Lock()


def prepare(study: Study, arm: str) -> bool:
    """Build the vocabulary and the packed rows of an arm, without finished stages; return True."""
    for script in ("build_vocab.py", "prepare_data.py"):
        study.call(script, study.data(arm), SMALL[data_name(arm)])
    return True


def pretrain(study: Study, arm: str, seed: int) -> bool:
    """Train an arm under a seed that a run needs; return whether there was anything to do."""
    folder = study.encoder(arm, seed)
    with _frozen_in_training if (arm, seed) == _FROZEN else contextlib.nullcontext():
        if (folder / "train" / "DONE").exists() or not is_needed(study, arm, seed):
            return False
        runs.share_data(study.data(arm), folder)
        study.call("train.py", folder, _change(arm, seed))
    return True


def evaluate(study: Study, arm: str, seed: int) -> bool:
    """Evaluate an arm that has been trained; return whether there was anything to do."""
    folder = study.encoder(arm, seed)
    if not (folder / "train" / "DONE").exists() or study.record(arm, seed).exists():
        return False
    change = _change(arm, seed)
    if _has_frozen_score(study, arm):
        pretrain(study, *_FROZEN)
        change["evaluation.frozen_generator"] = study.encoder(*_FROZEN).absolute()
    study.call("evaluate.py", folder, change)
    xy_lent_report.write_record(study, arm, seed)
    return True


def is_needed(study: Study, arm: str, seed: int) -> bool:
    """Whether something that takes the encoder of an arm has no results yet."""
    is_evaluated = study.record(arm, seed).exists()
    if (arm, seed) == _FROZEN:
        scored = [one for one in study.arms if _has_frozen_score(study, one)]
        if not all(
            study.record(one, any_seed).exists() for one in scored for any_seed in study.seeds
        ):
            return True
    if arm not in study.arms or seed not in study.seeds:
        return False
    return not is_evaluated or not xy_lent_tasks.are_finished(study, arm, seed)


def _has_frozen_score(study: Study, arm: str) -> bool:
    """Whether an arm has a discriminator, on the vocabulary of the reference."""
    has_discriminator = study.config_of(arm).objective == "replaced_token"
    return has_discriminator and data_name(arm) == data_name(REFERENCE)


def _change(arm: str, seed: int) -> dict[str, Any]:
    return {**SMALL[arm], "train.seed": seed}


def do_arm(study: Study, arm: str, seed: int) -> bool:
    """Train, evaluate and fine-tune an arm under a seed; return whether anything was to do."""
    is_trained, is_evaluated = pretrain(study, arm, seed), evaluate(study, arm, seed)
    return xy_lent_tasks.do_tasks(study, arm, seed) or is_trained or is_evaluated


def do_study(study: Study) -> None:
    """Execute all runs, seed by seed.

    Raises:
      ValueError: runs failed; all others have been executed.
    """
    first_of_data = {data_name(arm): arm for arm in (REFERENCE, *study.arms)}
    errors = study.do(
        Job(f"data of {name}", functools.partial(prepare, study, arm))
        for name, arm in first_of_data.items()
    )
    for seed in study.seeds:
        errors += study.do(
            Job(f"{arm}, seed {seed}", functools.partial(do_arm, study, arm, seed))
            for arm in study.arms
        )
    if errors:
        raise ValueError(f"{len(errors)} runs failed: {errors[0]}")


def write_report(study: Study) -> str:
    """Write the tables and plots of finished runs; return the text.

    Raises:
      ValueError: no run has finished.
    """
    folder = study.workdir / "report"
    found = {arm: xy_lent_report.read_encoders(study, arm) for arm in study.arms}
    finished = [encoder for by_seed in found.values() for encoder in by_seed.values()]
    if not finished:
        raise ValueError(f"{study.workdir} has no finished runs to report")
    note = xy_lent_report.data_note(study, finished[0])
    parts = ["# XY-LENT in small", note, xy_lent_report.NOTE]
    for group, (title, arms) in GROUPS.items():
        encoders = {arm: found[arm] for arm in arms if found.get(arm)}
        if not encoders or (len(encoders) == 1 and len(arms) > 1):
            continue
        xy_lent_report.plot_curves(encoders, folder / f"{group}.png")
        parts += [
            f"## {title}",
            xy_lent_report.encoder_table(encoders),
            f"AUC on unigram samples by step:\n\n{xy_lent_report.curve_table(encoders)}",
            f"![AUC and loss by step]({group}.png)",
        ]
        if group == "learning":
            parts.append(xy_lent_report.targets(encoders[REFERENCE]))
        parts += xy_lent_tasks.tables(study, arms)
    text = "\n\n".join([*parts, *xy_lent_tasks.notes(study)]) + "\n"
    artifacts.write_text(folder / "report.md", text)
    return text


def main(_) -> None:
    given = flags.FLAGS
    study = Study(
        given.config,
        pathlib.Path(given.workdir),
        runs.chosen("arms", given.arms, LABELS),
        [int(seed) for seed in given.seeds],
        runs.chosen("tasks", given.tasks, xy_lent_tasks.TASKS),
        given.rates,
        given.workers,
        given.pin,
    )
    if not given.report_only:
        runs.claim(study.workdir, given.config)
        do_study(study)
    print(write_report(study))
    print(f"report: {(study.workdir / 'report' / 'report.md').absolute()}")


if __name__ == "__main__":
    runs.define_flags("Of the arm `small`.", "Of pre-training and fine-tuning.")
    flags.DEFINE_list("arms", list(LABELS), "Arms to run.")
    flags.DEFINE_list("tasks", list(xy_lent_tasks.TASKS), "Tasks to fine-tune on; none if empty.")
    flags.DEFINE_list("rates", ["3e-4", "1e-3", "3e-3"], "Learning rates of fine-tuning.")
    entry_point.run(main)
