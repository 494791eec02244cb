"""A model behind any server that speaks the OpenAI protocol: vLLM, SGLang, NIM.

Every frame is a request of its own: the chat up to its question, one token, and the log-probabilities of the 20
likeliest. The last frame is asked about first: its chat begins with all the others, so a server that caches prefixes
computes each frame once, and if the endpoint is down, an episode fails after one request.

If only one of yes and no is listed, the other counts as the least likely listed word, which moves the score towards
zero. If neither is, the episode gets an error. The client of the `openai` package waits and retries.
"""

import os
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
from pydantic import AliasPath, BaseModel, Field, ValidationError

from plaudit.errors import JudgeError, JudgeUnavailable, PlauditError, import_extra
from plaudit.judges.vlm.config import VlmJudgeConfig
from plaudit.judges.vlm.images import data_url, resize_frames
from plaudit.judges.vlm.judge import VlmBackend
from plaudit.judges.vlm.prompt import (
    ANSWER_TOKENS,
    FramePrompt,
    Image,
    Message,
    build_prompt,
    conversation,
    explanation_prompt,
)
from plaudit.types import Episode, FloatArray

TOP_LOGPROBS = 20  # the most that the protocol allows


# What we read of a chat completion. The client's own types are not checked against what a server sends.
class TokenLogprob(BaseModel):
    """A token that could come next."""

    token: str
    logprob: float


_FIRST_TOKEN = AliasPath("choices", 0, "logprobs", "content", 0, "top_logprobs")


class _Completion(BaseModel):
    choices: list[dict[str, Any]]
    text: str | None = Field(default=None, validation_alias=AliasPath("choices", 0, "message", "content"))
    top_logprobs: list[TokenLogprob] | None = Field(default=None, validation_alias=_FIRST_TOKEN)


