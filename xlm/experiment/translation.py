"""Builders of translation: the start of a run, its model, its data and its search."""

import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import sentencepiece as spm
from absl import logging
from jax.sharding import Mesh
from ml_collections import ConfigDict

from input_pipeline.tasks import loading, translation
from input_pipeline.tasks.examples import TranslationExample
from input_pipeline.tasks.features import Unit, language_symbols, translation_features
from knn_sampling.exact_layers import BlockwiseSoftmax, FullSoftmax
from xlm.common import declarations, places
from xlm.common.schema import settings
from xlm.evaluation.decoding import TokenIds
from xlm.evaluation.settings import DecodingSettings
from xlm.evaluation.tasks import TaskData
from xlm.evaluation.translating import Translator
from xlm.experiment import fine_tuning
from xlm.experiment.data import Folders
from xlm.experiment.prediction import read_tokenizer
from xlm.experiment.pretrained import Pretrained, read_pretrained
from xlm.experiment.run_folder import BEST, TOKENIZER
from xlm.experiment.task_data import SPLITS
from xlm.experiment.task_settings import TaskSettings, Tokenizer, TranslationSettings, task_settings
from xlm.interop import surface, vocabulary
from xlm.interop.params_file import Notes, read_params
from xlm.models.encoder import CROSS_ATTENTION, Encoder
from xlm.models.settings import EncoderSettings
from xlm.objectives.translation import Translation
from xlm.training.settings import OptimizerSettings, TrainSettings
from xlm.training.step import TrainFunctions, make_train_functions

_LAYERS = {"full": FullSoftmax, "blockwise": BlockwiseSoftmax}


@dataclasses.dataclass(frozen=True)
class TranslationModel:
    """Architecture and vocabulary of a translation.

    Attributes:
      encoder, decoder: settings of both, with as many table rows.
      tokenizer: the vocabulary, whose pieces are the classes.
      symbols: id of the symbol of each target language.
    """

    encoder: EncoderSettings
    decoder: EncoderSettings
    tokenizer: Tokenizer
    symbols: Mapping[str, int]

    def token_ids(self) -> TokenIds:
        """Ids for the search. Neither specials nor symbols of languages are generated."""
        processor, special = self.tokenizer.processor, self.tokenizer.special
        num_pieces, unk = processor.get_piece_size(), processor.unk_id()
        never = {*special.special_ids(), *self.symbols.values()} - {special.eos, unk}
        return TokenIds(special.eos, special.pad, tuple(sorted(never)), num_pieces, unk)

    @functools.cached_property
    def of_sources(self) -> spm.SentencePieceProcessor:
        """The processor of sources, which ignores added forms; see `surface.for_sources`."""
        return surface.for_sources(self.tokenizer.processor.serialized_model_proto())


@dataclasses.dataclass(frozen=True)
class Translated(Pretrained):
    """A finished run of translation, `params` as of `Translation`."""

    decoder_layers: int = 0
    symbols: Mapping[str, int] = dataclasses.field(default_factory=dict)


def translation_settings(config: ConfigDict) -> TranslationSettings:
    return settings(TranslationSettings, config.translation)


def read_start(config: ConfigDict) -> Pretrained:
    """Read the start of a run: an encoder, a vocabulary, or a finished run of translation.

    An encoder keeps its cross-attention. A working directory with a vocabulary and no encoder gives
    a model of the `architecture` section without parameters, if `random_init` is set. Raises
    ValueError if it is none of these, or damaged.
    """
    folder = places.fetched(config.init_from)
    if (folder / BEST).exists():
        params, notes = read_params(folder / BEST)
        with declarations.of_file(folder / BEST):
            found = model_of_notes(notes, read_tokenizer(folder, notes.tokenizer))
        model, count = (folder / TOKENIZER).read_bytes(), found.decoder.num_layers
        return Translated(found.encoder, params, model, decoder_layers=count, symbols=found.symbols)
    is_encoder = (folder / "config.json").exists() or (folder / "train" / "settings.json").exists()
    if is_encoder or not config.random_init:
        return read_pretrained(config.init_from, keeps_decoder=True, objective=config.objective)
    tokenizer = Folders(folder).read_tokenizer()
    sizes = settings(
        EncoderSettings, config.architecture,
        vocab_size=Tokenizer(tokenizer).processor.get_piece_size(), cross_attention=True,
        **config.model.to_dict(),
    )  # fmt: skip
    return Pretrained(sizes, {}, tokenizer)


def directions(options: TaskSettings, split: str) -> tuple[str, ...]:
    """Directions of a split, by default those of training. Test data may be missing.

    Raises ValueError if there are none, or one is no direction.
    """
    if split == "test" and not options.test:
        return ()
    found = tuple(getattr(options, f"{split}_languages")) or tuple(options.train_languages)
    if not found:
        raise ValueError("task.train_languages is empty; name directions, such as ('en-de',)")
    for one in found:
        translation.direction(one)
    return found


def data_files(options: TaskSettings, splits: Sequence[str] = SPLITS) -> list[pathlib.Path]:
    """The files that a run reads, none of tensorflow-datasets; ValueError if one is missing."""
    found: list[pathlib.Path] = []
    for split in splits:
        for direction in directions(options, split):
            found += itertools.chain(*loading.translation_files(options.source(split, direction)))
    return found


def sources(options: TaskSettings, split: str) -> tuple[Sequence[str], set[str]]:
    """Directions of a split, and the languages of the run; see `loading.translations`.

    Raises ValueError if two directions have the same text; and see there.
    """
    found = directions(options, split)
    texts = {one: loading.translation_files(options.source(split, one)) for one in found}
    translation.check_distinct(texts, options.language_codes, f"task.{split}")
    languages = {
        code
        for some in ("train", "validation", "test")
        for one in directions(options, some)
        for code in translation.direction(one)
    }
    return found, languages


def read_examples(options: TaskSettings, split: str) -> dict[str, list[TranslationExample]]:
    """Examples of a split by direction; raises ValueError as `sources`."""
    found, languages = sources(options, split)
    return {one: loading.load_translations(options.source(split, one), languages) for one in found}


def with_pieces(pretrained: Pretrained, found: Mapping[str, Any]) -> Pretrained:
    """Reduce the vocabulary to the pieces that training data use, and add missing ones."""
    if found["kept"] is not None:
        pretrained = _pruned(pretrained, np.array(found["kept"]))
    return _with_forms(pretrained, found["forms"])


def _pruned(pretrained: Pretrained, kept: np.ndarray) -> Pretrained:
    """Reduce vocabulary and embeddings to the pieces with ids `kept`."""
    tokenizer = vocabulary.with_pieces(pretrained.tokenizer, kept)
    logging.info("%d of %d pieces are kept", len(kept), pretrained.settings.vocab_size)
    params = dict(pretrained.params)
    if params:
        table = params["embeddings"]["table"][kept]
        params["embeddings"] = {**params["embeddings"], "table": table}
    if "head" in params:
        params["head"] = {**params["head"], "bias": params["head"]["bias"][kept]}
    sizes = dataclasses.replace(pretrained.settings, vocab_size=len(kept))
    return Pretrained(sizes, params, tokenizer)


def _with_forms(pretrained: Pretrained, forms: Sequence[str]) -> Pretrained:
    """Add pieces for characters of targets that the tokenizer changes or lacks; see `surface`.

    A new row is the mean of the rows of the form's normal parts. Rows of symbols move behind it.
    """
    tokenizer, parts = surface.with_forms(pretrained.tokenizer, forms)
    if not parts:
        return pretrained
    logging.info("%d pieces are added: %s", len(parts), " ".join(forms[:10]))
    num_pieces = Tokenizer(pretrained.tokenizer).processor.get_piece_size()

    def grown(path: Any, rows: np.ndarray) -> np.ndarray:
        if jax.tree_util.keystr(path[-2:]) not in ("['embeddings']['table']", "['head']['bias']"):
            return rows
        old = rows.reshape(len(rows), -1)
        new = vocabulary.mean_rows(old, parts, old[:num_pieces].mean(axis=0))
        both = np.concatenate([old[:num_pieces], new, old[num_pieces:]])
        return both.reshape(-1, *rows.shape[1:])

    params = jax.tree.map_with_path(grown, pretrained.params)
    found = dataclasses.replace(pretrained, params=params, tokenizer=tokenizer)
    if not isinstance(found, Translated):
        return found
    moved = {code: row + len(parts) * (row >= num_pieces) for code, row in found.symbols.items()}
    return dataclasses.replace(found, symbols=moved)


