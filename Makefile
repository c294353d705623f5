# Two commands on a fresh machine with Python 3.11+, git and make: `make quickstart` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin

.PHONY: help setup quickstart test check attack bench docs screenshot clean

help:
	@echo "make quickstart   set up and run HIST against hierarchical FedAvg on embedded images"
	@echo "make test         set up and run every check and test"
	@echo "make check        set up and run the style, type and import checks alone"
	@echo "make attack       the long attacks: odd objects, generated configurations, damaged files, kill points"
	@echo "make bench        the same job on our engines, a plain loop, Flower, pfl and FedJAX; then the scaling curves"
	@echo "make docs         build the documentation site into build/site"
	@echo "make screenshot   run the quickstart and picture its report (needs chromium)"
	@echo "make setup        make $(VENV) with everything"

setup: $(VENV)/.installed

# torch comes first and pinned, so that no other package pulls another build of it.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,docs,fast,mlflow,lora,ray,privacy,deploy]'
	touch $@

quickstart: setup
	$(BIN)/histfl quickstart

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# One torch thread a worker: more would only fight over the same cores.
test: check
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadgroup -rs

# The long versions of the attacks that `make test` has short: odd objects, generated configurations, damaged files, kills.
attack: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadgroup -rs -m exhaustive

# The peers go into environments of their own under .bench; results into benchmarks/results.
bench: setup
	$(BIN)/python benchmarks/bench.py
	$(BIN)/python benchmarks/bench.py --scaling

# The build itself asks nothing of the network.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	@echo "build/site/index.html opens from disk; with its search: python -m http.server -d build/site"

# docs/figures/quickstart.png: the quickstart's own report, as a browser shows it.
screenshot: setup
	rm -rf build/quickstart
	OMP_NUM_THREADS=1 $(BIN)/histfl quickstart --out build/quickstart
	$(BIN)/python docs/screenshot.py build/quickstart/report.html docs/figures/quickstart.png

clean:
	rm -rf $(VENV) .bench build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
