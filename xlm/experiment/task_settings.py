"""The `task` section of a config, and the tokenizer that a task's texts go through."""

import dataclasses
import pathlib
from typing import Any

import sentencepiece as spm
from ml_collections import ConfigDict

from input_pipeline.packed_dataset import SpecialIds
from input_pipeline.tasks.files import Source
from input_pipeline.tasks.tasks import TASKS, Columns, Task
from input_pipeline.tokenization import special_ids
from xlm.common import declarations, places, schema
from xlm.common.schema import settings
from xlm.evaluation.metrics.retrieval import MARGINS

# Rules of selection: by the score in English, as XTREME; by the mean over all languages, as VoCap
# and VECO; for each language by its own, as many models as languages (XLM-R, #M = N).
EACH_LANGUAGE = "each_language"
SELECTION = ("english", "all_languages", EACH_LANGUAGE)
# `class_weights` that give all classes the same weight together.
BALANCED = ("balanced",)


@dataclasses.dataclass(frozen=True)
class TaskSettings:
    """A task and its data; the `task` section of a config.

    Attributes:
      name: a key of `input_pipeline.tasks.tasks.TASKS`.
      dataset: name of a user's own data in tables, where equal names mean equal data; "" for the
        last folder of `root`.
      root: folder that the patterns start from.
      train, validation, test: patterns of files, see `input_pipeline.tasks.files`, or
        "tfds:NAME:SPLIT" for tensorflow-datasets; "tfds" for its data of the task and split.
      train_languages: languages to train on; empty for all with files. For translation: directions
        such as "en-de".
      validation_languages: languages of development data to score; empty for those that the
        selection needs.
      test_languages: languages to report; empty for all with files.
      selection: rule that selects the checkpoint, one of `SELECTION`.
      validation_share: share of training examples to hold out for the selection, in the languages
        of development data, if a user's own task has no development file.
      labels: of a user's own task with classes or tags, texts or whole numbers; empty for those of
        the training data.
      class_weights: of classification and tagging, the weight of each class in the loss, in the
        order of labels; empty for 1 each, ("balanced",) for the same sum over each class. With
        several labels a text, the weight of texts with a label, "balanced" for the sum of those
        without.
      label_smoothing: of classification and tagging, share of a target that all classes divide
        evenly in the training loss; losses of evaluations have none.
      text_column, pair_column, label_column: of a user's own task, see
        `input_pipeline.tasks.delimited`, and `tagged` for the numbers of the columns of words and
        tags. Single texts have no `pair_column`.
      label_separator: between several labels in a cell; "" for lists only.
      id_column: ids of a user's own examples, in predictions; "" for numbers of rows.
      group_column: a hold-out keeps a user's own rows with one value together, such as translations
        or parts of a document; "" for `id_column`.
      max_bad_rows: most malformed rows to leave out; bad_rows.jsonl then lists them.
      negative_columns: of embeddings, columns of passages that do not belong to the query, in the
        training data.
      query_prefix, passage_prefix: of embeddings, text before each query and each passage.
      temperature: of embeddings, the divisor of cosines in the loss.
      contrast_margin: of embeddings, subtracted from the cosine of a pair in its comparison with
        others.
      teacher: of embeddings, a run or a model's folder. The loss is then only the distance of query
        and passage from its vector of the query.
      dimensions: of embeddings, numbers of first dimensions to train as vectors of their own
        (Matryoshka); () for whole vectors.
      language_codes: other names of a language in files, such as {"deu": "de"}.
      data_dir: where tensorflow-datasets keeps its data; "" for its own default.
      max_length: tokens of a row.
      buckets: lengths of padded batches below `max_length`, which is always one.
      stride, max_query_length: of questions, see `question_features`.
      max_answer_length, n_best: of questions, see `xlm.evaluation.tasks.answers`.
      cross_attention: for classification and regression of pairs: whether both texts are segments
        of their own that attend to each other by the encoder's cross-attention, see
        `xlm.objectives.fine_tuning`.
      pooling: of tagging, see `xlm.models.heads.TaggingHead`.
      text_pooling: of classification and regression, see `xlm.models.heads.ClassificationHead`;
        of embeddings, "mean" of a text's tokens without special ones, or "first". "by_width" is
        "mean" for encoders narrower than XLM-R Base, else "first".
      layer: of retrieval and mining, the layer whose states make a sentence's vector; -1 for two
        thirds of the layers, 8 of 12 as in XTREME.
      margin: of mining, a key of `xlm.evaluation.metrics.retrieval.MARGINS`.
      threshold: of mining, least margin of a pair; None for the best one on the gold pairs of the
        validation data, or of the test data without any.
    """

    name: str = schema.key("")
    dataset: str = schema.key("")
    root: str = schema.key("")
    train: tuple[str, ...] = schema.key(())
    validation: tuple[str, ...] = schema.key(())
    test: tuple[str, ...] = schema.key(())
    train_languages: tuple[str, ...] = schema.key(("en",))
    validation_languages: tuple[str, ...] = schema.key(())
    test_languages: tuple[str, ...] = schema.key(())
    selection: str = schema.key("english", choices=SELECTION)
    validation_share: float = schema.key(0.1)
    labels: tuple[str | int, ...] = schema.key(())
    class_weights: tuple[Any, ...] = schema.key(())
    label_smoothing: float = schema.key(0.0, at_least=0, below=1)
    text_column: str = schema.key("text")
    pair_column: str = schema.key("")
    label_column: str = schema.key("label")
    label_separator: str = schema.key(",")
    id_column: str = schema.key("")
    group_column: str = schema.key("")
    max_bad_rows: int = schema.key(0, at_least=0)
    negative_columns: tuple[str, ...] = schema.key(())
    query_prefix: str = schema.key("")
    passage_prefix: str = schema.key("")
    temperature: float = schema.key(0.05, above=0)
    contrast_margin: float = schema.key(0.0, at_least=0)
    teacher: str = schema.key("")
    dimensions: tuple[int, ...] = schema.key(())
    language_codes: dict[str, str] = schema.key({})
    data_dir: str = schema.key("")
    max_length: int = schema.key(128, at_least=1)
    buckets: tuple[int, ...] = schema.key((32, 64, 128, 256))
    stride: int = schema.key(128, at_least=1)
    max_query_length: int = schema.key(64, at_least=1)
    max_answer_length: int = schema.key(30, at_least=1)
    n_best: int = schema.key(20, at_least=1)
    pooling: str = schema.key("mean", choices=("mean", "first"))
    text_pooling: str = schema.key("first", choices=("mean", "first", "by_width"))
    cross_attention: bool = schema.key(False)
    layer: int = schema.key(-1, at_least=-1)
    margin: str = schema.key("ratio", choices=tuple(MARGINS))
    threshold: float | None = schema.key(None)

    def __post_init__(self):
        schema.check(self, "task")
        if self.name not in TASKS:
            raise ValueError(f"task.name is {self.name!r}, must be one of {', '.join(TASKS)}")
        if self.dataset:
            declarations.check_name(self.dataset, "task.dataset", "choose another name")
        self._check_selection()
        if self.labels and not self.task.is_own:
            raise ValueError(
                f"task.labels is {self.labels[:3]}, but {self.name} has labels of its own; leave "
                "it empty"
            )
        # Other kinds without classes are refused where the weights are computed.
        if self.class_weights and (self.task.is_search or self.task.is_translation):
            raise ValueError(
                f"task.class_weights is {tuple(self.class_weights)}, but {self.name} has no "
                "classes; set it to ()"
            )
        if self.buckets and min(self.buckets) < 1:
            raise ValueError(
                f"task.buckets is {tuple(self.buckets)}, in which {min(self.buckets)} must be at "
                "least 1, the tokens of a row; remove it"
            )
        if self.cross_attention and self.text_pooling == "mean":
            raise ValueError(
                f"task.text_pooling is {self.text_pooling!r}, but with task.cross_attention the "
                "head reads the first states of both texts; set either back"
            )
        if self.cross_attention and not self.task.is_of_pairs:
            raise ValueError(
                f"task.cross_attention is True, but {self.name} is no classification or regression "
                "of pairs of texts; set it to False"
            )

    def _check_selection(self) -> None:
        if self.selection != "all_languages" and self.task.is_translation:
            raise ValueError(
                f"task.selection is {self.selection!r}, but a model of translation is selected by "
                "the mean over its directions; set it to all_languages"
            )
        # The other rules belong to a whole table, in which searches select nothing.
        if self.selection == EACH_LANGUAGE and self.task.is_search:
            raise ValueError(
                f"task.selection is {EACH_LANGUAGE!r}, but {self.name} trains no model for any "
                "language; set it to english"
            )

    @property
    def task(self) -> Task:
        """The task's record; a user's own task has its labels and columns."""
        task = TASKS[self.name]
        if not task.is_own:
            return task
        optional = self.id_column, self.group_column
        others = ((name,) if name else () for name in optional)
        pair = (self.pair_column, *self.negative_columns) if self.pair_column else ()
        columns = Columns((self.text_column,), pair, (self.label_column,), *others)
        task = dataclasses.replace(task, label_separator=self.label_separator)
        return task.with_labels(tuple(map(str, self.labels)), columns)

    @property
    def title(self) -> str:
        """Name of the task, or of a user's own data, in tables, plots and messages."""
        own = self.dataset or pathlib.Path(self.root).absolute().name
        return own if self.task.is_own else self.name

    @property
    def reads_mean(self) -> bool:
        """Whether the head reads the mean state of a text, or pair of texts."""
        return self.task.is_of_texts and self.text_pooling == "mean"

    @property
    def lengths(self) -> tuple[int, ...]:
        """All lengths that rows are padded to."""
        return (*(one for one in self.buckets if one < self.max_length), self.max_length)

    def patterns(self, split: str, language: str = "en") -> tuple[str, ...]:
        """Patterns of a split in a language.

        Raises ValueError if it should come from tensorflow-datasets, which does not have it.
        """
        named = getattr(self, split)
        if tuple(named) != ("tfds",):
            return tuple(named)
        known = self.task.tfds or {}
        if split == "train" and language != "en" and "translate_train" in known:
            return (known["translate_train"],)
        if split not in known:
            raise ValueError(
                f"task.{split} is 'tfds', but tensorflow-datasets has no {split} split of "
                f"{self.name}; name files"
            )
        return (known[split],)

    def source(self, split: str, language: str = "en") -> Source:
        root, data_dir, task = places.fetched(self.root), self.data_dir or None, self.task
        patterns = self.patterns(split, language)
        if split != "train" and task.columns is not None and task.is_embedding:
            pair = task.columns.pair[:1]  # without wrong passages
            task = dataclasses.replace(task, columns=task.columns._replace(pair=pair))
        return Source(
            task, root, patterns, language, self.language_codes, data_dir, self.max_bad_rows
        )


@dataclasses.dataclass(frozen=True)
class TranslationSettings:
    """Model of a translation; the `translation` section of a config.

    Attributes:
      decoder_layers: n, layers of the decoder; the encoder keeps all of the checkpoint.
      decoder_from: the decoder starts from the "first" or "last" n layers of the checkpoint (VECO,
        Table 4), or with "random" parameters behind the checkpoint's encoder (VECO's rows of
        XLM-R).
      needs_cross_attention: whether to refuse a checkpoint without cross-attention, instead of
        starting with a random one.
      label_smoothing: e, see `xlm.objectives.label_smoothing`.
      output_head: whether the decoder has the dense layer, GELU and norm of a masked-LM head before
        the output embeddings. Without them xlm export writes a Bart or MBart of transformers.
      output_layer: "full", or "blockwise" for the same loss without its logits in memory.
      language_pieces: piece of the vocabulary for the symbol of a target language, such as
        {"de": "<2de>"}; other languages get a table row of their own.
      prune: whether to keep only the embeddings of pieces that the training data use.
      character_count: a character that the tokenizer changes or lacks, such as a full-width comma,
        becomes a piece if training targets have it so often; 0 for no such pieces.
    """

    decoder_layers: int = schema.key(6, at_least=1)
    decoder_from: str = schema.key("last", choices=("first", "last", "random"))
    needs_cross_attention: bool = schema.key(False)
    label_smoothing: float = schema.key(0.1, at_least=0, below=1)
    output_head: bool = schema.key(True)
    output_layer: str = schema.key("blockwise", choices=("full", "blockwise"))
    language_pieces: dict[str, str] = schema.key({})
    prune: bool = schema.key(False)
    character_count: int = schema.key(2, at_least=0)

    def __post_init__(self):
        schema.check(self, "translation")


def task_settings(config: ConfigDict) -> TaskSettings:
    return settings(TaskSettings, config.task)


class Tokenizer:
    """A SentencePiece model, and the special ids that features need."""

    def __init__(self, model: bytes):
        self.processor = spm.SentencePieceProcessor(model_proto=model)
        self.special: SpecialIds = special_ids(self.processor)
