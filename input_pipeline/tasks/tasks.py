"""The downstream tasks, a record each: data, labels, languages, metrics and rules of scoring.

A new task of a known kind is an entry of `_ALL` and a config in configs/finetune/. No other code
depends on a task's name.
"""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from xlm.common import tables

_ENTITIES = ("O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC")
_NLI = ("entailment", "neutral", "contradiction")
_TWO_WAY_NLI = ("entailment", "not_entailment")
_YES_NO = ("0", "1")
_TRANSLATION_METRICS = ("bleu", "chrf", "chrf++", "tokenized_bleu")
_WAYS = ("forward", "backward")  # from the query to the passage, and back
_RANKING = ("mrr", *(f"{x}_{y}" for x in _WAYS for y in ("accuracy", "mrr", "ndcg")))
_SPLITS = ("train", "validation", "test")
# Spelling of XNLI's translations of MNLI.
_OTHER_SPELLINGS = {"contradictory": "contradiction"}
# Hidden labels of test sets in tensorflow-datasets.
_NO_LABEL = "-1"
_WHOLE_NUMBER = re.compile(r"-?[0-9]+\.0+")
_NAMED = 20  # labels that a message names
NO_SPAN = (
    'not a tag of a span such as O, B, I or B-NAME; to score each word on its own, write "words," '
    "before the folder: --config=configs/finetune/tags.py:words,DATA"
)
# Tag of a word in or outside a span, in IOB, IOB2, BIOES, BILOU or BMES.
_SPAN_TAG = re.compile("O|[BIESLUM](-.+)?")


