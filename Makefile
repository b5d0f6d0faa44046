# Every target sets up what it needs in .venv; nothing else on the machine is touched.
PYTHON ?= python3
BIN := .venv/bin
DATA := $(wildcard ../shared/data)
PYTEST := $(BIN)/python -m pytest tests -n 2 $(if $(DATA),--data $(DATA))
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-all lint docs bench census clean

demo: .venv/ready
	$(BIN)/normgrowth reproduce -o demo

test: lint docs .venv/browser
	$(PYTEST) -m "not slow and not network"

test-all: lint docs .venv/browser .venv/ready-tensorflow
	$(PYTEST) -m "not network" --hypothesis-profile search

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright

docs: .venv/ready
	$(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build/html

bench: .venv/ready-bench
	$(BIN)/python benchmarks/run.py

census: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/census.py

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) -e '.[dev]'
	touch $@

# Tests of pages need a browser, which no Python package brings. Where Debian's can be installed it is; otherwise
# these tests skip, and say so.
.venv/browser: .venv/ready
	command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	  { apt-get install -y -qq --no-install-recommends chromium || \
	    { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; }; } >/dev/null 2>&1; } || \
	  echo "no browser could be installed: tests of pages will skip"
	touch $@

.venv/ready-tensorflow: .venv/ready
	$(INSTALL) -e '.[dev,tensorflow-tests]'
	touch $@

.venv/ready-bench: .venv/ready
	$(INSTALL) -e '.[dev,bench]'
	touch $@

clean:
	rm -rf .venv demo docs/_build benchmarks/scratch
