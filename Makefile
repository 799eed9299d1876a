# make serve: a running server of a small model. make test: the quick test suite. Both set up all they need.
# Needs Python 3.11 or newer (PYTHON=...), a C++17 compiler and make.

PYTHON ?= python3
PORT ?= 8000
PYTEST_ARGS ?= -n 2 --dist loadfile

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
NATIVE := CMakeLists.txt $(wildcard ops/src/* ops/cmake/*)
SOURCES := $(shell find export models ops rtcore server -name '*.py') $(NATIVE) pyproject.toml README.md LICENSE

.PHONY: serve test wheel lint install clean

serve: $(STAMP)
	$(BIN)/ortolan serve "$$($(BIN)/python -m tests.assets bundle)" --port $(PORT)

test: $(STAMP)
	$(BIN)/python -m pytest $(PYTEST_ARGS)

wheel: dist/.built

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

install: $(STAMP)

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Ortolan needs Python 3.11 or newer; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

$(STAMP): $(NATIVE) pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[cpu,export,test]'
	touch $@

dist/.built: $(SOURCES) | $(BIN)/python
	rm -rf dist
	$(BIN)/python -m pip wheel -q --no-deps -w dist .
	touch $@
	ls dist

clean:
	rm -rf $(VENV) build dist .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis
