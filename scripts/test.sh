#!/usr/bin/env bash
# All test suites; arguments go to pytest, for example: bash scripts/test.sh tests/vocap
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh
ensure_environment dev
# By file: what the tests of a file share is made once. In the order of tests/conftest.py. A process
# that dies is one failure, and is not started again with the tests that it had left.
"$PYTHON" -m pytest -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart=0 "$@"
