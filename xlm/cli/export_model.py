"""Export the model of a run or a folder, for `transformers` where possible.

    xlm export --workdir=RUN --output=FOLDER [--format=onnx | --format=sentence_transformers]
    xlm export --model=FOLDER --output=FOLDER [--format=onnx | --format=sentence_transformers]

From a run of train.py it writes the latest checkpoint, with the recorded config. From a finished
run of finetune.py it writes the best parameters with their head and labels. --model is a folder of
xlm import, xlm merge, xlm prune or xlm export. Each output has a card.

XLM-R, XLM-R XL and ModernBERT encoders keep their format:
`AutoModelForMaskedLM.from_pretrained(FOLDER)` reads it. Other encoders have a format of our own,
with a modelling file for PyTorch: add `trust_remote_code=True`. xlm import, xlm prune, finetune.py,
train.init_from and `AutoTokenizer` read both. --part=generator selects the generator of
replaced-token detection instead of the discriminator's encoder. --part=encoder_decoder adds VECO's
cross-attention to its encoder.

--format=onnx writes model.onnx instead of the weights. It computes the states of the last layer, or
the logits of a finished run of finetune.py, --part=masked_lm or generator.
--format=sentence_transformers adds files for that library, which then gives the vectors of
xlm.Encoder. docs/export.md has more.
"""

import dataclasses
import functools
import pathlib

from absl import flags, logging

from input_pipeline.tasks.tasks import TASKS
from xlm.common import outputs, places
from xlm.experiment import model_card, prediction, tuned_export
from xlm.experiment.data import Folders, open_packed_dataset
from xlm.experiment.masked_lm import encoder_of, masked_lm_of
from xlm.experiment.pretrained import read_pretrained, run_config
from xlm.interop import cards, model_folder, onnx_folder, sentence_folder
from xlm.interop.task_heads import TaskHead

_MODEL = flags.DEFINE_string("model", None, "The folder of a model, instead of --workdir.")
_WORKDIR = flags.DEFINE_string("workdir", None, "The working directory of the run.")
_PART = flags.DEFINE_enum(
    "part", "encoder", ("encoder", "masked_lm", "generator", "encoder_decoder"),
    "What to export. Replaced-token detection: the discriminator's encoder, or the generator, a "
    "masked LM. VECO: the encoder, or with encoder_decoder also the cross-attention. masked_lm: "
    "the encoder, with the logits of its head as output of --format=onnx.",
)  # fmt: skip
_FORMAT = flags.DEFINE_enum(
    "format", "transformers", cards.FORMATS,
    "For which library: transformers, onnxruntime, or sentence-transformers.",
)  # fmt: skip
_OBJECTIVE = flags.DEFINE_string(
    "objective", "", "The run's objective, if it is of another package: code that you trust."
)
_OUTPUT = flags.DEFINE_string("output", None, "The folder to write, absent or empty.")

OPTIONS = {"required": ("output",)}


def main(_) -> None:
    given = [one for one in (_WORKDIR.value, _MODEL.value) if one is not None]
    if len(given) != 1:
        raise ValueError("give either --workdir=RUN or --model=FOLDER")
    source, output, part = places.fetched(given[0]), _OUTPUT.value, _PART.value
    is_folder = (source / "config.json").exists()
    is_fine_tuned = not is_folder and tuned_export.is_fine_tuned(source)
    head = model_folder.read_task_head(source) if is_folder else None
    is_embedding = is_fine_tuned and TASKS[prediction.run_config(source).task.name].is_embedding
    has_task_head = (is_fine_tuned and not is_embedding) or head is not None
    if part != "encoder" and (has_task_head or (is_folder and part == "generator")):
        raise ValueError(f"--part is {part}, but {source} has one part; leave out --part")
    if _FORMAT.value != "transformers" and part == "encoder_decoder":
        raise ValueError(f"--format={_FORMAT.value} has no cross-attention; export another --part")
    if _FORMAT.value == "sentence_transformers" and has_task_head:
        raise ValueError(
            f"--format=sentence_transformers has no place for the head of {source}; leave it out"
        )
    export = tuned_export.export if is_fine_tuned else functools.partial(_export_encoder, head)
    with outputs.folder(_OUTPUT.value, overwrite=False) as aside:
        reason = export(source, aside, _FORMAT.value)
        if _FORMAT.value == "onnx":
            by_head = has_task_head or part in ("masked_lm", "generator")
            onnx_folder.convert(aside, by_head=by_head)
        elif _FORMAT.value == "sentence_transformers" and not is_embedding:
            sentence_folder.add(aside)
    logging.info("wrote the model to %s", output)
    if reason and _FORMAT.value != "onnx":
        logging.warning(
            "%s has a form of our own: load it with trust_remote_code=True (README.md)", output
        )


def _export_encoder(
    head: TaskHead | None, source: pathlib.Path, output: pathlib.Path, form: str
) -> str:
    """Write a folder's model with its task head, or a run's latest checkpoint.

    Returns why `transformers` cannot load it, or "".
    """
    folders, is_folder = Folders(source), (source / "config.json").exists()
    if not is_folder and not folders.train.exists():
        raise ValueError(
            f"{source} is no run of train.py or finetune.py, and no model's folder; give the "
            "--workdir of one, or a --model of xlm import, merge, prune or export"
        )
    objective, keeps_decoder = _OBJECTIVE.value, _PART.value == "encoder_decoder"
    found = read_pretrained(
        str(source), keeps_decoder=keeps_decoder, objective=objective,
        part_of=masked_lm_of if _PART.value == "generator" else encoder_of,
    )  # fmt: skip
    if keeps_decoder and not found.settings.cross_attention:
        raise ValueError(
            "--part is encoder_decoder, but this model's model.cross_attention is False; export "
            'its encoder, or train with objective "veco"'
        )
    sizes, tokenizer = dataclasses.asdict(found.settings), found.tokenizer
    run, base = None, source.resolve().name
    if found.step is not None:
        config, dataset = run_config(folders, objective), open_packed_dataset(folders)
        run = model_card.Run(folders, config, dataset, found.step)
        start = places.local(config.train.init_from)
        base = start.name if start.parent.name != "phases" else ""  # parts of this run
        logging.info("the model is of step %d", found.step)
    has_head = "head" in found.params
    card = model_card.of_encoder(
        sizes, tokenizer, form, has_head=has_head, task_head=head, base=base, run=run
    )
    model_folder.write_model(output, found.params, sizes, tokenizer, task_head=head, card=card)
    return model_folder.why_not_transformers(sizes, has_head=has_head, task_head=head)