def model(config: ConfigDict, pretrained: Pretrained) -> TranslationModel:
    """Build the architecture of a run.

    Raises ValueError if rows or hypotheses are longer than the positions, a decoder has more layers
    than the checkpoint, a language has no piece of its own, or needed cross-attention is missing.
    """
    options, chosen = task_settings(config), translation_settings(config)
    found = fine_tuning.encoder_settings(config, pretrained.settings)
    check_search(config, found)
    if not chosen.output_head and found.embedding_size != found.hidden_size:
        raise ValueError(
            f"translation.output_head is False, but embeddings of width {found.embedding_size} do "
            f"not fit a decoder of width {found.hidden_size}; set it to True"
        )
    known, num_layers = {}, chosen.decoder_layers
    if isinstance(pretrained, Translated) and not config.random_init:
        known, num_layers = dict(pretrained.symbols), pretrained.decoder_layers
        if (has_head := "dense" in pretrained.params["decoder"]["head"]) != chosen.output_head:
            raise ValueError(
                f"translation.output_head is {chosen.output_head}, but the decoder of "
                f"{config.init_from} has {'a' if has_head else 'no'} head; set it to {has_head}"
            )
    elif pretrained.params and not config.random_init and chosen.decoder_from != "random":
        _check_start(config, chosen, pretrained.settings)
    tokenizer = Tokenizer(pretrained.tokenizer)
    num_pieces = tokenizer.processor.get_piece_size()
    targets = [translation.direction(one)[1] for one in directions(options, "train")]
    pieces = {code: one for code, one in chosen.language_pieces.items() if code not in known}
    symbols = known | language_symbols(
        [one for one in targets if one not in known],
        max([num_pieces, *(row + 1 for row in known.values())]), pieces,
        tokenizer.processor.piece_to_id, tokenizer.special,
    )  # fmt: skip
    num_rows = max(num_pieces, *(row + 1 for row in symbols.values()))
    encoder = dataclasses.replace(found, vocab_size=num_rows, cross_attention=False)
    decoder = dataclasses.replace(encoder, num_layers=num_layers, cross_attention=True)
    return TranslationModel(encoder, decoder, tokenizer, symbols)


def check_search(config: ConfigDict, found: EncoderSettings) -> None:
    """Raise ValueError if hypotheses may be longer than the positions."""
    longest = decoding_settings(config).max_length
    if longest > found.max_length:
        raise ValueError(
            f"decoding.max_length is {longest}, but the model has {found.max_length} positions; "
            "lower it"
        )


def _check_start(config: ConfigDict, chosen: TranslationSettings, found: EncoderSettings) -> None:
    if chosen.decoder_layers > found.num_layers:
        raise ValueError(
            f"translation.decoder_layers is {chosen.decoder_layers}, but {config.init_from} has "
            f"{found.num_layers} layers to start from; lower it"
        )
    if found.cross_attention:
        return
    message = (
        f"{config.init_from} has no cross-attention; to start with one, pre-train with objective "
        '"veco" and take its --workdir, or a folder of xlm export --part=encoder_decoder'
    )
    if chosen.needs_cross_attention:
        raise ValueError(
            f"{message}; translation.needs_cross_attention=False starts with a random one"
        )
    logging.warning("%s. The decoder starts with random cross-attention", message)


def objective(config: ConfigDict, found: TranslationModel) -> Translation:
    """Build the objective of a run."""
    chosen = translation_settings(config)
    layer = _LAYERS[chosen.output_layer](found.tokenizer.processor.get_piece_size())
    return Translation(
        Encoder(found.encoder), Encoder(found.decoder), layer, chosen.label_smoothing,
        chosen.output_head,
    )  # fmt: skip


def initial_params(
    config: ConfigDict, pretrained: Pretrained, found: TranslationModel
) -> Callable[[], Any] | None:
    """Build the initial parameters, those of a checkpoint if it has them; None for all random.

    The decoder gets the checkpoint's layers, its head and all else except embeddings. Symbols of
    languages in rows of their own are random, with the spread of the table. A continued run gives
    all of its parameters, exactly.
    """
    if config.random_init:
        return None
    params, rows = pretrained.params, found.encoder.vocab_size

    def make() -> Any:
        if isinstance(pretrained, Translated):
            encoder, decoder = params["encoder"], params["decoder"]
        else:
            num_pieces = found.tokenizer.processor.get_piece_size()
            encoder, decoder = _of_checkpoint(params, translation_settings(config), num_pieces)
        table = encoder["embeddings"]["table"]
        shape = rows - len(table), table.shape[1]
        symbols = table.std() * np.random.default_rng(config.train.seed).normal(size=shape)
        table = np.concatenate([table, symbols]).astype(np.float32)
        encoder = {**encoder, "embeddings": {**encoder["embeddings"], "table": table}}
        if head := decoder.get("head"):  # symbols are no classes
            bias = np.pad(head["bias"], (0, rows - len(head["bias"])))
            decoder = {**decoder, "head": {**head, "bias": bias}}
        # What is left out stays random.
        return {"encoder": encoder, **({"decoder": decoder} if decoder else {})}

    return make


