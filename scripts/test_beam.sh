#!/usr/bin/env bash
# The suite of the Apache Beam pipeline, in an environment of its own: Beam wants older releases
# than the rest of the project (docs/counting.md).
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh
unset PYTHON
VENV=.venv-beam
ensure_environment requirements-beam.txt
PYTHONPATH=. "$PYTHON" tests/vocap/count_beam_test.py
