#!/usr/bin/env bash
# The suites of the Apache Beam pipelines, in an environment of its own: Beam wants older releases
# than the rest of the project (docs/many_machines.md).
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh
unset PYTHON
VENV=.venv-beam
ensure_environment beam
PYTHONPATH=. "$PYTHON" tests/executors_test.py
