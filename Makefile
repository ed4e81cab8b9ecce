# Every target sets up what it needs, once. `make demo` and `make test` are all a fresh machine has to know.
.DEFAULT_GOAL := help
.PHONY: help demo docs test lock matrix mutants fuzz-readers soak test-gpu test-browser test-ray lint format bits bench interop peers clean
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

PYTHON ?= $(shell for name in python3 python3.13 python3.12 python3.11; do \
	$$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$name && break; done)
READY := .venv/.ready
BIN := .venv/bin
comma := ,

help:
	@echo "make demo     learn on a built-in set, in minutes: a verdict on stitching, a policy, and a page that shows it"
	@echo "make docs     the documentation site, into site/"
	@echo "make test     the tests"
	@echo "make soak     an hour of trouble on 2 cores (MINUTES=10 for a part): kills, damaged files, flipped bits, races;"
	@echo "              writes docs/results/trust.md, and goes on where it ended (FRESH=1 to start again)"
	@echo "make lint     ruff, pyright, and the contract on imports between rooms"
	@echo "make bits     whether anything that small jobs write differs from revision REV (the last commit)"
	@echo "make test-gpu the tests that need an NVIDIA GPU (installs JAX for CUDA into .venv)"
	@echo "make test-browser  the tests of the page in a real browser (Debian: apt-get install chromium chromium-driver)"
	@echo "make test-ray the tests on a Ray cluster of two workers (installs Ray into .venv)"
	@echo "make bench    the benchmarks, with tables on the screen and JSON in benchmarks/results/; worlds.py takes hours, and resumes"
	@echo "make interop  other libraries read what we write (an environment of its own)"
	@echo "make peers    d3rlpy's policies beside ours, on the same data (an environment of its own; 15 minutes on 2 cores)"
	@echo "make mutants  small faults in the core, one at a time: which ones the nearest tests notice (hours for all of them)"
	@echo "make matrix   Python 3.11 to 3.13 with the lowest and the newest release of each dependency (needs uv)"
	@echo "make fuzz-readers  atheris on the readers of every format (Linux)"
	@echo "make lock     resolve the dependencies again (needs uv)"
	@echo "make clean    remove the environments and everything made by these commands"

# $(1): folder of the environment, $(2): what to install into it
define install
	@test -n "$(PYTHON)" || { echo "error: needs Python 3.11 or newer; install one, or name it: make PYTHON=..." >&2; exit 2; }
	@echo "setting up $(1) (once)" >&2
	@if command -v uv >/dev/null; then uv venv -q --allow-existing --python $(PYTHON) $(1) && uv pip install -q --python $(1)/bin/python $(2); \
	else $(PYTHON) -m venv $(1) && $(1)/bin/python -m pip install -q --disable-pip-version-check $(2); fi
endef

# Dependencies are those of the lock file, by their hashes; the project itself then needs no registry.
$(READY): pyproject.toml requirements.lock
	$(call install,.venv,--require-hashes -r requirements.lock)
	@if command -v uv >/dev/null; then uv pip install -q --python $(BIN)/python --no-deps --no-build-isolation -e .; \
	else $(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .; fi
	@touch $@

# Needs uv: resolves the dependencies again, for every Python and system at once.
lock:
	@uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --no-header \
	--upgrade --extra dev pyproject.toml -o requirements.lock
	@sed -i "1i # What .venv is made of, for Python 3.11 to 3.13, with the hash of every file: made by 'make lock', not by hand." \
	requirements.lock

# The interpreters that are there, each with the lowest and the newest release of every dependency; needs uv.
matrix:
	@$(PYTHON) tests/matrix.py --page docs/results/matrix.md

# Small faults in the core, and whether the nearest tests notice: make mutants SAMPLE=500
SAMPLE ?= 200
mutants: $(READY)
	$(call install,.venv,-e '.[mutants]')
	PYTHONPATH=tests $(BIN)/python -m mutants --sample $(SAMPLE)
	PYTHONPATH=tests $(BIN)/python -m mutants --sample $(SAMPLE) --report docs/results/mutants.md

# Atheris on the readers; Linux alone: make fuzz-readers SECONDS_EACH=600
SECONDS_EACH ?= 60
fuzz-readers: $(READY)
	$(call install,.venv,-e '.[fuzz]')
	PYTHONPATH=tests $(BIN)/python -m fuzz_readers --seconds $(SECONDS_EACH)

demo: $(READY)
	@$(BIN)/python -m trajstitch.experiments.demo run

docs: $(READY)
	$(call install,.venv,-e '.[dev$(comma)docs]')
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open site/index.html in any browser"

# On the CPU even where there is a GPU: many tests ask for equal bits, which a GPU gives for equal shapes alone.
test: $(READY)
	JAX_PLATFORMS=cpu $(BIN)/python -m pytest -n auto

soak: $(READY)
	@PYTHONPATH="$(CURDIR)/tests" JAX_PLATFORMS=cpu $(BIN)/python -m soak --page docs/results/trust.md \
	$(if $(MINUTES),--minutes $(MINUTES)) $(if $(FRESH),--fresh)

test-gpu: $(READY)
	$(call install,.venv,-e '.[dev$(comma)cuda]')
	$(BIN)/python -m pytest -m gpu

test-browser: $(READY)
	$(call install,.venv,-e '.[dev$(comma)browser]')
	JAX_PLATFORMS=cpu $(BIN)/python -m pytest -m browser

test-ray: $(READY)
	$(call install,.venv,-e '.[dev$(comma)ray]')
	JAX_PLATFORMS=cpu $(BIN)/python -m pytest -m ray

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The jobs of tests/bits.py by two versions of the code on this machine; hashes of two machines differ.
REV ?= HEAD
bits: $(READY)
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && git archive $(REV) src | tar -x -C "$$folder" && \
	JAX_PLATFORMS=cpu PYTHONPATH="$$folder/src" $(BIN)/python tests/bits.py "$$folder/before.json" && \
	JAX_PLATFORMS=cpu PYTHONPATH="$(CURDIR)/src" $(BIN)/python tests/bits.py "$$folder/after.json" "$$folder/before.json"

bench: $(READY)
	@for file in benchmarks/*.py; do echo "== $$file"; $(BIN)/python $$file --json benchmarks/results/$$(basename $$file .py).json; done

.venv-interop/.ready: interop/requirements.txt
	$(call install,.venv-interop,-r interop/requirements.txt)
	@touch $@

interop: $(READY) .venv-interop/.ready
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && \
	$(BIN)/python interop/check.py write "$$folder" && .venv-interop/bin/python interop/check.py read "$$folder"

.venv-peers/.ready: peers/requirements.txt pyproject.toml
	$(call install,.venv-peers,-e '.[mujoco]' -r peers/requirements.txt)
	@touch $@

# For scores that have settled: make peers STEPS=20000
STEPS ?= 2000
SEEDS ?= 5
peers: .venv-peers/.ready
	@for verb in alike speed "scores --steps $(STEPS) --seeds $(SEEDS)" report; do \
	.venv-peers/bin/python peers/compare.py $$verb; done

clean:
	rm -rf .venv .venv-interop .venv-peers demo .soak.jsonl site build dist benchmarks/results .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
