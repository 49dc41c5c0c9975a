#!/usr/bin/env bash
# Formatting, linting and types.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh
ensure_environment dev
"$PYTHON" -m ruff format --check .
"$PYTHON" -m ruff check .
"$PYTHON" -m mypy
