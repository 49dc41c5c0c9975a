"""Predict on a user's own text with a fine-tuned model, translate it, or find translations.

    python predict.py --workdir=DIR --input=FILE --output=FILE
    python predict.py --config=configs/finetune/tatoeba.py --config.init_from=ENCODER \\
        --input=FILE1,FILE2 --output=FILE

DIR is the --workdir of a finished run of finetune.py. An input line is a text, or two separated by
a tab (NLI, paraphrases); a sentence with words separated by spaces, also in Chinese and Japanese
(tagging); or a question and its context separated by a tab (a *.json file is read as SQuAD). A run
on a user's own texts (configs/finetune/text.py) also takes CSV, TSV or JSON with its columns.
Tatoeba finds the nearest line of FILE2 for each line of FILE1. BUCC finds pairs of lines that may
be translations. --language then selects the threshold of a run of BUCC.

The output has one JSON object per row of the input, with probabilities of classes, tags and
answers, or the error of a malformed row. Ids are those of task.id_column, line numbers, or numbers
of objects if JSON has several on a line. --columns=NAME,NAME copies columns of the input, --text
its text. A run that translates writes one line of text for each line of FILE, in the direction
--language if it has several. Rerun the command to resume. On several hosts, start the same command
on each, with the flags of train.py; the first one writes. docs/predicting.md and docs/translate.md
have more.
"""

import contextlib
import os
import pathlib
from collections.abc import Iterable, Iterator, Sequence

from absl import flags, logging
from ml_collections import ConfigDict, config_flags

from input_pipeline.tasks import unlabelled
from xlm.common import artifacts, console, outputs, places
from xlm.evaluation.task_results import dumped
from xlm.evaluation.tasks import Line
from xlm.experiment import prediction, run_folder, task_schema
from xlm.experiment.task_settings import task_settings
from xlm.experiment.translation_prediction import TranslationRun
from xlm.training import compilation, hosts

_CONFIG = config_flags.DEFINE_config_file("config", None, "One of tatoeba or bucc, without a run.")
_WORKDIR = flags.DEFINE_string("workdir", None, "A finished run of finetune.py.")
_INPUT = flags.DEFINE_list("input", None, "The file to predict on; two of tatoeba and bucc.")
_OUTPUT = outputs.define_flags("The file to write, JSON lines or translations.")
_LANGUAGE = flags.DEFINE_string("language", "", "Language of the input, or a direction, en-de.")
_COLUMNS = flags.DEFINE_list("columns", [], "Columns of the input to copy into the output.")
_TEXT = flags.DEFINE_bool("text", False, "Copy the text, or texts, into the output.")
_join_hosts = hosts.define_flags()
# Files read in the folders of runs and encoders, which may also hold outputs.
_READ = (run_folder.BEST, run_folder.RESULTS, run_folder.TOKENIZER, "settings.json", "config.json",
         "model.safetensors")  # fmt: skip

OPTIONS = {"required": ("input", "output")}


def main(_) -> None:
    compilation.use_cache()
    _join_hosts()
    if (_CONFIG.value is None) == (_WORKDIR.value is None):
        raise ValueError("give --workdir, or --config for tatoeba and bucc; not both")
    workdir = None if _WORKDIR.value is None else places.fetched(_WORKDIR.value)
    config = (
        task_schema.checked(_CONFIG.value) if workdir is None else prediction.run_config(workdir)
    )
    paths = [places.fetched(name) for name in _INPUT.value]
    task = task_settings(config).task
    with contextlib.ExitStack() as stack:
        if workdir is not None:
            stack.enter_context(artifacts.locked(workdir, is_shared=True))
        folders = filter(None, (workdir, config.init_from))
        inputs = [*paths, *(pathlib.Path(one, name) for one in folders for name in _READ)]
        aside = pathlib.Path(os.devnull)
        if hosts.is_first():  # the others compute their shares of every batch
            aside = stack.enter_context(outputs.file(_OUTPUT.value, inputs))
        if task.is_search:
            count = _write(_search(config, workdir, paths), aside)
        elif workdir is None:
            raise ValueError(f"{config.task.name} needs a model; give the --workdir of finetune.py")
        elif task.is_translation:
            count = TranslationRun(workdir).write(_one(paths), aside, _LANGUAGE.value)
        else:
            count = _write(_predict(workdir, paths), aside)
    logging.info("%d lines: %s", count, _OUTPUT.value)


def _write(chunks: Iterable[list[Line]], aside: pathlib.Path) -> int:
    count = 0
    bad: list[str] = []
    with open(aside, "w", encoding="utf-8", errors="backslashreplace") as file:
        for lines in chunks:
            file.writelines(map(dumped, lines))
            count += len(lines)
            bad += [line["error"] for line in lines if "error" in line]
    if bad:
        logging.warning("%d of %d rows have no prediction, the first: %s", len(bad), count, bad[0])
    return count


def _predict(workdir: pathlib.Path, paths: Sequence[pathlib.Path]) -> Iterator[list[Line]]:
    model = prediction.FineTuned(workdir)
    examples = model.read(_one(paths))
    with console.bar(None, "predict", len(examples), "examples") as bar:
        for lines in model(examples, _LANGUAGE.value, _COLUMNS.value, with_text=_TEXT.value):
            bar.update(len(lines))
            yield lines


def _one(paths: Sequence[pathlib.Path]) -> pathlib.Path:
    if len(paths) != 1:
        raise ValueError(f"--input names {len(paths)} files, must name one")
    return paths[0]


def _search(
    config: ConfigDict, workdir: pathlib.Path | None, paths: Sequence[pathlib.Path]
) -> Iterator[list[Line]]:
    if len(paths) != 2:
        raise ValueError(f"--input names {len(paths)} files, must name two: --input=FILE1,FILE2")
    sources, targets = map(unlabelled.read_sentences, paths)
    threshold = prediction.mining_threshold(config, workdir, _LANGUAGE.value)
    yield prediction.search_lines(config, sources, targets, threshold, workdir)
