"""A person labels stored episodes: a labeling session without Qt, and a PySide6 window on top of it.

    judge.py        a person as a judge, who answers later
    app.py          opens a store or a data set, checks that a window can open, shows it
    session.py      the session, and everything a person can do, with its keys
    drafts.py       the labels of one episode; autosave and undo: every change is on disk before it is shown
    queue.py        which episode comes next, how many are left, which were requested; agreement of a person's labels
    palette.py      the colors of the window, the browser pages and the reports; the style of the window
    window.py       the window; camera_view.py, timeline.py and widgets.py are its parts

The window is a process of its own that watches the store, so nothing waits for the person. This package imports Qt
only when a window is opened.
"""
