# `make demo` and `make test` are all it takes; the virtual environment is made on the way.
PYTHON ?= python3
BIN := .venv/bin
PROMPT ?= Write a poem in which every line begins with 'The sea'.

.PHONY: demo test check format docs clean

demo: .venv/installed
	@$(BIN)/draftproof generate "$(PROMPT)" --dtype int8 --temperature 0.8 --max-new-tokens 120 --compare

test: .venv/installed
	@$(BIN)/python -m pytest -n 2

check: .venv/installed
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/python -m scripts.docs --check

format: .venv/installed
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

docs: .venv/installed
	@$(BIN)/python -m scripts.docs

# torch first: its CPU build is enough here, and other packages would otherwise pull the GPU one.
.venv/installed: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing (once; a few minutes)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,gpu]"
	@touch $@

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache
