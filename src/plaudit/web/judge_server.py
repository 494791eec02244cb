"""The server of `plaudit judge serve`: any judge behind two protocols of other stacks.

    POST /evaluate_batch, /evaluate_batch_npy     Robometer's: trajectories in JSON, or as .npy files in a form
    GET  /health, /gpu_status, /model_info
    POST /v1/chat/completions                     OpenAI's, as RLinf's API reward worker asks: images, then a text
    GET  /v1/models

A judge scores every prefix of a trajectory, so each frame gets the value of the frames up to it. One request is scored
at a time; a few more wait, and further ones are told to come back (503). A trajectory that cannot be scored is an error
of its request (422) and never a number.
"""

import base64
import binascii
import io
import json
import re
import threading
import time
import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from plaudit.data.formats.images import FORMATS
from plaudit.data.unpickle import parse_npy
from plaudit.errors import JudgeUnavailable, MissingExtra, PlauditError
from plaudit.files import brief, parse_json
from plaudit.judges.config import JudgeConfig
from plaudit.judges.labeling import label_episodes
from plaudit.protocols import Judge
from plaudit.types import AnyArray, ByteArray, Episode, FloatArray, Labels
from plaudit.web.guard import Access, Guard, error

try:
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.middleware import Middleware
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route
except ModuleNotFoundError as problem:
    raise MissingExtra("starlette", "web") from problem

MAX_SAMPLES, MAX_FRAMES, MAX_PARTS, MAX_IMAGES = 64, 2048, 256, 256
MAX_PIXELS = 1 << 24  # of a frame
MAX_DECODED = 1 << 27  # pixels of all images of a chat, whose files may be a thousand times smaller
MAX_NUMBERS = 16_000_000  # of frames in JSON, which takes ten times the memory of a .npy file
MAX_TEXT = 20_000  # characters of a task
WAITING = 8  # requests that wait for the judge
_NAME = re.compile(r'name="([^"\r\n]{1,200})"')
_BOUNDARY = re.compile(r'boundary="?([^";,\s]{1,200})"?')
_DATA_URL = re.compile(r"data:image/(?:jpeg|jpg|png|webp);base64,", re.IGNORECASE)


class Refused(ValueError):
    """A request that is not answered, and its status."""

    def __init__(self, status: int, message: str):
        self.status = status
        super().__init__(message)


def make_judge_app(
    judge: Judge,
    config: JudgeConfig,
    access: Access,
    name: str,
    *,
    cameras: Sequence[str] = ("front",),
    task: str = "",
    fps: float = 0.0,
    trend: float = 0.05,
) -> Starlette:
    """The application of one judge.

    name: of the judge, as a model of the chat endpoint
    cameras: names of the cameras whose frames a request holds, one clip after the other
    task: in place of the one that a request names
    fps: frames per second of trajectories
    trend: by how much a value must change from the first to the last frame to be a trend
    """
    server = JudgeServer(judge, config, name, tuple(cameras), task, fps, trend)

    def post(path: str, answer: Callable[[bytes, str], Any]) -> Route:
        async def endpoint(request: Request) -> Response:
            return await _answer(request, access.max_body, answer)

        return Route(path, endpoint, methods=["POST"])

    def get(path: str, answer: Callable[[], Any]) -> Route:
        return Route(path, lambda _: JSONResponse(answer()))

    routes = [
        get("/health", server.health),
        get("/gpu_status", server.status),
        get("/model_info", server.info),
        get("/v1/models", server.models),
        post("/evaluate_batch", server.evaluate_json),
        post("/evaluate_batch_npy", server.evaluate_form),
        post("/v1/chat/completions", server.chat),
    ]
    return Starlette(routes=routes, middleware=[Middleware(Guard, access=access)])


