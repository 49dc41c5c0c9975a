"""Encode each line of text files as a vector, by a run of embeddings or an encoder.

    xlm encode --workdir=RUN --input=FILE,FILE --output=vectors.npy

RUN is a finished run of configs/finetune/embeddings.py. A run of train.py or a model's folder gives
the mean of its last states. Row i of the output is the vector of line i of all files together. It
has length 1, or is zero for an empty line. --precision=int8 takes a quarter of the space.
--role=query is for questions, if the run has prefixes. Rerun the command to resume.
"""

from absl import flags

from xlm.common import console, outputs, places
from xlm.experiment import encoding
from xlm.training import compilation

_WORKDIR = flags.DEFINE_string("workdir", None, "The run or the model's folder.")
_INPUT = flags.DEFINE_list("input", None, "Text files, a text a line; .gz, .xz and .zst, too.")
_OUTPUT = outputs.define_flags("The file to write, an array of numpy: vectors.npy.")
_ROLE = flags.DEFINE_enum("role", "passage", encoding.ROLES, "Whose prefix the lines get.")
_PRECISION = flags.DEFINE_enum("precision", "float32", encoding.PRECISIONS, "Type of the numbers.")
_OBJECTIVE = flags.DEFINE_string(
    "objective", "", "The run's objective, where it is of another package: code that you trust."
)
_DIMENSION = flags.DEFINE_integer("dimension", 0, "First dimensions to keep; 0 for all.")

OPTIONS = {"required": ("workdir", "input", "output")}


def main(_) -> None:
    compilation.use_cache()
    paths = [places.fetched(name) for name in _INPUT.value]
    with outputs.file(_OUTPUT.value, paths) as aside:
        lines = encoding.read_lines(paths)
        workdir = places.fetched(_WORKDIR.value)
        encoder = encoding.TextEncoder(workdir, _DIMENSION.value, _OBJECTIVE.value)
        with console.bar(None, "encode", len(lines), "lines") as bar:
            for count in encoder.encode_lines(lines, aside, _ROLE.value, _PRECISION.value):
                bar.update(count - bar.n)
