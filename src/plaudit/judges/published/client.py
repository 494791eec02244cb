"""A judge behind a server that speaks Robometer's protocol.

Every prefix of an episode is a sample of its own, and the value of its last frame is read. The server's own
`use_frame_steps` is not used: it was reported to give another curve than separate prefixes.

A server that cannot be reached, is slow or says that it is busy makes the judge unavailable: labels come later, and
episodes are collected meanwhile. An answer that is not what was asked for is an error of the episode. Neither becomes a
score. The answer is read within one deadline and up to a limit of bytes; redirects are not followed, since the frames
and the token are for this server.
"""

import hashlib
import http.client
import io
import json
import os
import ssl
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from plaudit.errors import JudgeError, JudgeUnavailable, PlauditError
from plaudit.files import brief, parse_json
from plaudit.judges.calibration import PlattScaling, fingerprint_of
from plaudit.judges.labeling import batches
from plaudit.judges.published.clip import Clip, make_clip, probabilities, spread
from plaudit.judges.published.config import RobometerServerConfig
from plaudit.judges.published.frames import even_frames
from plaudit.types import ByteArray, Episode, FloatArray, JudgeId, Scores

MAX_ANSWER = 8 << 20  # bytes
_BOUNDARY = "plaudit-7c1f3ad2b0"
_RETRYABLE = (408, 425, 429, 500, 502, 503, 504)


