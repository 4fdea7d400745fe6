# Two commands for a newcomer: `make run` and `make test`. Both set up everything they need.
RECENT := import sys; sys.exit(sys.version_info < (3, 11))
FITS   := import ensurepip, venv; $(RECENT)
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
             $$p -c '$(FITS)' 2>/dev/null && { echo $$p; break; }; done)
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
SPARK  := $(VENV)/.installed-spark
DEV    := $(VENV)/.installed-dev

# .venv is made anew if its Python is gone, too old or without pip, or is not the Python that PYTHON names.
ORIGIN := import sys; print(sys.base_prefix, sys.hexversion)
MADE_BY := $(shell $(BIN)/python -c 'import pip; $(RECENT)' 2>/dev/null && $(BIN)/python -c '$(ORIGIN)')
WANTED := $(if $(filter command environment,$(origin PYTHON)),$(shell $(PYTHON) -c '$(ORIGIN)' 2>/dev/null),$(MADE_BY))
ifneq "$(MADE_BY)" "$(or $(WANTED),none)"
.PHONY: $(BIN)/python
endif

.PHONY: run broker test test-all test-java jars sim check bench format docs clean

run: $(SPARK)  ## a broker, events, a Spark pipeline and its table: until Ctrl-C, or for RUN_SECONDS
	@RUN_SECONDS=$(RUN_SECONDS) exec $(BIN)/penstock pipeline demo

broker: $(STAMP)  ## a broker alone, on 127.0.0.1:9092 until Ctrl-C
	@exec $(BIN)/penstock up

test: $(DEV) check jars  ## every check and the tests
	$(BIN)/pytest -m "not slow"

test-all: $(DEV) check jars  ## the long ones too
	$(BIN)/pytest

test-java: $(DEV) jars  ## the long tests against Kafka's Java clients and tools, and against Apache Kafka itself
	$(BIN)/pytest -m "java and slow"

jars: $(DEV)  ## Kafka's jars for the tests marked `java`; without Java 17 or Maven they are skipped
	@$(BIN)/python -m tools.kafka install --streams >/dev/null || \
	{ echo "the tests marked java are skipped" >&2; test "$(JAVA_TESTS)" != required; }

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
	@$(or $(PYTHON),false) -c '$(FITS)' 2>/dev/null || { echo "Penstock needs Python 3.11 or newer with venv and pip," \
	    "$(or $(PYTHON),no python3 on PATH) is not one: set PYTHON=/path/to/python3" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
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
