#!/usr/bin/env bash
# What a machine with one to eight GPUs does with a handful of plans, in some ten minutes: event
# times of every action, peaks of every rank, overlap and MFU, each with its prediction, in one JSON
# file. From a fresh clone:
#
#   bash bench/accelerator.sh                        # every GPU of this machine
#   bash bench/accelerator.sh --devices 2 --output two.json
#   bash bench/accelerator.sh --device cpu --devices 2   # small sizes, to try the script itself
#
# PYTHON names another interpreter that has the package (with torch for this machine's CUDA); else
# .venv is made as `make` makes it, whose torch is the CPU's.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [ -z "${PYTHON:-}" ]; then
  if [ ! -x .venv/bin/python ]; then
    make --silent .venv/.ready
  fi
  PYTHON=.venv/bin/python
fi
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
exec "$PYTHON" -m bench.accelerator "$@"
