"""Write text of tensorflow-datasets to a folder for a config's `corpus.root`.

    xlm fetch --dataset=wiki40b --languages=de,en,th --output=DIR
    xlm fetch --dataset=c4 --languages=sw,yo --max_documents=100000 --output=DIR

Datasets: wiki40b, wikipedia, c4 (multilingual), or any with a feature `text`, as --dataset=NAME/{}
with {} for the language. tensorflow-datasets downloads and prepares missing data, of these three
with Apache Beam (the extra [datasets]). Existing files are skipped. Documents are written one at a
time. Cut large languages into files that prepare_data.py reads side by side: --shards=100.
"""

import pathlib

from absl import flags, logging

from input_pipeline import tfds_text
from input_pipeline.tfds_text import DATASETS, TextDataset
from xlm.common import outputs

_DATASET = flags.DEFINE_string(
    "dataset", None, f"One of {', '.join(DATASETS)}, or a name with {{}}."
)
_LANGUAGES = flags.DEFINE_list("languages", None, "Codes of languages, as the dataset has them.")
_OUTPUT = flags.DEFINE_string("output", None, "The folder to write.")
_MAX_DOCUMENTS = flags.DEFINE_integer(
    "max_documents", 0, "Documents of each language; 0 for all.", lower_bound=0
)
_SHARDS = flags.DEFINE_integer("shards", 1, "Number of files of each language.", lower_bound=1)
_DATA_DIR = flags.DEFINE_string("data_dir", None, "Where tensorflow-datasets keeps its data.")

OPTIONS = {"required": ("dataset", "languages", "output")}


def main(_) -> None:
    if _SHARDS.value > 1 and _MAX_DOCUMENTS.value:
        raise ValueError(
            f"--shards={_SHARDS.value} and --max_documents={_MAX_DOCUMENTS.value}: leave one out"
        )
    dataset = DATASETS.get(_DATASET.value) or TextDataset(_DATASET.value)
    folder = pathlib.Path(_OUTPUT.value)
    for language in _LANGUAGES.value:
        for number in range(_SHARDS.value):
            shard = (number, _SHARDS.value)
            path = folder / tfds_text.file_name(language, shard)
            if path.exists():
                logging.info("%s exists already", path)
                continue
            tfds_text.check_number_of_files(folder, language, _SHARDS.value)
            options = (_MAX_DOCUMENTS.value, _DATA_DIR.value, shard)
            with outputs.file(str(path), overwrite=False) as aside:  # of the same name
                count = tfds_text.write_text(dataset, language, aside.parent, *options)
            logging.info("wrote %s: %d documents", path, count)
