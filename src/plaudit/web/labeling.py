"""Labeling in a browser, by the same session code as the window: drafts, undo, the queue and the ledger.

A person is known by name. Their session stays open on the server while their pages ask for it; another person is not
offered the episode that it has open. Every action is on disk when it is answered.
"""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from plaudit.data.store import Store
from plaudit.errors import DataError, PlauditError
from plaudit.judges.human.queue import QueueOrder, SelfAgreement
from plaudit.judges.human.session import ACTIONS, GROUPS, OpenEpisodes, Session
from plaudit.web.episodes import traces

IDLE_S = 600.0  # after which a session is closed; its drafts stay
NEARBY = 12  # rows of the queue that are shown before and after the open one
MAX_NAME = 60  # characters
MAX_OPEN = 200  # sessions
ORDERS: tuple[QueueOrder, ...] = get_args(QueueOrder)


@dataclass
class _Open:
    session: Session | None = None  # opened by the first request
    guard: threading.Lock = field(default_factory=threading.Lock)
    used: float = field(default_factory=time.monotonic)


class LabelSessions:
    """The open sessions of a server."""

    def __init__(self) -> None:
        self._open: dict[tuple[Path, str, str], _Open] = {}
        self._beside: dict[Path, OpenEpisodes] = {}
        self._guard = threading.Lock()

    def act(self, store: Store, request: Mapping[str, Any]) -> dict[str, Any]:
        """Do what a page asks for, and describe the session.

        request: name and order of the person; `action` with the page's `episode`, `frame` and `selection`; `open`, an
        episode. An action on an episode that is no longer open is not done: the page was behind.
        """
        name, order = request.get("name"), request.get("order", "unlabeled")
        name = name.strip() if isinstance(name, str) else ""
        if not name or len(name) > MAX_NAME or not name.isprintable():
            raise DataError(f"enter a name of 1 to {MAX_NAME} characters; it is stored with the labels")
        if order not in ORDERS:
            raise DataError(f"'{order}' is not an order; choose one of: {', '.join(ORDERS)}")
        if not isinstance(request.get("action"), str | None):
            raise DataError("the request has no valid action; reload the page")
        with self._guard:
            held = self._held(store.folder, name, order)
            held.used = time.monotonic()
            beside = self._beside.setdefault(store.folder, OpenEpisodes())
        with held.guard:
            if held.session is None:
                held.session = Session.open(store, order=order, name=name, beside=beside)
                if type(shown := request.get("episode")) is int:  # on the person's page
                    held.session.open_if_free(shown)
            session, error = held.session, ""
            session.status = ""
            try:
                _apply(session, request)
            except PlauditError as problem:
                error = str(problem)
            return describe(session, error, blind=bool(request.get("blind")))

    def _held(self, store: Path, name: str, order: QueueOrder) -> _Open:
        """The person's session. Sessions that are no longer used are closed."""
        for key, held in list(self._open.items()):
            other_order = key[:2] == (store, name) and key[2] != order
            if other_order or time.monotonic() - held.used > IDLE_S:
                with held.guard:
                    self._open.pop(key)
                    _close(held)
        if len(self._open) >= MAX_OPEN and (store, name, order) not in self._open:
            raise PlauditError(f"{MAX_OPEN} people are labeling; try again in {IDLE_S / 60:.0f} minutes")
        return self._open.setdefault((store, name, order), _Open())

    def close(self) -> None:
        """Release the episodes of all sessions; drafts stay."""
        with self._guard:
            for held in self._open.values():
                with held.guard:
                    _close(held)
            self._open.clear()


def _close(held: _Open) -> None:
    if held.session is not None:
        held.session.close()
        held.session = None


def _apply(session: Session, request: Mapping[str, Any]) -> None:
    session.poll()
    if type(episode := request.get("open")) is int:
        session.open_episode(episode)
    name = request.get("action")
    if name is None or session.episode_id is None:
        return
    if name not in ACTIONS or (do := ACTIONS[name].do) is None:
        raise DataError(f"'{name}' is not an action")
    if request.get("episode") != session.episode_id:
        session.status = "this page was out of date; nothing was changed"
        return
    if type(frame := request.get("frame")) is int:
        session.cursor.seek(frame)
    match request.get("selection"):
        case [int(mark), int() | None as end]:
            last = session.cursor.count - 1
            session.cursor.mark = max(0, min(mark, last))
            session.cursor.end = None if end is None else max(0, min(end, last))
    do(session)


def describe(session: Session, error: str = "", *, blind: bool = False) -> dict[str, Any]:
    """A session, as a page draws it. blind: without what judges say"""
    queue, episode = session.queue, session.episode
    shown: dict[str, Any] = {
        "name": session.name,
        "order": queue.order,
        "left": len(queue),
        "total": len(queue.rows),
        "completed": session.completed,
        "status": session.status,
        "error": error,
        "episode": session.episode_id,
        "agreement": SelfAgreement.of(session.store, session.name).describe() if queue.order == "repeat" else "",
    }
    if session.episode_id is None or episode is None:
        return shown
    place = queue.rows.index(session.episode_id)
    first = max(0, place - NEARBY)
    return shown | {
        "store": session.store.settings.id,
        "task": episode.task,
        "fps": episode.fps,
        "count": session.cursor.count,
        "offset": episode.observed.start or 0,
        "frame": session.cursor.frame,
        "selection": None if session.cursor.mark is None else [session.cursor.mark, session.cursor.end],
        "runs": [[a, b, None if value != value else int(value)] for a, b, value in session.annotation.runs],
        "summary": session.annotation.summary,
        "excluded": session.annotation.excluded,
        "cameras": {name: list(frames.shape[1:3]) for name, frames in sorted(episode.frames.items())},
        "traces": [] if blind or session.repeats else traces(session.store, session.episode_id, episode),
        "rows": [_row(session, i) for i in queue.rows[first : place + NEARBY + 1]],
    }


def _row(session: Session, episode_id: int) -> dict[str, Any]:
    if episode_id in session.drafts.state.drafts:
        return {"id": episode_id, "state": "draft"}
    return {"id": episode_id, "state": "open" if session.queue.needs_label(episode_id) else "done"}


def actions() -> dict[str, list[dict[str, Any]]]:
    """The table of actions and keys, for pages to bind."""
    return {
        group: [
            {
                "name": action.name,
                "keys": action.keys,
                "title": action.title,
                "description": action.description,
                "repeats": action.repeats,
                "here": action.do is None,
            }
            for action in listed
        ]
        for group, listed in GROUPS.items()
    }
