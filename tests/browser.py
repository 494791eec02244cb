"""A real browser: Chromium without a screen, driven over its debugging protocol."""

import base64
import json
import shutil
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import pytest
from websockets.sync.client import connect

from waiting import stretch, wait_until

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-port=0", "--disable-quic"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"),
)
ARROWS = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
NAMED = {"Enter": 13, "Escape": 27, **ARROWS, "Home": 36, "End": 35, "PageDown": 34}


class Browser:
    """
    with Browser() as browser:
        page = browser.open("http://127.0.0.1:8420/")
        page.wait("document.querySelector('.tile')")
    """

    def __init__(self, *options: str):
        """options: more of Chromium's"""
        self._options = options

    def __enter__(self) -> Self:
        if CHROMIUM is None:
            pytest.skip("Chromium is not installed: apt-get install chromium")
        self._folder = tempfile.mkdtemp(prefix="chromium")
        words = [CHROMIUM, *OPTIONS, *self._options, f"--user-data-dir={self._folder}", "about:blank"]
        self._process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        port = Path(self._folder) / "DevToolsActivePort"
        wait_until(lambda: port.exists() and len(port.read_text().split()) == 2, what="for Chromium")
        number, address = port.read_text().split()
        self._open = ExitStack()
        self._socket = self._open.enter_context(connect(f"ws://127.0.0.1:{number}{address}", max_size=None))
        self._number = 0
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def call(self, method: str, session: str = "", **params: Any) -> Any:
        self._number += 1
        request = {"id": self._number, "method": method, "params": params}
        self._socket.send(json.dumps(request | ({"sessionId": session} if session else {})))
        while True:
            answer = json.loads(self._socket.recv(timeout=stretch(30)))
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def open(self, address: str, width: int = 1280, height: int = 900) -> "Page":
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        page.call("Emulation.setDeviceMetricsOverride", **size)
        page.goto(address)
        return page


class Page:
    """A page with a storage of its own, as another person's browser has."""

    def __init__(self, browser: Browser, session: str):
        self._browser, self._session = browser, session

    def call(self, method: str, **params: Any) -> Any:
        return self._browser.call(method, self._session, **params)

    def goto(self, address: str) -> None:
        self.call("Page.navigate", url=address)
        self.wait(
            f"location.href.startsWith({json.dumps(address.partition('#')[0])}) && document.readyState == 'complete'"
        )

    def run(self, script: str) -> Any:
        """The value of an expression, which may be a promise."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, script: str) -> None:
        """Until an expression is true."""
        try:
            wait_until(lambda: self.run(f"Boolean({script})"), what=f"for {script}")
        except AssertionError as error:
            raise AssertionError(f"{error}; the page shows:\n{self.text}") from None

    def press(self, *keys: str) -> None:
        for key in keys:
            text = {"text": key} if len(key) == 1 else {}
            code = NAMED.get(key, ord(key[0].upper()))
            for kind in ("keyDown", "keyUp"):
                one = text if kind == "keyDown" else {}
                self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **one)

    @property
    def text(self) -> str:
        """What the page says."""
        return self.run("document.body.innerText")

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """A screenshot. whole: with what is only seen by scrolling"""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=whole, **self._area(whole))
        path.write_bytes(base64.b64decode(shot["data"]))

    def _area(self, whole: bool) -> dict[str, Any]:
        if not whole:
            return {}
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 4000), "scale": 1}}
