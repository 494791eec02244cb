# Two commands do everything on a fresh Debian or Ubuntu machine with Python 3.11 to 3.13 and make:
#   make demo    set up and run the main job
#   make test    set up and run every check
# Both take PYTHON=python3.12 to use another Python, and TORCH=... to install another build of PyTorch.
.PHONY: help demo test test-latest test-simulators lint bench lock clean

# Every Python that was asked for has environments of its own.
VENV := .venv$(addprefix -,$(notdir $(PYTHON)))
SIMULATORS := .venv-simulators$(addprefix -,$(notdir $(PYTHON)))
BIN := $(VENV)/bin
SETUP := pyproject.toml scripts/setup.sh requirements/lock.txt requirements/lock-simulators.txt

# Packages are installed without being compiled (scripts/setup.sh), so what a process has compiled is kept for the next.
unexport PYTHONDONTWRITEBYTECODE

help:
	@echo "make demo   set up, then collect, train a judge, train a policy with it, evaluate (runs/demo)"
	@echo "make test   set up, then lint, type check and test"
	@echo "make test-simulators   of these, the adapters with gym_hil, Fetch and Meta-World: they need an older MuJoCo"
	@echo "make test-latest   the same as test with the newest release of everything, without the lock"
	@echo "make lint   ruff and pyright alone"
	@echo "make bench  every benchmark in its quick form"
	@echo "make lock   renew requirements/: the exact versions that all of these install"
	@echo "make clean  remove the environments and the demo"
	@echo "PYTHON=python3.12 chooses another Python, TORCH=torch==2.14.0 another PyTorch"

$(VENV)/.ready: $(SETUP)
	@scripts/setup.sh $(VENV) ".[sim]"
	@touch $@

$(VENV)/.ready-dev: $(SETUP)
	@scripts/setup.sh $(VENV) ".[dev,sim]"
	@touch $(VENV)/.ready $@

$(VENV)/.ready-bench: $(VENV)/.ready-dev
	@scripts/setup.sh $(VENV) ".[dev,sim,bench]"
	@touch $@

demo: $(VENV)/.ready
	@rm -rf runs/demo
	@$(BIN)/plaudit demo

lint: $(VENV)/.ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --project pyproject.toml --pythonpath $(BIN)/python

# The second environment is set up while pyright runs: each keeps one core busy. Not beside the first, whose downloads it
# finds in pip's cache. Tests of clusters come last and one by one: each starts a dozen processes.
test: $(VENV)/.ready-dev
	@$(MAKE) --no-print-directory -j 2 lint test-simulators
	$(BIN)/pytest -n 2 --dist worksteal -m "not cluster"
	$(BIN)/pytest -m cluster

# Whether tomorrow's user will still be able to install this: run it now and then, and before `make lock`.
test-latest:
	@rm -rf .venv-latest .venv-simulators-latest
	@LOCK= TORCH=$(or $(TORCH),torch) $(MAKE) --no-print-directory --keep-going test \
		VENV=.venv-latest SIMULATORS=.venv-simulators-latest

# Simulators that do not run with the MuJoCo of the built-in tasks, in an environment of their own.
$(SIMULATORS)/.ready: $(SETUP)
	@scripts/setup.sh $(SIMULATORS) ".[test,simulators]"
	@touch $@

test-simulators: $(SIMULATORS)/.ready
	$(SIMULATORS)/bin/pytest -n 2 --dist worksteal tests/envs/adapters

bench: $(VENV)/.ready-bench $(SIMULATORS)/.ready
	$(BIN)/python benchmarks/replay.py --quick
	$(BIN)/python benchmarks/store.py --quick
	$(BIN)/python benchmarks/attack.py --quick
	$(BIN)/python benchmarks/env.py --quick
	$(BIN)/python benchmarks/learn.py --quick
	$(BIN)/python benchmarks/reward.py --quick
	$(BIN)/python benchmarks/hacking.py --quick
	$(BIN)/python benchmarks/vlm.py --quick
	[ ! -d ../shared/data/g1_bottle ] || $(BIN)/python benchmarks/real_images.py --quick
	[ ! -d ../shared/data/g1_bottle ] || $(BIN)/python benchmarks/judges.py --quick
	$(BIN)/python benchmarks/round_trip.py --quick
	$(BIN)/python benchmarks/rtc.py --quick
	$(BIN)/python benchmarks/robots.py --quick
	$(BIN)/python benchmarks/online.py --quick
	$(BIN)/python benchmarks/growth.py --quick
	$(BIN)/python benchmarks/faults.py --quick
	[ "$$(id -u)" -ne 0 ] || $(BIN)/python benchmarks/hosts.py --quick

lock:
	@scripts/lock.sh
	@scripts/check_lock.py

clean:
	rm -rf .venv .venv-* runs/demo
