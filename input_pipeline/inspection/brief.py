"""Brief inspection: the warnings of a build, from a sample of each language."""

import collections
import pathlib
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from input_pipeline import text_files
from input_pipeline.inspection import files, findings
from input_pipeline.sources import TextFile
from xlm.common import long_lines
from xlm.common.languages import label

_SAMPLE_FILES = 8  # of a language
_LONG_LINE = 0.1  # of the text of a language, of those with less than:
_READ_WHOLE = 32 << 20


def warnings(every: Sequence[TextFile]) -> list[str]:
    """Return a line for each fault that hurts a language's training."""
    paths, result = collections.defaultdict[str, list[pathlib.Path]](list), []
    for one in every:
        paths[one.language].append(one.path)
    for record in _records(paths) if paths else ():
        found = paths[record["language"]]
        total = sum(text_files.text_bytes(path, path.stat().st_size) for path in found)
        read = [path for path in found if total < _READ_WHOLE and path.suffix == ".txt"]
        lengths = (len(line) for path in read for line in path.read_bytes().split(b"\n"))
        longest = max(record["longest_line_bytes"], max(lengths, default=0))
        result += [
            _line(record, one) for one in record["findings"]
            if one["share"] >= findings.WARNED.get(one["kind"], np.inf)
        ]  # fmt: skip
        if longest > max(_LONG_LINE * total, long_lines.LONGEST):
            result.append(
                f"{label(record['language'])}: one line of {longest:,} bytes is "
                f"{longest / total:.0%} of its text; break it at the ends of sentences, so that a "
                "part can be held out"
            )
    return result


def _records(paths: Mapping[str, Sequence[pathlib.Path]]) -> list[dict[str, Any]]:
    """Inspect a sample of each language as one file."""
    samples, scripts, identifier = files.learn(paths, _SAMPLE_FILES)
    records = []
    with tempfile.TemporaryDirectory() as folder:
        for own, (language, block) in enumerate(samples.items()):
            path = pathlib.Path(folder, f"{language}.txt")
            path.write_bytes(block.data)
            found = files.inspect(path, own, scripts[language], identifier, compare=False)
            of_language = [path], [found], identifier, scripts[language]
            records.append(findings.of_language(language, *of_language))
    return records


def _line(record: Mapping[str, Any], one: Mapping[str, Any]) -> str:
    other = f", {label(one['other'])}" if "other" in one else ""
    shown = f", such as {one['examples'][0][:60]!r}" if one["examples"] else ""
    return (
        f"{label(record['language'])}: {one['title']}{other}: {one['share']:.1%} of a sample of "
        f"{record['bytes'] / 1e6:.2f} MB, {one['number']:,} lines{shown}; remedy: {one['remedy']}"
    )
