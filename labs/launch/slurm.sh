#!/usr/bin/env bash
# The capstone on a Slurm cluster. It stops before its time limit, goes back into the queue, and resumes.
#
#   sbatch labs/launch/slurm.sh                                the capstone on 2 nodes of 8 GPUs
#   sbatch --nodes 4 labs/launch/slurm.sh                      on 4
#   sbatch labs/launch/slurm.sh labs/ddp.py --tier gpu         any other lab, with its own flags
#   sbatch labs/launch/slurm.sh labs/pipeline.py --tier gpu    a stage on each GPU: layers must divide by twice as many
#   PROCESSES=8 sbatch --nodes 1 labs/launch/slurm.sh labs/preflight.py --gpus 8
#
# --tier gpu trains on the sources of Python and torch (--dataset stdlib+torch), which must be the same on all nodes, as
# they are with an environment on a shared file system.
#
# Submit from the book's folder, on a file system that all nodes share. The environment is BOOK_ENV, a folder with
# bin/torchrun in it; by default the book's .venv, or the environment that was active when you submitted. Options of
# sbatch override the lines below. PROCESSES: processes per node (default: one per GPU). PORT: of the rendezvous. If your
# sbatch does not export your shell's variables, the .venv is found anyway; name the others: --export=PROCESSES,BOOK_ENV,PORT.
#
# --time is the deadline of one start, and --requeue begins the next one; `scancel JOB` ends the job for good. If your
# group pays by the hour, ask whether the cluster has a budget alarm.
#
# Tested by tests/ranks/test_slurm.py: Slurm 22.05, two slurmd on one machine without GPUs, PROCESSES=1; submitted, stopped,
# requeued, resumed, finished; with --export=NONE up to torchrun; by hand also stopped by its time limit. Not run:
# several machines, GPUs, pre-emption.
#SBATCH --job-name=capstone
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --mem=0
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

env=${BOOK_ENV:-$PWD/.venv} # here, not as you submit: --export=NONE brings nothing of your shell along
[ -z "${BOOK_ENV:-}" ] || [ -x "$env/bin/torchrun" ] || { echo "slurm.sh: no bin/torchrun in $env" >&2; exit 2; }
[ ! -x "$env/bin/torchrun" ] || PATH=$env/bin:$PATH
command -v torchrun >/dev/null || {
  echo "slurm.sh: no torchrun: submit from the book's folder with its .venv, or name an environment by BOOK_ENV" >&2
  exit 2
}
python=$(dirname "$(command -v torchrun)")/python
if [ -z "${PROCESSES:-}" ] && [ -x "$python" ] && ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
  echo "slurm.sh: torch sees no GPU on $(hostname): PROCESSES=1 sbatch ... labs/preflight.py --gpus 1 says why" >&2
  exit 2
fi
export SLURM_EXPORT_ENV=ALL # and what is set here goes to the processes

hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${hosts%%$'\n'*} # the first node is where the processes meet

# One thread per process unless set otherwise; after SIGTERM torchrun leaves its processes 120 s to save.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} TORCH_ELASTIC_SHUTDOWN_TIMEOUT=120

# This script gets SIGTERM (B:) 180 s before the limit and passes it on to the processes, which save at the end of their
# step. If srun got it instead, it would kill them at once. SIGTERM also comes when somebody cancels the job; its state is
# then no longer RUNNING, and it must not be requeued. Slurm itself requeues a pre-empted job if it is configured to; its
# processes may get no time to save (GraceTime is 0 by default), and then lose the work since the last checkpoint.
stopped=
# shellcheck disable=SC2317 # the trap calls it
stop() {
  state=$(squeue --noheader --job "$SLURM_JOB_ID" --format %T) || state=RUNNING # no answer: better requeue than lose the job
  [ "$state" = RUNNING ] || return 0
  stopped=1
  scancel --signal=TERM "$SLURM_JOB_ID.0" || true # it may have ended just now
}
trap stop TERM

echo "slurm.sh: $SLURM_JOB_NUM_NODES node(s), meeting at $head, start ${SLURM_RESTART_COUNT:-0}: $*"
# All processors of the node for its one torchrun: since Slurm 22.05 srun gives a task only one, whatever sbatch asked for.
srun --kill-on-bad-exit=1 --cpus-per-task="${SLURM_CPUS_PER_TASK:-$SLURM_CPUS_ON_NODE}" \
  torchrun --nnodes="$SLURM_JOB_NUM_NODES" --nproc-per-node="${PROCESSES:-gpu}" --rdzv-backend=c10d \
  --rdzv-endpoint="$head:${PORT:-29500}" --rdzv-id="$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}" --max-restarts=3 "$@" &
code=0
wait $! || code=$?
if [ -n "$stopped" ]; then
  wait $! || true # the first wait ended with the signal, this one with srun
  echo "slurm.sh: stopped before the end, back into the queue"
  exec scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
