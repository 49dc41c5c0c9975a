#!/usr/bin/env bash
# Stages of one run as a Slurm job, started in the repository, which all nodes must see:
#
#   sbatch --nodes=4 --gpus-per-node=8 --ntasks-per-node=8 --partition=long \
#       xlm/launch/slurm.sh train,evaluate --config=configs/X.py --workdir=/shared/X
#
# `python -m xlm.launch.start --on=slurm` does so for each job of a sweep. Edit a copy for your cluster;
# options given to sbatch win over these lines. A node needs as many tasks as GPUs.
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --open-mode=append
#SBATCH --requeue
# Training saves and stops so many seconds before the time limit, and on preemption.
#SBATCH --signal=TERM@300
set -euo pipefail
PYTHON=${PYTHON:-python}  # interpreter on the nodes
WAIT=300                  # seconds for the other processes to save when one has stopped
CRASHES=${CRASHES:-3}     # most restarts of a job whose process was killed, aborted, or hung

if [ "${SLURM_GPUS_ON_NODE:-0}" -gt 0 ] && [ "$SLURM_GPUS_ON_NODE" != "$SLURM_NTASKS_PER_NODE" ]; then
  # jax.distributed gives each process the GPU of its number on the node.
  echo "a node has $SLURM_GPUS_ON_NODE GPUs: give --ntasks-per-node=$SLURM_GPUS_ON_NODE" >&2
  exit 2
fi
export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK  # which srun does not take from sbatch
stages=$1
shift
for stage in ${stages//,/ }; do
  case $stage in
    train | evaluate | finetune)  # all processes together
      step=(srun --kill-on-bad-exit=0 "--wait=$WAIT" "$PYTHON" "$stage.py" "$@")
      [ "$SLURM_NTASKS" -eq 1 ] || step+=(--distributed) ;;
    *) step=(srun --nodes=1 --ntasks=1 --ntasks-per-node=1 "$PYTHON" "$stage.py" "$@") ;;
  esac
  status=0
  "${step[@]}" || status=$?
  if [ "$status" -eq 75 ]; then
    echo "stopped and saved; queueing again"
    scontrol requeue "$SLURM_JOB_ID"
  # 79 is of a watchdog, above 128 are those of signals.
  elif [[ $status -eq 79 || $status -gt 128 ]] && [ "${SLURM_RESTART_COUNT:-0}" -lt "$CRASHES" ]; then
    echo "crashed or hung (status $status); queueing again, from the last checkpoint"
    scontrol requeue "$SLURM_JOB_ID"
  fi
  [ "$status" -eq 0 ] || exit "$status"
done
