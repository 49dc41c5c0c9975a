"""The part that all configs of fine-tuning share. Each of them sets the data and what differs.

Batch size, warm-up and weight decay are those of XY-LENT, Table 15 (of XNLI it has 12,500 steps of
warm-up, a tenth of ten epochs), and Adam's those of VECO, Table 9: VoCap's appendix C, which
learning rates and epochs are from, states none. Dropout and clipping of fine-tuning are in none
of the three. The parameters that do best on English development data are kept, as in XTREME (Hu et
al. 2020). VoCap (appendix C) and VECO (appendix B) keep those with the best average over the
development sets of all languages:
--config.task.selection=all_languages, which selects on the test data where a config says that the
development data serve as such; results and tables then say so. VoCap selects XQuAD on MLQA's
development set, and TyDiQA-GoldP on its English test set.
"""

from ml_collections import ConfigDict

from xlm.experiment.schema import default_config, family_of

TFDS = "tfds"


def base(
    name: str,
    arg: str,
    *,
    train: tuple[str, ...] = (),
    validation: tuple[str, ...] = (),
    test: tuple[str, ...] = (),
) -> ConfigDict:
    """The config of a task.

    Args:
      arg: the folder with the data, or "tfds" for tensorflow-datasets.
      train, validation, test: patterns of files below the folder; () for a split not used.
    """
    patterns = {"train": train, "validation": validation, "test": test}
    if arg == TFDS:
        patterns = {split: (TFDS,) if files else () for split, files in patterns.items()}
    config = default_config(family_of(name))
    config.task.name = name
    config.task.root = "" if arg == TFDS else arg
    config.task.update(patterns)
    return config
