"""Export the latest checkpoint of a working directory, for `transformers` where possible.

    python -m tools.export_model --config=configs/quickstart.py --workdir=DIR --output=FOLDER

An XLM-R encoder is written in its format: `AutoModelForMaskedLM.from_pretrained(FOLDER)` reads it.
For an encoder with other positions, pre-LN or half embedding `transformers` has no class, and the
folder has a format of our own. tools.import_model, tools.prune_model, finetune.py, train.init_from
and `AutoTokenizer` read both formats. Of replaced-token detection the discriminator's encoder is
written, or with --part=generator its generator. Of VECO's objective the encoder is written, or with
--part=encoder_decoder its cross-attention as well, in the format of our own. docs/interop.md has
more.
"""

import dataclasses
import pathlib

import jax
from absl import flags, logging
from ml_collections import config_flags

from builders import data as data_builders
from builders import model as builders
from builders import objectives
from builders.masked_lm import encoder_of, masked_lm_of
from builders.pretrained import encoder_alone
from common import entry_point
from interop import model_folder

_CONFIG = config_flags.DEFINE_config_file("config", None, "What was done, the config of train.py.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Where it was done.")
_PART = flags.DEFINE_enum(
    "part", "encoder", ("encoder", "generator", "encoder_decoder"),
    "Of replaced-token detection: the discriminator's encoder, or the generator, a masked LM. Of "
    "VECO: the encoder, or with encoder_decoder also the cross-attention.",
)  # fmt: skip
_OUTPUT = flags.DEFINE_string("output", None, "The folder to write, absent or empty.")


def main(_) -> None:
    config, folders = _CONFIG.value, data_builders.Folders(pathlib.Path(_WORKDIR.value))
    output = pathlib.Path(_OUTPUT.value)

    store = data_builders.open_packed_dataset(folders)
    data_builders.open_train_stage(config, folders)  # refuses the checkpoints of another config
    # Before the checkpoint is read, since the output folder may be invalid.
    model_folder.check_writable(output)
    part_of = masked_lm_of if _PART.value == "generator" else encoder_of
    model = part_of(objectives.objective(config, store))
    settings, keeps_decoder = model.encoder.settings, _PART.value == "encoder_decoder"
    if keeps_decoder and not settings.cross_attention:
        raise ValueError(
            "--part is encoder_decoder, but this run's model.cross_attention is False; export its "
            'encoder, or train with objective "veco"'
        )
    trained = builders.restore(config, store, folders)
    params = jax.device_get(model.encoder_params(trained.params))
    if not keeps_decoder:
        settings, params = encoder_alone(settings, params)
    sizes = dataclasses.asdict(settings)
    model_folder.write_model(output, params, sizes, folders.read_tokenizer())
    logging.info("wrote the model of step %d to %s", trained.step, output)
    if reason := model_folder.why_not_transformers(sizes, has_head="head" in params):
        logging.warning(
            "%s. %s has a form of our own, which tools.import_model, tools.prune_model, "
            "finetune.py and train.init_from read; its tensors can be read with safetensors "
            "(docs/interop.md)",
            reason,
            output,
        )


if __name__ == "__main__":
    entry_point.run(main, required=("config", "workdir", "output"))
