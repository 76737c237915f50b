#!/usr/bin/env bash
# Copies a run's folder to a mounted bucket and back, for machines that are deleted with their disk.
#
#   labs/launch/bucket.sh fetch runs/capstone /bucket/runs/capstone      before the run; skipped if the folder exists
#   labs/launch/bucket.sh watch runs/capstone /bucket/runs/capstone &    during the run, every EVERY seconds (120)
#   labs/launch/bucket.sh keep runs/capstone /bucket/runs/capstone       after the run
#
# The job must not write its checkpoints directly to a bucket, where a rename is not atomic. This script copies complete
# checkpoints, the manifest last, and never fetches one without a manifest.
#
# Tested by tests/test_launch_cloud.py, from folder to folder. Not run: a bucket.
set -euo pipefail

usage() { echo "bucket.sh: $1; say fetch, watch or keep, the run's folder and its place in the bucket" >&2; exit 2; }
[ $# -eq 3 ] || usage "three words are needed"
action=$1 run=$2 bucket=$3 every=${EVERY:-120}

# Names of the whole checkpoints in a folder, the oldest step first.
whole() {
  local path
  for path in "$1"/checkpoints/step-*/; do
    [ ! -f "${path}manifest.json" ] || basename "$path"
  done
}

# Checkpoint $3 from folder $1 to folder $2, unless it is there.
copy() {
  local from=$1/checkpoints/$3 to=$2/checkpoints/$3
  ! cmp -s "$from/manifest.json" "$to/manifest.json" || return 0
  rm -rf "$to" && mkdir -p "$to" && find "$from" -type f ! -name manifest.json -exec cp -t "$to" {} + &&
    cp "$from/manifest.json" "$to/"
}

# The files of folder $1, not its folders, to folder $2; but for the lock, which is this machine's.
files() {
  local file
  mkdir -p "$2"
  for file in "$1"/*; do
    [ ! -f "$file" ] || [ "${file##*/}" = lock ] || cp "$file" "$2/" || return 1
  done
}

keep() {
  local names name newest="" path failed=0
  [ -d "$run" ] || return 0
  names=$(whole "$run")
  files "$run" "$bucket" || failed=1 # after the list: the metrics reach at least as far as its checkpoints
  for name in $names; do
    if copy "$run" "$bucket" "$name"; then newest=$name; fi # the job may have removed it by now
  done
  [ -n "$newest" ] || return "$failed"
  for path in "$bucket"/checkpoints/step-*/; do # those that the job no longer keeps
    name=$(basename "$path")
    case " ${names//$'\n'/ } " in *" $name "*) ;; *) rm -f "${path}manifest.json" && rm -rf "$path" || failed=1 ;; esac
  done
  return "$failed"
}

case $action in
fetch)
  [ ! -e "$run" ] || { echo "bucket.sh: $run is there, nothing fetched"; exit 0; }
  names=$(whole "$bucket")
  # without one the metrics, which are copied first, may be of checkpoints that are gone: the job would refuse them
  [ -n "$names" ] || { echo "bucket.sh: no whole checkpoint in the bucket, nothing fetched"; exit 0; }
  rm -rf "$run.fetching"
  files "$bucket" "$run.fetching"
  for name in $names; do copy "$bucket" "$run.fetching" "$name"; done
  mv "$run.fetching" "$run"
  echo "bucket.sh: fetched $run"
  ;;
watch)
  trap 'kill $(jobs -p) 2>/dev/null || true; exit 0' TERM
  while true; do
    sleep "$every" &
    wait $! || true
    keep || echo "bucket.sh: $bucket took not all of $run, tries again in $every s" >&2
  done
  ;;
keep) keep || { echo "bucket.sh: $bucket did not take all of $run" >&2; exit 1; } ;;
*) usage "'$action' is no such thing" ;;
esac
