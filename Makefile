# make serve: a running server of a small model. make test: the quick test suite. Both set up all they need.
# Needs Python 3.11 or newer (PYTHON=...), a C++17 compiler and make.

PYTHON ?= python3
PORT ?= 8000
PYTEST_ARGS ?= -n 2 --dist loadfile

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Bytecode is left to the first import: most modules of the heavy packages are never imported.
PIP := $(BIN)/python -m pip install -q --no-compile -c constraints.txt
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

# Packages are fetched while the operators' library is compiled.
$(STAMP): $(NATIVE) pyproject.toml constraints.txt | $(VENV)/.tools
	$(MAKE) --no-print-directory -j2 $(VENV)/.packages $(VENV)/.editable
	touch $@

$(VENV)/.tools: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python .ci/requirements.py build >$(VENV)/tools.txt
	$(PIP) -r $(VENV)/tools.txt
	touch $@

$(VENV)/.packages: pyproject.toml constraints.txt | $(VENV)/.tools
	$(BIN)/python .ci/requirements.py serve cpu export test >$(VENV)/packages.txt
	$(PIP) -r $(VENV)/packages.txt
	touch $@

$(VENV)/.editable: $(NATIVE) pyproject.toml | $(VENV)/.tools
	$(PIP) --no-deps --no-build-isolation -e .
	touch $@

# Built with the same tools in the same folder as the editable install, whose objects are used again.
dist/.built: $(SOURCES) | $(VENV)/.editable
	rm -rf dist
	$(BIN)/python -m pip wheel -q --no-deps --no-build-isolation -w dist .
	touch $@
	ls dist

clean:
	rm -rf $(VENV) build dist .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis
