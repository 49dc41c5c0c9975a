"""Training pairs of a translation: tokenised once into the run's folder, and streamed."""

import itertools
import pathlib
from collections.abc import Iterator
from typing import Any

import sentencepiece as spm
from jax.sharding import Mesh
from ml_collections import ConfigDict

from input_pipeline.dataset import StreamedData
from input_pipeline.packed_dataset import tokenizer_hash
from input_pipeline.tasks import loading, pair_columns
from input_pipeline.tasks.batches import TokenStream, batch_sizes
from xlm.common import artifacts
from xlm.experiment import translation
from xlm.experiment.pretrained import Pretrained
from xlm.experiment.task_settings import TaskSettings, task_settings
from xlm.interop import surface, vocabulary
from xlm.training import hosts
from xlm.training.sharding import host_parts, num_batch_shards

PAIRS = "pairs"  # a folder in the run's folder
_PIECES = "pieces.json"


def check_batches(config: ConfigDict, mesh: Mesh) -> None:
    """Raise ValueError if batches to train or to search have too few tokens for a row of each."""
    lengths, shards = task_settings(config).lengths, num_batch_shards(mesh)
    parts = shards * config.train.accumulation_steps
    batch_sizes("train.batch_tokens", config.train.batch_tokens, lengths, parts)
    batch_sizes("evaluation.batch_tokens", config.evaluation.batch_tokens, lengths, shards)


def prepared(config: ConfigDict, pretrained: Pretrained, folder: pathlib.Path) -> Pretrained:
    """Tokenise the training data into a folder, unless done; return the start with their pieces.

    Data of another text or tokenizer in the folder are removed. An unfinished folder resumes.
    Raises ValueError if the data are at fault.
    """
    options, chosen = task_settings(config), translation.translation_settings(config)
    files = {str(path): path.stat() for path in translation.data_files(options, ("train",))}
    identity = {  # without a hash of files, which would take long at each start
        "files": {path: [one.st_size, one.st_mtime_ns] for path, one in files.items()},
        "tokenizer": tokenizer_hash(pretrained.tokenizer),
        "task": [options.train, options.train_languages, options.language_codes, options.data_dir],
        "pieces": [chosen.prune, chosen.language_pieces, chosen.character_count],
    }
    stage, pieces = artifacts.open_stage(folder, identity, replace=lambda: True), folder / _PIECES
    if not stage.done and hosts.is_first():
        with stage.locked(claims=False):
            for path in () if stage.claimed else folder.glob("*.[jn]*"):  # .json and .npy
                path.unlink()
            stage.claim()
            if not pieces.exists():
                artifacts.write_json(pieces, pieces_of_data(config, pretrained))
            found = translation.with_pieces(pretrained, artifacts.read_object(pieces))
            targets = spm.SentencePieceProcessor(model_proto=found.tokenizer)
            processors = surface.for_sources(found.tokenizer), targets
            pair_columns.write(folder, texts(options), processors)
            stage.finish()
    hosts.wait_for_all("the pairs are written")
    return translation.with_pieces(pretrained, artifacts.read_object(pieces))


def texts(options: TaskSettings) -> pair_columns.Texts:
    """Pairs by direction and text, read lazily."""
    found, languages = translation.sources(options, "train")
    return {one: loading.translations(options.source("train", one), languages) for one in found}


def pieces_of_data(config: ConfigDict, pretrained: Pretrained) -> dict[str, Any]:
    """Pieces that training data keep and add; ValueError for pruning a run to continue."""
    options, chosen = task_settings(config), translation.translation_settings(config)
    tokenizer, kept = pretrained.tokenizer, None

    def sides(first: int) -> Iterator[str]:
        for pairs in itertools.chain.from_iterable(texts(options).values()):
            yield from itertools.chain.from_iterable(pair[first:] for pair in pairs)

    if chosen.prune:
        if isinstance(pretrained, translation.Translated):
            raise ValueError(
                f"translation.prune is True, but {config.init_from} is a run of translation; set "
                "it to False"
            )
        kept = vocabulary.used_pieces(tokenizer, sides(0), chosen.language_pieces.values())
        tokenizer = vocabulary.with_pieces(tokenizer, kept)
    least = chosen.character_count
    forms = surface.missing_forms(tokenizer, sides(1), least) if least else []
    return {"kept": None if kept is None else kept.tolist(), "forms": forms}


def training_data(
    config: ConfigDict, folder: pathlib.Path, found: translation.TranslationModel, mesh: Mesh
) -> StreamedData:
    """Build this host's part of the training batches, of the pairs in a folder."""
    options, tokenizer = task_settings(config), found.tokenizer
    pairs = pair_columns.StoredPairs(
        folder, translation.directions(options, "train"), found.symbols, tokenizer.processor,
        options.max_length,
    )  # fmt: skip
    stream = TokenStream(
        pairs, config.train.batch_tokens, options.lengths, config.train.seed,
        tokenizer.special.pad, num_batch_shards(mesh) * config.train.accumulation_steps,
        config.train.alpha,
    )  # fmt: skip
    return StreamedData(stream, "threads", *host_parts(mesh))
