"""Builders that need no jax: settings, folders, corpus, packed dataset."""

import collections
import functools
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from absl import logging
from ml_collections import ConfigDict

from input_pipeline import sources, text_files
from input_pipeline.bitext import PAIRS, SEPARATE_PAIRS, pair_sizes
from input_pipeline.packed_dataset import META, PackedDataset
from input_pipeline.pair_sampling import Pair, PairSampling, sample_pairs
from input_pipeline.sources import CorpusSpec
from input_pipeline.tokenization import PackedDatasetSettings
from vocap.settings import VocabularySettings
from xlm.common import artifacts, declarations, places
from xlm.common.declarations import Artefact, Count, Name
from xlm.common.schema import settings
from xlm.evaluation.settings import EvaluationSettings
from xlm.experiment import phases, schema
from xlm.experiment.data_settings import DataSettings

T = TypeVar("T")
# UTF-8 bytes of text a token: languages and vocabularies differ by a third either way.
BYTES_PER_TOKEN = 4
_AMOUNTS = 'write one object, {"en": 300.8, ...}'


class Folders:
    """Paths of the results of the stages in a working directory.

    Attributes:
      text: cleaned text, if the config has rules.
      text_record: findings in the text, see `text_warnings`.
      byte_tokenizer: the result of vocab.method = byte_bpe, in place of `tokenizer`.
    """

    def __init__(self, workdir: pathlib.Path):
        self.workdir = workdir
        self.text, self.text_record = workdir / "text", workdir / "text.json"
        self.vocab, self.rows = workdir / "vocab", workdir / "rows"
        self.train, self.report = workdir / "train", workdir / "report"
        self.tokenizer = self.vocab / "spm.model"
        self.byte_tokenizer = self.vocab / "tokenizer.json"

    @property
    def has_rows(self) -> bool:
        """Whether there is a finished packed dataset."""
        return (self.rows / META).exists()

    def read_tokenizer(self) -> bytes:
        """Read the serialised tokenizer.

        Raises ValueError if it has not been built, or is no SentencePiece model.
        """
        if not self.tokenizer.exists():
            if self.byte_tokenizer.exists():
                raise ValueError(
                    f"{self.byte_tokenizer} is a byte-level BPE, but this command reads "
                    f"{self.tokenizer.name}: run build_vocab.py with another vocab.method than "
                    "byte_bpe, or train on this one elsewhere (xlm export-tokenizer)"
                )
            raise ValueError(
                f"{self.tokenizer} does not exist; run build_vocab.py with the same --config and "
                "--workdir first"
            )
        return self.tokenizer.read_bytes()


def corpus_spec(config: ConfigDict) -> CorpusSpec:
    return settings(CorpusSpec, config.corpus)


def vocabulary_settings(config: ConfigDict) -> VocabularySettings:
    amounts, allocation = config.vocab.get("amounts", ""), config.vocab.get("allocation", "")
    return settings(
        VocabularySettings,
        config.vocab,
        amounts=_read_given("amounts", amounts, _Amounts, _AMOUNTS) if amounts else {},
        initial_sizes=_read_sizes(allocation, config.vocab) if allocation else {},
    )


# An empty object would look like no amounts, and the build would use those of the text.
_Amounts = Annotated[dict[Name, Annotated[float, msgspec.Meta(gt=0)]], msgspec.Meta(min_length=1)]


class _Allocation(Artefact, frozen=True):
    """Sizes that the explorer of a build's report exports."""

    target_size: Count
    beta: float
    sizes: Annotated[dict[Name, Count], msgspec.Meta(min_length=1)]


def _read_given(key: str, path: str, kind: type[T], remedy: str) -> T:
    """Read the file that a key of `vocab` names."""
    with declarations.of_file(f"vocab.{key}"):
        return declarations.read(artifacts.existing(places.fetched(path)), kind, remedy=remedy)


