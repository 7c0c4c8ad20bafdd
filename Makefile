# One command for each thing to do; `make` alone lists them.

# The Python of `make gpu`: one that is named, or the active one, if it has torch with CUDA.
ACTIVE := $(if $(filter environment command,$(origin PYTHON)),$(PYTHON),python3)
VENV := .venv
PYTHON := $(VENV)/bin/python
# What the demo needs, and what everything else needs beside it.
BASE := $(VENV)/.installed-base
STAMP := $(VENV)/.installed
# torch comes first and alone: its build decides which of its own dependencies the platform needs.
TORCH := torch==2.13.0
LOCKED := --no-deps --require-hashes -r

# uv reads no settings of pip; it is told those that decide where packages come from. The environment's come last, and count.
FOR_UV = $$($(PYTHON) -m pip config list | sort -r | sed -nE -e "s/^(global|install|:env:)\.index-url='(.*)'/UV_DEFAULT_INDEX=\2/p" \
	-e "s/^(global|install|:env:)\.find-links='(.*)'/UV_FIND_LINKS=\2/p" -e "s/^(global|install|:env:)\.cert='(.*)'/SSL_CERT_FILE=\2/p")
UV = env $(FOR_UV) $(VENV)/bin/uv
# uv takes a small part of pip's time; where it cannot install (an index with a login that only pip knows), pip does.
# Neither compiles: most modules are never imported.
install = $(UV) pip install --python $(1) --quiet $(2) || $(PYTHON) -m pip --python $(1) install --quiet --no-compile $(2)

# What the processes that run an app's code import. They may write no bytecode, and would compile it each time: once, here.
RANKS := torch._dynamo, torch.distributed.tensor, torch.distributed.run, flwr.clientapp, fedcore.training
# Nothing of ours is to be compiled again by every process that imports it.
unexport PYTHONDONTWRITEBYTECODE

PACKAGES := fedcore server_app client_app
SOURCES := $(PACKAGES) docs $(wildcard tests examples benchmarks proofs)

.DEFAULT_GOAL := help
.PHONY: help install demo docs test test-processes test-slow test-all matrix images vm coverage check proof format lock peers sbom gpu clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP)  ## make .venv with the locked dependencies and this project

$(BASE): requirements.lock pyproject.toml
	python3 -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fedcore needs Python 3.11 or newer")'
	@echo "Installing torch and the rest of what fedcore needs into $(VENV), which takes minutes:"
	python3 -m venv $(VENV)
	@awk '/^[^ ]/ {uv = /^uv==/} uv' requirements.lock > $(VENV)/uv.lock
	-@$(PYTHON) -m pip install --quiet --no-compile $(LOCKED) $(VENV)/uv.lock
	@$(call install,$(PYTHON),$(TORCH))
	@$(call install,$(PYTHON),$(LOCKED) requirements.lock)
	$(PYTHON) -m pip install --quiet --no-compile --no-deps --no-build-isolation -e .
	FLWR_TELEMETRY_ENABLED=0 $(PYTHON) -W ignore -c 'import $(RANKS)'
	touch $@

$(STAMP): $(BASE) requirements-dev.lock
	@$(call install,$(PYTHON),$(LOCKED) requirements-dev.lock)
	touch $@

demo: $(BASE)  ## train digits over four sites: together and secure, each alone, and pooled; and compare
	$(VENV)/bin/fedcore demo --out demo-out

docs: $(STAMP)  ## build the documentation as a site, build/docs/index.html
	FLWR_TELEMETRY_ENABLED=0 $(PYTHON) -m sphinx --quiet --fail-on-warning --builder html docs build/docs

PYTEST := FLWR_TELEMETRY_ENABLED=0 $(PYTHON) -m pytest -q
# A quick test keeps one core busy; those that start processes wait most of their time, and more of them keep two busy.
QUICK_WORKERS := -n logical --maxprocesses 8 --dist worksteal
SLOW_WORKERS := -n 4 --dist loadgroup --no-loadscope-reorder
ONE_FEDERATION := tests/integration/test_one_federation.py
# Each worker collects all that it is given. Of the quick folders, the slow ones need the files with property tests.
QUICK := tests/unit tests/architecture
SLOW_FILES = $(filter-out $(QUICK) %/__pycache__,$(patsubst %/,%,$(wildcard tests/*/))) $(shell grep -rl --include='*.py' hypothesis $(QUICK))
# Of each property 50 new examples; 250 with PROFILE=thorough.
PROFILE := fresh
SLOW := -m "not (unit or architecture) or hypothesis" --hypothesis-profile $(PROFILE)

test: $(STAMP)  ## run all that is quick, and one real federation
	$(PYTEST) $(QUICK_WORKERS) --test-seconds 2 $(ONE_FEDERATION) $(QUICK)
	@echo "Not run: tests that start processes, train for long or measure (tests/processes, integration, thorough,"
	@echo "benchmarks), and the many examples of property tests. All of these: make test-slow"

# Of the slow ones what a change is most likely to break; the folders of pages take as long as all others.
PROCESS_FILES = $(filter-out %/docs %/__pycache__,$(patsubst %/,%,$(wildcard tests/processes/*/)) $(wildcard tests/processes/test_*.py)) \
	tests/simulation tests/integration/test_own_keys.py tests/integration/test_replicas.py
