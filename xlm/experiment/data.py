"""Builders that need no jax: settings, folders, corpus, packed dataset."""

import dataclasses
import functools
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from absl import logging
from ml_collections import ConfigDict

from configs import base
from input_pipeline.bitext import PAIRS, SEPARATE_PAIRS, pair_sizes
from input_pipeline.block_order import BlockSettings
from input_pipeline.packed_dataset import META, PackedDataset
from input_pipeline.pair_sampling import Pair, PairSampling, PairSamplingSettings, sample_pairs
from input_pipeline.sources import CorpusSpec
from input_pipeline.tokenization import PackedDatasetSettings
from vocap import run_tables
from vocap.build import VocabularySettings
from xlm.common import artifacts, declarations
from xlm.common.declarations import Artefact, Count, Name
from xlm.experiment import phases

T = TypeVar("T")
_AMOUNTS = 'write one object, {"en": 300.8, ...}'


@dataclasses.dataclass(frozen=True)
class DataSettings:
    """Settings of the training stream; the `data` section of a config.

    Attributes:
      alpha: exponent of the language probabilities (Eq. 3) that sequences are sampled with.
      loader: "tf.data", or "threads" where TensorFlow is not installed.
      prefetch: number of prefetched batches.
      block_bytes, window_blocks, lanes: order of large languages by blocks, see
        `input_pipeline.block_order.BlockSettings`.
      read_threads: threads that read blocks; 0 to read what is needed when it is needed. Without
        `block_bytes` there are none.
      read_ahead: number of batches whose blocks are requested before they are made.
      alpha_phases: (step, alpha) pairs: changes of the exponent from these steps on, counting those
        on packed sequences; each language's sequences then start over.
      across_documents: whether attention crosses the documents of a sequence.
      pair_share: share of steps on pairs of translations (translation language modelling, or the
        bilingual batches of VECO), from `corpus.parallel`; 0 for none.
      contrast_share: share of steps on pairs of separately encoded sentences with a contrastive
        loss (`xlm.objectives.contrastive`); 0 for none.
      kinds_in_turns: whether steps on sequences and on pairs are spread evenly, in turns if each
        has half of the steps (VECO, Section 3); otherwise their order is random. Metrics are of
        the step recorded: with an even train.log_every they would all be of one kind.
      pair_buckets, pair_positions, pair_alpha: see `input_pipeline.bitext.BitextSettings`.
      pair_sampling, pair_temperature, pair_pivot: method that samples language pairs, its T and the
        language of its pairs, see `input_pipeline.pair_sampling.PairSamplingSettings`.
    """

    alpha: float
    alpha_phases: tuple[tuple[int, float], ...]
    loader: str
    prefetch: int
    block_bytes: int
    window_blocks: int
    lanes: int
    read_threads: int
    read_ahead: int
    across_documents: bool
    pair_share: float
    contrast_share: float
    kinds_in_turns: bool
    pair_buckets: tuple[int, ...]
    pair_positions: str
    pair_alpha: float
    pair_sampling: str
    pair_temperature: float
    pair_pivot: str

    def __post_init__(self):
        starts = [step for step, _ in self.alpha_phases]
        if min(starts, default=1) < 1 or sorted(set(starts)) != starts:
            raise ValueError(
                f"data.alpha_phases are {self.alpha_phases}; phases must begin at step 1 or later, "
                "each later than the one before it; data.alpha is that of the first"
            )
        alphas = [alpha for _, alpha in self.alpha_phases]
        if min(alphas, default=0) < 0:
            raise ValueError(
                f"data.alpha_phases are {self.alpha_phases}; alpha must be at least 0 in each"
            )
        shares = (self.pair_share, self.contrast_share)
        if min(shares) < 0 or sum(shares) >= 1:
            raise ValueError(
                f"data.pair_share is {shares[0]} and data.contrast_share {shares[1]}; they must be "
                "at least 0, and below 1 together"
            )
        if min(self.read_threads, self.read_ahead) < 0:
            raise ValueError(
                f"data.read_threads is {self.read_threads} and data.read_ahead {self.read_ahead}; "
                "both must be at least 0"
            )
        self.block_settings()
        self.pair_sampling_settings()

    def block_settings(self) -> BlockSettings:
        """Settings of the order by blocks."""
        return BlockSettings(self.block_bytes, self.window_blocks, self.lanes)

    def pair_sampling_settings(self) -> PairSamplingSettings:
        """Settings of the sampling of language pairs."""
        return PairSamplingSettings(
            method=self.pair_sampling,
            alpha=self.pair_alpha,
            temperature=self.pair_temperature,
            pivot=self.pair_pivot,
        )


