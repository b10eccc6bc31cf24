# Every way to run, test and check stretto; `make help` lists them.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
# An incomplete venv (Python without pip) must not count as made.
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
LOAD_VENV := .venv-load
CLIENTS_VENV := .venv-clients
PIP := -m pip --disable-pip-version-check --quiet install --root-user-action=ignore
# Three processes for two cores: for nearly half of its time a test waits, for a server that starts,
# a lease or a time-out. Each gets one test at a time: of hundreds in advance, it would be left with
# slow ones where the others have no more.
PYTEST_ARGS ?= -n 3 --maxschedchunk 1

# For load tests; without HOST they start their own service.
HOST ?=
USERS ?= 50
SECONDS ?= 30
PROCESSES ?= 2
SCENARIOS ?=
SEED ?= 1
MINUTES ?= 5
RESTARTS ?= 10
TURNS ?= 1
RUNS ?= 200

# For the benchmark: a revision to measure in turns with this one.
AGAINST ?=

# For mutants: a list, one mutant of it, or a part of a file's name.
ONLY ?=

.PHONY: help
help: ## List the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

.PHONY: run
run: export STRETTO_NATS_URL ?= $(if $(NATS),embedded)
run: $(VENV)/.run ## Start the service with its own PostgreSQL (ARGS="--port 9000"), with NATS=1 NATS too
	@exec $(BIN)/stretto serve $(ARGS)

.PHONY: test
test: $(VENV)/.dev ## Run the whole test suite against a real PostgreSQL
	@$(BIN)/pytest $(PYTEST_ARGS)

.PHONY: check before-suite
check: ## What CI runs: all checks, a short load, a short benchmark, the suite
	@# Two at once: they download, compile and compute in turns. What has time-outs runs by itself.
	@$(MAKE) -j2 --output-sync before-suite
	@$(MAKE) bench-smoke test
before-suite: format-check lint types layers compose load-smoke clients

.PHONY: format-check lint types layers compose
format-check: $(VENV)/.dev
	@$(BIN)/ruff format --check .
lint: $(VENV)/.dev
	@$(BIN)/ruff check .
types: $(VENV)/.dev
	@$(BIN)/mypy
layers: $(VENV)/.dev
	@$(BIN)/lint-imports
compose: $(VENV)/.dev
	@$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec docker-compose.yml

.PHONY: clients
clients: $(CLIENTS_VENV)/.clients ## Install the generators of clients, which `make test` then tests too

.PHONY: format
format: $(VENV)/.dev ## Format the code and fix what can be fixed
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .
	@PYTHONPATH=service:tests $(BIN)/python -m openapi

.PHONY: bench
bench: $(VENV)/.dev ## Measure stretto beside its alternatives, and beside AGAINST= (ARGS="--only create")
	@$(BIN)/python -m loadtests.bench $(if $(AGAINST),--against $(AGAINST)) $(ARGS)

.PHONY: bench-smoke
bench-smoke: $(VENV)/.dev ## Run every part of the benchmark for a second, to check that it works
	@# In asyncio's debug mode an overloaded service creates nothing within a second.
	@PYTHONASYNCIODEBUG= $(BIN)/python -m loadtests.bench --rounds 1 --seconds 1 --scale 0.001

.PHONY: chaos
chaos: $(VENV)/.dev ## Inject every fault under load, then check (SEED= MINUTES=)
	@PYTHONPATH=tests $(BIN)/python -m chaos --seed $(SEED) --minutes $(MINUTES)

.PHONY: schedules
schedules: $(VENV)/.dev ## Run every order of steps, also those with two faults (3 min)
	@LONG=1 $(BIN)/pytest $(PYTEST_ARGS) tests/races

.PHONY: mutants
mutants: $(VENV)/.dev ## Change the code in small ways and see whether tests fail (ONLY=storage ARGS=--list)
	@PYTHONPATH=tests $(BIN)/python -m mutants $(if $(ONLY),--only $(ONLY)) $(ARGS)