def _of_checkpoint(
    params: Mapping[str, Any], chosen: TranslationSettings, num_pieces: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Encoder and decoder of a checkpoint's parts, without rows that pad a run's table."""
    shared = {name: value for name, value in params.items() if name not in ("head", "layers")}
    layers = {k: v for k, v in params["layers"].items() if k not in CROSS_ATTENTION}
    embeddings = {**shared.pop("embeddings"), "table": params["embeddings"]["table"][:num_pieces]}
    encoder = {**shared, "embeddings": embeddings, "layers": layers}
    if chosen.decoder_from == "random":
        return encoder, {}
    count = chosen.decoder_layers
    part = slice(count) if chosen.decoder_from == "first" else slice(-count, None)
    decoder = {**shared, "layers": jax.tree.map(lambda x: x[part], params["layers"])}
    if head := params.get("head"):
        head = head if chosen.output_head else {"bias": head["bias"]}
        decoder["head"] = {**head, "bias": head["bias"][:num_pieces]}
    return encoder, decoder


def featured(
    options: TaskSettings,
    found: TranslationModel,
    direction: str,
    examples: Sequence[Any],
    unit: Unit = "example",
) -> TaskData:
    """Examples of a direction with their features; `unit` as of `translation_features`."""
    tokenizer = found.tokenizer
    args = tokenizer.processor, tokenizer.special, options.max_length, found.symbols, unit
    return TaskData(direction, examples, translation_features(examples, *args, found.of_sources))


def train_settings(config: ConfigDict) -> TrainSettings:
    """Steps and intervals of a run.

    Raises ValueError if it has fewer checkpoints than it averages.
    """
    train = config.train
    count = train.averaged_checkpoints
    found = settings(
        TrainSettings, train,
        batch_size=train.accumulation_steps,  # rows vary; they are multiples of it
        keep_checkpoints=1,
        # Those to average, besides the one of a stop.
        keep_every=train.checkpoint_every if count else 0, max_multiples=count,
    )  # fmt: skip
    made = found.num_steps // found.checkpoint_every
    if count > made:
        raise ValueError(
            f"train.averaged_checkpoints is {count}, but {found.num_steps} steps give {made} "
            f"checkpoints; lower it, or train.checkpoint_every, which is {found.checkpoint_every}"
        )
    return found


def train_functions(config: ConfigDict, one: Translation, mesh: Mesh) -> TrainFunctions:
    """Build the compiled functions of a run.

    Raises ValueError if `optimizer.frozen` names anything but the embeddings.
    """
    if unknown := sorted(set(config.optimizer.frozen) - {"embeddings"}):
        raise ValueError(
            f'optimizer.frozen names {unknown}, must be () or ("embeddings",) of a translation'
        )
    train = train_settings(config)
    optimizer = settings(
        OptimizerSettings, config.optimizer,
        warmup_steps=fine_tuning.warmup_steps(config.optimizer, train.num_steps),
    )  # fmt: skip
    return make_train_functions(
        one, optimizer, fine_tuning.MESH, mesh,
        num_steps=train.num_steps, accumulation=train.accumulation,
    )  # fmt: skip


def decoding_settings(config: ConfigDict) -> DecodingSettings:
    return settings(DecodingSettings, config.decoding)


def translator(
    config: ConfigDict,
    one: Translation,
    found: TranslationModel,
    mesh: Mesh | None,
    decoding: DecodingSettings | None = None,
) -> Translator:
    """Build the search, of the `decoding` section or of other settings."""
    return Translator(
        one, decoding or decoding_settings(config),
        found.token_ids(), batch_tokens=config.evaluation.batch_tokens,
        buckets=task_settings(config).lengths, pad=found.tokenizer.special.pad, mesh=mesh,
    )  # fmt: skip


def search_in_training(config: ConfigDict) -> DecodingSettings:
    """Settings of the searches during training, which ignore `decoding`."""
    length = task_settings(config).max_length
    return DecodingSettings(config.evaluation.beams_in_training, length, early_stop=True)


def notes(found: TranslationModel, tokenizer_hash: str) -> dict[str, Any]:
    """Notes beside the parameters, for `model_of_notes`."""
    return {
        "encoder": dataclasses.asdict(found.encoder),
        "decoder": dataclasses.asdict(found.decoder),
        "symbols": dict(found.symbols),
        "tokenizer": tokenizer_hash,
    }


def model_of_notes(notes: Notes, tokenizer: Tokenizer) -> TranslationModel:
    """Architecture and vocabulary of parameters that were written with `notes`.

    Raises ValueError if they have no decoder, or fewer table rows than pieces and symbols.
    """
    if notes.decoder is None:
        raise ValueError("has no decoder; name the --workdir of a run that translates")
    encoder, decoder = map(fine_tuning.encoder_of_notes, (notes.encoder, notes.decoder))
    last = max(tokenizer.processor.get_piece_size() - 1, *notes.symbols.values())
    if last >= encoder.vocab_size:
        raise ValueError(
            f"its table has {encoder.vocab_size} rows, but pieces and symbols are up to {last}; "
            "copy the whole folder of the run"
        )
    return TranslationModel(encoder, decoder, tokenizer, notes.symbols)