@dataclasses.dataclass(frozen=True)
class EvaluationSettings:
    """Settings of the evaluation; the `evaluation` section of a config.

    Attributes:
      batch_size: sequences per batch.
      num_folds: passes of the masked-LM evaluation, each masking one fold.
      max_sequences: held-out sequences per language; 0 for all.
      max_sequences_in_training: the same for the evaluations during training.
      seed: random seed of the folds, and of the example sentences in the report.
      retrieval_layer: layer whose states are averaged to sentence vectors.
      retrieval_pivot: language that the others are compared with.
      retrieval_max_sentences: number of pairs per parallel set, spread over it; 0 for all, whose
        cost grows with the square of their number.
      frozen_generator: working directory of a run of replaced-token detection, by whose samples
        discriminators are scored besides their own generator's; "" for none.
    """

    batch_size: int
    num_folds: int
    max_sequences: int
    max_sequences_in_training: int
    seed: int
    retrieval_layer: int
    retrieval_pivot: str
    retrieval_max_sentences: int
    frozen_generator: str


@dataclasses.dataclass(frozen=True)
class Folders:
    """Result folders of the stages in a working directory."""

    workdir: pathlib.Path

    @property
    def vocab(self) -> pathlib.Path:
        return self.workdir / "vocab"

    @property
    def rows(self) -> pathlib.Path:
        return self.workdir / "rows"

    @property
    def has_rows(self) -> bool:
        """Whether there is a finished packed dataset."""
        return (self.rows / META).exists()

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
        """Read the serialised tokenizer.

        Raises:
          ValueError: it has not been built.
        """
        if not self.tokenizer.exists():
            raise ValueError(
                f"{self.tokenizer} does not exist; run build_vocab.py with the same --config and "
                "--workdir first"
            )
        return self.tokenizer.read_bytes()


def settings(
    kind: type[T],
    section: ConfigDict,
    name: str,
    /,
    read_elsewhere: Sequence[str] = (),
    **derived: Any,
) -> T:
    """Convert a section of a config to its settings class.

    Args:
      section: the fields without derived ones, and keys that are read elsewhere.
      read_elsewhere: keys of the section that are not fields, or that are converted by the caller.
      **derived: fields that are not keys of the section, such as the vocabulary size.

    Raises:
      ValueError: a key is unknown or missing.
    """
    values = section.to_dict()
    known = {field.name for field in dataclasses.fields(kind)} - set(derived)  # type: ignore[arg-type]
    known |= set(read_elsewhere)
    if set(values) != known:
        unknown, missing = sorted(set(values) - known), sorted(known - set(values))
        raise ValueError(f"config.{name}: unknown keys {unknown}, missing keys {missing}")
    fields = {key: value for key, value in values.items() if key not in read_elsewhere}
    return kind(**fields, **derived)


def corpus_spec(config: ConfigDict) -> CorpusSpec:
    return settings(CorpusSpec, config.corpus, "corpus")


def vocabulary_settings(config: ConfigDict) -> VocabularySettings:
    amounts, allocation = config.vocab.get("amounts", ""), config.vocab.get("allocation", "")
    return settings(
        VocabularySettings,
        config.vocab,
        "vocab",
        read_elsewhere=("allocation", "amounts", "tables", "tokenizer"),
        amounts=_read_given("amounts", amounts, _Amounts, _AMOUNTS) if amounts else {},
        initial_sizes=_read_sizes(allocation, config.vocab) if allocation else {},
    )


# An empty object would be taken for no amounts given, and those of the text would be used.
_Amounts = Annotated[dict[Name, Annotated[float, msgspec.Meta(gt=0)]], msgspec.Meta(min_length=1)]


class _Allocation(Artefact, frozen=True):
    """Sizes that the explorer of a build's report exports."""

    target_size: Count
    beta: float
    sizes: Annotated[dict[Name, Count], msgspec.Meta(min_length=1)]


