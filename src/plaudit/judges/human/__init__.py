"""A person labels stored episodes: a labeling session without Qt, and the PySide6 window over it.

    judge.py       a person as a judge, whose answers come later
    app.py         opens a store or a data set, checks that a window can open, shows it
    session.py     the session: what is open, where one stands, what an edit does
    actions.py     everything a person can do, with its keys
    annotation.py  the labels of one episode, frame by frame
    drafts.py      autosave and undo: every change is a line on disk before it is seen
    queue.py       which episode comes next, how many are left, and which were requested
    window.py      the window; camera_view.py, timeline.py, sidebar.py and widgets.py are its parts

A person labels at their own pace while robots record and other judges label, so the window is a process of its own that
watches the store; nobody waits for it, and it waits for nobody. Nothing here imports Qt before the window is asked for.
"""
