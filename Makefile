# Two commands do everything on a fresh Debian or Ubuntu machine with Python 3.11 and make:
#   make demo    set up and run the main job
#   make test    set up and run every check
.PHONY: help demo test test-simulators lint bench clean

VENV := .venv
SIMULATORS := .venv-simulators
BIN := $(VENV)/bin

# Packages are installed without being compiled (scripts/setup.sh), so what a process has compiled is kept for the next.
unexport PYTHONDONTWRITEBYTECODE

help:
	@echo "make demo   set up, then collect, train a judge, train a policy with it, evaluate (runs/demo)"
	@echo "make test   set up, then lint, type check and test"
	@echo "make test-simulators   of these, the adapters with gym_hil, Fetch and Meta-World: they need an older MuJoCo"
	@echo "make lint   ruff and pyright alone"
	@echo "make bench  every benchmark in its quick form"
	@echo "make clean  remove the environment and the demo"

$(VENV)/.ready: pyproject.toml scripts/setup.sh
	@scripts/setup.sh $(VENV) ".[sim]"
	@touch $@

$(VENV)/.ready-dev: pyproject.toml scripts/setup.sh
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
	$(BIN)/pyright

# The second environment is set up while pyright runs: each keeps one core busy. Not beside the first, whose downloads it
# finds in pip's cache. Tests of clusters come last and one by one: each starts a dozen processes.
test: $(VENV)/.ready-dev
	@$(MAKE) --no-print-directory -j 2 lint test-simulators
	$(BIN)/pytest -n 2 --dist worksteal -m "not cluster"
	$(BIN)/pytest -m cluster

# Simulators that do not run with the MuJoCo of the built-in tasks, in an environment of their own.
$(SIMULATORS)/.ready: pyproject.toml scripts/setup.sh
	@scripts/setup.sh $(SIMULATORS) ".[test,simulators]"
	@touch $@

test-simulators: $(SIMULATORS)/.ready
	$(SIMULATORS)/bin/pytest -n 2 --dist worksteal tests/envs/adapters

bench: $(VENV)/.ready-bench $(SIMULATORS)/.ready
	$(BIN)/python benchmarks/replay.py --quick
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
	$(BIN)/python benchmarks/faults.py --quick
	[ "$$(id -u)" -ne 0 ] || $(BIN)/python benchmarks/hosts.py --quick

clean:
	rm -rf $(VENV) $(SIMULATORS) runs/demo
