"""The live page of `plaudit record` and `plaudit run`: what it shows, to whom, and what it leaves behind."""

import http.client
import io
import json
import time
from contextlib import ExitStack, suppress

import numpy as np
import pytest
from PIL import Image

from plaudit.errors import DataError
from plaudit.rollout.engine import EngineBase
from plaudit.rollout.recording import EpisodeBuffer
from plaudit.types import AnyArray, EnvSpec, Observation
from plaudit.web.live import PORT, LiveView
from plaudit.web.pages import listen
from waiting import stretch, wait_until

SPEC = EnvSpec(1, 1, {"front": (8, 12), "wrist": (4, 4)}, 10.0, "box", 40)


def ask(port: int, path: str, host: str | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=stretch(20))
    connection.request("GET", path, headers={} if host is None else {"host": host})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content


def pixels(port: int, camera: str) -> AnyArray:
    return np.asarray(Image.open(io.BytesIO(ask(port, f"/frame/{camera}")[1])))


def record(buffer: EpisodeBuffer, rng: np.random.Generator, row: int | None = None, at: float = 0.0) -> Observation:
    images = {camera: rng.integers(0, 256, (*size, 3), np.uint8) for camera, size in SPEC.cameras.items()}
    observation = Observation(images, np.zeros(1, np.float32))
    buffer.add_observation(buffer.num_observations if row is None else row, observation, at)
    return observation


def test_the_page_shows_the_newest_frames_of_the_running_episode_and_ends_with_the_command():
    engine, rng = EngineBase(), np.random.default_rng(0)
    engine.env_spec = SPEC
    with ExitStack() as stack:
        with suppress(DataError):  # in use already
            stack.enter_context(listen("127.0.0.1", PORT))
        view = stack.enter_context(LiveView(engine))
        assert view.port != PORT
        state = lambda: json.loads(ask(view.port, "/live")[1])  # noqa: E731
        assert state() == {"robot": "box", "cameras": ["front", "wrist"], "episode": 0, "step": None, "age_s": None}
        assert ask(view.port, "/frame/front")[0] == 404
        for episode in (1, 2):
            engine.recording = buffer = EpisodeBuffer.allocate(SPEC, SPEC.max_steps)
            for step in range(3):
                observation = record(buffer, rng)
                wait_until(lambda step=step, episode=episode: (state()["episode"], state()["step"]) == (episode, step))
                for camera, image in observation.images.items():
                    np.testing.assert_array_equal(pixels(view.port, camera), image)
            engine.recording = None  # the last frames stay until there are newer ones
            np.testing.assert_array_equal(pixels(view.port, "wrist"), buffer.observation(2).images["wrist"])
            assert engine.preview is not None
            seen = record(engine.preview, rng, row=0, at=time.monotonic())
            wait_until(lambda: state()["age_s"] is not None)
            assert state()["episode"] == episode and state()["step"] == 0
            np.testing.assert_array_equal(pixels(view.port, "wrist"), seen.images["wrist"])
            engine.preview.observed_at[0] -= 60
            assert state()["age_s"] >= 60
        view.show(phase="gate", words="scene ready?")
        wait_until(lambda: state().get("words") == "scene ready?")
        assert ask(view.port, "/frame/back")[0] == 404
        assert ask(view.port, "/")[0] == ask(view.port, "/static/live.js")[0] == 200
        assert ask(view.port, "/live", host="rebound.example")[0] == 421  # a foreign page
    with pytest.raises(ConnectionRefusedError):
        ask(view.port, "/live")
