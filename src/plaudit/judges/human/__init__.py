"""A person judges stored episodes: a labeling session without Qt, and the PySide6 window over it.

    run.py        opens a store or a data set, checks that a window can open, shows it
    session.py    the session: what is open, where one stands, what an edit does; `keys.py` gives each act its keys
    verdict.py    what is said of one episode, frame by frame
    drafts.py     autosave and undo: every change is a line on disk before it is seen
    queue.py      which episode comes next, and how many are left; asked.py those that somebody waits for
    window.py     the window; cameras.py, strip.py, side.py, controls.py and help.py are its parts

A person labels at their own pace while robots record and other judges label, so the window is a process of its own that
watches the store; nobody waits for it, and it waits for nobody. Nothing here imports Qt before the window is asked for.
"""
