# Two commands do everything on a fresh Debian or Ubuntu machine with Python 3.11 to 3.13 and make:
#   make demo    set up and run the main job
#   make test    set up, lint and run the tests
# Both take PYTHON=python3.12 to use another Python, and TORCH=... to install another build of PyTorch.
.PHONY: help demo test test-all test-latest environments ruff lint types test-fast test-beside test-clusters test-simulators
.PHONY: test-tools test-transformers test-slow test-slow-clusters bench interop lock dist docs clean

# Every Python that was asked for has environments of its own.
VENV := .venv$(addprefix -,$(notdir $(PYTHON)))
SIMULATORS := .venv-simulators$(addprefix -,$(notdir $(PYTHON)))
TOOLS := .venv-tools$(addprefix -,$(notdir $(PYTHON)))
BIN := $(VENV)/bin
DOCS := .venv-docs$(addprefix -,$(notdir $(PYTHON)))
SETUP := pyproject.toml scripts/setup.sh requirements/lock.txt requirements/lock-simulators.txt

# Processes that test, file by file (tests/workers.py): conftest.py puts the longest first. The others work while one
# waits.
JOBS := 5
CLUSTERS := tests/cluster tests/integration
PYTEST := $(BIN)/pytest --jobs $(JOBS)
# Of commands that run at the same time, one writes as it goes and the others when they are done.
TOGETHER := $(MAKE) --no-print-directory -j 2 --output-sync=target

# Packages are installed without being compiled (scripts/setup.sh), so what a process has compiled is kept for the next.
unexport PYTHONDONTWRITEBYTECODE

help:
	@echo "make demo   set up, then collect, train a judge, train a policy with it, evaluate (runs/demo)"
	@echo "make test   set up, then lint and test: all but the slow tests"
	@echo "make test-all   the same with types, test-tools and the slow tests: faults on a cluster, long runs, many repetitions"
	@echo "make test-simulators   of these, the adapters with gym_hil, Fetch and Meta-World: they need an older MuJoCo"
	@echo "make test-tools   W&B, trackio and Rerun with their own packages (1 GB), which make test leaves out"
	@echo "make test-transformers   whether published judges score alike with the oldest supported transformers (80 MB)"
	@echo "make test-latest   the same as test-all with the newest release of everything, without the lock"
	@echo "make lint   ruff and pyright alone"
	@echo "make bench  every benchmark in its quick form"
	@echo "make interop  with lerobot itself (Python 3.12, 6 GB): data sets, reward classifiers, devices and policies"
	@echo "make lock   renew requirements/: the exact versions that all of these install"
	@echo "make dist   build the wheel and the source archive, and try the wheel in an empty environment"
	@echo "make docs   build the documentation into site/, which then needs no network"
	@echo "make clean  remove the environments and the demo"
	@echo "PYTHON=python3.12 chooses another Python, TORCH=torch==2.14.0 another PyTorch"

$(VENV)/.torch: $(SETUP)
	@scripts/setup.sh $(VENV) torch
	@touch $@

$(VENV)/.ready: $(VENV)/.torch
	@scripts/setup.sh $(VENV) ".[sim]"
	@touch $@

$(VENV)/.ready-dev: $(VENV)/.torch
	@scripts/setup.sh $(VENV) ".[dev,sim]"
	@touch $(VENV)/.ready $@

$(VENV)/.ready-types: $(VENV)/.ready-dev
	@scripts/setup.sh $(VENV) ".[dev,sim,types]"
	@touch $@

$(VENV)/.ready-bench: $(VENV)/.ready-dev
	@scripts/setup.sh $(VENV) ".[dev,sim,bench]"
	@touch $@

demo: $(VENV)/.ready
	@rm -rf runs/demo
	@$(BIN)/plaudit demo

ruff: $(VENV)/.ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# A type checker needs as long as a quarter of the tests, and finds nothing on a user's machine that it did not find here.
types: $(VENV)/.ready-types
	$(BIN)/pyright --project pyproject.toml --pythonpath $(BIN)/python

lint: ruff types

# Two cores are kept busy: what uses one core, or waits much as clusters do, runs beside the tests that use two, and comes
# first so that nothing of one core is left at the end. The adapters, which have an environment of their own, come before
# the rest: meanwhile one process compiles and imports what the tests need, before it makes copies of itself.
# Tests of clusters run one by one: each starts a dozen processes.
test: $(VENV)/.torch
	@$(TOGETHER) test-fast test-beside

test-beside: $(SIMULATORS)/.ready
	@$(MAKE) --no-print-directory test-simulators SELECT='-n 0 -m "not slow"'
	@$(MAKE) --no-print-directory ruff
	@$(MAKE) --no-print-directory test-clusters

test-fast: $(VENV)/.ready-dev
	+$(PYTEST) -m "not cluster and not slow"

test-clusters: $(VENV)/.ready-dev
	$(BIN)/pytest -m "cluster and not slow" $(CLUSTERS)

# Every test there is; what fails does not keep the others from running.
test-all: environments
	@$(MAKE) --no-print-directory --keep-going lint test-simulators test-tools test-slow test-slow-clusters

