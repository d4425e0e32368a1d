# make quickstart   train a tiny agent on the CPU, with .venv
# make test         format, lint, types, tests
# make clean        remove .venv and everything that was built
#
# A call installs only what is missing or whose requirements changed. Variables:
#   PYTHON       the interpreter to build .venv with (3.11 or newer)
#   TORCH_INDEX  where to look for torch besides the package index. On Linux the package index has the CUDA build, several
#                gigabytes; so without an NVIDIA driver it is PyTorch's index of CPU builds. Where that cannot be reached,
#                pip says so and goes on without it. `make test TORCH_INDEX=` uses the package index alone.

PYTHON ?= python3
VENV ?= .venv
TORCH_INDEX ?= $(if $(shell command -v nvidia-smi),,https://download.pytorch.org/whl/cpu)

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALL := $(PIP) install --constraint constraints.txt
REQUIREMENTS := setup.cfg pyproject.toml constraints.txt

.PHONY: quickstart test clean

quickstart: $(VENV)/.examples
	$(BIN)/python examples/quickstart.py

# pytest comes last: its summary is the end of the output.
test: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest

# The empty files .torch, .examples and .dev say that the step is done.
$(VENV)/.torch: constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed: make PYTHON=..." if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --no-deps $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX) --retries 2 --timeout 15) torch
	@touch $@

$(VENV)/.examples $(VENV)/.dev: $(VENV)/.%: $(VENV)/.torch $(REQUIREMENTS)
	$(INSTALL) --editable '.[$*]'
	@touch $@

clean:
	rm -rf $(VENV) build dist quickstart-output *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
