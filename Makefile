# On a fresh machine, `make run` tries joblens and `make test` tests it; both install what they need.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# More than a small machine has cores, because many tests mostly wait for other programs.
WORKERS ?= 6
# `make fuzz`: seconds per target; targets (default: all).
SECONDS ?= 60
TARGETS ?=
# `make crash`: repetitions.
CRASHES ?= 100

.PHONY: help install tools run stop test test-fast lint services bench fuzz crash docs clean
.DEFAULT_GOAL := help

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(VENV)/.installed: pyproject.toml hatch_build.py src/joblens/capture/preload.c $(wildcard src/joblens/core/*.[ch])
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "joblens needs Python 3.11 or newer: run make PYTHON=python3.12 …" >&2; exit 2; }
	@echo "installing joblens into $(VENV) …"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable .
	@touch $@

# Uncompiled, as most of their modules are never imported.
$(VENV)/.tools: $(VENV)/.installed
	@echo "installing the packages for tests and benchmarks into $(VENV) …"
	@$(BIN)/pip install --quiet --no-compile --disable-pip-version-check --group dev --group bench
	@touch $@

install: $(VENV)/.installed ## install joblens into .venv

tools: $(VENV)/.tools # packages for tests and benchmarks

run: install ## start an agent and a hub, run a sample job, print its report
	@JOBLENS=$(BIN)/joblens deploy/try

stop: ## stop the agent and hub of `make run`
	@JOBLENS=$(BIN)/joblens deploy/try stop

test: tools services ## lint and run all tests, the fast ones first
	@$(BIN)/python tests/suite.py --workers $(WORKERS) --lint

test-fast: tools ## run the tests that need no root and no server
	@$(BIN)/python tests/suite.py --fast

lint: tools ## run ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

services: # Prometheus, Slurm and others for the tests, if root and apt are available
	@tests/services/install

bench: tools ## compare the cost of joblens with other tools
	$(BIN)/python -m bench

fuzz: tools ## fuzz all parsers: make fuzz SECONDS=60 TARGETS=toml,journal
	@$(BIN)/pip install --quiet --disable-pip-version-check atheris 2>/dev/null \
		|| echo "atheris cannot be installed: fuzzing without coverage guidance"
	@cd tests && ../$(BIN)/python -m fuzz --seconds $(SECONDS) --targets "$(TARGETS)" --folder ../.fuzz

crash: tools services ## kill processes and damage files, a hundred times each
	@JOBLENS_SEED=$${JOBLENS_SEED:-$$$$} JOBLENS_CRASHES=$(CRASHES) $(BIN)/pytest -s tests/services/test_crashes.py tests/store/test_damage.py \
		tests/store/test_crashes.py tests/jobs/test_ingest_folder.py::test_killed_at_random_moments

docs: tools ## regenerate docs/metrics.md, the fields in docs/api.md, and default.toml
	$(BIN)/python docs/generate.py

clean: ## delete everything that the other targets created
	rm -rf $(VENV) .run .mypy_cache .pytest_cache .ruff_cache .hypothesis .fuzz dist
