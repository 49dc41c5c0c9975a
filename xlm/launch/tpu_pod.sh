#!/usr/bin/env bash
# Stages of one run on a Cloud TPU slice, of one host or of hundreds, started in a git checkout:
#
#   NAME=x ZONE=us-east5-b ACCELERATOR=v6e-256 RUNTIME=v2-alpha-tpuv6e \
#       bash xlm/launch/tpu_pod.sh train,evaluate --config=configs/X.py --workdir=/mnt/bucket/X
#
# `python -m xlm.launch.start --on=tpu_pod` does so for each job of a sweep, all on one slice. The script
# requests the slice, copies the code to all hosts, installs the requirements and runs the stages. A run
# that was stopped and saved is restarted; a preempted slice is requested again first. It needs gcloud.
set -euo pipefail
: "${NAME:?name of the slice}" "${ZONE:?such as us-east5-b}"
: "${ACCELERATOR:?such as v6e-256}" "${RUNTIME:?image of the hosts, such as v2-alpha-tpuv6e}"
PROJECT=${PROJECT:-}                    # Cloud project; by default that of gcloud
SPOT=${SPOT:-}                          # 1 for capacity that is cheaper and can be taken away
SETUP=${SETUP:-true}                    # command run first on every host, e.g. to mount a bucket
HOST_PYTHON=${HOST_PYTHON:-python3.11}  # on the hosts, 3.11 or later; installed if missing
RESTARTS=${RESTARTS:-20}                # most restarts of an interrupted stage
POLL=${POLL:-30}                        # seconds between looks at the queue
SHARED=${SHARED:-}                      # folder whose vocab and rows are linked into WORKDIR
DRY_RUN=${DRY_RUN:-}                    # 1 to print the commands only

stages=$1
shift
quoted=$(printf ' %q' "$@")
python=$(printf %q "$HOST_PYTHON")
where=("--zone=$ZONE" ${PROJECT:+"--project=$PROJECT"})
archive=$(mktemp -d)/code.tar.gz
granted=

gcloud() {
  [ "$4" = describe ] || { printf '%q ' gcloud "$@" && echo; }
  if [ -z "$DRY_RUN" ]; then
    command gcloud "$@"
  elif [ "$4" = describe ]; then
    echo "$granted"
  else
    granted=ACTIVE
  fi
}
queue() { gcloud compute tpus queued-resources "$1" "$NAME" "${@:2}" "${where[@]}"; }
state() { queue describe '--format=value(state.state)' || true; }
on_hosts() { gcloud compute tpus tpu-vm ssh "$NAME" "--worker=$1" "--command=$2" "${where[@]}"; }
fail() {
  echo "error: $1" >&2
  exit 1
}
finish() {
  rm -rf "${archive%/*}"
  [ -z "$(state)" ] || echo "the slice is kept, and paid for until you delete it:" \
    "gcloud compute tpus queued-resources delete $NAME --force --quiet ${where[*]}"
}
trap finish EXIT

make_ready() {
  local now unanswered=0 install ended='^(FAILED|SUSPEND|DELETING)'
  now=$(state)
  if [[ $now =~ $ended ]]; then
    queue delete --force --quiet
    now=
  fi
  [ -n "$now" ] || queue create "--node-id=$NAME" "--accelerator-type=$ACCELERATOR" \
    "--runtime-version=$RUNTIME" ${SPOT:+--spot}
  while now=$(state) && [ "$now" != ACTIVE ]; do
    # A query may fail now and then, while the request waits and is paid for.
    if [ -n "$now" ]; then unanswered=0; else unanswered=$((unanswered + 1)); fi
    if [[ $now =~ $ended ]] || [ "$unanswered" -gt 5 ]; then
      fail "the queue gave no slice: ${now:-gcloud does not find it}; run the same to resume"
    fi
    echo "$NAME: ${now:-no answer}"
    sleep "$POLL"
  done
  bash xlm/launch/code.sh "$archive"
  gcloud compute tpus tpu-vm scp "$archive" "$NAME:code.tar.gz" --worker=all "${where[@]}"
  install="$SETUP && rm -rf code && mkdir code && tar -xzf code.tar.gz -C code"
  install+=" && { $python -m venv .venv || { sudo apt-get update &&"
  install+=" sudo apt-get install -y $python-venv && $python -m venv .venv; }; }"
  install+=" && sed 's/^jax\([<>=]\)/jax[tpu]\1/' code/requirements.txt >requirements-tpu.txt"
  install+=" && .venv/bin/pip install --quiet -r requirements-tpu.txt"
  on_hosts all "$install"
  [ -z "$SHARED" ] || on_hosts 0 "$(printf 'mkdir -p %q && ln -sf %q %q %q' \
    "$WORKDIR" "$SHARED/vocab" "$SHARED/rows" "$WORKDIR/")"
}

ready=
for stage in ${stages//,/ }; do
  case $stage in
    train | evaluate | finetune) hosts=all cores="" joined=" --distributed" ;;
    # On its TPU cores jax would wait for the other hosts.
    *) hosts=0 cores="JAX_PLATFORMS=cpu " joined="" ;;
  esac
  for ((left = RESTARTS; ; left--)); do
    [ -n "$ready" ] || make_ready
    ready=1 status=0
    on_hosts $hosts "cd code && $cores../.venv/bin/python $stage.py$quoted$joined" || status=$?
    [ $status -ne 0 ] || break
    [ "$(state)" = ACTIVE ] || ready=
    # Above 128 a signal ended it, such as SIGABRT of the runtime or SIGKILL for want of memory. With
    # 79 a watchdog did, since the run hung.
    [ -z "$ready" ] || [ $status -eq 75 ] || [ $status -eq 79 ] || [ $status -gt 128 ] ||
      fail "$stage.py ended with status $status, see above; run the same command to resume"
    [ "$left" -gt 0 ] || fail "$stage.py was interrupted $((RESTARTS + 1)) times; raise RESTARTS"
    echo "$stage.py was interrupted (status $status); starting again"
  done
done
