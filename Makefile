# `make demo` and `make test` are all it takes; the virtual environment is made on the way.
PYTHON ?= python3
BIN := .venv/bin
PROMPT ?= Write a poem in which every line begins with 'The sea'.
CORE := tests/core tests/verify tests/theory tests/lossy tests/exact/test_exact.py tests/exact/test_mutants.py
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: help demo quick test check format docs site clean
.DEFAULT_GOAL := demo

help:  ## this list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 10

demo: .venv/installed  ## write a poem and compare the speed with plain sampling and transformers
	@$(BIN)/draftproof generate "$(PROMPT)" --dtype int8 --temperature 0.8 --max-new-tokens 120 --compare

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

clean:  ## remove the virtual environment, caches and what was built
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache build

# torch first: its CPU build is enough here, and other packages would otherwise pull the GPU one.
.venv/installed: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing (once; a few minutes)"
	@$(PIP) torch
	@$(PIP) -e ".[dev,gpu,serve]"
	@touch $@

.venv/site: .venv/installed
	@$(PIP) -e ".[site]"
	@touch $@
