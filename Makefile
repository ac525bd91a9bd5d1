# The two commands: `make demo` sets up and runs the main job on an example; `make test` sets up and
# runs the tests. `.ci/run` calls the same targets.

PYTHON ?= python3
VENV ?= .venv
# Installed first, so that nothing later drags in another build. Where pip's index offers only the
# CUDA build of torch (gigabytes), take the CPU one:
#   make demo TORCH="torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu"
TORCH ?= torch==2.13.0
RUN := $(CURDIR)/$(VENV)/bin
# Tests run side by side, a file in one process; each computes on one thread.
TEST_WORKERS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$((n < 4 ? n : 4)))

.PHONY: demo test lint clean

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(RUN)/python -m pip install --quiet $(TORCH)
	$(RUN)/python -m pip install --quiet --editable .
	touch $@

# What only the tests and the linters need: the frameworks whose scripts are recorded, Dask, Ray.
$(VENV)/.developing: $(VENV)/.installed
	$(RUN)/python -m pip install --quiet --editable ".[dev]"
	touch $@

demo: $(VENV)/.installed
	$(RUN)/advisor profile examples/digits_cnn.py --epochs 40
	$(RUN)/advisor recommend --budget 50

test: $(VENV)/.developing
	OMP_NUM_THREADS=1 $(RUN)/python -m pytest -q -n $(TEST_WORKERS) --dist loadfile

lint: $(VENV)/.developing
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/mypy
	$(RUN)/lint-imports

clean:
	rm -rf $(VENV) build dist *.egg-info