class ServerJudge:
    """A `Judge`."""

    trained_on = None  # the server does not say what its model learned from

    def __init__(self, config: RobometerServerConfig):
        resolved = config.resolved()
        self.config, self.rule = config, resolved.rule
        keys = {"url", "model", "camera", "task", "frame_stride", "max_frames", "values", "horizon_s"}
        self.uncalibrated = hashlib.sha256(config.model_dump_json(include=keys).encode()).hexdigest()[:16]
        self.id = JudgeId(config.type, fingerprint_of(self.uncalibrated, resolved.calibration), self.rule.key())
        self._calibration = resolved.calibration or PlattScaling()
        parts = urlsplit(config.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise JudgeError(f"{config.url} is no address of a server; write it like http://localhost:8000")
        self._parts, self._path = parts, parts.path.rstrip("/")

    def score(self, episodes: Sequence[Episode]) -> Sequence[Scores | PlauditError]:
        """Every frame of each episode, several prefixes in a request."""
        answers: list[Scores | PlauditError] = []
        for number, episode in enumerate(episodes):
            try:
                clip = make_clip(self.config, number, episode)
                values = np.concatenate([self._ask(clip, part) for part in batches(clip.shown, self.config.samples)])
            except JudgeUnavailable as error:
                return [*answers, *[error] * (len(episodes) - number)]  # the others would wait as long
            except PlauditError as error:
                answers.append(error)
                continue
            prob = probabilities(self._calibration, values[:, 1])
            answers.append(Scores(spread(episode, clip, prob), spread(episode, clip, values[:, 0])))
        return answers

    def _ask(self, clip: Clip, last: Sequence[int]) -> FloatArray:
        """[F, 2] progress and P(success) of the prefixes that end at these frames."""
        prefixes = [clip.frames[even_frames(int(frame), self.config.max_frames)] for frame in last]
        body, kind, path = self._body(clip, prefixes)
        tree = self._post(path, body, kind)
        where = self.config.url
        progress = _last_values(where, tree, "outputs_progress", "progress_pred", prefixes)
        if progress is None:
            raise JudgeError(f"{where} answered without outputs_progress.progress_pred; is it a server of Robometer?")
        if self.config.values == "seconds":
            if (progress < 0).any():
                raise JudgeError(f"{where} answered with a negative time; set values=progress if it serves progress")
            progress = (1 - progress / self.config.horizon_s).clip(0, 1)
        elif ((progress < -1e-3) | (progress > 1 + 1e-3)).any():
            worst = float(progress[np.abs(progress - 0.5).argmax()])
            raise JudgeError(f"{where} answered with a progress of {worst:g}; set values=seconds if it serves seconds")
        success = _last_values(where, tree, "outputs_success", "success_probs", prefixes)
        success = progress if success is None else success
        if ((success < 0) | (success > 1)).any():
            raise JudgeError(f"{where} answered with a probability outside of 0 to 1")
        return np.stack([progress.clip(0, 1), success], axis=1).astype(np.float32)

    def _body(self, clip: Clip, prefixes: Sequence[ByteArray]) -> tuple[bytes, str, str]:
        """A request, its type and its path."""
        samples, files = [], {}
        for number, frames in enumerate(prefixes):
            name = f"sample_{number}_trajectory_frames"
            files[name] = frames
            trajectory = {
                "frames": {"__numpy_file__": name} if self.config.wire == "multipart" else frames.tolist(),
                "frames_shape": list(frames.shape),
                "task": clip.task,
                "id": str(number),
                "metadata": {"subsequence_length": len(frames)},
                "video_embeddings": None,
            }
            samples.append({"sample_type": "progress", "trajectory": trajectory})
        if self.config.wire == "json":
            body = json.dumps({"samples": samples, "use_frame_steps": False}).encode()
            return body, "application/json", "/evaluate_batch"
        out = io.BytesIO()
        fields = {f"sample_{number}": json.dumps(sample).encode() for number, sample in enumerate(samples)}
        for name, data in {**fields, "use_frame_steps": b"false"}.items():
            head = f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n'
            out.write(head.encode() + data + b"\r\n")
        for name, frames in files.items():
            head = f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"; filename="{name}.npy"\r\n'
            out.write(head.encode() + b"Content-Type: application/octet-stream\r\n\r\n")
            np.save(out, np.ascontiguousarray(frames), allow_pickle=False)
            out.write(b"\r\n")
        out.write(f"--{_BOUNDARY}--\r\n".encode())
        return out.getvalue(), f"multipart/form-data; boundary={_BOUNDARY}", "/evaluate_batch_npy"

    # The request

    def _post(self, path: str, body: bytes, kind: str) -> Any:
        """The answer as JSON, after all tries."""
        for attempt in range(self.config.retries + 1):
            try:
                return self._post_once(path, body, kind)
            except JudgeUnavailable as error:
                if attempt == self.config.retries:
                    raise JudgeUnavailable(f"{error}, {attempt + 1} times") from error
                time.sleep(min(0.5 * 2**attempt, 8.0))
        raise AssertionError

    def _post_once(self, path: str, body: bytes, kind: str) -> Any:
        url, deadline = self.config.url, time.monotonic() + self.config.timeout
        headers = {"Content-Type": kind, "Accept": "application/json"}
        if token := os.environ.get(self.config.api_key_env):
            headers["Authorization"] = f"Bearer {token}"
        secure = self._parts.scheme == "https"
        make: Any = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        options = {"context": ssl.create_default_context()} if secure else {}
        connection = make(self._parts.hostname, self._parts.port, timeout=self.config.timeout, **options)
        try:
            connection.request("POST", self._path + path, body, headers)
            response = connection.getresponse()
            data = self._read(connection, response, deadline)
        except TimeoutError as error:
            raise JudgeUnavailable(f"{url} did not answer within {self.config.timeout:g} s") from error
        except (OSError, http.client.HTTPException) as error:
            reason = str(error) or type(error).__name__
            raise JudgeUnavailable(f"{url} cannot be reached ({reason[:100]}); is the server up?") from error
        finally:
            connection.close()
        if response.status in _RETRYABLE:
            raise JudgeUnavailable(f"{url} answered HTTP {response.status}{_reason(data)}")
        if response.status in (401, 403):
            raise JudgeError(f"{url} refuses the token in the variable {self.config.api_key_env}{_reason(data)}")
        if response.status != 200:
            raise JudgeError(f"{url} answered HTTP {response.status}{_reason(data)}")
        try:
            return parse_json(data)
        except (ValueError, RecursionError) as error:
            raise JudgeError(f"{url} answered with something that is not JSON ({str(error)[:100]})") from error

    def _read(self, connection: Any, response: Any, deadline: float) -> bytes:
        """The body, by the deadline and up to the limit."""
        data = bytearray()
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            if connection.sock is not None:
                connection.sock.settimeout(left)
            part = response.read1(1 << 16)
            if not part and response.length:
                raise http.client.IncompleteRead(bytes(data), response.length)
            if not part:
                return bytes(data)
            data += part
            if len(data) > MAX_ANSWER:
                raise JudgeError(f"{self.config.url} answered with more than {MAX_ANSWER:,} bytes; it was not read on")


def _reason(data: bytes) -> str:
    """What an error says, in a few words."""
    text = " ".join(data[:400].decode("utf-8", "replace").split())
    return f": {brief(text, 160)}" if text else ""


def _last_values(where: str, tree: Any, group: str, name: str, prefixes: Sequence[ByteArray]) -> FloatArray | None:
    """The value of the last frame of each prefix; None where the answer has none."""
    part = tree.get(group) if isinstance(tree, dict) else None
    rows = part.get(name) if isinstance(part, dict) else None
    if rows is None:
        return None
    if not isinstance(rows, list) or len(rows) != len(prefixes):
        raise JudgeError(f"{where} answered {name} with {brief(rows)} for {len(prefixes)} samples")
    last = []
    for row, frames in zip(rows, prefixes, strict=True):
        if not isinstance(row, list) or len(row) != len(frames):
            raise JudgeError(f"{where} answered {name} with {brief(row)} for {len(frames)} frames")
        value = row[-1]
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e30:
            raise JudgeError(f"{where} answered {name} with {brief(value)}, which is not a number")
        last.append(float(value))
    return np.array(last)
