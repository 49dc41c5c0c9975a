"""The command `xlm VERB`, which imports only what the verb needs."""

import importlib
import importlib.util
import os
import signal
import sys
from typing import NoReturn

from xlm.common import interruption

# Verb -> module of this package. The first lines of their docstrings are the overview.
VERBS = {
    "build-vocab": "build_vocab",
    "prepare": "prepare_data",
    "train": "train",
    "evaluate": "evaluate",
    "report": "report",
    "finetune": "finetune",
    "predict": "predict",
    "translate": "translate",
    "back-translate": "back_translate",
    "encode": "encode",
    "search": "search",
    "mine": "mine_negatives",
    "fetch": "fetch_text",
    "inspect": "inspect_text",
    "clean": "clean_text",
    "count": "count_text",
    "score-tokenizer": "score_tokenizer",
    "export-tokenizer": "export_tokenizer",
    "extend-tokenizer": "extend_tokenizer",
    "estimate": "estimate",
    "pair-sampling": "pair_sampling",
    "pair-weights": "pair_weights",
    "import": "import_model",
    "export": "export_model",
    "prune": "prune_model",
    "merge": "merge_models",
    "table": "xtreme_table",
}


def main(verb: str = "") -> None:
    """Run `verb`, or the first argument of this process, with the flags of this process."""
    if not verb:
        has_flags_first = sys.argv[1:] and sys.argv[1].startswith("-")
        places = (i for i, one in enumerate(sys.argv) if has_flags_first and one in VERBS)
        place = next(places, 1)
        verb = sys.argv.pop(place) if len(sys.argv) > 1 else "--help"
        if verb in ("--help", "-h", "help"):
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # the reader may stop early
            print("xlm VERB --help explains a verb. All take --quiet and --verbose.\n")
            for one, module in VERBS.items():
                print(f"  {one:<18}{_purpose(module)}")
            return
        verb = {"estimate-memory": "estimate"}.get(verb, verb)  # its former name
        if verb not in VERBS:
            _fail(f"xlm has no verb {verb!r}; it has {', '.join(VERBS)}", 2)
        sys.argv[0] = f"xlm {verb}"
    # XLA and TensorFlow read it at their import. XLA logs slow compilation as an error. Real errors
    # reach Python, except those of other hosts.
    level = "0" if "--verbose" in sys.argv else "2" if "--distributed" in sys.argv else "3"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", level)
    interruption.listen()
    try:
        command = importlib.import_module(f"xlm.cli.{VERBS[verb]}")
        from xlm.common import entry_point  # needs absl
    except KeyboardInterrupt:
        _fail("interrupted; the same command resumes what it has saved", 130)
    except interruption.Terminated:
        _fail("terminated; the same command resumes what it has saved", 143)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] in ("xlm", "vocap", "knn_sampling", "input_pipeline"):
            raise
        of_vocabularies = (
            "build-vocab", "clean", "count", "extend-tokenizer", "inspect", "score-tokenizer",
        )  # fmt: skip
        extra = "vocab" if verb in of_vocabularies else "train"
        _fail(f"{verb} needs {error.name}: pip install '.[{extra}]' in a checkout", 2)
    entry_point.run(command.main, **command.OPTIONS)


def _purpose(module: str) -> str:
    """Return the first line of a command's docstring without the seconds of importing it."""
    found = importlib.util.find_spec(f"xlm.cli.{module}")
    assert found and found.origin
    with open(found.origin, encoding="utf-8") as file:
        return file.readline().strip().strip('"')


def _fail(message: str, status: int) -> NoReturn:
    print(f"error: {message}", file=sys.stderr, flush=True)
    sys.exit(status)
