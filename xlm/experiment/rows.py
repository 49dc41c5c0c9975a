"""The packed dataset of a run, which training and evaluation read."""

import pathlib
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from absl import logging
from ml_collections import ConfigDict

from input_pipeline import preparation, sources
from input_pipeline import preparation_plan as plans
from input_pipeline.corpus import load_corpus
from input_pipeline.packed_dataset import META, PackedDataset, tokenizer_hash
from input_pipeline.preparation import Job
from input_pipeline.preparation_plan import Found
from input_pipeline.tokenization import check_tokenizer
from xlm.common import artifacts, places
from xlm.common.executors import Executor
from xlm.common.processes import Workers
from xlm.experiment import cleaned_text, schema, text_warnings
from xlm.experiment import data as builders

_MAX_LISTED = 20  # sources in a line of the log


def verify(folders: builders.Folders) -> None:
    """Compare a finished dataset with the checksums of its manifest."""
    count = PackedDataset.open(folders.rows).verify()
    logging.info("%s: %d files are as they were written", folders.rows, count)


def run(config: ConfigDict, folders: builders.Folders, executor: Executor | None = None) -> None:
    """Tokenise the text, unless that is done.

    The `executor` is by default `store.num_workers` processes.
    """
    tokenizer = folders.read_tokenizer()
    check_tokenizer(tokenizer, folders.tokenizer)
    builders.warn_of_other_sections(config, {folders.vocab: ("corpus", "clean", "vocab")})
    spec, record = cleaned_text.run(config, folders, executor)
    settings = builders.packed_dataset_settings(config)
    job = Job(folders.rows.absolute(), spec, settings, tokenizer_hash(tokenizer))
    if (job.folder / META).exists():
        recorded = _recorded_text(config, job, record)
        if _stage(config, job, record, recorded).done:
            logging.info("%s is up to date", folders.rows)
            return
    own = Workers(settings.num_workers, "store.num_workers")
    is_everywhere = places.is_url(spec.root) or pathlib.Path(spec.root).is_absolute()
    if not (executor or own).is_local and not is_everywhere:
        raise ValueError(
            f"corpus.root is {spec.root}, must be an absolute path for workers of other machines, "
            "which mount it as well"
        )
    found = preparation.find(job)
    _check_parallel(config, job, found)
    with (
        artifacts.Stage(job.folder, None, reads=[folders.vocab, folders.text]).locked(claims=False),
        own,
    ):
        if folders.read_tokenizer() != tokenizer:
            raise ValueError(
                f"{folders.tokenizer} has changed since this command began; run it again"
            )
        seen = text_warnings.look(config, folders, spec)
        text = preparation.run(job, found, tokenizer, executor or own)
        stage = _stage(config, job, record, text)
        stage.claim()
        dataset = preparation.finish(job, found)
        seen["unknown"] = text_warnings.unknown(spec, dataset, tokenizer)
        artifacts.write_json(folders.text_record, seen)
        stage.finish()
        shutil.rmtree(job.work)
    tokens = sum(s["train"]["tokens"] for s in dataset.statistics.values())
    rows = sum(s["train"]["rows"] for s in dataset.statistics.values())
    print(f"{rows:,} training rows of {tokens:,} tokens: {folders.rows}")


def _check_parallel(config: ConfigDict, job: Job, found: Found) -> None:
    """Log parallel text without use, and patterns without files.

    Raises ValueError if the run trains on pairs, and `corpus.parallel` gives none.
    """
    left_out = sources.find_left_out(job.spec)
    shown = [f"{path} ({', '.join(languages)})" for path, languages in left_out.items()]
    evaluated = [f"{path} (corpus.parallel_eval)" for path in sources.find_evaluated_only(job.spec)]
    data = builders.data_settings(config)
    has_pairs = any(task.key == "parallel" for task in found.tasks)
    if not has_pairs and (data.pair_share or data.contrast_share):
        raise ValueError(
            f"data.pair_share is {data.pair_share} and data.contrast_share {data.contrast_share}, "
            f"but corpus.parallel, {job.spec.parallel} below {job.spec.root}, has no text in two "
            f"languages of corpus.languages, {job.spec.languages or 'all'}; left out are "
            f"{_listed([*shown, *evaluated]) or 'no files'}: correct the patterns, add languages, "
            "or other spellings to corpus.language_codes, or set both shares to 0"
        )
    if job.spec.parallel and not has_pairs:
        logging.info("no pairs of translations below %s (corpus.parallel), so there is no contrast "
                     "of sentences and no score of retrieval", job.spec.root)  # fmt: skip
    elif unmatched := sources.find_unmatched(job.spec, ("parallel", "parallel_eval")):
        logging.info("corpus.parallel: no file below %s is %s", job.spec.root, ", ".join(unmatched))
    if left_out:
        logging.info(
            "%d sources of parallel text, of fewer than two of corpus.languages, are left out: %s",
            len(left_out),
            _listed(shown),
        )
    if evaluated:
        logging.info("corpus.parallel: for evaluation only are %s", _listed(evaluated))


def _listed(shown: Sequence[str]) -> str:
    return ", ".join(shown[:_MAX_LISTED]) + (", ..." if len(shown) > _MAX_LISTED else "")


def _stage(config: ConfigDict, job: Job, record: Mapping[str, Any], text: str) -> artifacts.Stage:
    """Open the folder for text of a digest; a finished dataset of another digest refuses."""
    return artifacts.open_stage(
        job.folder,
        {
            **record,
            "text": text,
            "tokenizer": job.tokenizer,
            "store": {k: v for k, v in config.store.items() if k != "num_workers"},
        },
        defaults=schema.defaults_of_records(),
        uncompared=builders.PLACE_OF_TEXT,
        # Nobody reads the files of an unfinished preparation.
        replace=lambda: not (job.folder / META).exists(),
    )


def _recorded_text(config: ConfigDict, job: Job, record: Mapping[str, Any]) -> str:
    """Digest of the present text; reads changed files only.

    Raises ValueError if the dataset was made under other settings.
    """
    path = job.folder / plans.INPUTS
    if not path.exists():  # of a version without records, whose digest is of another kind
        return load_corpus(job.spec).digest()
    recorded = plans.read_inputs(path)
    _stage(config, job, record, plans.text_digest(recorded))
    shard_bytes = job.settings.shard_bytes
    return plans.text_digest(plans.read_again(recorded, job.spec, shard_bytes))
