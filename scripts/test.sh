#!/usr/bin/env bash
# The tests: by default those that say most in three minutes, --all the whole suite, --changed those
# that the changes since origin/main reach, --optimized the promises with the compiler settings of
# users. Other arguments go to pytest: bash scripts/test.sh tests/vocap -k merge
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh
ensure_environment dev
files=()
case "${1:-}" in
  --all) shift ;;
  --changed) shift && mapfile -t files < <("$PYTHON" -m tests.selection changed) ;;
  --optimized)
    shift
    export JAX_DISABLE_MOST_OPTIMIZATIONS=0
    files=(tests/python_test.py tests/training/loop_test.py tests/training/loop_stops_test.py
      tests/training/program_test.py tests/objectives/masked_lm_test.py tests/knn_sampling/blockwise_test.py)
    ;;
  tests* | -k) ;;
  *) mapfile -t files < <("$PYTHON" -m tests.selection quick) ;;
esac
# By file: what the tests of a file share is made once. In the order of tests/conftest.py. A process
# that dies is one failure, and is not started again with the tests that it had left.
"$PYTHON" -m pytest -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart=0 "${files[@]}" "$@"