async def _answer(request: Request, most: int, answer: Callable[[bytes, str], Any]) -> Response:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most:
            return error(413, f"the request is larger than {most:,} bytes; send fewer or smaller frames at a time")
    try:
        answered: Awaitable[Any] = run_in_threadpool(answer, bytes(body), request.headers.get("content-type", ""))
        return JSONResponse(await answered)
    except Refused as problem:
        response = error(problem.status, str(problem))
        if problem.status == 503:
            response.headers["Retry-After"] = "1"
        return response
    except PlauditError as problem:
        return error(422, str(problem))
    except (ValueError, TypeError, KeyError, RecursionError) as problem:
        return error(400, f"the request cannot be read ({str(problem)[:200] or type(problem).__name__})")


class JudgeServer:
    """What the routes answer."""

    def __init__(
        self,
        judge: Judge,
        config: JudgeConfig,
        name: str,
        cameras: tuple[str, ...],
        task: str,
        fps: float,
        trend: float,
    ):
        self._judge, self._config, self._name = judge, config, name
        self._cameras, self._task, self._fps, self._trend = cameras, task, fps, trend
        self._turn, self._room = threading.Lock(), threading.BoundedSemaphore(WAITING)
        self._requests, self._seconds = 0, 0.0

    # About the server

    def health(self) -> dict[str, Any]:
        return {"status": "healthy", "available_gpus": int(not self._turn.locked()), "total_gpus": 1}

    def status(self) -> dict[str, Any]:
        stats = {"total_requests": self._requests, "total_processing_time": round(self._seconds, 3)}
        state = "processing" if self._turn.locked() else "ready"
        return {
            "total_gpus": 1,
            "available_gpus": int(state == "ready"),
            "max_workers": 1,
            "pool_size": 1,
            "gpu_stats": {"0": {**stats, "status": state}},
        }

    def info(self) -> dict[str, Any]:
        signals = {name: vars(signal) for name, signal in self._config.signals.items()}
        identity = self._judge.id
        return {
            "model_path": self._name,
            "judge": identity.source,
            "fingerprint": identity.fingerprint,
            "rule": self._judge.rule.describe(),
            "signals": signals,
            "calibrated": self._config.resolved().calibration_record is not None,
        }

    def models(self) -> dict[str, Any]:
        return {"object": "list", "data": [{"id": self._name, "object": "model", "owned_by": "plaudit"}]}

    # Robometer's protocol

    def evaluate_json(self, body: bytes, _: str) -> dict[str, Any]:
        tree = parse_json(body, MAX_NUMBERS)
        samples = tree.get("samples") if isinstance(tree, dict) else tree
        return self._evaluate(samples, {})

    def evaluate_form(self, body: bytes, kind: str) -> dict[str, Any]:
        parts = parse_form(body, kind)
        numbers = sorted(int(name[7:]) for name in parts if re.fullmatch(r"sample_\d{1,6}", name))
        return self._evaluate([parse_json(parts[f"sample_{number}"]) for number in numbers], parts)

    def _evaluate(self, samples: Any, files: Mapping[str, bytes]) -> dict[str, Any]:
        if not isinstance(samples, list) or not samples:
            raise Refused(400, "the request has no samples")
        if len(samples) > MAX_SAMPLES:
            raise Refused(413, f"the request has {len(samples)} samples; at most {MAX_SAMPLES} at a time")
        episodes = [self._episode(number, sample, files) for number, sample in enumerate(samples)]
        labels = self._label(episodes)
        success = [one.scores.success_prob[e.observed] for one, e in zip(labels, episodes, strict=True) if one.scores]
        progress = [_progress(one)[e.observed] for one, e in zip(labels, episodes, strict=True)]
        return {
            "outputs_preference": None,
            "outputs_progress": {"progress_pred": [_floats(one) for one in progress]},
            "outputs_success": {"success_probs": [_floats(one) for one in success]},
        }

    def _episode(self, number: int, sample: Any, files: Mapping[str, bytes]) -> Episode:
        where = f"sample {number}"
        if not isinstance(sample, dict) or not isinstance(trajectory := sample.get("trajectory"), dict):
            raise Refused(400, f"{where} has no trajectory")
        if sample.get("sample_type", "progress") != "progress":
            raise Refused(400, f"{where} is a {brief(sample['sample_type'])} sample, and only 'progress' is answered")
        frames = trajectory.get("frames")
        if isinstance(frames, dict):
            name = frames.get("__numpy_file__")
            if not isinstance(name, str) or name not in files:
                raise Refused(400, f"{where} names the file {brief(name)}, which the request does not have")
            frames = parse_npy(files[name])
        try:
            array = np.asarray(frames)
        except ValueError as problem:
            raise Refused(400, f"the frames of {where} do not form an array") from problem
        return self._make_episode(where, array, trajectory.get("task"))

    # The chat endpoint

    def chat(self, body: bytes, _: str) -> dict[str, Any]:
        tree = parse_json(body)
        messages = tree.get("messages") if isinstance(tree, dict) else None
        if not isinstance(messages, list) or not messages:
            raise Refused(400, "the request has no messages")
        if tree.get("stream"):
            raise Refused(400, "answers are not streamed; leave out stream")
        images, texts = [], []
        for message in messages:
            content = message.get("content") if isinstance(message, dict) else None
            for part in content if isinstance(content, list) else [{"type": "text", "text": content}]:
                if isinstance(part, dict) and part.get("type") == "image_url":
                    images.append(part.get("image_url"))
                elif isinstance(part, dict) and isinstance(part.get("text"), str):
                    texts.append(part["text"])
        clips = len(self._cameras)
        if not images or len(images) > MAX_IMAGES or len(images) % clips:
            shown = f" in {clips} clips of one length ({', '.join(self._cameras)})" if clips > 1 else ""
            raise Refused(400, f"the request has {len(images)} images; it needs 1 to {MAX_IMAGES}{shown}")
        frames, left = [], MAX_DECODED
        for number, image in enumerate(images):
            frames.append(decode_url(number, image, min(left, MAX_PIXELS)))
            left -= frames[-1].shape[0] * frames[-1].shape[1]
        if len({frame.shape for frame in frames}) > 1:
            raise Refused(400, "the images have different sizes")
        episode = self._make_episode("the request", np.stack(frames), "\n".join(texts))
        (labels,) = self._label([episode])
        text = self._words(labels, episode)
        message = {"role": "assistant", "content": text}
        return {
            "id": f"chatcmpl-{self._requests}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": self._name,
            "choices": [{"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}],
            "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
        }

    def _words(self, labels: Labels, episode: Episode) -> str:
        """One answer for all readers: a parser of trends finds the key `trend`, one of digits the last 0 or 1."""
        value = _progress(labels)[episode.observed]
        assert labels.scores is not None
        change = float(value[-1] - value[0])
        trend = "positive" if change >= self._trend else "negative" if change <= -self._trend else "unclear"
        prob = float(labels.scores.success_prob[episode.observed][-1])
        withheld = self._judge.rule.withholds and bool(labels.ood)
        # By the rule itself: a window may begin with success, which the labels of an episode leave to a person.
        success = int(not withheld and self._judge.rule.decide(labels.scores.success_prob[episode.observed])[-1])
        return json.dumps(
            {"trend": trend, "progress": round(float(value[-1]), 4), "success_prob": round(prob, 4), "success": success}
        )

    # Both

    def _make_episode(self, where: str, frames: AnyArray, task: Any) -> Episode:
        if frames.ndim != 4 or frames.shape[3] != 3 or 0 in frames.shape:
            raise Refused(400, f"the frames of {where} are {list(frames.shape)}, not [T, H, W, 3]")
        if len(frames) > MAX_FRAMES * len(self._cameras) or frames.shape[1] * frames.shape[2] > MAX_PIXELS:
            raise Refused(413, f"the frames of {where} are {list(frames.shape)}: too many, or too large")
        if frames.dtype != np.uint8:
            if frames.dtype.kind not in "iuf" or not np.isin(frames, np.arange(256)).all():
                raise Refused(400, f"the frames of {where} are no numbers from 0 to 255")
            frames = frames.astype(np.uint8)
        task = self._task or task
        if not isinstance(task, str) or not task.strip():
            raise Refused(400, f"{where} has no task; add one, or start the server with --task")
        if len(task) > MAX_TEXT:
            raise Refused(413, f"the task of {where} has {len(task):,} characters; at most {MAX_TEXT:,}")
        clips = np.split(frames, len(self._cameras)) if len(frames) % len(self._cameras) == 0 else [frames]
        length, alone = len(clips[0]), len(clips[0]) == 1  # an episode has two frames: a single one is repeated
        return Episode.of(
            frames={c: np.repeat(clip, 2, axis=0) if alone else clip for c, clip in zip(self._cameras, clips)},
            actions=np.zeros((max(length - 1, 1), 0)),
            task=task,
            fps=self._fps,
            padded="last" if alone else "none",
        )

    def _label(self, episodes: Sequence[Episode]) -> list[Labels]:
        """Labels of all of them, or an error."""
        if not self._room.acquire(blocking=False):
            raise Refused(503, f"{WAITING} requests are waiting for the judge already; ask again in a second")
        try:
            with self._turn:
                begun = time.monotonic()
                answers = label_episodes(self._judge, episodes)
                self._requests += 1
                self._seconds += time.monotonic() - begun
        finally:
            self._room.release()
        labels: list[Labels] = []
        for number, (answer, episode) in enumerate(zip(answers, episodes, strict=True)):
            if isinstance(answer, JudgeUnavailable) or answer is None:
                raise Refused(503, f"the judge has no answer now: {answer or 'it was not asked yet'}")
            if isinstance(answer, PlauditError):
                raise Refused(422, f"sample {number} cannot be scored: {answer}")
            if answer.scores is None or np.isnan(answer.scores.success_prob[episode.observed]).any():
                raise Refused(422, f"sample {number} has frames without a score")
            labels.append(answer)
        return labels


def _progress(labels: Labels) -> FloatArray:
    """The judge's progress, or its P(success) where it measures none."""
    assert labels.scores is not None
    own = labels.scores.progress
    return labels.scores.success_prob if own is None or np.isnan(own).any() else own


def _floats(values: FloatArray) -> list[float]:
    return [round(float(value), 6) for value in values]


def parse_form(body: bytes, kind: str) -> dict[str, bytes]:
    """The parts of a multipart form by name."""
    boundary = _BOUNDARY.search(kind)
    if not kind.lower().startswith("multipart/form-data") or boundary is None:
        raise Refused(400, "the request is no multipart form")
    pieces = (b"\r\n" + body).split(b"\r\n--" + boundary[1].encode(), MAX_PARTS + 1)
    if len(pieces) > MAX_PARTS:
        raise Refused(413, f"the form has more than {MAX_PARTS} parts")
    if len(pieces) < 3 or not pieces[-1].startswith(b"--"):
        raise Refused(400, "the form is cut short")
    parts: dict[str, bytes] = {}
    for piece in pieces[1:-1]:
        head, end, content = piece.partition(b"\r\n\r\n")
        name = _NAME.search(head.decode("latin-1"))
        if not end or name is None or name[1] in parts:
            raise Refused(400, "a part of the form has no name of its own")
        parts[name[1]] = content
    return parts


def decode_url(number: int, image: Any, pixels: int) -> ByteArray:
    """uint8 [H, W, 3] of a data: URL, up to so many pixels; other URLs are not fetched."""
    url = image.get("url") if isinstance(image, dict) else image
    if not isinstance(url, str) or (head := _DATA_URL.match(url)) is None:
        raise Refused(400, f"image {number} is no data: URL of a JPEG or PNG file, and addresses are not fetched")
    try:
        data = base64.b64decode(url[head.end() :], validate=True)
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            opened = Image.open(io.BytesIO(data), formats=FORMATS)
            if opened.width * opened.height > pixels:
                raise Refused(
                    413, f"image {number} has {opened.height}x{opened.width} pixels, too many with the others"
                )
            return np.asarray(opened.convert("RGB"))
    except Refused:
        raise
    except (binascii.Error, ValueError, OSError, SyntaxError, Warning) as problem:
        raise Refused(400, f"image {number} cannot be decoded ({str(problem)[:100]})") from problem
