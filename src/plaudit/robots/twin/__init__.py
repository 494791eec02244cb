"""Twins: processes that behave like a robot on its own topics, so that everything can run without hardware.

    python -m plaudit.robots.twin --robot igris_b --log sent.jsonl           # or: plaudit robot twin igris_b
    plaudit robot check igris_b

A twin moves its joints towards the commands it receives, renders its cameras, and logs every message before sending it;
images carry their stamp in their pixels, so that a recorded episode can be compared with that log, frame by frame. It
can be made to fail in every way that a robot does: see `faults.py`.
"""
