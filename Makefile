# Two commands do all set-up on a fresh machine: `make run` and `make test`. `make help` lists the rest.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: help setup run test e2e audit cluster-up cluster-down bench lint lock clean
help:                 ## this list
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 16

setup: $(STAMP)       ## make .venv with the gnnpipe command in .venv/bin

LOOPS  := $(wildcard trainer/gnnpipe_trainer/kernels/*.[ch])

$(STAMP): pyproject.toml constraints.txt $(LOOPS)
	@echo "==> Making the virtual environment in $(VENV) (once, about two minutes)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "GNNPipe needs Python 3.11 or newer; say which with: make PYTHON=/path/to/python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "==> Installing torch" && $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	@echo "==> Installing GNNPipe and what it needs" && \
	  $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[operator,trainer,bench,dev]'
	@touch $(STAMP)

run: setup            ## train examples/quickstart.yaml here
	@$(BIN)/gnnpipe run examples/quickstart.yaml --compare --out runs/quickstart --fresh

lint: setup           ## ruff, mypy strict, the borders between the rooms
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports

test: setup lint      ## lint and every test that needs no containers
	@PYTHONPATH=tests/cluster $(BIN)/python -m harness binaries
	@$(BIN)/pytest -n 2 --dist worksteal -m "not nodes"

e2e: setup            ## as root: build the images, install the chart on a real cluster, train, break it, compare
	@PYTHONPATH=tests/cluster $(BIN)/python -m harness check
	@GNNPIPE_REQUIRE_CLUSTER=1 PYTHONPATH=tests/cluster $(BIN)/python -m harness binaries --nodes
	@echo "==> Building both images (once, five to ten minutes; later only what changed)"
	@PYTHONPATH=tests/cluster $(BIN)/python tests/e2e/project_images.py
	@echo "==> Testing on real clusters, three side by side: most of the time is spent waiting"
	@GNNPIPE_REQUIRE_CLUSTER=1 $(BIN)/pytest -v -n 3 --dist worksteal --durations=10 --timeout=2400 -m nodes tests/e2e tests/cluster

audit: setup          ## licences of everything the images bring, and known weaknesses where the list can be reached
	@PYTHONPATH=docker $(BIN)/python -c 'import licences, sys; sys.exit("\n".join(licences.refused()) or 0)'
	@test -x build/audit/bin/pip-audit || { $(PYTHON) -m venv build/audit && \
	  build/audit/bin/pip install --quiet --disable-pip-version-check pip-audit==2.10.1; }
	@build/audit/bin/python docker/audit.py

cluster-up: setup     ## a real Kubernetes to play with (as root with a node that has our images); says how to use it
	@PYTHONPATH=tests/cluster $(BIN)/python -m harness up --gnnpipe

cluster-down: setup   ## end what cluster-up started
	@PYTHONPATH=tests/cluster $(BIN)/python -m harness down

bench: setup          ## measure the engine against its bars (as root also over slow links); half an hour
	@$(BIN)/python benchmarks/engine.py

lock: setup           ## pin what is installed now into constraints.txt, and list the licences
	@{ head -1 constraints.txt; $(BIN)/pip freeze --all --exclude pip --exclude-editable | sed 's/+cpu//'; } > constraints.new && mv constraints.new constraints.txt
	@$(BIN)/python docker/licences.py

clean:                ## remove the virtual environment and run results
	rm -rf $(VENV) runs build
