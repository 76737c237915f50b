#!/usr/bin/env bash
# The capstone on a Slurm cluster. Stops in time before its limit, is put back in the queue and resumes.
#
#   sbatch labs/launch/slurm.sh                                the capstone on 2 nodes of 8 GPUs
#   sbatch --nodes 4 labs/launch/slurm.sh                      on 4
#   sbatch labs/launch/slurm.sh labs/preflight.py              any other lab, with its own flags
#
# --tier gpu trains on the sources of Python and torch (--dataset stdlib+torch), of which nodes need the same: an
# environment on a file system that all nodes see has them.
#
# Submit from the book's folder, on a file system that all nodes see, with the environment active. What sbatch is
# told wins over the lines below. PROCESSES: processes a node (default: one a GPU). PORT: of the rendezvous.
#
# Tested by tests/test_slurm.py: Slurm 22.05, two slurmd on one machine without GPUs, PROCESSES=1; submitted, stopped,
# requeued, resumed, finished; by hand also stopped by its time limit. Not run: several machines, GPUs.
#SBATCH --job-name=capstone
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --time=02:00:00
#SBATCH --signal=B:TERM@180
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out
set -euo pipefail

[ -n "${SLURM_JOB_ID:-}" ] || { echo "slurm.sh: no Slurm job: submit it with sbatch" >&2; exit 2; }
if [ $# -eq 0 ]; then
  run="runs/capstone-$SLURM_JOB_ID" # the same after a requeue, so that --resume finds its checkpoints
  set -- labs/capstone.py --tier gpu --folder "$run" --resume auto --checkpoint-every auto --save "$run/record.json"
fi

hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${hosts%%$'\n'*} # the first node is where the processes meet

# One thread a process unless told otherwise; after SIGTERM torchrun leaves its processes 120 s to save.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} TORCH_ELASTIC_SHUTDOWN_TIMEOUT=120

# SIGTERM comes to this script (B:), 180 s before the limit or when the job is pre-empted. It is passed on to the
# processes, which save at the end of their step. Sent to srun instead it would kill them at once. It also comes when
# somebody cancels the job, which Slurm then no longer calls running: such a job must not come back.
stopped=
# shellcheck disable=SC2317 # the trap calls it
stop() {
  state=$(squeue --noheader --job "$SLURM_JOB_ID" --format %T) || state=RUNNING # no answer: better back than lost
  [ "$state" = RUNNING ] || return 0
  stopped=1
  scancel --signal=TERM "$SLURM_JOB_ID.0" || true # it may have ended just now
}
trap stop TERM

echo "slurm.sh: $SLURM_JOB_NUM_NODES node(s), meeting at $head, start ${SLURM_RESTART_COUNT:-0}: $*"
srun --kill-on-bad-exit=1 torchrun --nnodes="$SLURM_JOB_NUM_NODES" --nproc-per-node="${PROCESSES:-gpu}" \
  --rdzv-backend=c10d --rdzv-endpoint="$head:${PORT:-29500}" \
  --rdzv-id="$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}" --max-restarts=3 "$@" &
code=0
wait $! || code=$?
if [ -n "$stopped" ]; then
  wait $! || true # the first wait ended with the signal, this one with srun
  echo "slurm.sh: stopped before the end, back into the queue"
  exec scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
