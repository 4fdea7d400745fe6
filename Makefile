# For users: `make run`. For contributors: `make unit` while working, `make test` before a commit is pushed. Each target
# installs what it needs into .venv.
RECENT := import sys; sys.exit(sys.version_info < (3, 11))
FITS   := import ensurepip, venv; $(RECENT)
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
             $$p -c '$(FITS)' 2>/dev/null && { echo $$p; break; }; done)
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
SPARK  := $(VENV)/.installed-spark
DEV    := $(VENV)/.installed-dev
ALL    := $(VENV)/.installed-dev-spark

# .venv is made anew if its Python is gone, too old or without pip, or is not the Python that PYTHON names.
ORIGIN := import sys; print(sys.base_prefix, sys.hexversion)
MADE_BY := $(shell $(BIN)/python -c 'import pip; $(RECENT)' 2>/dev/null && $(BIN)/python -c '$(ORIGIN)')
WANTED := $(if $(filter command environment,$(origin PYTHON)),$(shell $(PYTHON) -c '$(ORIGIN)' 2>/dev/null),$(MADE_BY))
ifneq "$(MADE_BY)" "$(or $(WANTED),none)"
.PHONY: $(BIN)/python
endif

# Tests start many Python processes: compiled files of the tests and of the package are kept for the next one.
unexport PYTHONDONTWRITEBYTECODE
# Tests in so many processes at once; Spark's and Java's tests run in one of them. Three for two cores: many tests wait
# for threads, sockets or other processes.
JOBS   ?= 3
PYTEST  = $(BIN)/pytest --numprocesses $(JOBS) --dist loadgroup
# Seeds of `make sim`: SEEDS run under every kind of fault, POINTS with faults at chosen points. CI has less time and
# sets fewer. The coverage of points is kept: the next `make sim` chooses points that were not hit yet.
SEEDS  ?= 1..100
POINTS ?= 1..100
COVERAGE ?= .sim-coverage.json

.PHONY: run broker unit test test-all test-java test-network test-browser test-pythons jars sim check bench format docs \
        hooks clean

run: $(SPARK)  ## a broker, events, a Spark pipeline and its table: until Ctrl-C, or for RUN_SECONDS
	@RUN_SECONDS=$(RUN_SECONDS) exec $(BIN)/penstock pipeline demo

broker: $(STAMP)  ## a broker alone, on 127.0.0.1:9092 until Ctrl-C
	@exec $(BIN)/penstock up

unit: $(DEV)  ## the tests of the pure packages and of single classes, without Spark, Java, processes or nodes: a minute
	TEST_EXAMPLES=quick $(PYTEST) -m "not slow and not programs and not nodes and not exhaustive" tests/unit

test test-all test-java: export SPARK_TESTS = required
test: $(ALL) check jars  ## every check and the tests
	$(PYTEST) -m "not slow"

test-all: $(ALL) check jars  ## the long tests too
	$(PYTEST)

test-java: $(ALL) jars  ## the long tests with Kafka's Java clients and tools, and with Apache Kafka itself
	$(BIN)/pytest -m "java and slow"

test-network: $(DEV)  ## real nodes in network namespaces that are split and healed, and a full disk: needs root and iproute2
	@command -v ip >/dev/null || apt-get install --yes --no-install-recommends iproute2
	$(BIN)/pytest tests/chaos/test_chaos_machines.py

test-browser: $(DEV)  ## walks through the console in Chromium; screenshots are in build/console
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
	{ test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get install -y -qq chromium >/dev/null; } || \
	{ echo "make test-browser needs Chromium: install it with the package manager of this machine" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,browser]'
	$(BIN)/pytest -m browser tests/browser

test-pythons: $(DEV)  ## `make unit` with every installed Python from 3.11 on, each in an environment of its own
	$(BIN)/python -m tools.pythons

jars: $(DEV)  ## Kafka's jars for the tests marked `java`; without Java 17 or Maven these tests are skipped
	@$(BIN)/python -m tools.kafka install --streams >/dev/null || \
	{ echo "the tests marked java are skipped" >&2; test "$(JAVA_TESTS)" != required; }

sim: $(DEV)  ## three machines: the seeds of SEEDS under every kind of fault, and those of POINTS with faults at points
	$(BIN)/penstock sim --seeds $(SEEDS) --nodes 3 --seconds 600 --jobs 2
	# one job: the choice of points depends on the coverage so far, and so on the order in which runs end
	$(BIN)/penstock sim --profile points --seeds $(POINTS) --nodes 3 --seconds 20 --jobs 1 --coverage $(COVERAGE)

check: $(DEV)  ## ruff, mypy and the import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy tests/conftest.py
	$(BIN)/mypy tests/oracle/conftest.py
	$(BIN)/mypy tests/spark/conftest.py
	$(BIN)/lint-imports

hooks: $(DEV)  ## runs the checks of CI before every commit
	$(BIN)/pre-commit install

format: $(DEV)  ## fixes what ruff can fix
	$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

bench: $(ALL)  ## side by side with Apache Kafka (needs Java 17 and Maven)
	$(BIN)/python -m bench

docs: $(DEV)  ## regenerates docs/apis.md
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
	@touch $@ $(STAMP)

$(ALL): $(BIN)/python pyproject.toml
	@echo "installing PySpark, half a gigabyte: once, and for some minutes" >&2
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev-spark]'
	@$(BIN)/python -m compileall -q src
	@touch $@ $(STAMP) $(SPARK) $(DEV)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
