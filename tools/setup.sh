#!/bin/sh
# Makes the virtual environment .venv and installs the pinned requirements; says in one line what is missing.
# PYTHON=/path/to/python chooses the interpreter.
set -eu

fail() {
  echo "make: $1" >&2
  exit 2
}

right_version() {
  "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
  for name in ${PYTHON:+"$PYTHON"} python3 python python3.14 python3.13 python3.12 python3.11; do
    if right_version "$name"; then
      echo "$name"
      return
    fi
  done
}

command -v git >/dev/null 2>&1 || fail "git is missing: install it with your system's package manager"
if [ ! -x .venv/bin/python ]; then
  python=$(find_python)
  [ -n "$python" ] || fail "Python 3.11 or newer is missing: install it, or run make PYTHON=/path/to/python3.11"
  "$python" -c 'import ensurepip, venv' >/dev/null 2>&1 ||
    fail "Python's venv module is missing: on Debian and Ubuntu, apt-get install python3-venv"
  echo "Making .venv with $("$python" --version)"
  "$python" -m venv .venv || fail "could not make .venv: remove the folder .venv and try again"
fi
echo "Installing the pinned packages (a few minutes the first time)"
.venv/bin/python -m pip install --quiet --disable-pip-version-check \
  -r requirements.txt -c constraints.txt -e . ||
  fail "pip could not install the packages (its reason is above): check the network, then run make again"
