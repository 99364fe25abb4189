# Two commands from a fresh clone: `make serve` and `make test`. PYTHON= chooses the interpreter (3.11 or newer).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
GPU_VENV := .venv-gpu-check
GPU_PACKAGES := jax==0.10.2 jax-cuda13-plugin==0.10.2 jax-cuda13-pjrt==0.10.2 absl-py \
  'nvidia-cuda-nvcc==13.0.*' 'nvidia-cuda-runtime==13.0.*' nvidia-cuda-nvdisasm
ARGS ?=

.PHONY: serve test notebooks lint install model check-gpu-compile clean

serve: $(VENV)/.installed model
	$(BIN)/python -m paged_jax.serve $(ARGS)

# Two files of tests at a time; on many cores: make test ARGS='-n 8'.
test: $(VENV)/.installed-test model
	$(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

# Runs every notebook from top to bottom; each asserts what it finds.
notebooks: $(VENV)/.installed-notebooks model
	$(BIN)/python -m pytest -n 2 --nbmake --nbmake-timeout=300 notebooks $(ARGS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports

# Compiles kernels and whole steps for an H200 on a machine without one, and prints what they use.
# A venv of its own (1.5 GB), since JAX's CUDA plug-in is only wanted here.
check-gpu-compile: $(GPU_VENV)/.installed
	JAX_PLATFORMS=cpu $(GPU_VENV)/bin/python -m pytest tests/gpu_compile $(ARGS)

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

$(VENV)/.installed-notebooks: pyproject.toml | $(BIN)/python
	@echo "Installing paged_jax and what its notebooks need"
	$(BIN)/python -m pip install --disable-pip-version-check --progress-bar on -e '.[test,notebooks]'
	@touch $@ $(VENV)/.installed $(VENV)/.installed-test

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	@echo "Installing paged_jax and the developers' tools"
	$(BIN)/python -m pip install --disable-pip-version-check --progress-bar on -e '.[dev]'
	@touch $@ $(VENV)/.installed $(VENV)/.installed-test

$(GPU_VENV)/.installed: pyproject.toml
	@echo "Installing paged_jax and JAX's CUDA plug-in"
	$(PYTHON) -m venv $(GPU_VENV)
	$(GPU_VENV)/bin/python -m pip install --disable-pip-version-check --progress-bar on -e '.[test]' $(GPU_PACKAGES)
	@touch $@

clean:
	rm -rf $(VENV) $(GPU_VENV) *.egg-info
