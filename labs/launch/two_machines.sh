#!/usr/bin/env bash
# One lab on several machines that you log in to: start this on each of them, within a few minutes.
#
#   labs/launch/two_machines.sh 0 192.168.1.10                         on the first machine, with its own address
#   labs/launch/two_machines.sh 1 192.168.1.10                         on the second, with the same address
#   labs/launch/two_machines.sh 1 192.168.1.10 labs/ddp.py --save      another lab, the same on both
#   labs/launch/two_machines.sh 1 192.168.1.10 labs/pipeline.py --save     the last stages there, the first here
#
# NODES: machines (2). PROCESSES: processes per machine (default: one per GPU). PORT: on the first machine, open to the
# others (29500). NETWORK: the interface between them, such as eth0 (`ip -brief address` lists them); needed if a machine
# has several. Use the same version of the book, of Python and of torch on both: the job trains on the sources of the last
# two, and refuses to start if they differ. --folder must be on a shared disk, which the job checks at the start; without
# one use --checkpoint-every none.
#
# Give rented machines a deadline when you log in (sudo shutdown -h +240), and set a budget alarm at the provider.
#
# Tested by tests/test_launch.py: two network namespaces on one machine, CPU, gloo. Not run: two machines, GPUs.
set -euo pipefail

usage() { echo "two_machines.sh: $1; say which machine this is (0, 1, ...) and the first one's address" >&2; exit 2; }
[ $# -ge 2 ] || usage "too few words"
number=$1 first=$2 nodes=${NODES:-2}
shift 2
case $number in '' | *[!0-9]*) usage "'$number' is no number" ;; esac
[ "$number" -lt "$nodes" ] || usage "machine $number of $nodes (they count from 0)"
[ $# -gt 0 ] || set -- labs/capstone.py --tier gpu --folder runs/capstone --resume auto --checkpoint-every auto

python=$(dirname "$(command -v torchrun)")/python
if [ -z "${PROCESSES:-}" ] && [ -x "$python" ] && ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
  echo "two_machines.sh: torch sees no GPU here: labs/preflight.py says why, and PROCESSES=1 trains on the CPU" >&2
  exit 2
fi

# The first machine hosts the rendezvous; saying so saves torchrun a guess from names and addresses.
if [ "$number" = 0 ]; then host=1; else host=0; fi
here=()
if [ -n "${NETWORK:-}" ]; then
  export NCCL_SOCKET_IFNAME=$NETWORK GLOO_SOCKET_IFNAME=$NETWORK
  address=$(ip -o -4 address show dev "$NETWORK" 2>/dev/null | awk '{ sub("/.*", "", $4); print $4; exit }' || true)
  [ -n "$address" ] || { echo "two_machines.sh: $NETWORK has no address; ip -brief address lists them" >&2; exit 2; }
  here=(--local-addr "$address")
fi
# ${here[@]+...} below: a bash before 4.4 calls an empty list an unset one.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
exec torchrun --nnodes="$nodes" --nproc-per-node="${PROCESSES:-gpu}" --rdzv-backend=c10d \
  --rdzv-endpoint="$first:${PORT:-29500}" --rdzv-conf="is_host=$host" --rdzv-id=book ${here[@]+"${here[@]}"} \
  --max-restarts=3 "$@"
