#!/usr/bin/env bash
# All test suites; arguments go to pytest, for example: bash scripts/test.sh tests/vocap
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh
ensure_environment requirements-dev.txt
# By file: what the tests of a file share is made once.
"$PYTHON" -m pytest -n 2 --dist loadfile "$@"
