# The two commands: `make demo` sets up and runs the main job on an example; `make test` sets up and
# runs the tests. `.ci/run` calls the same targets.

PYTHON ?= python3
VENV ?= .venv
# Installed first, so that nothing later drags in another build. Where pip's index offers only the
# CUDA build of torch (gigabytes), take the CPU one:
#   make demo TORCH="torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu"
TORCH ?= torch==2.13.0
RUN := $(CURDIR)/$(VENV)/bin
# Tests run side by side, a file in one process; each computes on one thread, and some wait: one
# process more than there are cores. What pytest has rewritten is kept for the next run, whatever
# the environment says of bytecode.
TEST_WORKERS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$((n < 4 ? n + 1 : 5)))
# The order of a file's tests, and what they draw; `make flakes` and `make test-all` try others.
SEED ?= 1
PYTEST = env -u PYTHONDONTWRITEBYTECODE OMP_NUM_THREADS=1 $(RUN)/python -m pytest -q -rR \
	-n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder --randomly-seed=$(SEED)
# For `make test-lowest` and `make test-pythons`: what stands on other people's libraries, without
# the minutes of recording and of learning.
QUICK := tests/test_documented_examples.py tests/test_catalogue_tables.py tests/test_charts.py \
	tests/test_defaults.py tests/test_fitting.py tests/test_memory.py tests/test_plan.py \
	tests/test_predict.py tests/test_quantities.py tests/test_question.py tests/test_records.py \
	tests/test_request.py tests/test_collectors_store.py tests/test_collectors_step_records.py
QUICK_WITH_TORCH := tests/test_main_path.py tests/test_learned.py tests/test_models.py \
	tests/test_collectors_deep.py tests/test_collectors_cli.py

.PHONY: environment demo test test-frameworks test-browser test-exports test-slow test-all test-lowest \
	test-pythons quick quick-without-torch lint clean

# The versions that everything was last tried with; `make LOCK= test` takes the newest.
LOCK ?= .ci/lock.txt
PIP_INSTALL = $(RUN)/python -m pip install --quiet $(if $(LOCK),--constraint $(LOCK))

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(RUN)/python -m pip install --quiet $(TORCH)
	$(PIP_INSTALL) --editable .
	touch $@

# xgboost asks for NVIDIA's means of joining several GPUs: half a gigabyte that no test looks at.
$(VENV)/.testing: $(VENV)/.installed
	$(PIP_INSTALL) --editable ".[test]"
	$(RUN)/python -m pip uninstall --quiet --yes nvidia-nccl-cu12 nvidia-nccl-cu13
	touch $@

# The frameworks whose scripts are recorded, trackers, Dask, Ray: gigabytes that no other target needs.
$(VENV)/.frameworks: $(VENV)/.testing
	$(RUN)/python -m pip install --quiet --editable ".[clusters,frameworks,trackers]"
	touch $@

$(VENV)/.linting: $(VENV)/.testing
	$(PIP_INSTALL) --editable ".[lint]"
	touch $@

# The tools that exports are for: their pins are none of ours.
$(VENV)-exports/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)-exports
	$(PYTHON) .ci/requirements.py exports > $(VENV)-exports/requirements.txt
	$(VENV)-exports/bin/python -m pip install --quiet $(TORCH)
	$(VENV)-exports/bin/python -m pip install --quiet --requirement $(VENV)-exports/requirements.txt
	$(PYTHON) .ci/requirements.py launchers > $(VENV)-exports/launchers.txt
	$(VENV)-exports/bin/python -m pip install --quiet setuptools wheel
	DS_BUILD_OPS=0 $(VENV)-exports/bin/python -m pip install --quiet --no-build-isolation \
		--requirement $(VENV)-exports/launchers.txt
	touch $@

environment: $(VENV)/.linting $(VENV)/.documenting

demo: $(VENV)/.installed
	$(RUN)/advisor profile examples/digits_cnn.py --epochs 40
	$(RUN)/advisor recommend --epochs 500000 --budget 50 --deadline 12h

test: $(VENV)/.testing
	$(PYTEST) -m "not slow and not frameworks and not browser and not exports"

test-frameworks: $(VENV)/.frameworks
	$(PYTEST) -m "frameworks and not slow"

# Pages in a headless Chromium: Debian's, installed where we may; skipped, and said so, without one.
test-browser: $(VENV)/.testing
	.ci/chromium
	$(PYTEST) -m browser

