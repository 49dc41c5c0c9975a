"""The shared part of all configs of fine-tuning; each config adds its data and other values.

Batch size, warm-up and weight decay come from XY-LENT, Table 15 (for XNLI it has 12,500 steps of
warm-up, a tenth of ten epochs). Learning rates and epochs come from VoCap's appendix C, Adam's
values, which it lacks, from VECO, Table 9. None of the three has dropout and clipping of
fine-tuning. English development data select the parameters, as in XTREME (Hu et al. 2020).
--config.task.selection=all_languages takes the best average over all languages, as VoCap (appendix
C) and VECO (appendix B). If the development data serve as test data, it selects on test data, and
results and tables have a note. VoCap selects XQuAD on MLQA's development set, and TyDiQA-GoldP on
its English test set.
"""

from ml_collections import ConfigDict

from xlm.experiment.schema import default_config
from xlm.experiment.task_schema import family_of

TFDS = "tfds"
Patterns = str | tuple[str, ...]


def base(
    name: str, arg: str, *, train: Patterns = (), validation: Patterns = (), test: Patterns = ()
) -> ConfigDict:
    """Return the config of a task; `arg` is the folder with the data, or "tfds".

    `train`, `validation` and `test` are patterns of files below the folder. Without `test`, the
    development data serve as test data too.
    """
    config = default_config(family_of(name))
    config.task.update(name=name, root="" if arg == TFDS else arg)
    patterns = {"train": train, "validation": validation, "test": test or validation}
    for split, given in patterns.items():
        files = (given,) if isinstance(given, str) else given
        config.task[split] = (TFDS,) if files and arg == TFDS else files
    return config
