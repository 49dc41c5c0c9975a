"""Add pieces for further languages to a tokenizer, and rows for them to its model.

    xlm extend-tokenizer --tokenizer=PATH --text=TEXT --pieces=4000 --output=FOLDER \\
        [--old_text=OLD] [--model=MODEL]

PATH is a SentencePiece model, a tokenizer.json of Hugging Face, or a folder with one: Unigram, BPE
with byte fallback, or byte-level BPE. TEXT is a folder of <lang>.txt or <lang>.jsonl files of the
new languages, one sentence a line. A held-out part counts tokens. All old ids stay, and the new
ones follow. OLD is text of languages known before: the command prints how many of its sentences get
another segmentation. MODEL is the folder of a model with this tokenizer, in safetensors, whose
embeddings grow. docs/existing_tokenizer.md has more.
"""

import pathlib

from absl import flags

from input_pipeline.corpus import Corpus, load_corpus
from input_pipeline.sources import CorpusSpec
from xlm.common import outputs
from xlm.interop import extended

_TOKENIZER = flags.DEFINE_string("tokenizer", None, "The tokenizer; by default, the model's.")
_MODEL = flags.DEFINE_string("model", None, "The folder of the tokenizer's model.")
_TEXT = flags.DEFINE_string("text", None, "Folder of text of the new languages.")
_PIECES = flags.DEFINE_integer("pieces", None, "Pieces to add.", lower_bound=1)
_LANGUAGES = flags.DEFINE_list("languages", [], "Languages of --text to use; all by default.")
_ALPHA = flags.DEFINE_float(
    "alpha", 0.0, "Exponent of the languages' amounts of text; 0 for equal shares.", lower_bound=0
)
_COVERAGE = flags.DEFINE_float(
    "character_coverage", 0.9995, "Share of a language's characters that must be pieces.",
    lower_bound=0, upper_bound=1,
)  # fmt: skip
_HELDOUT = flags.DEFINE_float(
    "heldout_fraction", 0.05, "Share of the text to count tokens on.", lower_bound=0,
    upper_bound=0.5,
)  # fmt: skip
_OLD_TEXT = flags.DEFINE_string("old_text", None, "Folder of text of languages known before.")
_OUTPUT = outputs.define_flags("The folder to write.")

OPTIONS = {"required": ("text", "pieces", "output")}


def main(_) -> None:
    path = _TOKENIZER.value or _MODEL.value
    if path is None:
        raise ValueError("give --tokenizer, or --model, the folder of a model and its tokenizer")
    inputs = [one for one in (path, _MODEL.value, _TEXT.value, _OLD_TEXT.value) if one]
    with outputs.folder(_OUTPUT.value, inputs) as aside:
        corpus = _read(_TEXT.value, _HELDOUT.value, tuple(_LANGUAGES.value))
        old = _read(_OLD_TEXT.value, 0.0) if _OLD_TEXT.value else None
        texts = extended.Texts(
            train={one: corpus.sentences(one) for one in corpus.train},
            heldout={one: corpus.sentences(one, "heldout") for one in corpus.heldout},
            old={one: old.sentences(one) for one in old.train} if old else {},
        )
        found = extended.extend(
            pathlib.Path(path), aside, _PIECES.value, texts, alpha=_ALPHA.value,
            character_coverage=_COVERAGE.value, model=_MODEL.value and pathlib.Path(_MODEL.value),
        )  # fmt: skip
    last = found.first_id + len(found.pieces) - 1
    print(found.report)
    print(f"{len(found.pieces)} pieces, ids {found.first_id} to {last}: {_OUTPUT.value}")


def _read(root: str, heldout: float, languages: tuple[str, ...] = ()) -> Corpus:
    spec = CorpusSpec(root=root, text=("",), languages=languages, heldout_fraction=heldout)
    return load_corpus(spec)
