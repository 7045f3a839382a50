# One command a job. `make run` and `make test` install what they need; a second call installs nothing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV_VERSION := 0.13.9
INSTALLED := $(VENV)/.installed
# The suite mostly waits for brokers, so one process more than this project's smallest machine has cores.
TEST_PROCESSES ?= 3
FUZZ_MINUTES ?= 10
BENCHMARKS := scheduler verified_cost pipeline_latency pipeline_overhead startup

.PHONY: run test check lint unit prove-engine prove-structured prove-fuzz bench install lock reset clean help

help:  ## what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

run: install  ## local Kafka and S3, gate, pipeline and worker: two turns of a chat, then where all went (RESET=1 wipes the data first)
	@$(BIN)/headrace demo $(if $(RESET),--reset)

test: install lint  ## the whole suite, on its own Kafka and S3
	$(BIN)/pytest -q -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder

check: install lint unit  ## lint and unit tests, under a minute

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

unit: install
	$(BIN)/pytest -m "not integration" -q -n 2 --dist loadfile

prove-engine: install  ## 200,000 engine steps in random histories, resumed where it was interrupted (some minutes)
	$(BIN)/python -m tests.engine.prove

prove-structured: install  ## answers under 1,000 generated JSON Schemas, of which all that end are valid (a minute or two)
	$(BIN)/python -m tests.engine.prove_structured

prove-fuzz: install  ## every reader of foreign bytes, for FUZZ_MINUTES (10); goes on where the last run was
	$(BIN)/python -m tests.fuzz.prove --minutes $(FUZZ_MINUTES)

bench: install  ## all benchmarks; one alone: python -m benchmarks.NAME
	@for name in $(BENCHMARKS); do $(BIN)/python -m benchmarks.$$name || exit 1; done

install: $(INSTALLED)

$(INSTALLED): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "headrace needs Python 3.11 or newer; name it with: make PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null \
		|| { echo "Python's venv module is missing: apt-get install python3-venv"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV): about 2.8 GB to download the first time, most of it torch's CUDA libraries."
	@$(BIN)/pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@$(BIN)/uv pip install --python $(BIN)/python --no-deps -r requirements.lock
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps -e .
	@touch $@

lock:  ## renew requirements.lock from pyproject.toml
	$(BIN)/uv pip compile pyproject.toml --all-extras --group dev --group model --python-version 3.11 \
		--no-emit-index-url --no-emit-find-links --no-header --no-annotate --quiet -o requirements.lock

reset: install  ## forget the local stack's data
	@$(BIN)/headrace demo --reset --no-chat

clean:  ## remove the environment and caches of this checkout
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info