test-processes: $(STAMP)  ## run those of `make test-slow` that start single processes, and two federations
	@$(PYTEST) $(SLOW_WORKERS) $(PROCESS_FILES)

test-slow: $(STAMP)  ## run what `make test` leaves out
	@$(PYTEST) $(SLOW_WORKERS) $(SLOW) --ignore $(ONE_FEDERATION) $(SLOW_FILES)

test-all: test test-slow  ## run all tests

# Folders of wheels that count as further indexes, such as one with builds of torch for the processor alone.
WHEELS :=
matrix: $(STAMP)  ## try the wheel on every Python that is here, with each Flower; installs gigabytes of torch without WHEELS=...
	env $(FOR_UV) FLWR_TELEMETRY_ENABLED=0 $(PYTHON) benchmarks/matrix.py $(addprefix --find-links ,$(WHEELS)) --save build/matrix.md

images:  ## build both images without Docker, and run a federation of them without root; needs buildah, debootstrap, podman
	docker/build-bare.sh
	docker/run-images.sh plain

vm:  ## install, reboot, upgrade and cut off a virtual machine; as root, needs qemu, debootstrap and up to an hour without KVM
	deploy/vm/run.sh build/vm

coverage: $(STAMP)  ## run all tests and say which lines they reach
	$(PYTEST) $(SLOW_WORKERS) --hypothesis-profile thorough tests --cov

check: $(STAMP)  ## formatting, lint, types, import rules and words
	$(VENV)/bin/ruff format --check $(SOURCES)
	$(VENV)/bin/ruff check $(SOURCES)
	$(VENV)/bin/mypy $(PACKAGES) benchmarks
	$(VENV)/bin/lint-imports --no-cache
	$(PYTHON) docs/check_words.py

proof: $(STAMP)  ## check what is proved about the protocol, where Coq, Maude and Spin are installed
	$(PYTHON) proofs/check.py
	$(PYTHON) proofs/ablation.py
	$(PYTHON) proofs/recovery.py

format: $(STAMP)  ## put the sources into shape
	$(VENV)/bin/ruff format $(SOURCES)
	$(VENV)/bin/ruff check --fix $(SOURCES)

# Each has all that those before it have, in the same versions. What is in a lock stays, unless UPGRADE says otherwise.
COMPILE = $(UV) pip compile pyproject.toml --group build --override requirements-overrides.txt --generate-hashes \
	--python-version 3.11 --no-annotate --custom-compile-command "make lock" --quiet $(UPGRADE)
IMAGES := --extra huggingface --extra oidc --extra pkcs11 --extra postgres --extra s3 --extra tracing

lock: $(STAMP)  ## renew the locks from pyproject.toml; with UPGRADE=--upgrade to the newest versions
	@$(COMPILE) --output-file requirements.lock
	@$(COMPILE) $(IMAGES) --constraint requirements.lock --output-file requirements-extras.lock
	@$(COMPILE) --extra dev --constraint requirements-extras.lock --output-file requirements-dev.lock

peers: $(STAMP)  ## measure a round beside Flower and NVIDIA FLARE, in build/peers.md
	FLWR_TELEMETRY_ENABLED=0 $(PYTHON) benchmarks/peers.py --save build/peers.md

sbom: $(STAMP)  ## print what an image holds beside Python, as CycloneDX
	@python3 -m venv --clear --without-pip build/image
	@$(call install,build/image/bin/python,$(TORCH)) >&2
	@$(call install,build/image/bin/python,$(LOCKED) requirements-extras.lock) >&2
	@$(VENV)/bin/cyclonedx-py environment --output-reproducible --pyproject pyproject.toml build/image

HAS_GPU := import sys, torch; sys.exit(not torch.cuda.is_available())
gpu:  ## prove all that fedcore does on a GPU, in under nine minutes, with the active Python or PYTHON=...
	@$(ACTIVE) -c '$(HAS_GPU)' 2>/dev/null || $(MAKE) --no-print-directory $(STAMP)
	@python=$(ACTIVE); $$python -c '$(HAS_GPU)' 2>/dev/null || python=$(VENV)/bin/python; echo "with $$python"; \
	$$python benchmarks/gpu.py --save benchmarks/results/gpu.md

clean:  ## remove what the targets made
	rm -rf $(VENV) build dist demo-out *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
