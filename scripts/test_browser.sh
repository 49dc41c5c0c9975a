#!/usr/bin/env bash
# The tests of the allocation explorer and of report.html in a real browser, Chromium or Chrome. Where
# none is installed they are skipped and say so; on Debian, apt-get install chromium.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh
ensure_environment dev
"$PYTHON" -m pytest -v tests/vocap/explorer_test.py tests/vocap/explorer_browser_test.py \
  tests/common/html_report_test.py "$@"
