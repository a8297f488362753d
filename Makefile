# Needs Python >= 3.11, pip and make; everything else is set up in .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

# Two workers with one thread each are faster on small models than one worker with two threads.
WORKERS ?= 2
THREADS := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

CHECKED := $(wildcard torchelmo tests examples benchmarks)

.PHONY: help demo test lint types pytest format clean
.DELETE_ON_ERROR:

help:  ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(INSTALLED)  ## what a biLM does with a word in two sentences, and how fast
	@$(BIN)/python examples/demo.py

test: lint types pytest  ## lint, types and tests

lint: $(INSTALLED)  ## ruff
	$(BIN)/ruff check $(CHECKED)
	$(BIN)/ruff format --check $(CHECKED)

types: $(INSTALLED)  ## mypy
	$(BIN)/mypy --strict torchelmo $(wildcard examples benchmarks)

pytest: $(INSTALLED)  ## tests, with the coverage of the package
	$(THREADS) $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --cov --cov-report=term $(ARGS)

format: $(INSTALLED)  ## rewrite the code in the house format
	$(BIN)/ruff check --fix $(CHECKED)
	$(BIN)/ruff format $(CHECKED)

clean:  ## remove all that make and the tools made
	rm -rf $(VENV) build dist *.egg-info .coverage .coverage.* htmlcov .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Installs again only when one of the two files changed.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "torchelmo needs Python 3.11 or later; set PYTHON=... to choose one." >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	@touch $@
