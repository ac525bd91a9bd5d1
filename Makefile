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
	rm -rf $(VENV) build dist site *.egg-info

# The documentation's own environment: it needs no torch, only what draws pages.
$(VENV)/.documenting: $(VENV)/.installed
	$(RUN)/python -m pip install --quiet --editable ".[docs]"
	touch $@

docs: $(VENV)/.documenting
	$(RUN)/python docs/tools/cli_reference.py
	$(RUN)/python docs/tools/house.py
	NO_MKDOCS_2_WARNING=1 $(RUN)/mkdocs build --strict

docs-serve: $(VENV)/.documenting
	NO_MKDOCS_2_WARNING=1 $(RUN)/mkdocs serve

$(VENV)/.releasing: $(VENV)/.installed
	$(RUN)/python -m pip install --quiet "build>=1.2" "setuptools>=77" "twine>=6.1"
	touch $@

# A rehearsal: nothing here changes. WRITE=--write makes the change once the rehearsal has worked.
release: $(VENV)/.releasing
	$(RUN)/python .ci/release.py $(VERSION) --no-deps $(WRITE)

# What `make help` prints: one line a target, held to be complete by tests/test_habits.py.
## help: say what there is (this list)
## demo: install into .venv, record an example, recommend machines for it
## test: install what the tests need, run them
## lint: ruff, mypy, import contracts
## docs: build the documentation into site/, without warnings
## docs-serve: show the documentation while you write
## release: rehearse a release: make release VERSION=0.2.0 [WRITE=--write]
## clean: remove environments and whatever was built
help:
	@sed -n 's/^## \([a-z-]*\): /  \1\t/p' $(MAKEFILE_LIST) | expand -t 20

.PHONY: help docs docs-serve release