class OpenAIBackend(VlmBackend):
    """A `VlmBackend` of a model behind a server."""

    def __init__(self, config: VlmJudgeConfig):
        assert config.endpoint is not None
        # A server does not tell its weights, so its name for them has to do.
        super().__init__(config, "openai", config.model, config.endpoint.image_format)
        self.endpoint = config.endpoint
        self._openai = import_extra("openai", "vlm")
        self._client = self._openai.OpenAI(
            base_url=self.endpoint.base_url,
            api_key=os.environ.get(self.endpoint.api_key_env) or "none",  # the client insists, local servers do not
            timeout=self.endpoint.timeout,
            max_retries=self.endpoint.retries,
            # The frames and the key are for this server, and not for one that it names.
            http_client=self._openai.DefaultHttpxClient(follow_redirects=False),
        )

    def score(self, episodes: Sequence[Episode]) -> Sequence[FloatArray | PlauditError]:
        """The logit of success of each observed frame, each of a request of its own."""
        parallel = self.endpoint.parallel
        with ThreadPoolExecutor(parallel) as requests, ThreadPoolExecutor(parallel) as workers:
            return list(workers.map(partial(self._score, requests), episodes))

    def _score(self, requests: Executor, episode: Episode) -> FloatArray | PlauditError:
        try:
            prompt = build_prompt(self.config, episode)
            image = self._images(prompt)
            last = requests.submit(self._logit, prompt, prompt.num_frames, image).result()
            others = requests.map(lambda count: self._logit(prompt, count, image), range(1, prompt.num_frames))
            return prompt.expand(np.array([*others, last], np.float32))
        except PlauditError as error:
            return error

    def _logit(self, prompt: FramePrompt, num_frames: int, image: Image) -> float:
        """Of the last of the first `num_frames` frames."""
        completion = self._complete(
            conversation(prompt, num_frames, image),
            max_tokens=1,
            temperature=1.0,
            top_p=1.0,
            logprobs=True,
            top_logprobs=TOP_LOGPROBS,
        )
        if not completion.top_logprobs:
            advice = f"start the server with them (vLLM: --max-logprobs {TOP_LOGPROBS})"
            raise JudgeError(f"{self.endpoint.base_url} gave an answer without log-probabilities; {advice}")
        return logit_of(completion.top_logprobs, int(prompt.frame_indices[num_frames - 1]))

    def generate(self, prompt: FramePrompt) -> str:
        messages = explanation_prompt(prompt, self.config.explain_prompt, self._images(prompt))
        completion = self._complete(messages, max_tokens=self.config.max_new_tokens, temperature=0.0)
        return completion.text or ""

    def _images(self, prompt: FramePrompt) -> Image:
        urls = {
            camera: [data_url(frame, self.endpoint.image_format) for frame in frames.numpy()]
            for camera, frames in resize_frames(prompt, self.config.image_size).items()
        }
        return lambda camera, number: {"type": "image_url", "image_url": {"url": urls[camera][number]}}

    def _complete(self, messages: list[Message], **options: Any) -> _Completion:
        create = self._client.chat.completions.with_raw_response.create
        try:
            raw = create(model=self.config.model, messages=messages, **options)
        except self._openai.APIError as error:
            raise self._failure(error) from error
        try:
            completion = _Completion.model_validate_json(raw.content)
        except ValidationError as error:
            answer = f"answered with something that is not a chat completion: {raw.text[:80]!r}"
            raise JudgeError(f"{self.endpoint.base_url} {answer}") from error
        if not completion.choices:
            raise JudgeError(f"{self.endpoint.base_url} answered with no choices")
        return completion

    def _failure(self, error: Any) -> PlauditError:
        """What went wrong, after all tries, and what to do."""
        url, times, openai = self.endpoint.base_url, self.endpoint.retries + 1, self._openai
        if isinstance(error, openai.APITimeoutError):
            late = f"{url} did not answer within {self.endpoint.timeout:g} s, {times} times"
            return JudgeUnavailable(f"{late}; raise endpoint.timeout, or lower endpoint.parallel")
        if isinstance(error, openai.APIConnectionError):
            return JudgeUnavailable(f"{url} cannot be reached ({error.__cause__}), {times} times; is the server up?")
        if isinstance(error, openai.RateLimitError):
            busy = f"{url} is busy (HTTP 429), {times} times"
            return JudgeUnavailable(f"{busy}; lower endpoint.parallel, or raise endpoint.retries")
        if isinstance(error, openai.AuthenticationError | openai.PermissionDeniedError):
            return JudgeError(f"{url} refuses the key in the variable {self.endpoint.api_key_env}")
        reason = " ".join(str(error).split("\n")[0].split())[:200]
        if isinstance(error, openai.NotFoundError):
            return JudgeError(f"{url} knows no model '{self.config.model}' (HTTP 404: {reason})")
        status = f"HTTP {error.status_code}" if isinstance(error, openai.APIStatusError) else "with an error"
        restarts = isinstance(error, openai.InternalServerError)  # a server that comes up answers so
        return (JudgeUnavailable if restarts else JudgeError)(f"{url} answered {status}: {reason}")


def logit_of(listed: Sequence[TokenLogprob], frame: int) -> float:
    """log P(yes) - log P(no) out of the likeliest tokens."""
    least = min(word.logprob for word in listed)
    logs = {word: [other.logprob for other in listed if other.token in forms] for word, forms in ANSWER_TOKENS.items()}
    if not any(logs.values()):
        likeliest = ", ".join(repr(word.token) for word in sorted(listed, key=lambda word: -word.logprob)[:3])
        raise JudgeError(
            f"neither yes nor no is among the {len(listed)} likeliest answers at frame {frame} ({likeliest}, ...); "
            "ask a question that yes or no answers, of a model that answers at once"
        )
    yes, no = (np.logaddexp.reduce(logs[word]) if logs[word] else least for word in ("yes", "no"))
    if not np.isfinite(yes - no):
        raise JudgeError(f"the endpoint's answer at frame {frame} is not a number")
    return float(yes - no)
