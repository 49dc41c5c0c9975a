"""Run the commands under hostile conditions, each in its own process, and check how they end.

    python -m benchmarks.hostile_conditions
    python -m benchmarks.hostile_conditions --only='^paths|bomb' --output=found.jsonl

The command runs a small job of all stages once. Each condition copies it, breaks something, and
runs one command. hostile_table.py has the conditions: damaged and foreign artefacts, odd paths,
devices, limits, signals, and others. Each time the following must hold:

- The command ends within --timeout, with a status that the condition allows.
- There is no traceback. With status 2 or 3, a line says what is wrong.
- With status 0, the results equal those of the unbroken job.
- No file of the user has changed or is gone, no file was written elsewhere, no foreign code ran,
  and no process is left.

Some conditions need a privilege, such as mounting a disk. Without it they are skipped and counted.

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

_ONLY = flags.DEFINE_string(
    "only", "", "Pattern of the conditions to run, matched with 'kind: name'."
)
_OUTPUT = flags.DEFINE_string("output", None, "File for a line of JSON per condition.")
_TIMEOUT = flags.DEFINE_float("timeout", 60.0, "Time limit of a command, in seconds.")
_JOBS = flags.DEFINE_integer("jobs", 2, "Parallel conditions.", lower_bound=1)
_LIST = flags.DEFINE_bool("list", False, "Only print the names of the conditions.")


def main(_) -> None:
    # Shells ignore SIGINT for background processes, and the commands would inherit that.
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
