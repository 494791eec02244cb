"""The run simulator: complete `train` and `online` runs in virtual time, in one process, from one seed.

    scenario = draw(seed)                       # scenario.py: config, judge, people, faults
    result = simulate(scenario)                 # runner.py: the real run, with everything around it simulated
    if result.violation: result = shrink(result)    # studies.py: the smallest scenario that still violates it

Simulated are the task and the judge (env.py), the learner's network (learner.py), people (people.py), the disk,
the clock and failing workers (faults.py). Everything else is the code that users run: schedules, stores, ledgers,
replay, audit, promotion, cascade, run folders. `invariants.py` checks what must hold after every step, `oracle.py`
computes independently what each sampled transition should pay, and `studies.py` tests the guarantees across many runs.

Nothing in plaudit imports this package. `benchmarks/simulate.py` is its command.
"""
