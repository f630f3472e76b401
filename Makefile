# Each target works on a fresh clone: it makes a private environment in .venv, once per change of pyproject.toml.
#   make test PYTHON=python3 VENV=0    uses the given python as it is (a GPU machine that can download nothing)
#   make test JOBS=4                   runs tests in 4 processes; the default is one for each core that may be used, 0 is none
PYTHON ?= python3
VENV ?= .venv
ARGS ?=
MINUTES ?= 30
SEED ?= 1

ifeq ($(VENV),0)
PY := $(PYTHON)
RUN_DEPS :=
TEST_DEPS :=
DEV_DEPS :=
LINT :=
INDUCTOR_LINT :=
INDUCTOR_PY := $(PYTHON)
INDUCTOR_DEPS :=
JOBS ?= 0
# Whatever pytest's plug-ins are installed there: ours run without.
export PYTEST_DISABLE_PLUGIN_AUTOLOAD := 1
else
PY := $(VENV)/bin/python
RUN_DEPS := $(VENV)/.ready-run
TEST_DEPS := $(VENV)/.ready-test
DEV_DEPS := $(VENV)/.ready-dev
LINT := lint
INDUCTOR_LINT := lint-inductor
INDUCTOR_PY := $(VENV)-inductor/bin/python
INDUCTOR_DEPS := $(VENV)-inductor/.ready
JOBS ?= auto
endif
# Without processes, xdist need not be there. Else each process takes a stretch of the tests, and at the end what others have
# left: neighbours share compiled kernels. Tests of TorchInductor stay in groups, which share a program that runs them.
SPREAD := $(if $(filter 0,$(JOBS)),,-p xdist -n $(JOBS) --dist worksteal)
GROUPED := $(if $(filter 0,$(JOBS)),,-p xdist -n $(JOBS) --dist loadgroup)

export PYTHONPATH := $(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# What depends on the version of Python: the front end (ast, inspect), launches (CPython's interface), threads and forks.
VERSION_TESTS := tests/errors $(addprefix tests/unit/test_,frontend_control_flow.py frontend_jumps.py frontend_lowering.py \
  frontend_rules.py frontend_values.py source_text.py jit.py fast_arguments.py fast_launch.py launch_arguments.py launcher.py \
  captures.py watching.py forks.py config.py driver.py cpu_pool.py interrupts.py ir_text.py ir_core.py cache.py)
COVERED_TESTS := -m 'not slow' tests/unit tests/errors tests/filecheck tests/lang
COVERAGE_FLOOR := 90

.PHONY: demo docs test test-version test-inductor test-graph coverage release-check fuzz sweep lint lint-inductor bench clean
.DELETE_ON_ERROR:

demo: $(RUN_DEPS)
	$(PY) examples/run_all.py $(ARGS)

test: $(DEV_DEPS) $(LINT)
	$(PY) -m pytest $(SPREAD) $(ARGS)

# Which lines the tests of parts run. From Python 3.12 on it costs little. The report is build/coverage/html/index.html.
coverage: $(DEV_DEPS)
	rm -rf build/coverage
	mkdir -p build/coverage
	TESSERA_TEST_COVERAGE=pyproject.toml $(PY) -m coverage run -m pytest $(SPREAD) $(COVERED_TESTS) $(ARGS)
	$(PY) -m coverage combine --quiet
	$(PY) -m coverage html --quiet
	$(PY) -m coverage report --fail-under=$(COVERAGE_FLOOR)

# On another version of Python: make test-version PYTHON=python3.13 VENV=.venv-3.13
test-version: $(TEST_DEPS)
	$(PY) -m pytest $(SPREAD) --durations=0 --durations-min=5 $(VERSION_TESTS) $(ARGS)

# sdist and wheel in dist/, checked in an empty environment: docs/releasing.md
release-check: $(DEV_DEPS)
	$(PY) tools/check_release.py $(ARGS)

# The documentation site: build/site/index.html, which needs no server and no network. Warnings are errors.
docs: $(DEV_DEPS)
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict $(ARGS)

lint: $(DEV_DEPS)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m pyright --warnings --pythonpath $(PY)

# Types once more where torch's are known, and where each import must be found.
lint-inductor: $(INDUCTOR_DEPS)
	$(INDUCTOR_PY) -m pyright --warnings --pythonpath $(INDUCTOR_PY) --project pyrightconfig.torch.json

# TorchInductor on tessera, in an environment of its own: torch is large. Any torch from 2.11 on does; this one is tested.
test-inductor: $(INDUCTOR_DEPS) $(INDUCTOR_LINT)
	$(INDUCTOR_PY) -m pytest $(GROUPED) tests/compat $(ARGS)

# torch.compile(model, backend="tessera"), and pages whose code needs torch, in the same environment: docs/torch-compile.md
test-graph: $(INDUCTOR_DEPS)
	$(INDUCTOR_PY) -m pytest $(SPREAD) tests/graph tests/site/test_pages.py $(ARGS)

# random kernels of all families against the interpreter; ARGS='--device cpu,simt,sm90 --jobs 8' says where and how many
fuzz: $(DEV_DEPS)
	$(PY) -m tests.fuzz.run --minutes $(MINUTES) --seed $(SEED) $(ARGS)

sweep: $(DEV_DEPS)
	TESSERA_SWEEP_SCALE=40 TESSERA_SWEEP_SEED=$(SEED) $(PY) -m pytest $(SPREAD) tests/unit/test_surface_sweep.py $(ARGS)

bench: $(RUN_DEPS)
	$(PY) benchmarks/cpu.py $(ARGS)
	@if $(PY) -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null; \
	then $(PY) benchmarks/gpu.py $(ARGS); else echo "no CUDA device with torch here: benchmarks/gpu.py not run"; fi

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	{ echo "tessera needs Python 3.11 or newer; say which: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.ready-run: pyproject.toml | $(VENV)/bin/python
	$(VENV)/bin/python -m pip install --quiet -e '.[demo]'
	@touch $@

$(VENV)/.ready-test: pyproject.toml | $(VENV)/bin/python
	$(VENV)/bin/python -m pip install --quiet -e '.[test]'
	@touch $@ $(VENV)/.ready-run

$(VENV)/.ready-dev: pyproject.toml | $(VENV)/bin/python
	$(VENV)/bin/python -m pip install --quiet -e '.[dev,nvidia]'
	@touch $@ $(VENV)/.ready-run $(VENV)/.ready-test

$(VENV)-inductor/.ready: pyproject.toml | $(VENV)/bin/python
	$(PYTHON) -m venv $(VENV)-inductor
	$(VENV)-inductor/bin/python -m pip install --quiet -e '.[dev,inductor]'
	@touch $@

clean:
	rm -rf $(VENV) $(VENV)-* build dist .pytest_cache .hypothesis .ruff_cache
