#!/bin/sh
# Everything to learn from a GPU, in one command: the tests that need one, then the table of speeds.
# PYTHON names another interpreter than .venv/bin/python.
set -u
cd "$(dirname "$0")/../.." || exit 2
python=${PYTHON:-.venv/bin/python}
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}"
"$python" -m pytest -m gpu tests
exec "$python" scripts/bench/gpu.py
