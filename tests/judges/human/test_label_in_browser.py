"""`plaudit label --judge human` where no window can be opened: in the browser."""

import os
import signal
from http.client import HTTPConnection
from urllib.parse import urlsplit

from command import plaudit
from counted_stores import counted_store
from plaudit.judges.human.session import Session
from processes import start_plaudit
from waiting import stretch


def test_without_a_display_the_store_is_labeled_in_the_browser(tmp_path):
    folder = counted_store(tmp_path / "my store")
    words = ("label", folder, "--judge", "human", "--name", "labeler-1")
    names = ("QT_QPA_PLATFORM", "DISPLAY", "WAYLAND_DISPLAY")
    without_display = {name: value for name, value in os.environ.items() if name not in names}
    with start_plaudit(*words, env=without_display) as process:
        said = ""
        while "\nopen " not in said:
            line = process.readline()
            assert line, said
            said += line
        address = urlsplit(said.rpartition("open ")[2].split()[0])
        assert "labeling in the browser, because no window can be opened" in said
        assert address.fragment == "/label/my%20store?order=unlabeled&name=labeler-1"
        connection = HTTPConnection(address.hostname, address.port, timeout=stretch(30))
        connection.request("GET", "/")
        assert connection.getresponse().status == 200
        with Session.open(folder, name="labeler-1") as session:  # as the page does
            session.fail()
            session.complete()
        process.send_signal(signal.SIGINT)
        said = process.read()
    assert process.returncode == 0
    assert "1 episode of" in said and "labeled by a person; 2 left" in said


def test_a_key_script_needs_a_window(tmp_path):
    folder = counted_store(tmp_path / "store")
    said = plaudit(
        *("label", folder, "--judge", "human", "--window", "web", "--action-log", "keys"), cwd=tmp_path, ok=False
    )
    assert "--action-log needs the labeling window" in said