# What SkyPilot, dstack, Kubernetes, Kubeflow and the clouds' clients say of our exports, and whether
# their commands start: launchers' own parsers, scripts' stubs. It prints "exports run: 12 of 12".
test-exports: $(VENV)/.testing $(VENV)-exports/.installed
	.ci/slurm $(VENV)-exports/slurm
	EXPORT_TOOLS=$(CURDIR)/$(VENV)-exports/bin/python $(PYTEST) -m exports

# Half a minute and more each: the zoo's scripts, compiled models, torchrun.
test-slow: $(VENV)/.frameworks
	$(PYTEST) -m slow

# Everything, with ten times as many examples of every law, new ones in every run: half an hour.
test-all: $(VENV)/.frameworks
	HYPOTHESIS_PROFILE=thorough $(PYTEST) --randomly-seed=default

# The lowest versions that pyproject.toml declares, in an environment of their own; torch is TORCH.
test-lowest:
	mkdir -p $(VENV)-lowest
	$(PYTHON) .ci/requirements.py lowest > $(VENV)-lowest/constraints.txt
	PIP_CONSTRAINT=$(CURDIR)/$(VENV)-lowest/constraints.txt $(MAKE) VENV=$(VENV)-lowest LOCK= quick

quick: $(VENV)/.testing
	$(PYTEST) $(QUICK) $(QUICK_WITH_TORCH)

# Every later Python that is here. Not with torch: CPU builds for all of them are rarely at hand.
test-pythons:
	@set -e; found=; pids=; \
	for one in $$(.ci/pythons 3.12 3.13 3.14); do \
		place=$(VENV)-$$($$one -c "import sys; print('%d.%d' % sys.version_info[:2])"); \
		found="$$found $$place"; \
		( set -e; $$one -m venv $$place; \
		$$one .ci/requirements.py without-torch > $$place/requirements.txt; \
		$$place/bin/python -m pip install --quiet --requirement $$place/requirements.txt; \
		$$place/bin/python -m pip install --quiet --no-deps --editable . ) & \
		pids="$$pids $$!"; \
	done; \
	for one in $$pids; do wait $$one; done; \
	for place in $$found; do $(MAKE) RUN=$(CURDIR)/$$place/bin quick-without-torch; done

quick-without-torch:
	$(PYTEST) $(QUICK)

lint: $(VENV)/.linting
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/mypy
	$(RUN)/lint-imports
	$(PYTHON) .ci/shapes.py
	$(PYTHON) .ci/size.py $(if $(SINCE),--since $(SINCE))
	$(RUN)/python .ci/ratchets.py $(if $(SINCE),--since $(SINCE))

size:
	$(PYTHON) .ci/size.py

clean:
	rm -rf $(VENV) $(VENV)-* build dist site *.egg-info

# The documentation's own environment: it needs no torch, only what draws pages.
$(VENV)/.documenting: $(VENV)/.installed
	$(PIP_INSTALL) --editable ".[docs]"
	touch $@

docs: $(VENV)/.documenting
	$(RUN)/python docs/tools/cli_reference.py
	$(RUN)/python docs/tools/house.py
	$(RUN)/python docs/tools/launch_rules.py
	$(RUN)/python docs/tools/figures.py --check
	$(RUN)/python docs/tools/words.py --check
	NO_MKDOCS_2_WARNING=1 $(RUN)/mkdocs build --strict

docs-serve: $(VENV)/.documenting
	NO_MKDOCS_2_WARNING=1 $(RUN)/mkdocs serve

$(VENV)/.releasing: $(VENV)/.installed
	$(RUN)/python -m pip install --quiet "build>=1.2" "setuptools>=77" "twine>=6.1"
	touch $@

# The tools of the next three targets; their own dependencies are none of ours.
$(VENV)-audit/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)-audit
	$(VENV)-audit/bin/python -m pip install --quiet "cyclonedx-bom>=7" "pip-audit>=2.9"
	touch $@

# Newest versions of everything, written down once the tests pass with them.
lock:
	$(MAKE) VENV=$(VENV)-newest LOCK= $(VENV)-newest/.linting $(VENV)-newest/.documenting
	$(VENV)-newest/bin/python .ci/requirements.py locked > .ci/lock.txt

