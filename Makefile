# Every target sets up what it needs in .venv; nothing else on the machine is touched.
PYTHON ?= python3
BIN := .venv/bin
DATA := $(wildcard ../shared/data)
PYTEST := $(BIN)/python -m pytest tests -n 2 $(if $(DATA),--data $(DATA))
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-all lint docs bench clean

demo: .venv/ready
	rm -rf demo
	$(BIN)/python examples/tiny_series.py demo/checkpoints
	$(BIN)/normgrowth trace demo/checkpoints -o demo/trace
	$(BIN)/normgrowth fit demo/trace
	$(BIN)/normgrowth figures demo/trace --fit

test: lint docs
	$(PYTEST) -m "not slow and not network"

test-all: lint docs .venv/ready-tensorflow
	$(PYTEST) -m "not network" --hypothesis-profile search

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright

docs: .venv/ready
	$(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build/html

bench: .venv/ready-bench
	$(BIN)/python benchmarks/run.py

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) -e '.[dev]'
	touch $@

.venv/ready-tensorflow: .venv/ready
	$(INSTALL) -e '.[dev,tensorflow]'
	touch $@

.venv/ready-bench: .venv/ready
	$(INSTALL) -e '.[dev,bench]'
	touch $@

clean:
	rm -rf .venv demo docs/_build benchmarks/scratch