def _read_given(key: str, path: str, kind: type[T], remedy: str) -> T:
    """Read the file that a key of `vocab` names."""
    with declarations.of_file(f"vocab.{key}"):
        if not os.path.exists(path):
            raise ValueError(f"{path} does not exist; correct the path")
        return declarations.read(path, kind, remedy=remedy)


def _read_sizes(path: str, section: ConfigDict) -> dict[str, int]:
    """Read the sizes of an allocation.

    Raises:
      ValueError: the file is no allocation, or is one for another T or beta.
    """
    found = _read_given(
        "allocation", path, _Allocation, "export it from the report.html of a build"
    )
    given = {"target_size": found.target_size, "beta": found.beta}
    if changed := {key: value for key, value in given.items() if value != section[key]}:
        is_for = " and ".join(f"{key} {value:g}" for key, value in given.items())
        here = " and ".join(f"{key} {section[key]}" for key in given)
        flags = " ".join(f"--config.vocab.{key}={value:g}" for key, value in changed.items())
        raise ValueError(
            f"vocab.allocation: {path} is for {is_for}, the config has {here}; add {flags}"
        )
    return found.sizes


def count_tables(config: ConfigDict) -> tuple[dict[str, pathlib.Path], dict[str, pathlib.Path]]:
    """Find the tables of runs for training and held-out text, by language, in vocab.tables.

    They are named `<lang>.runs.gz` and `<lang>.heldout.runs.gz`.

    Raises:
      ValueError: a language of corpus.languages, or every one, is missing, or there are partial
        tables.
    """
    folder = pathlib.Path(config.vocab.tables)
    found = {path.name.removesuffix(".runs.gz"): path for path in folder.glob("*.runs.gz")}
    # Each would be taken for a separate language.
    if parts := sorted(name for name in found if run_tables.PART.fullmatch(name)):
        raise ValueError(
            f"{found[parts[0]]} is a part of a table; make one table of a language's parts with "
            "xlm count --merge"
        )
    wanted = set(config.corpus.languages)
    heldout = {
        name.removesuffix(".heldout"): path
        for name, path in found.items()
        if name.endswith(".heldout")
    }
    train = {
        declarations.check_name(name, str(path), "rename the table"): path
        for name, path in found.items()
        if not name.endswith(".heldout")
    }
    if wanted:
        missing = sorted(wanted - set(train))
        if missing:
            raise ValueError(
                f"vocab.tables: {folder} has no tables of {', '.join(missing)} (corpus.languages); "
                "make them with xlm count"
            )
        train = {language: path for language, path in train.items() if language in wanted}
    if not train:
        raise ValueError(
            f"vocab.tables: {folder} has no tables <lang>.runs.gz; make them with xlm count"
        )
    return train, {language: heldout[language] for language in train if language in heldout}


def packed_dataset_settings(config: ConfigDict) -> PackedDatasetSettings:
    return settings(PackedDatasetSettings, config.store, "store")


def data_settings(config: ConfigDict) -> DataSettings:
    return settings(DataSettings, config.data, "data")


def kind_of_pairs(config: ConfigDict) -> str:
    """Kind of the batches of `data.pair_share`: one segment a pair, or two for VECO's objective."""
    return SEPARATE_PAIRS if config.objective == "veco" else PAIRS


def pair_sampling(config: ConfigDict, store: PackedDataset) -> PairSampling | None:
    """Sample the language pairs of a packed dataset by `data.pair_sampling`; None without any."""
    sizes = pair_sizes(store)
    return sample_pairs(sizes, data_settings(config).pair_sampling_settings()) if sizes else None


def pair_shares(config: ConfigDict, store: PackedDataset) -> dict[Pair, float] | None:
    """Shares of language pairs in the stream; None for those by sets of `data.pair_alpha`."""
    if data_settings(config).pair_sampling == "alpha":
        return None
    found = pair_sampling(config, store)
    return found.shares() if found else {}


def evaluation_settings(config: ConfigDict) -> EvaluationSettings:
    return settings(EvaluationSettings, config.evaluation, "evaluation")