class Columns(NamedTuple):
    """Possible names of the columns of a file, the best first; `pair` is () for one text.

    Only a user's own files have `id` and `group`, which may be ().
    """

    text: tuple[str, ...]
    pair: tuple[str, ...]
    label: tuple[str, ...]
    id: tuple[str, ...] = ()
    group: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Task:
    """A downstream task.

    Attributes:
      kind: of `xlm.experiment.task_kinds`, such as "tagging": how to read, train and score it.
      labels: classes or tags in the dataset's order, also by number in files; () for a regression.
      languages: sorted, as XTREME or the dataset's paper reports them; directions, or () for any.
      metrics: all computed metrics; reports have the first.
      tfds: "tfds:NAME:SPLIT" in tensorflow-datasets, by split.
      tfds_codes: names of languages in tensorflow-datasets, if they are not their codes.
      tfds_texts: features of the text and the second text, None for a single one.
      headerless: columns of TSV files without a header, chosen by their number.
      has_broken_lines: the distributed files have a few broken lines, which everyone leaves out
        (tensorflow-datasets, Hugging Face).
      skips_underscores: leave out words with the form or tag "_" (CoNLL-U).
      id_languages: languages by the beginning of an example's id, up to "-".
      scorer: of tagging: "entities", "part_of_speech" as XTREME scores it, or "words".
      normalizer: of answers: "squad" or "mlqa", the rules of their evaluation scripts.
      has_unanswerable: "no answer" may be right.
      xtreme_name: name in XTREME's submissions, or "".
      label_separator: between the labels of a text with several; "" for none.
      is_own: data are a user's own: the training data name the labels, and none is hidden.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    languages: tuple[str, ...]
    metrics: tuple[str, ...]
    tfds: Mapping[str, str] | None
    tfds_codes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    tfds_texts: tuple[str, str | None] = ("sentence1", "sentence2")
    tfds_label: str = "label"
    columns: Columns | None = None
    headerless: tuple[tuple[str, ...], ...] = ()
    has_broken_lines: bool = False
    skips_underscores: bool = False
    id_languages: Mapping[str, str] = dataclasses.field(default_factory=dict)
    scorer: str = "entities"
    normalizer: str = "squad"
    has_unanswerable: bool = False
    xtreme_name: str = ""
    label_separator: str = ","
    is_own: bool = False

    @property
    def is_of_pairs(self) -> bool:
        """Whether it is classification or regression of pairs of texts."""
        return self.is_of_texts and self.columns is not None and bool(self.columns.pair)

    @property
    def is_of_texts(self) -> bool:
        """Whether it gives a text or pair a class, a number, or a set of labels."""
        return self.kind in ("classification", "regression", "multilabel")

    @property
    def has_label_sets(self) -> bool:
        """Whether a text has any number of labels."""
        return self.kind == "multilabel"

    @property
    def is_search(self) -> bool:
        """Whether a pre-trained encoder searches for translations, without training."""
        return self.kind in ("retrieval", "mining")

    @property
    def is_translation(self) -> bool:
        """Whether an encoder and decoder translate text, see `xlm.experiment.translation`."""
        return self.kind == "translation"

    @property
    def is_embedding(self) -> bool:
        """Whether an encoder learns sentence vectors from texts that belong together."""
        return self.kind in ("embedding", "similarity")

    @property
    def has_scored_pairs(self) -> bool:
        """Whether a column says how alike the texts of a pair are."""
        return self.kind == "similarity"

    @property
    def is_of_words(self) -> bool:
        """Whether it gives each word a tag."""
        return self.kind == "tagging"

    @property
    def has_spans(self) -> bool:
        """Whether it is tagging of spans, as of names."""
        return self.is_of_words and self.scorer == "entities"

    def with_labels(self, labels: tuple[str, ...], columns: Columns) -> "Task":
        """Return the task on a user's own data, with their labels and the columns of their files.

        `labels` are in the order of the classes, () if unknown or numbers. Raise ValueError if
        there is only one, one is repeated, or, for a task on spans, one is not a tag of a span.
        """
        if labels and (len(labels) < 2 or len(set(labels)) < len(labels)):
            raise ValueError(
                f"{self.name}: the labels are {tables.named(labels, _NAMED)}; they must be two or "
                "more, each once: correct task.labels, or task.label_column"
            )
        wrong = [one for one in labels if not is_span_tag(one)]
        if wrong and self.has_spans:
            raise ValueError(f"{self.name}: {wrong[0]!r} is {NO_SPAN}")
        return dataclasses.replace(self, labels=labels, columns=columns)

    def label(self, text: str | list[str], where: str) -> int | float | tuple[int, ...] | None:
        """Return an index into `labels`, indices for a list, a score, or None if hidden.

        Raise ValueError if the task has no such label; `where` names file and line.
        """
        if isinstance(text, list):
            return tuple(sorted({self.class_index(one, where) for one in text}))
        if text == _NO_LABEL and not self.is_own:
            return None
        if self.labels:
            spelled = text if self.is_own else _OTHER_SPELLINGS.get(text, text)
            return self.class_index(spelled, where)
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise ValueError(
                f"{where}: the score {text!r} is not a number; {self.name} needs one, such as 3.8, "
                "with a point and without other signs"
            )
        return value

    def class_index(self, text: str, where: str) -> int:
        """Return the index into `labels` of a class or tag; errors as of `label`."""
        if text in self.labels:
            return self.labels.index(text)
        if self.is_own and (canonical := canonical_label(text)) in self.labels:
            return self.labels.index(canonical)
        if self.is_own:
            raise ValueError(
                f"{where}: no label {text[:40]!r} in the training data, whose labels are "
                f"{tables.named(self.labels, _NAMED)}; correct it, or list all labels in "
                "task.labels"
            )
        if text.isdecimal() and int(text) < len(self.labels):
            return int(text)
        raise ValueError(
            f"{where}: {self.name} has no label {text!r}; its labels are "
            f"{', '.join(self.labels)} or 0 to {len(self.labels) - 1}; correct the label, or "
            "choose the task that the file is of"
        )


def is_span_tag(tag: str) -> bool:
    """Return whether a tag marks a word in or outside a span."""
    return _SPAN_TAG.fullmatch(tag) is not None


def canonical_label(text: str) -> str:
    """Return a label in its canonical spelling: 1 for 1.0, true for True and TRUE."""
    if _WHOLE_NUMBER.fullmatch(text):
        return text.partition(".")[0]
    return text.lower() if text.lower() in ("true", "false") else text


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# Columns as the datasets' authors name them.
_PREMISE = Columns(
    ("premise", "sentence1"), ("hypothesis", "hypo", "sentence2"), ("gold_label", "label")
)
_PAIR = Columns(
    ("sentence1", "#1 String"), ("sentence2", "#2 String"), ("label", "Quality", "score")
)
_QUESTIONS = Columns(("question1",), ("question2",), ("is_duplicate", "label"))
_SENTENCE = Columns(("sentence",), (), ("label",))
# Files of XTREME's scripts, and its translations.
_XTREME = (
    ("sentence1", "sentence2", "label"),
    ("english 1", "english 2", "sentence1", "sentence2", "label"),
)
_PREMISE_TFDS = ("premise", "hypothesis")
# Universal POS tags, version 2.
_UPOS = _words("ADJ ADP ADV AUX CCONJ DET INTJ NOUN NUM PART PRON PROPN PUNCT SCONJ SYM VERB X")
_TYDIQA_NAMES = {
    "arabic": "ar", "bengali": "bn", "english": "en", "finnish": "fi", "indonesian": "id",
    "korean": "ko", "russian": "ru", "swahili": "sw", "telugu": "te",
}  # fmt: skip


def _tfds(name: str, *splits: str, **more: str) -> dict[str, str]:
    """Return the splits of a dataset of tensorflow-datasets, and `more` "NAME:SPLIT" by split."""
    found = {split: f"{name}:{split}" for split in splits} | more
    return {split: f"tfds:{place}" for split, place in found.items()}


_MNLI = _tfds("glue/mnli", "train")


def _nli(name: str, languages: str, tfds: Mapping[str, str], **more: Any) -> Task:
    return Task(
        name, "classification", _NLI, _words(languages), ("accuracy",), tfds,
        tfds_texts=_PREMISE_TFDS, columns=_PREMISE, **more,
    )  # fmt: skip


def _questions(name: str, languages: str, tfds: Mapping[str, str], **more: Any) -> Task:
    metrics = ("f1", "exact_match")
    return Task(name, "extractive_qa", (), _words(languages), metrics, tfds, **more)


def _glue(
    name: str,
    labels: tuple[str, ...],
    metrics: tuple[str, ...],
    columns: Columns,
    splits: tuple[str, ...] = _SPLITS,
    **more: Any,
) -> Task:
    tfds = _tfds(f"glue/{name}", *splits)
    kind = "classification" if labels else "regression"
    return Task(name, kind, labels, ("en",), metrics, tfds, columns=columns, **more)


def _own(name: str, kind: str, metrics: tuple[str, ...], **more: Any) -> Task:
    """Return a task on a user's own files; `task_settings` adds its labels and columns."""
    return Task(name, kind, (), (), metrics, None, is_own=True, **more)


