"""The settings of a vision-language judge.

    judge:
      type: vlm
      model: nvidia/Cosmos-Reason2-8B
      success_criteria: the bottle stands upright on the coaster and no hand touches it

The question is asked after every frame, and log P(yes) - log P(no) of the answer is the frame's logit.
Torch is imported by `build`, because a config is also read where there is none.
"""

from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from plaudit.config import (
    Config,
    KeyVariable,
    LocalFilesOnly,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ServerUrl,
    SmallInt,
    Width,
    load,
)
from plaudit.files import Root
from plaudit.judges.certificate import certificate_beside
from plaudit.judges.config import ADAPTER_FILE, JudgeConfig, TrainingDataInfo

SYSTEM_PROMPT = "A robot works on a task, and you see it frame by frame. The task: {task}"
QUESTION = "Is the task complete in this frame? Answer Yes or No."
EXPLAIN_PROMPT = (
    "These are the frames in order. Describe step by step what they show. Then end with one line: 'Answer: Yes' if the "
    "task is complete in the last frame, 'Answer: No' if it is not."
)


class EndpointConfig(Config):
    """A server that speaks the OpenAI protocol: vLLM, SGLang, NIM."""

    # http://localhost:8000/v1; where a file names another machine, --allow-host MACHINE
    base_url: ServerUrl
    # The variable that holds the key, one of plaudit.trust.KEYS where a file names it; most local servers need none.
    api_key_env: KeyVariable = "OPENAI_API_KEY"
    timeout: PositiveFloat = 120.0  # seconds that one answer may take
    # Of a request that failed; waits double from 0.5 s to 8 s, or are what Retry-After says.
    retries: NonNegativeInt = 4
    parallel: SmallInt = 8  # requests under way at a time
    image_format: Literal["png", "jpeg"] = "png"  # jpeg: a tenth of the bytes, and not quite the same picture


class PromptSettings(Config):
    """What it is asked and sees: an adapter keeps these, because it learned with them."""

    # What it is asked
    task: str = ""  # in words; "": each episode's own
    success_criteria: str = ""  # what exactly counts as done, added to the task
    system_prompt: str = SYSTEM_PROMPT  # once, before the first frame; {task} stands for the task and the criteria
    question: str = QUESTION  # after every frame; the answer has to begin with yes or no

    # What it sees
    cameras: tuple[str, ...] = ()  # in this order; (): all of an episode, so name one where one will do: each adds time
    # Frames get about the pixels of a square with this edge; their shape is kept.
    image_size: int = Field(default=224, ge=32, le=16_384)
    # Every n-th frame is shown, and the last; the frames between keep the logit of the one before.
    frame_stride: PositiveInt = 1


class LoraShape(Config):
    """The size of an adapter."""

    rank: Width = 16
    alpha: PositiveFloat = 32.0  # what it adds is scaled by alpha / rank
    vision: bool = False  # also in the vision encoder; without, only in the language model


class AdapterInfo(Config):
    """All that stands in the adapter.json of a folder that `plaudit judge tune` made."""

    format: Literal[1] = 1
    base: str  # the model that it adapts: a folder or a hub id
    base_fingerprint: str
    fingerprint: str  # of the model with the adapter
    lora: LoraShape
    prompt: PromptSettings
    tasks: tuple[str, ...]  # that it learned, in words
    data: TrainingDataInfo
    scores: dict[str, Any]  # of the episodes that chose its epoch
    training: dict[str, Any]  # config, epochs, seconds, versions


class VlmJudgeConfig(PromptSettings, JudgeConfig):
    """Everything a user sets of a vision-language judge, and how it is built."""

    type: Literal["vlm"] = "vlm"
    cost_s: NonNegativeFloat = 5.0
    # A folder or a hub id, or an adapter's folder (`plaudit judge tune`); for an endpoint, the name it serves.
    model: str = "nvidia/Cosmos-Reason2-8B"
    # In this process, or behind an endpoint with OpenAI's API.
    backend: Literal["transformers", "openai"] = "transformers"
    explain_prompt: str = EXPLAIN_PROMPT  # of an explanation, once, after all frames
    max_new_tokens: PositiveInt = 1024  # of an explanation

    # transformers

    # False: fetch the model from the hub when it is not here; in a file, with --allow-host huggingface.co.
    local_files_only: LocalFilesOnly = True
    device: str = "auto"  # cuda where there is one, cpu otherwise
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"  # auto: bfloat16 on a GPU, float32 on a CPU
    attention: Literal["auto", "flash_attention_2", "sdpa"] = "auto"  # auto: the first where it is installed, on a GPU
    compile: bool = False  # fuse kernels with torch.compile, which takes a minute at the start and with each new length
    # Tokens of the episodes that go through the model together; a 50-frame episode has 3,700.
    max_batch_tokens: PositiveInt = 32768

    # openai
    endpoint: EndpointConfig | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if "{task}" not in self.system_prompt + self.question:
            raise ValueError("the system_prompt or the question must contain {task}, or the model does not know it")
        if self.backend == "openai" and self.endpoint is None:
            raise ValueError("backend 'openai' needs an endpoint: {base_url: http://localhost:8000/v1}")
        if self.backend == "transformers" and self.endpoint is not None:
            raise ValueError("an endpoint is given, but the backend is 'transformers'; set backend: openai")
        return self

    @property
    def adapter(self) -> Path | None:
        """The folder of the adapter, where the model is one."""
        folder = Path(self.model)
        return folder if self.backend == "transformers" and (folder / ADAPTER_FILE).is_file() else None

    @property
    def certificate_path(self) -> Path | None:
        return None if self.adapter is None else certificate_beside(self.adapter)

    def resolved(self) -> Self:
        """Of an adapter: with what it learned to be asked and to see, and its judge.yaml, where this sets nothing."""
        if self.adapter is None:
            return self
        learned = load(AdapterInfo, self.adapter / ADAPTER_FILE, root=Root(self.adapter)).prompt
        left = set(PromptSettings.model_fields) - self.model_fields_set
        return self.with_judge_file(self.adapter).model_copy(update={name: getattr(learned, name) for name in left})

    @property
    def uses_task(self) -> bool:
        """Whether the scores depend on the episode's own instruction."""
        return not self.resolved().task

    @property
    def needs_calibration(self) -> bool:
        """Whether it was never fitted: its log-odds are on a scale of their own."""
        return self.resolved().calibration_record is None

    @property
    def requires_gpu(self) -> bool:
        """Whether the model runs in this process and may use a GPU."""
        return self.backend == "transformers" and self.device != "cpu"

    def build(self) -> Any:
        """The `VlmJudge`, with its model loaded or its client ready."""
        resolved, judge = self.resolved(), import_module("plaudit.judges.vlm.judge").VlmJudge
        return judge(resolved.load_backend(), resolved.rule, resolved.calibration)

    def load_backend(self) -> Any:
        """The `VlmBackend` by itself: `score` for logits, `explain` for words."""
        if self.backend == "openai":
            return import_module("plaudit.judges.vlm.endpoint").OpenAIBackend(self)
        return import_module("plaudit.judges.vlm.local").load_local_backend(self.resolved())
