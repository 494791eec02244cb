"""A model behind any server that speaks the OpenAI protocol: vLLM, SGLang, NIM.

A chat completion shows the words that could come next at its end only, so every frame is a request of its own: the chat
up to its question, one token, and the log-probabilities of the 20 likeliest. The last frame is asked about first. Its
chat begins with all the others, so a server that caches prefixes (vLLM and SGLang do) computes each frame once; and
where the endpoint is down an episode has failed after one request and not after fifty.

Only listed words can be read. Where one of yes and no is missing, it counts as the least listed word, since none of its
spellings is likelier: that moves the score towards zero. Where both are missing, the episode gets an error.

The client of the `openai` package waits and tries again (connections, timeouts, HTTP 408, 409, 429 and 5xx: 0.5 s,
doubled up to 8 s, with jitter, or as long as Retry-After says).
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ValidationError

from plaudit.errors import JudgeError, MissingExtra, PlauditError
from plaudit.judges.vlm.config import VlmConfig
from plaudit.judges.vlm.images import data_url, resized, size_of
from plaudit.judges.vlm.prompt import (
    FORMS,
    Asked,
    Image,
    Message,
    Reasoned,
    answer_of,
    ask,
    asked_words,
    conversation,
    reasoning,
)
from plaudit.types import Episode, FloatArray

LISTED = 20  # the most that the protocol allows


class Word(BaseModel):
    token: str
    logprob: float


class Place(BaseModel):
    top_logprobs: list[Word]


class Logprobs(BaseModel):
    content: list[Place] | None = None


class Said(BaseModel):
    content: str | None = None


class Choice(BaseModel):
    message: Said
    logprobs: Logprobs | None = None


class Reply(BaseModel):
    """What we read of a chat completion."""

    choices: list[Choice]


class EndpointScorer:
    """A `Backend` of `VlmJudge`."""

    source = "vlm"
    notes: tuple[str, ...] = ()

    def __init__(self, config: VlmConfig):
        assert config.endpoint is not None
        self.config, self.endpoint = config, config.endpoint
        self._openai = _openai()
        self._client = self._openai.OpenAI(
            base_url=self.endpoint.base_url,
            api_key=os.environ.get(self.endpoint.api_key_env) or "none",  # the client insists, local servers do not
            timeout=self.endpoint.timeout,
            max_retries=self.endpoint.retries,
            # The frames and the key are for this server, and not for one that it names.
            http_client=self._openai.DefaultHttpxClient(follow_redirects=False),
        )
        # An endpoint does not tell its weights, so its name for them has to do.
        facts = ["openai", config.model, self.endpoint.image_format, asked_words(config)]
        self.fingerprint = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]

    def score(self, episodes: Sequence[Episode]) -> Sequence[FloatArray | PlauditError]:
        parallel = self.endpoint.parallel
        with ThreadPoolExecutor(parallel) as asking, ThreadPoolExecutor(parallel) as looking:
            return list(looking.map(partial(self._score, asking), episodes))

    def _score(self, asking: Executor, episode: Episode) -> FloatArray | PlauditError:
        try:
            asked = ask(self.config, episode)
            image = self._images(asked)
            last = asking.submit(self._log_odds, asked, asked.moments, image).result()
            others = asking.map(lambda moments: self._log_odds(asked, moments, image), range(1, asked.moments))
            return asked.held(np.array([*others, last], np.float32))
        except PlauditError as error:
            return error

    def _log_odds(self, asked: Asked, moments: int, image: Image) -> float:
        """Of the last of so many moments."""
        reply = self._complete(
            conversation(asked, moments, image),
            max_tokens=1,
            temperature=1.0,
            top_p=1.0,
            logprobs=True,
            top_logprobs=LISTED,
        )
        logprobs = reply.choices[0].logprobs
        if logprobs is None or not logprobs.content or not logprobs.content[0].top_logprobs:
            raise JudgeError(
                f"{self.endpoint.base_url} gave an answer without log-probabilities; start the server with them "
                f"(vLLM: --max-logprobs {LISTED})"
            )
        return log_odds_of(logprobs.content[0].top_logprobs, int(asked.shown[moments - 1]))

    def reason(self, episode: Episode) -> Reasoned:
        """Ask for words, about the last frame; for audits."""
        try:
            asked = ask(self.config, episode)
            messages = reasoning(asked, self.config.reason_question, self._images(asked))
            reply = self._complete(messages, max_tokens=self.config.reason_tokens, temperature=0.0)
        except PlauditError as error:
            return Reasoned("", None, str(error))
        return answer_of(reply.choices[0].message.content or "")

    def _images(self, asked: Asked) -> Image:
        urls = {
            camera: [data_url(frame, self.endpoint.image_format) for frame in self._to_size(asked, camera)]
            for camera in asked.frames
        }
        return lambda camera, moment: {"type": "image_url", "image_url": {"url": urls[camera][moment]}}

    def _to_size(self, asked: Asked, camera: str) -> Any:
        frames = torch.from_numpy(asked.pictures(camera))
        return resized(frames, size_of(frames.shape, self.config.image_size)).contiguous().numpy()

    def _complete(self, messages: list[Message], **options: Any) -> Reply:
        with self._sentences():
            raw = self._client.chat.completions.with_raw_response.create(
                model=self.config.model, messages=messages, **options
            )
        try:
            reply = Reply.model_validate_json(raw.content)
        except ValidationError as error:
            raise JudgeError(
                f"{self.endpoint.base_url} answered what is no chat completion: {raw.text[:80]!r}"
            ) from error
        if not reply.choices:
            raise JudgeError(f"{self.endpoint.base_url} answered with no choices")
        return reply

    @contextmanager
    def _sentences(self) -> Iterator[None]:
        """What went wrong, after all tries, and what to do."""
        url, times, openai = self.endpoint.base_url, self.endpoint.retries + 1, self._openai
        try:
            yield
        except openai.APITimeoutError as error:
            raise JudgeError(
                f"{url} did not answer within {self.endpoint.timeout:g} s, {times} times; raise endpoint.timeout, "
                "or lower endpoint.parallel"
            ) from error
        except openai.APIConnectionError as error:
            raise JudgeError(
                f"{url} cannot be reached ({error.__cause__}), {times} times; is the server up?"
            ) from error
        except openai.RateLimitError as error:
            raise JudgeError(
                f"{url} is busy (HTTP 429), {times} times; lower endpoint.parallel, or raise endpoint.retries"
            ) from error
        except (openai.AuthenticationError, openai.PermissionDeniedError) as error:
            raise JudgeError(f"{url} refuses the key in the variable {self.endpoint.api_key_env}") from error
        except openai.NotFoundError as error:
            raise JudgeError(f"{url} knows no model '{self.config.model}' (HTTP 404: {_first_line(error)})") from error
        except openai.APIStatusError as error:
            raise JudgeError(f"{url} answered HTTP {error.status_code}: {_first_line(error)}") from error


def log_odds_of(listed: Sequence[Word], frame: int) -> float:
    """log P(yes) - log P(no) out of the likeliest words."""
    least = min(word.logprob for word in listed)
    found = {word: [other.logprob for other in listed if other.token in forms] for word, forms in FORMS.items()}
    if not any(found.values()):
        likeliest = ", ".join(repr(word.token) for word in sorted(listed, key=lambda word: -word.logprob)[:3])
        raise JudgeError(
            f"neither yes nor no is among the {len(listed)} likeliest answers at frame {frame} ({likeliest}, ...); "
            "ask a question that yes or no answers, of a model that answers at once"
        )
    yes, no = (np.logaddexp.reduce(logs) if logs else least for logs in (found["yes"], found["no"]))
    if not np.isfinite(yes - no):
        raise JudgeError(f"the endpoint's answer at frame {frame} is not a number")
    return float(yes - no)


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split("\n")[0].split())[:200]


def _openai() -> ModuleType:
    try:
        return import_module("openai")
    except ImportError as error:
        raise MissingExtra("openai", "vlm") from error
