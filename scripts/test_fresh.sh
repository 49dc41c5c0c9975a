#!/usr/bin/env bash
# Starts every command and config of the documentation once, in a clone of HEAD and an environment of
# requirements.txt alone, on tiny data or on none. Each must end with status 0 or 2 and no traceback,
# or use up its time, 30 to 120 seconds of CPU. It takes two hours on 2 CPU cores.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/home" "$folder/tmp"
git clone --quiet . "$folder/clone"
cd "$folder/clone"
source scripts/environment.sh
ensure_environment all
export HOME=$folder/home TMPDIR=$folder/tmp PATH=$PWD/.venv/bin:$PATH
"$PYTHON" -m tests.fresh_commands >"$folder/commands"

count=0 failed=0
while read -r seconds command; do
  start=$SECONDS status=0
  (
    ulimit -t "$seconds"
    eval "exec timeout --kill-after=60 $((4 * seconds)) $command"
  ) >"$folder/log" 2>&1 </dev/null || status=$?
  result="status $status"
  case $status in
    0 | 2) verdict=ok ;;
    124 | 137 | 152) verdict=ok result=stopped ;;
    *) verdict=FAILED ;;
  esac
  ! grep -qE '^(Traceback|ModuleNotFoundError|ImportError)' "$folder/log" || verdict=FAILED
  printf '%-6s  %-10s %4d s  %s\n' $verdict "$result" $((SECONDS - start)) "$command"
  count=$((count + 1))
  [ $verdict = ok ] || failed=$((failed + 1))
  tail -n $([ $verdict = ok ] && echo 1 || echo 30) "$folder/log" | tr '\r' '\n' | sed 's/^/        /'
  rm -rf "${folder:?}"/tmp/* || true  # a worker may be at work for a moment
done <"$folder/commands"
echo "$count commands, $failed failed"
[ $failed -eq 0 ]