# What an installed product brings along, with licences: sbom.cdx.json and licences.csv.
sbom: $(VENV)-audit/.installed
	$(PYTHON) -m venv $(VENV)-product
	$(VENV)-product/bin/python -m pip install --quiet $(TORCH)
	$(VENV)-product/bin/python -m pip install --quiet --constraint .ci/lock.txt .
	$(VENV)-audit/bin/python .ci/supply.py bill $(VENV)-product/bin/python build/sbom

audit: $(VENV)-audit/.installed
	$(VENV)-audit/bin/python .ci/supply.py audit .ci/lock.txt

# A rehearsal: nothing here changes. WRITE=--write makes the change once the rehearsal has worked.
release: $(VENV)/.releasing
	$(RUN)/python .ci/release.py $(VERSION) --no-deps $(WRITE)

# The commit that stored figures are compared with: worse ones since then need a reason of their own.
SINCE ?= $(shell git merge-base HEAD origin/main 2>/dev/null || git rev-parse -q --verify HEAD~1)
ACCURACY = $(RUN)/python -m advisor.lab.score.accuracy

accuracy: $(VENV)/.installed
	$(ACCURACY) check $(if $(SINCE),--since $(SINCE))
	$(ACCURACY) figures --check

accuracy-quick: $(VENV)/.installed
	$(ACCURACY) check --quick $(if $(SINCE),--since $(SINCE))
	$(ACCURACY) figures --check

figures: $(VENV)/.installed
	$(ACCURACY) figures
	$(RUN)/python docs/tools/figures.py

# Small faults that the tests should notice: this week's order, where the commits have come to. Two
# of three are killed; fewer than a quarter of ten or more would be by chance once in 10,000 runs.
MUTANTS ?= 12
mutants: $(VENV)/.testing
	$(RUN)/python -m advisor.lab.speed.mutants --mutants $(MUTANTS) --seconds 110 --at-least 0.25

# A nightly run: ten million inputs take hours. pip install atheris, and it looks for new lines.
INPUTS ?= 500000
fuzz: $(VENV)/.testing
	$(RUN)/python -m advisor.lab.speed.fuzz --inputs $(INPUTS) --corpus build/fuzz

# Some files of tests three times, in random order beside load: of another day, others.
FLAKES ?= 12
flakes: $(VENV)/.testing
	$(RUN)/python -m advisor.lab.speed.flakes --files $(FLAKES)

models: $(VENV)/.installed
	$(RUN)/advisor train check

# What `make help` prints: one line a target, held to be complete by tests/test_habits.py.
## help: say what there is (this list)
## environment: install what demo, test, lint and docs need
## demo: install into .venv, record an example, recommend machines for it
## test: install what the tests need, run them: minutes
## test-frameworks: the tests that need Lightning, Keras, JAX, TensorFlow, Dask, Ray, trackers, ...
## test-browser: the pages of advisor report and advisor ui, in a headless Chromium
## test-exports: what SkyPilot, dstack, Kubernetes, AWS, ... say of our exports
## test-slow: the tests that take half a minute and more each
## test-all: every test, with ten times as many examples of every law: half an hour
## test-lowest: the tests of other people's libraries, on the lowest versions declared
## test-pythons: the same on every other Python that is here
## lint: ruff, mypy, import contracts, repeated shapes, commits that only add, what may not grow
## size: lines of Python by room
## quick, quick-without-torch: the quick part that test-lowest and test-pythons run
## docs: build the documentation into site/, without warnings
## docs-serve: show the documentation while you write
## accuracy: run every protocol; fail where a figure is worse than is stored
## accuracy-quick: the same, of the protocols of minutes a sample
## mutants: small faults, and which of them no test notices: make mutants [MUTANTS=200]
## fuzz: hostile input for every reader: make fuzz [INPUTS=500000]
## flakes: some files of tests three times beside load; what was not the same: make flakes [FLAKES=12]
## figures: write the documentation's tables from the stored figures
## models: fit the shipped models again and say which come out different
## lock: take the newest versions of everything into .ci/lock.txt
## sbom: what an installation brings along, with licences, into build/sbom
## audit: compare the locked versions with the published vulnerabilities
## release: rehearse a release: make release VERSION=0.2.0 [WRITE=--write]
## clean: remove environments and whatever was built
help:
	@sed -n 's/^## \([a-z, -]*\): /  \1\t/p' $(MAKEFILE_LIST) | expand -t 32

.PHONY: lock sbom audit help size docs docs-serve release accuracy accuracy-quick figures mutants flakes fuzz models