def _read_sizes(path: str, section: ConfigDict) -> dict[str, int]:
    """Read the sizes of an allocation.

    Raises ValueError if the file is no allocation, or is one for another T or beta.
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

    Their names are `<lang>.runs.gz` and `<lang>.heldout.runs.gz`. Raises ValueError if a language
    of corpus.languages has no table, no language has one, or a table is a part of another.
    """
    from vocap.pretoken_tables import PART  # training needs no numba

    folder = places.fetched(config.vocab.tables)
    found = {path.name.removesuffix(".runs.gz"): path for path in folder.glob("*.runs.gz")}
    # Each part would count as a language of its own.
    if parts := sorted(name for name in found if PART.fullmatch(name)):
        raise ValueError(
            f"{found[parts[0]]} is a part of a table; make one table of a language's parts with "
            "xlm count --merge"
        )
    train: dict[str, pathlib.Path] = {}
    heldout: dict[str, pathlib.Path] = {}
    for name, path in found.items():
        if (language := name.removesuffix(".heldout")) != name:
            heldout[language] = path
        else:
            train[declarations.check_name(name, str(path), "rename the table")] = path
    wanted = set(config.corpus.languages or train)
    if missing := sorted(wanted - set(train)):
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


def parallel_sentences(config: ConfigDict) -> dict[str, list[str]]:
    """Read the lines of vocab.parallel that all its languages have; {} if the key is empty.

    Raises ValueError without such a folder or line, or if the lengths of files differ.
    """
    if not config.vocab.parallel:
        return {}
    folder = places.fetched(config.vocab.parallel)
    if not folder.is_dir():
        raise ValueError(f"vocab.parallel is {folder}, which is no folder; correct the path")
    source = sources.aligned_folder("vocab.parallel", folder, corpus_spec(config))
    rows = [row for row in source.rows() if row and all(row)]
    if not rows:
        raise ValueError(
            f"vocab.parallel: {folder} has no line in all of its languages, "
            f"{', '.join(source.languages) or 'none'}; it must have files <lang>.txt of the same "
            "lines"
        )
    return {
        language: list(text)
        for language, text in zip(source.languages, zip(*rows, strict=True), strict=True)
    }


def packed_dataset_settings(config: ConfigDict) -> PackedDatasetSettings:
    return settings(PackedDatasetSettings, config.store)


def data_settings(config: ConfigDict) -> DataSettings:
    return settings(DataSettings, config.data)


def kind_of_pairs(config: ConfigDict) -> str:
    """Kind of the batches of `data.pair_share`: one segment a pair, or two for VECO's objective."""
    return SEPARATE_PAIRS if config.objective == "veco" else PAIRS


