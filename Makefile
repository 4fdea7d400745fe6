# Two commands for a newcomer: `make run` and `make test`. Both set up everything they need.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
             $$p -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
SPARK  := $(VENV)/.installed-spark
DEV    := $(VENV)/.installed-dev

.PHONY: run broker test test-all sim check bench format docs clean

run: $(SPARK)  ## a broker, events, a Spark pipeline and its table: until Ctrl-C, or for RUN_SECONDS
	@RUN_SECONDS=$(RUN_SECONDS) exec $(BIN)/penstock pipeline demo

broker: $(STAMP)  ## a broker alone, on 127.0.0.1:9092 until Ctrl-C
	@exec $(BIN)/penstock up

test: $(DEV) check  ## every check and the tests
	$(BIN)/pytest -m "not slow"

test-all: $(DEV) check  ## the long ones too
	$(BIN)/pytest

sim: $(DEV)  ## two hundred seeds of ten virtual minutes, three machines, everything that can go wrong
	$(BIN)/penstock sim --seeds 1..200 --nodes 3 --seconds 600 --jobs 2

check: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy tests/oracle/conftest.py
	$(BIN)/mypy tests/spark/conftest.py
	$(BIN)/lint-imports

format: $(DEV)
	$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

bench: $(DEV)  ## side by side with Apache Kafka (needs Java 17 and Maven)
	$(BIN)/python -m bench

docs: $(DEV)
	$(BIN)/python -m tools.apis > docs/apis.md

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Penstock needs Python 3.11 or newer with venv; set PYTHON=/path/to/python3" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip

$(STAMP): $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@$(BIN)/python -m compileall -q src
	@touch $@

$(SPARK): $(BIN)/python pyproject.toml
	@echo "installing PySpark, half a gigabyte: once, and for some minutes" >&2
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[spark]'
	@$(BIN)/python -m compileall -q src
	@touch $@ $(STAMP)

$(DEV): $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@$(BIN)/python -m compileall -q src
	@touch $@ $(STAMP) $(SPARK)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
