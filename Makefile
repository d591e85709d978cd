# Two commands on a fresh machine do everything: `make demo` and `make test`.
# Each target does its own set-up once, in .venv.

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
  $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null && { echo $$p; break; }; \
  done)
VENV := .venv
BIN := $(VENV)/bin
PROJECTS := $(wildcard plugins/*/pyproject.toml) evidence/pyproject.toml
PLUGINS := $(patsubst %/pyproject.toml,-e ./%,$(PROJECTS))
READY := $(VENV)/.ready
DEMO_READY := $(VENV)/.ready-demo

.PHONY: help install demo test page frameworks lint docs bench validate clean

help:
	@echo "make install   everything into .venv, plug-ins included; activate it with: source .venv/bin/activate"
	@echo "make demo      profile this machine, plan, train on two processes, compare, report"
	@echo "make test      every test but studies and timed ones (7 minutes on two idle cores, twice that on busy ones)"
	@echo "make page      the what-if page in a headless Chromium (minutes; chromium installed)"
	@echo "make frameworks  exports read and trained by the frameworks' own code (a quarter of an hour)"
	@echo "make lint      formatting, lint, types, the site of docs/, and counts of lines"
	@echo "make docs      docs/ as a site, in build/site"
	@echo "make bench     benchmarks, as ratios to something run at the same time"
	@echo "make validate  predictions against runs on this machine and published ones, and long studies"
	@echo "make clean     remove .venv and caches"

PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "error: Python 3.11 to 3.14 is needed, none was found; set PYTHON=/path/to/python" >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV)

$(READY): pyproject.toml constraints.txt $(PROJECTS) | $(BIN)/python
	@echo "Setting up $(VENV) (once; a few minutes) ..."
	@$(PIP_INSTALL) -e '.[dev]' $(PLUGINS)
	@touch $(DEMO_READY) $(READY)

# Modules are compiled when they are imported: the demo uses a few of some ten thousand.
$(DEMO_READY): pyproject.toml constraints.txt | $(BIN)/python
	@echo "Setting up $(VENV) for the demo (once; a minute) ..."
	@$(PIP_INSTALL) --no-compile -e '.[hf]'
	@touch $(DEMO_READY)

install: $(READY)

demo: export PYTHONDONTWRITEBYTECODE :=
demo: $(DEMO_READY)
	@$(BIN)/shardwright demo

# The tests start some fifty processes: what they import is compiled once, also where the
# environment tells Python to keep nothing compiled.
test: export PYTHONDONTWRITEBYTECODE :=
test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder \
	  -m "not measuring and not slow and not frameworks and not browser"

page: $(READY)
	$(PIP_INSTALL) -e '.[ui]' playwright
	$(BIN)/python -m pytest tests/shardwright/page

frameworks: $(READY)
	$(BIN)/python plugins/frameworks/tests/frameworks/environments.py .venv-frameworks
	$(BIN)/python -m pytest -m frameworks plugins/frameworks/tests/frameworks

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mkdocs build --strict --quiet
	$(BIN)/python -m tools.count_lines

docs: $(READY)
	$(BIN)/mkdocs build --strict

bench: $(READY)
	$(BIN)/python -m bench

TRUTH := ../shared/truth

# torchvision and timm lie in a folder of their own (tests/measuring/modules/libraries.py).
validate: $(READY)
	$(PIP_INSTALL) --no-deps --upgrade --target .venv-modules torchvision timm
	$(BIN)/python -m pytest tests/measuring -m measuring
	$(BIN)/python -m pytest -m "slow and not measuring"
	@if [ -f $(TRUTH)/runs.csv ]; then \
	  $(BIN)/shardwright validate $(TRUTH)/runs.csv $(TRUTH)/runs_more.csv --failed $(TRUTH)/failed.csv --cross-validate --traced \
	    --prospective $(TRUTH)/prospective.csv --markdown docs/accuracy.md; \
	else echo "$(TRUTH) is absent: on the project's own table instead"; $(BIN)/shardwright validate; fi

clean:
	rm -rf $(VENV) .venv-frameworks .venv-modules .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build
