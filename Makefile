# Two commands do everything: `make train` and `make test`. Both set up what is missing first.
# Works with GNU make 3.81 (macOS) and later. On Windows use WSL, or run the commands of the rule `$(STAMP)` by hand.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup setup-dev train translate serve test test-all test-clients coverage check smoke prove-resume audit bench clean

PYTHON ?= python3
VENV ?= .venv
# An index of other torch builds than the default one (pytorch.org names one for CPUs: a far smaller download)
TORCH_INDEX ?=
MAX_TIME ?= 00:00:10:00
# Handed to the recipe through the environment, with whatever characters it holds.
override export TEXT := $(value TEXT)

PY := $(VENV)/bin/python
# The stamps' names hold a checksum of all that an installation depends on: while they exist, nothing uses the network.
SUM := $(shell { pwd; cat pyproject.toml constraints.txt; } | cksum | cut -d ' ' -f 1)
STAMP := $(VENV)/installed-$(SUM)
DEV_STAMP := $(VENV)/installed-dev-$(SUM)
INSTALL := $(PY) -m pip install --quiet -c constraints.txt

help:  ## print this list
	@grep -E '^[a-z-]+:.*##' $(firstword $(MAKEFILE_LIST)) | awk -F ':.*## *' '{ printf "make %-12s %s\n", $$1, $$2 }'

setup: $(STAMP)  ## create .venv and install what training and translating need (PYTHON=python3.12, TORCH_INDEX=URL)

setup-dev: $(DEV_STAMP)  ## add what tests, lint and every script need

$(STAMP):
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null || { \
	  echo "error: Dragoman needs Python 3.11, 3.12 or 3.13 (found $$($(PYTHON) --version 2>/dev/null || echo "no '$(PYTHON)'")). Name another one: make setup PYTHON=python3.12" >&2; exit 2; }
	@$(PY) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (minutes, once; a CUDA build of torch is several GB, TORCH_INDEX names smaller ones)"
	@$(PY) -c 'import importlib.util as u, sys; sys.exit(not u.find_spec("torch"))' || \
	  $(INSTALL) $(if $(TORCH_INDEX),--no-deps --index-url $(TORCH_INDEX)) torch
	@$(INSTALL) setuptools
	@$(INSTALL) --no-build-isolation -e '.[export,serve]'
	@rm -f $(VENV)/installed-* && touch $@

$(DEV_STAMP): $(STAMP)
	@$(INSTALL) --no-build-isolation -e '.[dev]'
	@touch $@

train: $(STAMP)  ## train Chinese-English in ten minutes (MAX_TIME=DD:HH:MM:SS) and translate 好久不见
	$(PY) train.py experiment=zh_en trainer.max_time=$(MAX_TIME)
	$(PY) translate.py "好久不见"

translate: $(STAMP)  ## translate with the newest model: make translate TEXT="好久不见"
	@test -n "$$TEXT" || { echo 'error: say what to translate: make translate TEXT="好久不见"' >&2; exit 2; }
	@$(PY) translate.py -- "$$TEXT"

serve: $(STAMP)  ## serve the newest model, and the included ones for other directions: a page and LibreTranslate's interface (ARGS="--port 8000")
	@$(PY) scripts/serve.py $(ARGS)

test: $(DEV_STAMP)  ## run the fast tests: two to three minutes
	@$(PY) -m pytest -m "not slow and not gpu"

test-all: $(DEV_STAMP)  ## run every test
	@$(PY) -m pytest

test-clients: $(STAMP)  ## run real clients against the server, in environments of their own (minutes, needs the network)
	@PYTHON=$(abspath $(PY)) bash tests/clients/run.sh

coverage: $(DEV_STAMP)  ## run the fast tests; fail where they reach less than 92 % of the package's lines
	@OC_CAUSE=0 $(PY) -m pytest -m "not slow and not gpu" --cov=dragoman --cov-report=term:skip-covered --cov-fail-under=92

check: $(DEV_STAMP)  ## lint and check types
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy

smoke: $(STAMP)  ## train a tiny model, stop and resume it, translate, evaluate: a minute
	@$(PY) scripts/smoke.py

prove-resume: $(STAMP)  ## kill training 27 times, resume it, compare the results bit by bit
	@$(PY) scripts/prove_resume.py

audit: $(STAMP)  ## look for known vulnerabilities of the pinned packages (needs the network)
	@$(INSTALL) --no-build-isolation -e '.[audit]'
	@$(PY) -m pip_audit --requirement constraints.txt --no-deps --disable-pip

bench: $(DEV_STAMP)  ## measure training and translating on this machine
	@for name in training scale; do echo "== $$name" && $(PY) scripts/bench/$$name.py || exit 1; done

clean:  ## remove .venv and caches; runs and data stay
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage src/*.egg-info
	find src tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +
