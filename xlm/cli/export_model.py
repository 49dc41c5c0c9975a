"""Export the model of a working directory, for `transformers` where possible.

    xlm export --workdir=RUN --output=FOLDER [--format=onnx | --format=sentence_transformers]

From a run of train.py it writes the latest checkpoint, by the config that the run recorded. From a
finished run of finetune.py it writes the best parameters with their head, the labels by name and a
model card.

An XLM-R, XLM-R XL or ModernBERT encoder is written in its format:
`AutoModelForMaskedLM.from_pretrained(FOLDER)` reads it. Other encoders have a format of our own,
with a modelling file for PyTorch beside it: add `trust_remote_code=True`. xlm import, xlm prune,
finetune.py, train.init_from and `AutoTokenizer` read both. --part=generator selects the generator
of replaced-token detection instead of the discriminator's encoder. --part=encoder_decoder adds
VECO's cross-attention to its encoder.

--format=onnx has model.onnx in place of the weights: the states of the last layer, or the logits of
a finished run of finetune.py, --part=masked_lm or generator. --format=sentence_transformers adds
files by which that library gives the vectors of xlm.Encoder. docs/interop.md has more.
"""

import dataclasses
import pathlib

import jax
from absl import flags, logging

from xlm.common import outputs
from xlm.experiment import model_card, pretrained_card, tuned_export
from xlm.experiment.data import Folders
from xlm.experiment.masked_lm import encoder_of, masked_lm_of
from xlm.experiment.pretrained import encoder_alone, read_run, run_config
from xlm.interop import model_folder, onnx_folder, sentence_folder

_WORKDIR = flags.DEFINE_string("workdir", None, "The working directory of the run.")
_PART = flags.DEFINE_enum(
    "part", "encoder", ("encoder", "masked_lm", "generator", "encoder_decoder"),
    "What to export. Replaced-token detection: the discriminator's encoder, or the generator, a "
    "masked LM. VECO: the encoder, or with encoder_decoder also the cross-attention. masked_lm: "
    "the encoder, with the logits of its head as output of --format=onnx.",
)  # fmt: skip
_FORMAT = flags.DEFINE_enum(
    "format", "transformers", model_card.FORMATS,
    "For which library: transformers, onnxruntime, or sentence-transformers.",
)  # fmt: skip
_OBJECTIVE = flags.DEFINE_string(
    "objective", "", "The run's objective, where it is of another package: code that you trust."
)
_OUTPUT = flags.DEFINE_string("output", None, "The folder to write, absent or empty.")

_READERS = "which xlm import, xlm prune, finetune.py and train.init_from read"
_TUNED_READERS = (
    "the head's tensors beside the encoder's, which alone xlm import, xlm prune "
    "and finetune.py read"
)

OPTIONS = {"required": ("workdir", "output")}


def main(_) -> None:
    workdir, output = pathlib.Path(_WORKDIR.value), pathlib.Path(_OUTPUT.value)
    is_fine_tuned = tuned_export.is_fine_tuned(workdir)
    if is_fine_tuned and _PART.value != "encoder":
        raise ValueError(
            f"--part is {_PART.value}, but {workdir} is a run of finetune.py, which has one part; "
            "leave out --part"
        )
    if _FORMAT.value != "transformers" and _PART.value == "encoder_decoder":
        raise ValueError(f"--format={_FORMAT.value} has no cross-attention; export another --part")
    if _FORMAT.value == "sentence_transformers" and is_fine_tuned:
        raise ValueError(
            f"--format=sentence_transformers has no place for the head of {workdir}; leave it out"
        )
    export = tuned_export.export if is_fine_tuned else _export_pretrained
    with outputs.folder(_OUTPUT.value, overwrite=False) as aside:
        reason = export(workdir, aside, _FORMAT.value)
        if _FORMAT.value == "onnx":
            by_head = is_fine_tuned or _PART.value in ("masked_lm", "generator")
            onnx_folder.convert(aside, by_head=by_head)
        elif _FORMAT.value == "sentence_transformers":
            sentence_folder.add(aside)
    logging.info("wrote the model to %s", output)
    if reason and _FORMAT.value != "onnx":
        readers = _TUNED_READERS if is_fine_tuned else _READERS
        logging.warning(
            "%s. %s has a form of our own, %s (docs/interop.md)", reason, output, readers,
        )  # fmt: skip


def _export_pretrained(workdir: pathlib.Path, output: pathlib.Path, form: str) -> str:
    """Write the latest checkpoint; return why `transformers` cannot load it, or ""."""
    folders = Folders(workdir)
    if not folders.train.exists():
        raise ValueError(
            f"{workdir} is no run of train.py or finetune.py; give the --workdir of one"
        )
    trained = read_run(folders, _OBJECTIVE.value)
    part_of = masked_lm_of if _PART.value == "generator" else encoder_of
    model = part_of(trained.objective)
    settings, keeps_decoder = model.encoder.settings, _PART.value == "encoder_decoder"
    if keeps_decoder and not settings.cross_attention:
        raise ValueError(
            "--part is encoder_decoder, but this run's model.cross_attention is False; export its "
            'encoder, or train with objective "veco"'
        )
    params = jax.device_get(model.encoder_params(trained.params))
    if not keeps_decoder:
        settings, params = encoder_alone(settings, params)
    sizes, tokenizer = dataclasses.asdict(settings), folders.read_tokenizer()
    config, has_head = run_config(folders, _OBJECTIVE.value), "head" in params
    card = pretrained_card.text(folders, config, trained.step, sizes, form, has_head=has_head)
    model_folder.write_model(output, params, sizes, tokenizer, card=card)
    logging.info("the model is that of step %d", trained.step)
    return model_folder.why_not_transformers(sizes, has_head=has_head)
