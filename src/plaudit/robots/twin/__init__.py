"""Twins: processes that behave like a robot on its own topics, so that the whole path runs without hardware.

    python -m plaudit.robots.twin --robot igris_b --log said.jsonl           # or: plaudit robot twin igris_b
    plaudit robot check igris_b

A twin moves its joints towards the commands it hears, draws its cameras, and writes down what it sends before it sends
it; pictures carry their stamp in their pixels, so that whoever records them can be held against that log, frame by
frame. It can be told to fail in every way that a robot does: see `faults.py`.
"""
