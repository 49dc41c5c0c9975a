#!/usr/bin/env bash
# The main job: text per language in; a vocabulary, a trained encoder and a report out.
#
#   bash scripts/quickstart.sh                              on the embedded corpus
#   bash scripts/quickstart.sh --corpus DIR                 on your own text (docs/corpus_format.md)
#   bash scripts/quickstart.sh --config configs/real_text.py:DATA      another config
#   bash scripts/quickstart.sh --workdir DIR                results elsewhere than runs/...
#   bash scripts/quickstart.sh --config.vocab.target_size=4000 ...   any key of the config
#   bash scripts/quickstart.sh --quiet                      warnings and results only; --verbose for all
set -euo pipefail

corpus= config= workdir= overrides=()
while [ $# -gt 0 ]; do
  case $1 in
    --corpus | --workdir)
      [ $# -ge 2 ] || { echo "$1 needs a folder" >&2; exit 2; }
      [ "$1" = --corpus ] && corpus=$(realpath -- "$2") || workdir=$(realpath -m -- "$2")
      shift 2 ;;
    --config)
      [ $# -ge 2 ] || { echo "--config needs a file" >&2; exit 2; }
      config=$2
      shift 2 ;;
    --config.* | --quiet | --verbose) overrides+=("$1"); shift ;;
    -h | --help) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit ;;
    *) echo "unknown option $1; see --help" >&2; exit 2 ;;
  esac
done
if [ -n "$corpus" ]; then
  [ -d "$corpus" ] || { echo "--corpus $corpus is no folder" >&2; exit 2; }
  overrides=("--config.corpus.root=$corpus" "${overrides[@]}")
fi

cd "$(dirname "$0")/.."
config=${config:-configs/quickstart.py${corpus:+:$corpus}}  # which also cleans it
name=$(basename "${config%%:*}" .py)
workdir=${workdir:-runs/$name${corpus:+-$(basename "$corpus")}}
source scripts/environment.sh
ensure_environment all

# On a CPU, a device for each core, up to eight: two devices of one thread take a step in little more
# than half the time of one device of two threads.
cores=$(nproc 2>/dev/null || sysctl -n hw.ncpu)
devices=1
while [ $((2 * devices)) -le "$cores" ] && [ $devices -lt 8 ]; do devices=$((2 * devices)); done
export XLA_FLAGS="${XLA_FLAGS---xla_force_host_platform_device_count=$devices --xla_cpu_multi_thread_eigen=false}"

timings=()
stage() {
  local command=("$PYTHON" "$1" "--config=$config" "--workdir=$workdir" "${overrides[@]}")
  local start=$SECONDS
  printf '\n$ %s\n' "${command[*]}"
  "${command[@]}"
  timings+=("$(printf '%5d s  %s' $((SECONDS - start)) "$1")")
}
stage build_vocab.py
stage prepare_data.py
stage train.py
stage evaluate.py

printf '\nTime taken:\n'
printf '%s\n' "${timings[@]}"
printf '\nThe report: %s/report/report.html\n' "$workdir"
