# Two commands do everything: `make train` and `make test`. Both set up what is missing first.
# Works with GNU make 3.81 (macOS) and later. On Windows use WSL, or follow the three lines of the rule `$(STAMP)` by hand.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup train translate test test-all check smoke prove-resume prove-saving audit bench clean

PYTHON ?= python3
VENV ?= .venv
# An index of torch builds other than the default one (pytorch.org names one for CPUs: a much smaller download)
TORCH_INDEX ?=
MAX_TIME ?= 00:00:10:00
# Taken as it is, whatever characters it holds, and handed to the recipe through the environment.
override export TEXT := $(value TEXT)

PY := $(VENV)/bin/python
# The stamp's name sums up all that an installation depends on. As long as it exists no recipe asks the network for anything.
STAMP := $(VENV)/installed-$(shell { pwd; cat pyproject.toml constraints.txt; } | cksum | cut -d ' ' -f 1)

help:  ## print this list
	@grep -E '^[a-z-]+:.*##' $(firstword $(MAKEFILE_LIST)) | awk -F ':.*## *' '{ printf "make %-12s %s\n", $$1, $$2 }'

setup: $(STAMP)  ## create .venv and install everything, pinned (PYTHON=python3.12, TORCH_INDEX=URL)

$(STAMP):
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null || { \
	  echo "error: Dragoman needs Python 3.11, 3.12 or 3.13, and '$(PYTHON)' is $$($(PYTHON) --version 2>/dev/null || echo 'not there'): name another one, e.g. make setup PYTHON=python3.12" >&2; exit 2; }
	@$(PY) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (minutes, once; a CUDA build of torch is several GB, TORCH_INDEX names smaller ones)"
	@$(PY) -c 'import importlib.util as u, sys; sys.exit(not u.find_spec("torch"))' || $(PY) -m pip install --quiet \
	  $(if $(TORCH_INDEX),--no-deps --index-url $(TORCH_INDEX)) -c constraints.txt torch
	$(PY) -m pip install --quiet -c constraints.txt setuptools
	$(PY) -m pip install --quiet --no-build-isolation -c constraints.txt -e '.[dev]'
	@rm -f $(VENV)/installed-* && touch $@

train: $(STAMP)  ## train Chinese-English in ten minutes (MAX_TIME=DD:HH:MM:SS) and translate 好久不见
	$(PY) train.py experiment=zh_en trainer.max_time=$(MAX_TIME)
	$(PY) translate.py "好久不见"

translate: $(STAMP)  ## translate with the newest model: make translate TEXT="好久不见"
	@test -n "$$TEXT" || { echo 'error: say what to translate: make translate TEXT="好久不见"' >&2; exit 2; }
	@$(PY) translate.py -- "$$TEXT"

test: $(STAMP)  ## run the tests but the slow ones and those for a GPU
	$(PY) -m pytest -m "not slow and not gpu"

test-all: $(STAMP)  ## run every test
	$(PY) -m pytest

check: $(STAMP)  ## lint and check types
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

smoke: $(STAMP)  ## train a tiny model, stop and continue it, translate, evaluate (a minute)
	$(PY) scripts/smoke.py

prove-resume: $(STAMP)  ## kill training at random moments, continue it, compare the results bit by bit
	$(PY) scripts/prove_resume.py

prove-saving: $(STAMP)  ## kill the writer of checkpoints at every line, damage its files, time it
	$(PY) scripts/prove_saving.py

audit: $(STAMP)  ## look for known vulnerabilities in what is installed (needs the network)
	@$(PY) -m pip install --quiet --no-build-isolation -c constraints.txt -e '.[audit]' || true
	@$(PY) scripts/audit.py

bench: $(STAMP)  ## measure this machine with every scripts/bench_*.py
	@for program in scripts/bench_*.py; do echo "== $$program" && $(PY) "$$program" || exit 1; done

clean:  ## remove .venv and caches; runs and data stay
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
	find src tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +
