"""Attacks on Plaudit, one file a target; `benchmarks/attack.py` runs them all and counts.

An attack module has `attacks(folder, rng, quick)`, a generator of a `Tally` for each class of attack it tried. What it
tries is drawn from `rng`, so that a seed finds the same faults again.
"""