_OWN_TEXTS: dict[str, Any] = {
    "columns": Columns(("text",), (), ("label",)),
    "tfds_texts": ("text", None),
}

_ALL = [
    _nli(
        "xnli", "ar bg de el en es fr hi ru sw th tr ur vi zh",
        _MNLI | _tfds("xnli", "validation", "test", translate_train="xtreme_xnli:train"),
        headerless=_XTREME, xtreme_name="xnli",
    ),
    Task(
        "pawsx", "classification", _YES_NO, _words("de en es fr ja ko zh"), ("accuracy",),
        _tfds("paws_x_wiki/{language}", *_SPLITS,
              translate_train="xtreme_pawsx/{language}:train"),
        columns=_PAIR, headerless=_XTREME, has_broken_lines=True, xtreme_name="pawsx",
    ),
    _nli("americasnli", "aym bzd cni gn hch nah oto quy shp tar", _MNLI),
    Task(
        "udpos", "tagging", _UPOS,
        _words("af ar bg de el en es et eu fa fi fr he hi hu id it ja kk ko mr nl pt ru ta te th "
               "tl tr ur vi yo zh"),
        ("f1", "accuracy"),
        _tfds("xtreme_pos/xtreme_pos_{language}", "train", "test",
              validation="xtreme_pos/xtreme_pos_{language}:dev"),
        # tensorflow-datasets reads the Tagalog treebanks for "ta" and the Tamil ones for "tl".
        {"ta": "tl", "tl": "ta"},
        tfds_label="upos", skips_underscores=True, scorer="part_of_speech", xtreme_name="udpos",
    ),
    Task(
        "wikiann", "tagging", _ENTITIES,
        _words("af ar bg bn de el en es et eu fa fi fr he hi hu id it ja jv ka kk ko ml mr ms my "
               "nl pt ru sw ta te th tl tr ur vi yo zh"),
        ("f1", "precision", "recall"), _tfds("wikiann/{language}", *_SPLITS),
        tfds_label="tags", xtreme_name="panx",
    ),
    _questions(
        "xquad", "ar de el en es hi ru th tr vi zh",
        _tfds("squad/v1.1", "train", "validation", test="xquad/{language}:test",
              translate_train="xquad/{language}:translate-train"),
        xtreme_name="xquad",
    ),
    _questions(
        "mlqa", "ar de en es hi vi zh",
        _tfds("mlqa/{language}", "validation", "test", train="squad/v1.1:train",
              translate_train="xquad/{language}:translate-train"),
        normalizer="mlqa", xtreme_name="mlqa",
    ),
    _questions(
        "tydiqa", "ar bn en fi id ko ru sw te",
        _tfds("tydi_qa/goldp", "train",
              translate_train="tydi_qa/goldp:translate-train-{language}",
              validation="tydi_qa/goldp:validation-{language}",
              test="tydi_qa/goldp:validation-{language}"),
        id_languages=_TYDIQA_NAMES, xtreme_name="tydiqa",
    ),
    _questions("squad", "en", _tfds("squad/v1.1", "train", "validation")),
    _questions("squad2", "en", _tfds("squad/v2.0", "train", "validation"),
               has_unanswerable=True),
    # tensorflow-datasets has only the pairs of BUCC, not the texts to find them in.
    Task(
        "bucc", "mining", (), _words("de fr ru zh"), ("f1", "precision", "recall"), None,
        xtreme_name="bucc2018",
    ),
    Task(
        "tatoeba", "retrieval", (),
        _words("af ar bg bn de el es et eu fa fi fr he hi hu id it ja jv ka kk ko ml mr nl pt ru "
               "sw ta te th tl tr ur vi zh"),
        ("accuracy",), {"test": "tfds:tatoeba/tatoeba_{language}:train"}, xtreme_name="tatoeba",
    ),
    Task("translation", "translation", (), (), _TRANSLATION_METRICS, None),
    Task(
        "wmt14", "translation", (), ("de-en", "en-de", "en-fr", "fr-en"), _TRANSLATION_METRICS,
        _tfds("wmt14_translate/{language}", *_SPLITS),
        # Its datasets are named by their pair, English last.
        tfds_codes={"en-de": "de-en", "en-fr": "fr-en"},
    ),
    _glue(
        "cola", _YES_NO, ("matthews",), _SENTENCE, tfds_texts=("sentence", None),
        headerless=(("source", "label", "mark", "sentence"),),
    ),
    _glue("sst2", _YES_NO, ("accuracy",), _SENTENCE, tfds_texts=("sentence", None)),
    _glue("mrpc", _YES_NO, ("f1", "accuracy"), _PAIR),
    _glue("stsb", (), ("pearson", "spearman"), _PAIR),
    _glue(
        "qqp", _YES_NO, ("f1", "accuracy"), _QUESTIONS, tfds_texts=("question1", "question2"),
        has_broken_lines=True,
    ),
    _glue(
        "mnli", _NLI, ("accuracy",), _PREMISE,
        ("train", "validation_matched", "validation_mismatched", "test_matched", "test_mismatched"),
        tfds_texts=_PREMISE_TFDS,
    ),
    _glue(
        "qnli", _TWO_WAY_NLI, ("accuracy",), Columns(("question",), ("sentence",), ("label",)),
        tfds_texts=("question", "sentence"),
    ),
    _glue("rte", _TWO_WAY_NLI, ("accuracy",), _PAIR),
    _own("text_classes", "classification", ("macro_f1", "accuracy"), **_OWN_TEXTS),
    _own("text_labels", "multilabel", ("micro_f1", "macro_f1"), **_OWN_TEXTS),
    _own("text_numbers", "regression", ("pearson", "spearman"), **_OWN_TEXTS),
    _own("tag_spans", "tagging", ("f1", "precision", "recall")),
    _own("tag_words", "tagging", ("macro_f1", "accuracy"), scorer="words"),
    _own("text_pairs", "embedding", _RANKING),
    _own("text_similarity", "similarity", ("spearman", "pearson")),
]  # fmt: skip

TASKS: dict[str, Task] = {task.name: task for task in _ALL}