def text_tokens(config: ConfigDict) -> dict[str, int]:
    """Estimate the tokens of training text by language from the sizes of its files."""
    spec, found = corpus_spec(config), collections.Counter[str]()
    for language, path in sources.find_text(spec) if spec.root else ():
        found[language] += text_files.text_bytes(path, places.state(path)[0])
    limits = {one: spec.limit_of(one) or size for one, size in found.items()}
    return {
        one: max(min(size, limits[one]) // BYTES_PER_TOKEN, 1)
        for one, size in found.items()
        if size
    }


def rows_of_tasks(config: ConfigDict) -> tuple[int, int]:
    """Rows of text, and of pairs, in a step; a joint step divides its rows (`data.kinds`)."""
    size = config.train.batch_size
    of_pairs = round(size * config.data.pair_share)
    return (size - of_pairs, of_pairs) if data_settings(config).is_joint else (size, size)


def pair_sampling(config: ConfigDict, dataset: PackedDataset) -> PairSampling | None:
    """Sample the language pairs of a packed dataset by `data.pair_sampling`; None without any."""
    sizes = pair_sizes(dataset)
    return sample_pairs(sizes, data_settings(config)) if sizes else None


def pair_shares(config: ConfigDict, dataset: PackedDataset) -> dict[Pair, float] | None:
    """Shares of language pairs in the stream; None if `data.pair_alpha` weights sets instead."""
    if data_settings(config).pair_sampling == "alpha":
        return None
    found = pair_sampling(config, dataset)
    return found.shares() if found else {}


def evaluation_settings(config: ConfigDict) -> EvaluationSettings:
    return settings(EvaluationSettings, config.evaluation)


# Sections of a config without effect on the results of training.
ELSEWHERE = ("corpus", "clean", "vocab", "store", "evaluation", "phases")
# Keys of `train` that change results of row-wise updates only, whose pending ones are rounded.
_INTERVALS = ("evaluate_every", "checkpoint_every")
# Recorded, not compared: the digest `text` of the same record identifies the content.
PLACE_OF_TEXT = ("corpus.root",)


def warn_of_other_sections(
    config: ConfigDict, earlier: Mapping[pathlib.Path, Sequence[str]]
) -> None:
    """Warn of differences between the config and the records of earlier stages.

    They may differ: a vocabulary of one text serves rows of another. `earlier` lists the sections
    that the stage of each folder has read.
    """
    found, defaults = [], schema.defaults_of_records()
    for folder, names in earlier.items():
        sections = {name: config[name].to_dict() for name in names}
        for name, section in sections.items():
            _drop(section, schema.with_effect(name)[name])
        if lines := artifacts.differences(folder, sections, defaults=defaults):
            found += [f"{folder}:", *lines]
    if found:
        logging.warning(
            "the config differs from those of earlier stages, whose results stay in use:\n%s\n"
            "If keys of corpus differ, one stage may learn from text that another holds out. For "
            "results of this config run all stages in another --workdir, or set the keys back",
            "\n".join(found),
        )


def open_train_stage(
    config: ConfigDict, folders: Folders, continue_from: int | None = None
) -> artifacts.Stage:
    """Open the folder of training, which refuses other settings (see `artifacts`).

    Keys without effect on results may differ (docs/resume.md lists them). Differences from earlier
    stages give a warning. A phase with other settings begins at step `continue_from` (`phases`).
    """
    rows = artifacts.read_object(folders.rows / "settings.json")
    defaults = schema.defaults_of_records()
    open_stage = functools.partial(
        artifacts.open_stage, folders.train, defaults={"rows": defaults, **defaults},
        uncompared=[f"rows.{path}" for path in PLACE_OF_TEXT], reads=[folders.vocab, folders.rows],
    )  # fmt: skip
    settings = {"rows": rows, **training_settings(config)}
    if earlier := phases.recorded(folders.train):
        settings[phases.PHASES] = earlier
    if continue_from is None:
        # Before the first checkpoint nothing depends on the settings.
        stage = open_stage(settings, replace=lambda: not any(folders.train.glob("checkpoints/*")))
    else:
        now = open_stage(settings, replace=lambda: True)
        begun = phases.with_phase(settings, now, continue_from)
        before = now.changes()
        # The phase replaces only the settings that it was checked against.
        stage = open_stage(begun, replace=lambda: now.changes() == before)
    stages = {folders.vocab: ("vocab",), folders.rows: ("corpus", "clean", "store")}
    warn_of_other_sections(config, stages)
    return stage


def training_settings(config: ConfigDict) -> dict[str, Any]:
    """Return the keys of a config that affect training, without those of earlier stages."""
    recorded = {k: v for k, v in config.to_dict().items() if k not in ELSEWHERE}
    for name, keys in schema.with_effect("data", "mesh", "train").items():
        _drop(recorded[name], keys)
    if config.optimizer.embedding_update == "dense":
        _drop(recorded["train"], _INTERVALS)
    return recorded


def _drop(section: dict[str, Any], keys: Iterable[str]) -> None:
    for key in keys:
        section.pop(key, None)


def open_packed_dataset(folders: Folders) -> PackedDataset:
    """Open the packed dataset of a working directory, checked against its tokenizer."""
    if not folders.has_rows and folders.byte_tokenizer.exists():
        folders.read_tokenizer()  # raises: byte_bpe permits no rows
    dataset = PackedDataset.open(folders.rows)
    dataset.check_tokenizer(folders.read_tokenizer(), folders.tokenizer)
    return dataset
