"""Export of finished runs of finetune.py: the best parameters, their head, and a model card."""

import dataclasses
import pathlib
from typing import Any

from ml_collections import ConfigDict

from xlm.common import artifacts, declarations
from xlm.evaluation import task_results
from xlm.experiment import fine_tuning as builders
from xlm.experiment import model_card, objectives, prediction, translation
from xlm.experiment.run_folder import BEST, RESULTS, TOKENIZER
from xlm.experiment.task_kinds import KINDS
from xlm.experiment.task_settings import TaskSettings, task_settings
from xlm.interop import huggingface, model_folder, sentence_folder, translation_folder
from xlm.interop.params_file import read_params
from xlm.interop.task_heads import TaskHead


def is_fine_tuned(workdir: pathlib.Path) -> bool:
    """Whether a working directory is one of finetune.py, whose files lie at its top."""
    return any((workdir / name).exists() for name in (RESULTS, BEST, "settings.json"))


def export(workdir: pathlib.Path, output: pathlib.Path, form: str = "transformers") -> str:
    """Write the model of a finished run as a folder; see `xlm.interop.model_folder.write_model`.

    The card describes the `form`, one of `xlm.interop.cards.FORMATS`. Returns the reason that
    `transformers` cannot load it; "" if it can. Raises ValueError if the run has not ended, has no
    head, or its files do not belong together; or the folder is not empty.
    """
    config = prediction.run_config(workdir)
    options = task_settings(config)
    if options.task.is_translation:
        return _export_translation(workdir, config, output, form)
    if options.task.kind not in KINDS:
        raise ValueError(
            f"{workdir} is a run of {options.name}, of kind {options.task.kind}, which has no "
            f"encoder with a head to export; only {', '.join(sorted(KINDS))} have one"
        )
    params, notes = read_params(workdir / BEST)
    prediction.read_tokenizer(workdir, notes.tokenizer)  # refuses another one
    tokenizer = artifacts.read_bytes(workdir / TOKENIZER)
    with declarations.of_file(workdir / BEST):
        encoder = builders.encoder_of_notes(notes.encoder)
        params = objectives.checked_params(builders.with_head(config, encoder), params)
        head = task_head(options, params.get("task", {}))
    written = None if options.task.is_embedding else head
    sizes = dataclasses.asdict(encoder)
    reason = model_folder.why_not_transformers(sizes, task_head=written)
    facts = model_card.Facts(
        config=config,
        options=options,
        results=task_results.read_results(workdir / RESULTS),
        head=head,
        num_layers=encoder.num_layers,
        hidden_size=encoder.hidden_size,
        start=prediction.read_start(workdir).parameters,
        reason=reason,
        tokenizer_reason=huggingface.why_not_exported(tokenizer),
        form=form,
    )
    model_folder.write_model(
        output, params["encoder"], sizes, tokenizer, task_head=written, card=model_card.text(facts)
    )
    if form == "sentence_transformers":
        sentence_folder.add(
            output, max_length=options.max_length, reads_first=options.text_pooling == "first",
            prompts={"query": options.query_prefix, "document": options.passage_prefix},
        )  # fmt: skip
    return reason


def _export_translation(
    workdir: pathlib.Path, config: ConfigDict, output: pathlib.Path, form: str
) -> str:
    if form != "transformers":
        raise ValueError(f"--format={form} has no place for a decoder; leave out --format")
    params, notes = read_params(workdir / BEST)
    tokenizer = prediction.read_tokenizer(workdir, notes.tokenizer)
    with declarations.of_file(workdir / BEST):
        model = translation.model_of_notes(notes, tokenizer)
        params = objectives.checked_params(translation.objective(config, model), params)
    parts = translation_folder.TranslationParts(
        params, dataclasses.asdict(model.encoder), dataclasses.asdict(model.decoder),
        model.symbols, artifacts.read_bytes(workdir / TOKENIZER), config.decoding.to_dict(),
    )  # fmt: skip
    results = task_results.read_results(workdir / RESULTS)
    base = "" if config.random_init else results["model"]
    translation_folder.write(output, parts, model_card.of_translation(parts, results, base))
    return ""


def task_head(options: TaskSettings, params: dict[str, Any]) -> TaskHead:
    """Return the head of a task with its parameters.

    The class of token classification scores tokens. With `task.pooling` "first" a word's scores are
    those of its first token, with "mean" the mean of its tokens' scores: a dense layer of a mean is
    the mean of the dense layers.
    """
    kind = KINDS[options.task.kind]
    # No class reads the two states of crossed pairs.
    suffix = "" if options.cross_attention else kind.class_suffix
    pooling = "mean" if options.reads_mean else "first"
    return TaskHead(options.task.kind, suffix, tuple(options.task.labels), params, pooling)
