"""Grids of hyperparameters from the papers, for --grid of the launchers.

    python -m xlm.launch.start --config=configs/finetune/xnli.py:DATA --workdir=/runs/xnli \\
        --stages=finetune --config.init_from=CHECKPOINT --grid=vocap --seeds=5

starts a run for each value (or combination, with several keys) and seed.
"""

_RATE, _BATCH, _EPOCHS = "optimizer.learning_rate", "train.batch_size", "train.epochs"

_VOCAP = {
    **dict.fromkeys(("xnli", "pawsx"), (f"{_RATE}=7e-6,1e-5",)),
    **dict.fromkeys(("udpos", "wikiann"), (f"{_RATE}=1e-5,2e-5",)),
    **dict.fromkeys(("xquad", "mlqa"), (f"{_RATE}=2e-5,3e-5",)),
    "tydiqa": (f"{_RATE}=2e-5,3e-5", f"{_EPOCHS}=6,8"),
}
_XYLENT = {
    "xnli": (f"{_RATE}=5e-6,6e-6,7e-6,8e-6",),
    "pawsx": (f"{_RATE}=8e-6,9e-6,1e-5,2e-5",),
    "xquad": (f"{_RATE}=2e-5,3e-5,4e-5",),
    "mlqa": (f"{_RATE}=2e-5,3e-5,4e-5", f"{_EPOCHS}=2,3,4"),
    "tydiqa": (f"{_RATE}=2e-5,3e-5,4e-5", f"{_EPOCHS}=10,20,40"),
}
_TUNED = ("xnli", "pawsx", "udpos", "wikiann", "xquad", "mlqa", "tydiqa")
# POS and NER have no labels in other languages (VECO, Section 4.1).
_TRANSLATED = ("xnli", "pawsx", "xquad", "mlqa", "tydiqa")
_VECO = (f"{_RATE}=1e-5,2e-5,3e-5", f"{_BATCH}=16,32,64", f"{_EPOCHS}=3,5,10")
_VECO_TRANSLATED = (f"{_RATE}=3e-6,5e-6,1e-5", *_VECO[1:])

# By name and task: sweeps as --sweep takes them.
GRIDS: dict[str, dict[str, tuple[str, ...]]] = {
    "vocap": _VOCAP,  # VoCap, appendix C; five seeds
    "xylent": _XYLENT,  # XY-LENT, Table 15; batches of 32
    "veco": dict.fromkeys(_TUNED, _VECO),  # VECO, Table 9, cross-lingual transfer
    "veco_translate_train": dict.fromkeys(_TRANSLATED, _VECO_TRANSLATED),  # and translate-train-all
}
