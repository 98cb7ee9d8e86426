# Two commands do everything on a fresh machine: `make run` and `make test`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# More than a small machine has cores: many tests wait for other programs most of the time.
WORKERS ?= 5
# Of `make fuzz`: for each target, and which (all, if none is named).
SECONDS ?= 60
TARGETS ?=
# Of `make crash`.
CRASHES ?= 100

.PHONY: help install tools run stop test test-fast lint services bench fuzz crash docs clean
.DEFAULT_GOAL := help

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "joblens needs Python 3.11 or newer; say which with make PYTHON=python3.12 …" >&2; exit 2; }
	@echo "installing joblens into $(VENV) …"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.tools: $(VENV)/.installed
	@echo "installing what tests and benchmarks need into $(VENV) …"
	@$(BIN)/pip install --quiet --disable-pip-version-check --group dev --group bench
	@touch $@

install: $(VENV)/.installed ## install joblens into .venv

tools: $(VENV)/.tools # what tests and benchmarks need

run: install ## start agent and hub, run a small job, tell what it did, print where to look further
	@JOBLENS=$(BIN)/joblens deploy/try

stop: ## stop what `make run` started
	@JOBLENS=$(BIN)/joblens deploy/try stop

test: tools services lint ## install what the tests need, check the code, run all tests in two stages
	@$(BIN)/python tests/suite.py --workers $(WORKERS)

test-fast: tools ## the tests that need no root, no server and no waiting
	@$(BIN)/python tests/suite.py --fast

lint: tools ## ruff, mypy --strict, and Python 3.9 for what the agent loads
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

services: # real Prometheus and the like, where root and apt are there
	@tests/services/install

bench: tools ## measure cost side by side with what people would use instead
	$(BIN)/python -m bench

fuzz: tools ## feed every parser of outside data with bad input: make fuzz SECONDS=60 TARGETS=toml,journal
	@$(BIN)/pip install --quiet --disable-pip-version-check atheris 2>/dev/null \
		|| echo "atheris cannot be installed here: inputs are found without a look at what they reach"
	@cd tests && ../$(BIN)/python -m fuzz --seconds $(SECONDS) --targets "$(TARGETS)" --folder ../.fuzz

crash: tools services ## kill agents, hub and sinks, and damage their files, a hundred times each
	@JOBLENS_SEED=$${JOBLENS_SEED:-$$$$} JOBLENS_CRASHES=$(CRASHES) $(BIN)/pytest -s tests/services/test_crashes.py tests/store/test_damage.py \
		tests/store/test_crashes.py

docs: tools ## write docs/metrics.md anew from the code
	$(BIN)/python docs/generate.py

clean: ## remove what the other targets made
	rm -rf $(VENV) .run .mypy_cache .pytest_cache .ruff_cache .hypothesis .fuzz dist
