"""The downstream tasks: what each predicts, in which languages, and how it is measured."""

import dataclasses
import math
from collections.abc import Mapping

KINDS = ("classification", "regression", "tagging", "extractive_qa", "retrieval", "mining")

_ENTITIES = ("O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC")
_NLI = ("entailment", "neutral", "contradiction")
_TWO_WAY_NLI = ("entailment", "not_entailment")
_YES_NO = ("0", "1")
# The translations of MNLI that come with XNLI call this label so.
_OTHER_SPELLINGS = {"contradictory": "contradiction"}
# What tensorflow-datasets writes for the hidden labels of test sets.
_NO_LABEL = "-1"


@dataclasses.dataclass(frozen=True)
class Task:
    """A downstream task.

    Attributes:
      name: as in `TASKS`.
      kind: one of `KINDS`.
      labels: the classes or tags, in the dataset's order; a label may also be given by number.
      languages: those of the dataset that XTREME or the dataset's paper reports, sorted.
      metrics: what is computed; the first one is reported.
      tfds: by split, the pattern that reads it from tensorflow-datasets, "tfds:NAME:SPLIT".
      tfds_codes: what tensorflow-datasets calls a language, where that is not its code.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    languages: tuple[str, ...]
    metrics: tuple[str, ...]
    tfds: Mapping[str, str] | None
    tfds_codes: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def label(self, text: str, where: str) -> int | float | None:
        """The label that `text` stands for: a score, an index into `labels`, None if hidden.

        Raises:
          ValueError: the task has no such label; `where` names file and line.
        """
        text = _OTHER_SPELLINGS.get(text, text)
        if text == _NO_LABEL and self.kind != "tagging":
            return None
        if self.kind == "regression":
            try:
                value = float(text)
            except ValueError:
                value = math.nan
            if not math.isfinite(value):
                raise ValueError(
                    f"{where}: the score {text!r} is no number; {self.name} needs one, such as 3.8"
                )
            return value
        if text in self.labels:
            return self.labels.index(text)
        if text.isdecimal() and int(text) < len(self.labels):
            return int(text)
        raise ValueError(
            f"{where}: {self.name} has no label {text!r}; its labels are "
            f"{', '.join(self.labels)} or 0 to {len(self.labels) - 1}; correct the label, or "
            "choose the task that the file is of"
        )


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _glue(
    name: str,
    labels: tuple[str, ...],
    metrics: tuple[str, ...],
    splits: tuple[str, ...] = ("train", "validation", "test"),
) -> Task:
    tfds = {split: f"tfds:glue/{name}:{split}" for split in splits}
    kind = "classification" if labels else "regression"
    return Task(name, kind, labels, ("en",), metrics, tfds)


# Universal POS tags, version 2.
_UPOS = _words("ADJ ADP ADV AUX CCONJ DET INTJ NOUN NUM PART PRON PROPN PUNCT SCONJ SYM VERB X")

_ALL = [
    Task(
        "xnli",
        "classification",
        _NLI,
        _words("ar bg de el en es fr hi ru sw th tr ur vi zh"),
        ("accuracy",),
        {
            "train": "tfds:glue/mnli:train",
            "translate_train": "tfds:xtreme_xnli:train",
            "validation": "tfds:xnli:validation",
            "test": "tfds:xnli:test",
        },
    ),
    Task(
        "pawsx",
        "classification",
        _YES_NO,
        _words("de en es fr ja ko zh"),
        ("accuracy",),
        {
            "train": "tfds:paws_x_wiki/{language}:train",
            "translate_train": "tfds:xtreme_pawsx/{language}:train",
            "validation": "tfds:paws_x_wiki/{language}:validation",
            "test": "tfds:paws_x_wiki/{language}:test",
        },
    ),
    Task(
        "americasnli",
        "classification",
        _NLI,
        _words("aym bzd cni gn hch nah oto quy shp tar"),
        ("accuracy",),
        {"train": "tfds:glue/mnli:train"},
    ),
    Task(
        "udpos",
        "tagging",
        _UPOS,
        _words(
            "af ar bg de el en es et eu fa fi fr he hi hu id it ja kk ko mr nl pt ru ta te th tl "
            "tr ur vi yo zh"
        ),
        ("f1", "accuracy"),
        {
            "train": "tfds:xtreme_pos/xtreme_pos_{language}:train",
            "validation": "tfds:xtreme_pos/xtreme_pos_{language}:dev",
            "test": "tfds:xtreme_pos/xtreme_pos_{language}:test",
        },
        # tensorflow-datasets reads the Tagalog treebanks for "ta" and the Tamil ones for "tl".
        {"ta": "tl", "tl": "ta"},
    ),
    Task(
        "wikiann",
        "tagging",
        _ENTITIES,
        _words(
            "af ar bg bn de el en es et eu fa fi fr he hi hu id it ja jv ka kk ko ml mr ms my nl "
            "pt ru sw ta te th tl tr ur vi yo zh"
        ),
        ("f1", "precision", "recall"),
        {
            "train": "tfds:wikiann/{language}:train",
            "validation": "tfds:wikiann/{language}:validation",
            "test": "tfds:wikiann/{language}:test",
        },
    ),
    Task(
        "xquad",
        "extractive_qa",
        (),
        _words("ar de el en es hi ru th tr vi zh"),
        ("f1", "exact_match"),
        {
            "train": "tfds:squad/v1.1:train",
            "translate_train": "tfds:xquad/{language}:translate-train",
            "validation": "tfds:squad/v1.1:validation",
            "test": "tfds:xquad/{language}:test",
        },
    ),
    Task(
        "mlqa",
        "extractive_qa",
        (),
        _words("ar de en es hi vi zh"),
        ("f1", "exact_match"),
        {
            "train": "tfds:squad/v1.1:train",
            "translate_train": "tfds:xquad/{language}:translate-train",
            "validation": "tfds:mlqa/{language}:validation",
            "test": "tfds:mlqa/{language}:test",
        },
    ),
    Task(
        "tydiqa",
        "extractive_qa",
        (),
        _words("ar bn en fi id ko ru sw te"),
        ("f1", "exact_match"),
        {
            "train": "tfds:tydi_qa/goldp:train",
            "translate_train": "tfds:tydi_qa/goldp:translate-train-{language}",
            "validation": "tfds:tydi_qa/goldp:validation-{language}",
            "test": "tfds:tydi_qa/goldp:validation-{language}",
        },
    ),
    Task(
        "squad",
        "extractive_qa",
        (),
        ("en",),
        ("f1", "exact_match"),
        {"train": "tfds:squad/v1.1:train", "validation": "tfds:squad/v1.1:validation"},
    ),
    Task(
        "squad2",
        "extractive_qa",
        (),
        ("en",),
        ("f1", "exact_match"),
        {"train": "tfds:squad/v2.0:train", "validation": "tfds:squad/v2.0:validation"},
    ),
    # tensorflow-datasets has the pairs of BUCC alone, not the text that they are to be found in.
    Task("bucc", "mining", (), _words("de fr ru zh"), ("f1", "precision", "recall"), None),
    Task(
        "tatoeba",
        "retrieval",
        (),
        _words(
            "af ar bg bn de el es et eu fa fi fr he hi hu id it ja jv ka kk ko ml mr nl pt ru sw "
            "ta te th tl tr ur vi zh"
        ),
        ("accuracy",),
        {"test": "tfds:tatoeba/tatoeba_{language}:train"},
    ),
    _glue("cola", _YES_NO, ("matthews",)),
    _glue("sst2", _YES_NO, ("accuracy",)),
    _glue("mrpc", _YES_NO, ("f1", "accuracy")),
    _glue("stsb", (), ("pearson", "spearman")),
    _glue("qqp", _YES_NO, ("f1", "accuracy")),
    _glue(
        "mnli",
        _NLI,
        ("accuracy",),
        (
            "train",
            "validation_matched",
            "validation_mismatched",
            "test_matched",
            "test_mismatched",
        ),
    ),
    _glue("qnli", _TWO_WAY_NLI, ("accuracy",)),
    _glue("rte", _TWO_WAY_NLI, ("accuracy",)),
]

TASKS: dict[str, Task] = {task.name: task for task in _ALL}
