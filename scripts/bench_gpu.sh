#!/bin/sh
# Everything there is to learn from a GPU, in one command: the tests that need one, then the table of speeds.
# Resumable: run it again and it goes on. Options are those of scripts/bench_gpu.py (--minutes, --dry-run, --corpus ...).
# PYTHON=... names another interpreter than .venv/bin/python or python3.
set -u
cd "$(dirname "$0")/.." || exit 2
python=${PYTHON:-.venv/bin/python}
[ -x "$python" ] || python=$(command -v "$python" || command -v python3)
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
case " $* " in *" --dry-run "*) ;; *)
  passed=runs/bench_gpu/tests.txt
  if [ ! -e "$passed" ] && "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    mkdir -p runs/bench_gpu
    if "$python" -m pytest -m gpu tests/test_gpu.py > runs/bench_gpu/tests.log 2>&1; then mv runs/bench_gpu/tests.log "$passed"; fi
    tail -n 15 "$passed" runs/bench_gpu/tests.log 2>/dev/null
  fi ;;
esac
exec "$python" scripts/bench_gpu.py "$@"
