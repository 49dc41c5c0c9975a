#!/usr/bin/env bash
# Packs the files of this git checkout, tracked or new, without ignored ones:  bash code.sh ARCHIVE
set -euo pipefail
git ls-files -z --cached --others --exclude-standard |
  # A deleted file is listed too.
  while IFS= read -r -d '' file; do if [ -f "$file" ]; then printf '%s\0' "$file"; fi; done |
  tar -czf "$1" --null -T -
