# Every target works alone on a fresh clone: Python 3.11 or later and make are all it needs.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
BASE := $(VENV)/.installed-base
INSTALLED := $(VENV)/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check install --constraint constraints.txt

.PHONY: setup demo test test-scale check bench profile docs format clean

setup: $(INSTALLED)

# What the library needs; pip says what it fetches meanwhile.
$(BASE): pyproject.toml constraints.txt
	@echo "Installing sigmax into $(VENV). PyTorch is the largest part: a few minutes, once."
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	touch $@

# What tests, checks and docs need besides.
$(INSTALLED): $(BASE)
	@echo "Installing what tests and docs need into $(VENV): a few minutes, once."
	$(PIP) --editable '.[dev,docs]'
	touch $@

demo: $(BASE)
	@echo "Training on digits, then certifying 100 held-out ones twice: about a minute."
	$(BIN)/sigmax demo --out sigmax-demo

# One process a core, each with one thread: two processes that both want all cores only wait for each other.
test: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto

test-scale: setup  ## an hour: a million operations on a memory (SIGMAX_SCALE=20000: fewer), ImageNet-sized runs
	$(BIN)/python -m pytest -m scale

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(MAKE) test

bench: setup  ## twenty minutes; docs/performance.md shows the last run
	$(PIP) --editable '.[bench]'
	$(BIN)/python benchmarks/run.py $(if $(DOCS),--docs)

profile: setup  ## where the time of a certification goes
	$(BIN)/python benchmarks/breakdown.py

docs: setup
	$(BIN)/mkdocs build --strict

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
