"""The cleaned text of a run, the source of its vocabulary and its rows."""

import dataclasses
import os
import shutil
from typing import Any

from ml_collections import ConfigDict

from input_pipeline import sources
from input_pipeline.cleaning.settings import CleaningSettings
from input_pipeline.sources import CorpusSpec
from xlm.common import artifacts, packages, places, processes, schema
from xlm.common.executors import Executor
from xlm.experiment import data as builders


def run(
    config: ConfigDict, folders: builders.Folders, executor: Executor | None = None
) -> tuple[CorpusSpec, dict[str, Any]]:
    """Clean the text by the section `clean`, unless that is done or no rule is on.

    Returns the corpus to read, and the record of the config's corpus and rules for later stages.
    The default `executor` is `store.num_workers` processes.
    """
    spec, folder = builders.corpus_spec(config), folders.text.absolute()
    settings = schema.settings(CleaningSettings, config.clean)
    record = {"corpus": dataclasses.asdict(spec), "clean": dataclasses.asdict(settings)}
    if settings == CleaningSettings():
        return spec, record
    states = {
        os.path.relpath(one.path, spec.root): places.state(one.path)
        for one in sources.find_text(spec)
    }
    names = ("text", "languages", "language_codes")
    own = {"corpus": {name: record["corpus"][name] for name in names}, "clean": record["clean"]}
    stage = artifacts.open_stage(
        folder, {**own, "files": states}, replace=lambda: not folders.has_rows
    )  # fmt: skip
    if not stage.done:
        with packages.needed("clean", "vocab"):
            from input_pipeline.cleaning import tasks

        workers = processes.Workers(config.store.num_workers, "store.num_workers")
        with stage.locked(), workers:
            tasks.clean(spec, settings, folder / "work", folder, executor or workers)
            stage.finish()
            shutil.rmtree(folder / "work")
        print(f"cleaned text: {folder / 'report.html'}")
    return dataclasses.replace(spec, text=(str(folder),)), record
