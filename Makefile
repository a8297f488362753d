# Needs Python >= 3.11, pip and make; everything else is set up in .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

# Two workers with one thread each are faster on small models than one worker with two threads.
WORKERS ?= 2
THREADS := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

CHECKED := $(wildcard torchelmo tests examples benchmarks docs)

# Tests that need no training and few seconds, for `make quick`.
QUICK := $(wildcard tests/test_*.py tests/text tests/bilm tests/runs tests/tasks/layers)
# Tests whose results depend on floating-point kernels, and the kernels and threads that `make test-kernels` runs them
# with: the machine's own kernels, then older instruction sets for PyTorch (ATEN) and for its matrix products (oneDNN).
NUMERIC := $(wildcard tests/bilm tests/test_elmo.py tests/test_embed*.py tests/test_mix.py tests/test_golden.py \
	tests/test_pinned_vectors.py tests/test_pretrained.py tests/lm/test_losses.py tests/lm/test_evaluate.py \
	tests/lm/test_predict.py tests/compat tests/tasks/layers)
KERNELS := own/1 own/2 ATEN_CPU_CAPABILITY=default/1 ATEN_CPU_CAPABILITY=avx2/2 ONEDNN_MAX_CPU_ISA=SSE41/1 \
	ONEDNN_MAX_CPU_ISA=AVX2/2

.PHONY: help demo quick test test-kernels test-old-code fuzz kills shard-kills docs lint types pytest coverage \
	format clean
.DELETE_ON_ERROR:

help:  ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s  %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(INSTALLED)  ## show words in different senses, layer by layer, and the speed of this machine
	@$(BIN)/python examples/demo.py

quick: lint types  ## lint, types and the fast tests: about a minute
	$(THREADS) $(BIN)/python -m pytest -n $(WORKERS) -q -m "not slow" $(QUICK) $(ARGS)

test: lint types pytest  ## everything that a change must pass: lint, types, all tests

test-kernels: $(INSTALLED)  ## the numeric tests with other CPU kernels and thread counts: minutes
	@failed=; for chosen in $(KERNELS); do kernels=$${chosen%/*} threads=$${chosen#*/}; \
		echo "== $$kernels kernels, $$threads thread(s)"; \
		env $$(test $$kernels = own || echo $$kernels) OMP_NUM_THREADS=$$threads MKL_NUM_THREADS=$$threads \
			$(BIN)/python -m pytest -n $$(test $$threads = 1 && echo $(WORKERS) || echo 0) -q $(NUMERIC) $(ARGS) \
			|| failed="$$failed $$chosen"; \
	done; test -z "$$failed" || { echo "failed with:$$failed" >&2; exit 1; }

OLD := build/old-code

test-old-code: $(INSTALLED)  ## flair and SeqVec, which import AllenNLP, with torchelmo in its place: installs both
	test -x $(OLD)/bin/python || $(PYTHON) -m venv $(OLD)
	$(OLD)/bin/python -m pip install --quiet --constraint constraints.txt --editable . flair==0.15.1 pytest hypothesis
	$(OLD)/bin/python -m pip install --quiet --no-deps seqvec==0.4.1
	$(THREADS) $(OLD)/bin/python -m pytest -q tests/compat/test_old_code.py $(ARGS)

MINUTES ?= 10
KILLS ?= 20

fuzz: $(INSTALLED)  ## damaged files of every kind for MINUTES=10, or CASES=100000; prints a table
	cd tests && $(THREADS) PYTHONPATH=.. ../$(BIN)/python -m fuzz --workers $(WORKERS) \
		$(if $(CASES),--cases $(CASES),--minutes $(MINUTES))

kills: $(INSTALLED)  ## kill every command that writes KILLS=20 times and resume it; prints a table
	cd tests && $(THREADS) PYTHONPATH=.. ../$(BIN)/python -m fuzz.kills --kills $(KILLS)

shard-kills: $(INSTALLED)  ## kill workers, parents and Ray actors of a run over 240 shards; prints a table
	cd tests && $(THREADS) PYTHONPATH=.. ../$(BIN)/python -m fuzz.shards --kills 60

docs: $(INSTALLED)  ## the documentation as a site in build/docs; warnings are errors
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs
	@echo "Open build/docs/index.html"

lint: $(INSTALLED)  ## ruff: lint and format
	$(BIN)/ruff check $(CHECKED)
	$(BIN)/ruff format --check $(CHECKED)

types: $(INSTALLED)  ## mypy --strict
	$(BIN)/mypy --strict torchelmo $(wildcard examples benchmarks)

pytest: $(INSTALLED)  ## all tests; ARGS="-k mix" selects some
	$(THREADS) $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup $(ARGS)

coverage: $(INSTALLED)  ## all tests, and the lines and branches that they do not reach: takes half as long again
	$(THREADS) $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --cov --cov-report=term $(ARGS)

format: $(INSTALLED)  ## format the code and apply automatic fixes
	$(BIN)/ruff check --fix $(CHECKED)
	$(BIN)/ruff format $(CHECKED)

clean:  ## remove everything that make and the tools created
	rm -rf $(VENV) build dist *.egg-info .coverage .coverage.* htmlcov .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Installs again only when one of the two files changed.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "torchelmo needs Python 3.11 or later; set PYTHON=... to choose one." >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	@touch $@
