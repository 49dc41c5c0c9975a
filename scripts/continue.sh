#!/usr/bin/env bash
# Continue the pre-training of an encoder on your own text: from folder to folder.
#
#   bash scripts/continue.sh MODEL TEXT WORKDIR [--vocabulary=FILE] [--config.KEY=VALUE ...]
#
# MODEL was written by save_pretrained, or by xlm export. The result is WORKDIR/hf. Rerun the command to
# resume. With --vocabulary the model gets these pieces first (docs/import.md).
set -euo pipefail

[ $# -ge 3 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2; }
model=$(realpath -- "$1") text=$(realpath -- "$2") workdir=$(realpath -m -- "$3")
shift 3
vocabulary=() overrides=()
for flag in "$@"; do
  case $flag in
    --vocabulary=*) vocabulary+=("$flag") ;;
    --config.*) overrides+=("$flag") ;;
    *) echo "unknown option $flag; see the first lines of $0" >&2; exit 2 ;;
  esac
done

cd "$(dirname "$0")/.."
source scripts/environment.sh
ensure_environment all
xlm=("$PYTHON" -m xlm)
if [ ! -e "$workdir/start" ]; then
  mkdir -p "$workdir"
  "${xlm[@]}" import "--model=$model" "--output=$workdir/start" "${vocabulary[@]}"
fi
for verb in build-vocab prepare train evaluate; do
  "${xlm[@]}" $verb "--config=configs/continue.py:$workdir/start,$text" "--workdir=$workdir" "${overrides[@]}"
done
[ -e "$workdir/hf" ] || "${xlm[@]}" export "--workdir=$workdir" "--output=$workdir/hf"
echo "the model: $workdir/hf; its report: $workdir/report/report.html"