# Sections of a config that only earlier stages read and that do not affect training results.
ELSEWHERE = ("corpus", "vocab", "store", "evaluation")
# Keys of `train` for records, checkpoints and repetition, which do not affect training results.
_RECORDING = (
    "log_every", "keep_checkpoints", "keep_every", "verify_checkpoints", "tensorboard",
    "peak_flops", "profile_from", "profile_steps", "deterministic",
)  # fmt: skip
# These as well, except with row-wise updates, where applying pending updates changes rounding.
_INTERVALS = ("evaluate_every", "checkpoint_every")
# Keys of the sections of earlier stages: paths, and what changes none of their results.
_WITHOUT_EFFECT = {
    "corpus": ("root",),
    "vocab": ("tokenizer", "tables", "amounts", "allocation", "compare", "num_workers"),
    "store": ("num_workers",),
}
# Recorded and not compared: the digest `text` of the same record identifies what lies there.
PLACE_OF_TEXT = ("corpus.root",)


def recorded_defaults() -> dict[str, Any]:
    """Values of keys that the record of an older folder does not have: what the code did then."""
    defaults = base.get_config().to_dict()
    defaults["corpus"].update(heldout_by="position", deduplicate=False, block_bytes=0)
    return defaults


def warn_of_other_sections(
    config: ConfigDict, earlier: Mapping[pathlib.Path, Sequence[str]]
) -> None:
    """Warn where the config differs from the records of earlier stages; their results are used.

    They may differ: a vocabulary of one text serves rows of another.

    Args:
      earlier: sections that the stage of a folder has read, by folder.
    """
    found, defaults = [], recorded_defaults()
    for folder, names in earlier.items():
        sections = {name: config[name].to_dict() for name in names}
        for name, section in sections.items():
            _drop(section, _WITHOUT_EFFECT[name])
        if lines := artifacts.differences(folder, sections, defaults=defaults):
            found += [f"{folder}:", *lines]
    if found:
        logging.warning(
            "the config differs from those of earlier stages, whose results are used as they are:\n"
            "%s\nWhere keys of corpus differ, text that is held out of one stage may be what "
            "another one learns from. For results of this config run all stages in another "
            "--workdir, or set the keys back",
            "\n".join(found),
        )


def open_train_stage(
    config: ConfigDict, folders: Folders, continue_from: int | None = None
) -> artifacts.Stage:
    """Open the folder of training, which refuses other settings (see `artifacts`).

    Keys that do not affect results may differ (docs/training.md has the list); those of earlier
    stages are warned of.

    Args:
      continue_from: step at which a phase begins, whose settings may differ (`phases`).
    """
    rows = artifacts.read_object(folders.rows / "settings.json")
    defaults = recorded_defaults()
    open_stage = functools.partial(
        artifacts.open_stage,
        folders.train,
        defaults={"rows": defaults, **defaults},
        uncompared=[f"rows.{path}" for path in PLACE_OF_TEXT],
        reads=[folders.vocab, folders.rows],
    )
    settings = {"rows": rows, **training_settings(config)}
    if earlier := phases.recorded(folders.train):
        settings[phases.PHASES] = earlier
    if continue_from is None:
        stage = open_stage(settings)
    else:
        now = open_stage(settings, replace=lambda: True)
        begun = phases.with_phase(settings, now, continue_from)
        before = now.changes()
        # The phase replaces the settings that it was checked against, and no others.
        stage = open_stage(begun, replace=lambda: now.changes() == before)
    stages = {folders.vocab: ("vocab",), folders.rows: ("corpus", "store")}
    warn_of_other_sections(config, stages)
    return stage


def training_settings(config: ConfigDict) -> dict[str, Any]:
    """Return the keys of a config that affect training, without those of earlier stages."""
    is_dense = config.optimizer.embedding_update == "dense"
    recorded = {k: v for k, v in config.to_dict().items() if k not in ELSEWHERE}
    # The loading of batches and the sharding of arrays do not affect results.
    _drop(recorded["data"], ("loader", "prefetch", "read_threads", "read_ahead"))
    _drop(recorded["mesh"], set(recorded["mesh"]) - {"vocab_multiple"})
    _drop(recorded["train"], (*_RECORDING, *_INTERVALS) if is_dense else _RECORDING)
    return recorded


def _drop(section: dict[str, Any], keys: Iterable[str]) -> None:
    for key in keys:
        section.pop(key, None)


def open_packed_dataset(folders: Folders) -> PackedDataset:
    """Open the packed dataset of a working directory, checked against its tokenizer."""
    store = PackedDataset.open(folders.rows)
    store.check_tokenizer(folders.read_tokenizer(), folders.tokenizer)
    return store
