#!/bin/sh
# Everything to learn from a GPU, in one command: the tests that need one, then the speed of training.
# PYTHON names another interpreter than .venv/bin/python.
set -u
cd "$(dirname "$0")/../.." || exit 2
python=${PYTHON:-.venv/bin/python}
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}"
"$python" -m pytest -m gpu tests
if ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
  echo "no CUDA device: nothing is measured"
  exit 0
fi
mkdir -p runs/bench
for model in "base 16384" "base 65536" "small 16384" "big 16384"; do
  for compile in false true; do
    printf '\n%s tokens a batch, trainer.compile=%s: ' "$model" "$compile"
    "$python" scripts/bench/training.py trainer.accelerator=gpu trainer.compile="$compile" data.workers=2 \
      data.max_tokens="${model#* }" --size "${model% *}" --precision bf16 --window 5 --peers
  done
done | tee runs/bench/gpu.md
