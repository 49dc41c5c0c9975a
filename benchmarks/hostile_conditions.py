"""Run the commands under hostile conditions, each in its own process, and check how they end.

    python -m benchmarks.hostile_conditions
    python -m benchmarks.hostile_conditions --only='^paths|bomb' --output=found.jsonl

A small job of all stages is made once. A condition copies it, breaks something (conditions of
hostile_table.py: damaged and foreign artefacts, odd paths, devices, limits, signals, ...), and runs
one command. In each the following must hold:

- The status is one that the condition allows, and it comes within --timeout.
- Nothing shows a traceback; with status 2 or 3 a line says what is wrong.
- With status 0 the results are those of the job that nobody broke.
- No file of the user has changed or is gone, none was written elsewhere, no code of others was run,
  and no process is left.

Some conditions need a right, as to mount a disk; they are skipped where it lacks, and counted.

Hardware: 2 CPU cores, 6 GB; 25 minutes.
"""

import concurrent.futures
import json
import pathlib
import re
import signal
import sys
import tempfile
import time

from absl import app, flags

from benchmarks import hostile_table
from benchmarks.hostile_world import Bench, Condition

_ONLY = flags.DEFINE_string("only", "", "Pattern of the conditions to run, 'kind: name'.")
_OUTPUT = flags.DEFINE_string("output", None, "A line of JSON for each condition.")
_TIMEOUT = flags.DEFINE_float("timeout", 60.0, "Seconds of a command.")
_JOBS = flags.DEFINE_integer("jobs", 2, "Conditions at a time.", lower_bound=1)
_LIST = flags.DEFINE_bool("list", False, "Print the names of the conditions, and run none.")


def main(_) -> None:
    # A shell ignores it for what it starts in the background, and so would the commands.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    chosen = [one for one in hostile_table.conditions() if re.search(_ONLY.value, one.title)]
    if _LIST.value:
        print(*(one.title for one in chosen), sep="\n")
        return
    found: dict[str, tuple[str, str]] = {}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        bench = Bench(pathlib.Path(name).resolve(), _TIMEOUT.value)
        with concurrent.futures.ThreadPoolExecutor(_JOBS.value) as pool:
            jobs = {pool.submit(_timed, bench, one): one for one in chosen}
            for job in concurrent.futures.as_completed(jobs):
                title = jobs[job].title
                verdict, said, seconds = job.result()
                found[title] = (verdict, said)
                print(f"{seconds:5.1f} s  {title!r}: {verdict}", flush=True)
                if _OUTPUT.value:
                    with open(_OUTPUT.value, "a", encoding="utf-8") as file:
                        line = {"condition": title, "verdict": verdict, "said": said,
                                "seconds": round(seconds, 1)}  # fmt: skip
                        file.write(json.dumps(line) + "\n")
    sys.exit(_report(found))


def _timed(bench: Bench, one: Condition) -> tuple[str, str, float]:
    start = time.monotonic()
    verdict, said = bench.run(one)
    return verdict, said, time.monotonic() - start


def _report(found: dict[str, tuple[str, str]]) -> int:
    """Print failures and counts; return the exit status."""
    failed = {title: one for title, one in found.items() if one[0] not in ("passed", "skipped")}
    print("\nFailures:" if failed else "")
    for title, (verdict, said) in sorted(failed.items()):
        print(f"{title!r}: {verdict} | {said[:300]!r}")
    skipped = sum(one[0] == "skipped" for one in found.values())
    passed = len(found) - len(failed) - skipped
    print(f"{passed} passed, {len(failed)} failed, {skipped} skipped")
    return int(bool(failed))


if __name__ == "__main__":
    app.run(main)