test-slow: $(VENV)/.ready-dev
	$(PYTEST) -m "not cluster"

test-slow-clusters: $(VENV)/.ready-dev
	$(BIN)/pytest -m cluster $(CLUSTERS)

# PyTorch first: it is most of what is downloaded, and the second environment finds it and uv in the first.
environments: $(VENV)/.torch
	@$(MAKE) --no-print-directory -j 2 $(VENV)/.ready-dev $(SIMULATORS)/.ready

# Whether tomorrow's user will still be able to install this: run it now and then, and before `make lock`.
test-latest:
	@rm -rf .venv-latest .venv-simulators-latest .venv-tools-latest
	@LOCK= TORCH=$(or $(TORCH),torch) $(MAKE) --no-print-directory test-all \
		VENV=.venv-latest SIMULATORS=.venv-simulators-latest TOOLS=.venv-tools-latest

# Simulators that do not run with the MuJoCo of the built-in tasks, in an environment of their own.
$(SIMULATORS)/.ready: $(SETUP)
	@scripts/setup.sh $(SIMULATORS) ".[test,simulators]"
	@touch $@

test-simulators: $(SIMULATORS)/.ready
	$(SIMULATORS)/bin/pytest -n 2 --dist worksteal $(SELECT) tests/envs/adapters

# These packages are large and pin others (trackio an earlier Pillow), so they get an environment of their own too.
$(TOOLS)/.ready: $(SETUP) requirements/lock-tools.txt
	@scripts/setup.sh $(TOOLS) ".[test,sim,tools]"
	@touch $@

test-tools: $(TOOLS)/.ready
	$(TOOLS)/bin/pytest -n 2 --dist loadfile $(SELECT) tests/tools

test-transformers: $(VENV)/.ready-dev
	$(BIN)/python scripts/transformers_versions.py

bench: $(VENV)/.ready-bench $(SIMULATORS)/.ready
	$(BIN)/python benchmarks/structure.py --quick
	$(BIN)/python benchmarks/prose.py --quick
	$(BIN)/python benchmarks/replay.py --quick
	$(BIN)/python benchmarks/sampling.py --quick
	$(BIN)/python benchmarks/store.py --quick
	$(BIN)/python benchmarks/attack.py --quick
	$(BIN)/python benchmarks/env.py --quick
	$(BIN)/python benchmarks/learn.py --quick
	$(BIN)/python benchmarks/pretrained.py --quick
	$(BIN)/python benchmarks/pixels.py --quick
	$(BIN)/python benchmarks/encode.py --quick
	$(BIN)/python benchmarks/reward.py --quick
	$(BIN)/python benchmarks/hacking.py --quick
	$(BIN)/python benchmarks/trust.py --quick
	$(BIN)/python benchmarks/simulate.py --quick
	$(BIN)/python benchmarks/mutations.py --quick
	$(BIN)/python benchmarks/progress.py --quick
	$(BIN)/python benchmarks/ood.py --quick
	$(BIN)/python benchmarks/cascade.py --quick
	$(BIN)/python benchmarks/plan.py --quick
	$(BIN)/python benchmarks/vlm.py --quick
	$(BIN)/python benchmarks/published.py --quick
	PYTHONPATH=tests $(BIN)/python benchmarks/tune.py --quick
	[ ! -d ../shared/data/g1_bottle ] || $(BIN)/python benchmarks/real_images.py --quick
	[ ! -d ../shared/data/g1_bottle ] || $(BIN)/python benchmarks/judges.py --quick
	[ ! -d ../shared/data/g1_bottle ] || $(BIN)/python benchmarks/coverage.py --quick
	$(BIN)/python benchmarks/round_trip.py --quick
	$(BIN)/python benchmarks/pickcube.py --quick
	$(BIN)/python benchmarks/rtc.py --quick
	$(BIN)/python benchmarks/robots.py --quick
	$(BIN)/python benchmarks/online.py --quick
	$(BIN)/python benchmarks/growth.py --quick
	$(BIN)/python benchmarks/faults.py --quick
	[ "$$(id -u)" -ne 0 ] || $(BIN)/python benchmarks/hosts.py --quick
	[ "$$(id -u)" -ne 0 ] || $(BIN)/python benchmarks/day.py --quick

# lerobot beside plaudit, in an environment of its own: lerobot needs Python 3.12 and an earlier PyTorch.
INTEROP := .venv-interop
$(INTEROP)/.ready: pyproject.toml scripts/interop.sh requirements/interop.txt
	@scripts/interop.sh $(INTEROP)
	@touch $@

interop: $(INTEROP)/.ready
	$(INTEROP)/bin/python benchmarks/interop.py $(ARGS)
	$(INTEROP)/bin/python -m pytest tests/policies/test_lerobot_policy.py

dist:
	@scripts/dist.sh .venv-dist

$(DOCS)/.ready: $(SETUP) requirements/lock-docs.txt
	@scripts/setup.sh $(DOCS) ".[docs]"
	@touch $@

docs: $(DOCS)/.ready
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --clean --strict

lock:
	@scripts/lock.sh
	@scripts/check_lock.py

clean:
	rm -rf .venv .venv-* dist site runs/demo
