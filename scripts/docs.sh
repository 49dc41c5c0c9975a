#!/usr/bin/env bash
# The manual as a site. Builds it into build/site, without network, and serves it on this machine.
#
#   bash scripts/docs.sh                 build, serve on 127.0.0.1:8000, and follow changes
#   bash scripts/docs.sh --build         only build; build/site/index.html opens as a file, too
#
# A broken link, a missing anchor and a page that mkdocs.yml does not name end the build. Not --quiet:
# it would hide the warnings from --strict.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/environment.sh
ensure_environment docs
export NO_MKDOCS_2_WARNING=1
case "${1:-}" in
  "") "$PYTHON" -m mkdocs build --strict && exec "$PYTHON" -m mkdocs serve ;;
  --build) exec "$PYTHON" -m mkdocs build --strict ;;
  *) sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
