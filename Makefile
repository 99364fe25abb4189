# Two commands from a fresh clone: `make serve` and `make test`. PYTHON= chooses the interpreter (3.11 or newer).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

.PHONY: serve test lint install model clean

serve: $(VENV)/.installed model
	$(BIN)/python -m paged_jax.serve $(ARGS)

test: $(VENV)/.installed-test model
	$(BIN)/python -m pytest $(ARGS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports

install: $(VENV)/.installed

# The default model, fetched once into the user's cache folder.
model: | $(BIN)/python
	@$(BIN)/python -m paged_jax.weights.default_model

$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and "paged_jax needs Python 3.11 or newer, but $(PYTHON) is %d.%d: choose one with PYTHON=python3.12" % v[:2])'
	@echo "Creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	@echo "Installing paged_jax"
	$(BIN)/python -m pip install --disable-pip-version-check --progress-bar on -e .
	@touch $@

$(VENV)/.installed-test: pyproject.toml | $(BIN)/python
	@echo "Installing paged_jax and what its tests need"
	$(BIN)/python -m pip install --disable-pip-version-check --progress-bar on -e '.[test]'
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	@echo "Installing paged_jax and the developers' tools"
	$(BIN)/python -m pip install --disable-pip-version-check --progress-bar on -e '.[dev]'
	@touch $@ $(VENV)/.installed $(VENV)/.installed-test

clean:
	rm -rf $(VENV) *.egg-info
