"""Builders that need no jax: settings, folders, corpus, row store."""

import dataclasses
import pathlib
from typing import Any, TypeVar

from ml_collections import ConfigDict

import artifacts
from input_pipeline.corpus import CorpusSpec
from input_pipeline.row_store import RowStore
from input_pipeline.tokenization import RowStoreSettings
from vocap.build import VocabularySettings

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class DataSettings:
    """How rows reach the loop; the `data` section of a config.

    Attributes:
      alpha: exponent of the language probabilities (Eq. 3) that rows are sampled with.
      loader: "tf.data", or "threads" where TensorFlow is not installed.
      prefetch: batches made ahead.
      across_documents: whether attention crosses the documents of a row.
    """

    alpha: float
    loader: str
    prefetch: int
    across_documents: bool


@dataclasses.dataclass(frozen=True)
class EvaluationSettings:
    """What is evaluated; the `evaluation` section of a config.

    Attributes:
      batch_size: rows at once.
      num_folds: passes of the masked-LM evaluation, each masking one fold.
      max_rows: held-out rows per language; 0 for all.
      max_rows_in_training: the same for the evaluations during training.
      seed: deals tokens to folds.
      retrieval_layer: layer whose states are averaged to a sentence vector.
      retrieval_pivot: language that the others are compared with.
      retrieval_max_sentences: pairs of a parallel set; 0 for all.
    """

    batch_size: int
    num_folds: int
    max_rows: int
    max_rows_in_training: int
    seed: int
    retrieval_layer: int
    retrieval_pivot: str
    retrieval_max_sentences: int


@dataclasses.dataclass(frozen=True)
class Folders:
    """Where each stage keeps its results in a working directory."""

    workdir: pathlib.Path

    @property
    def vocab(self) -> pathlib.Path:
        return self.workdir / "vocab"

    @property
    def rows(self) -> pathlib.Path:
        return self.workdir / "rows"

    @property
    def train(self) -> pathlib.Path:
        return self.workdir / "train"

    @property
    def report(self) -> pathlib.Path:
        return self.workdir / "report"

    @property
    def tokenizer(self) -> pathlib.Path:
        return self.vocab / "spm.model"

    def read_tokenizer(self) -> bytes:
        """The serialised tokenizer.

        Raises:
          ValueError: it has not been built.
        """
        if not self.tokenizer.exists():
            raise ValueError(
                f"{self.tokenizer} does not exist; run build_vocab.py with the same --config and "
                "--workdir first"
            )
        return self.tokenizer.read_bytes()


def settings(kind: type[T], section: ConfigDict, name: str, **derived: Any) -> T:
    """One section of a config as its settings class.

    Args:
      kind: a dataclass.
      section: its fields, less the derived ones.
      name: of the section, for messages.
      **derived: fields that follow from other things, such as the vocabulary size.

    Raises:
      ValueError: a key is unknown or missing.
    """
    values = section.to_dict()
    known = {field.name for field in dataclasses.fields(kind)} - set(derived)  # type: ignore[arg-type]
    if set(values) != known:
        unknown, missing = sorted(set(values) - known), sorted(known - set(values))
        raise ValueError(f"config.{name}: unknown keys {unknown}, missing keys {missing}")
    return kind(**values, **derived)


def corpus_spec(config: ConfigDict) -> CorpusSpec:
    return settings(CorpusSpec, config.corpus, "corpus")


def vocabulary_settings(config: ConfigDict) -> VocabularySettings:
    return settings(VocabularySettings, config.vocab, "vocab")


def row_store_settings(config: ConfigDict) -> RowStoreSettings:
    return settings(RowStoreSettings, config.store, "store")


def data_settings(config: ConfigDict) -> DataSettings:
    return settings(DataSettings, config.data, "data")


def evaluation_settings(config: ConfigDict) -> EvaluationSettings:
    return settings(EvaluationSettings, config.evaluation, "evaluation")


def open_train_stage(config: ConfigDict, folders: Folders) -> artifacts.Stage:
    """The folder of training, which is refused under other settings (see `artifacts`)."""
    return artifacts.open_stage(
        folders.train,
        {
            "rows": artifacts.read_json(folders.rows / "settings.json"),
            # How batches are loaded and where arrays lie does not change the run.
            "data": {key: config.data[key] for key in ("alpha", "across_documents")},
            "mesh": {"vocab_multiple": config.mesh.vocab_multiple},
            **{
                section: config[section].to_dict()
                for section in ("model", "mask", "output_layer", "optimizer", "train")
            },
        },
    )


def open_row_store(folders: Folders) -> RowStore:
    """The row store of a working directory, checked against its tokenizer."""
    store = RowStore.open(folders.rows)
    store.check_tokenizer(folders.read_tokenizer(), folders.tokenizer)
    return store