.PHONY: rolling
rolling: $(VENV)/.dev ## Restart two replicas in turn behind haproxy, with clients that never retry (RESTARTS=)
	@PYTHONPATH=tests $(BIN)/python -m rolling --restarts $(RESTARTS)

.PHONY: client-runs
client-runs: $(VENV)/.dev ## Try the browser's client in random runs (RUNS=200 SEED=)
	@RUNS=$(RUNS) $(BIN)/pytest -s tests/browser/test_client_runs.py

.PHONY: ha
ha: $(VENV)/.dev ## Fail the primary of a pg_auto_failover formation under load (SCENARIOS= TURNS=)
	@PYTHONPATH=tests $(BIN)/python -m ha --turns $(TURNS) $(SCENARIOS)

.PHONY: dashboard
dashboard: $(VENV)/.dev ## Draw the dashboard over a scene of breaks (ARGS="--seconds 60 --picture FILE")
	@PYTHONPATH=tests $(BIN)/python -m dashboard $(ARGS)

.PHONY: soak
soak: $(VENV)/.dev ## Run a steady mix, then check memory, answers and log (MINUTES=40 ARGS=--busy)
	@PYTHONPATH=loadtests $(BIN)/python -m soak --minutes $(MINUTES) $(ARGS)

.PHONY: load
load: $(VENV)/.run $(LOAD_VENV)/.load ## Load a service with locust, then check (USERS= SECONDS= SCENARIOS= HOST=)
	@$(LOAD_VENV)/bin/python loadtests/run.py $(if $(HOST),--host $(HOST)) \
	    --users $(USERS) --seconds $(SECONDS) --processes $(PROCESSES) $(SCENARIOS)

.PHONY: load-smoke
load-smoke: $(VENV)/.run $(LOAD_VENV)/.load ## Run every scenario for 5 s, then check
	@$(LOAD_VENV)/bin/python loadtests/run.py --users 25 --seconds 5 --folder .load/smoke \
	    SteadyCreator RetryStorm LossyClient MixedBodies SlowFollower

.PHONY: lock
lock: $(VENV)/.dev ## Resolve and lock the requirements again
	@for group in run dev load build clients; do ./requirements/lock $$group; done

.PHONY: clean
clean: ## Remove environments and caches, but no data
	rm -rf $(VENV) $(LOAD_VENV) $(CLIENTS_VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis \
	    .import_linter_cache

# The first Python that is new enough and has venv and ensurepip.
PYTHON = $(or $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
    $$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
    && echo $$python && break; done),$(error stretto needs Python 3.11 or newer with its venv \
    module (Debian: apt-get install python3-venv)))

$(VENV)/bin/python:
	@echo "making $(VENV)" && $(PYTHON) -m venv $(VENV)

$(VENV)/.run: $(VENV)/bin/python requirements/run.txt requirements/build.txt pyproject.toml
	@echo "installing what the service needs"
	@$(BIN)/python $(PIP) --require-hashes -r requirements/run.txt -r requirements/build.txt
	@$(BIN)/python $(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.run requirements/dev.txt
	@echo "installing what tests and checks need"
	@$(BIN)/python $(PIP) --require-hashes -r requirements/dev.txt
	@touch $@

$(LOAD_VENV)/.load: requirements/load.txt
	@echo "making $(LOAD_VENV)" && $(PYTHON) -m venv $(LOAD_VENV)
	@$(LOAD_VENV)/bin/python $(PIP) --require-hashes -r requirements/load.txt
	@touch $@

$(CLIENTS_VENV)/.clients: requirements/clients.txt tests/clients/package.json tests/clients/package-lock.json
	@echo "making $(CLIENTS_VENV)" && $(PYTHON) -m venv $(CLIENTS_VENV)
	@$(CLIENTS_VENV)/bin/python $(PIP) --require-hashes -r requirements/clients.txt
	@cp tests/clients/package*.json $(CLIENTS_VENV)
	@PATH=$(CURDIR)/$(CLIENTS_VENV)/bin:$$PATH npm ci --prefix $(CLIENTS_VENV) \
	    --loglevel=error --ignore-scripts --no-audit --no-fund
	@touch $@
