"""What a user sets of a vision-language judge.

    judge:
      type: vlm
      model: nvidia/Cosmos-Reason2-8B
      success_criteria: the bottle stands upright on the coaster and no hand touches it

The question is put after every frame, and log P(yes) - log P(no) of the answer is the frame's score; text is generated
in `reason` only, which is for a person to read.
"""

from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from plaudit.config import Config
from plaudit.judges.config import JudgeConfig
from plaudit.registry import JUDGE_REGISTRY
from plaudit.trust import Download, KeyVariable, ServerUrl

if TYPE_CHECKING:
    from plaudit.judges.vlm.endpoint import EndpointScorer
    from plaudit.judges.vlm.judge import VlmJudge
    from plaudit.judges.vlm.local import LocalScorer

INSTRUCTION = "A robot works on a task, and you see it frame by frame. The task: {task}"
QUESTION = "Is the task complete in this frame? Answer Yes or No."
REASON = (
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
    retries: NonNegativeInt = (
        4  # of a request that failed; waits double from 0.5 s to 8 s, or are what Retry-After says
    )
    parallel: PositiveInt = 8  # requests under way at a time
    image_format: Literal["png", "jpeg"] = "png"  # jpeg: a tenth of the bytes, and not quite the same picture


@JUDGE_REGISTRY.register("vlm")
class VlmConfig(JudgeConfig):
    type: Literal["vlm"] = "vlm"
    model: str = "nvidia/Cosmos-Reason2-8B"  # a folder or a hub id of a Qwen3-VL; for an endpoint, the name it serves
    backend: Literal["transformers", "openai"] = "transformers"

    # What it is asked
    task: str = ""  # in words; "": each episode's own
    success_criteria: str = ""  # what exactly counts as done, added to the task
    instruction: str = INSTRUCTION  # said once, before the first frame; {task} stands for the task and the criteria
    question: str = QUESTION  # after every frame; the answer has to begin with yes or no
    reason_question: str = REASON  # for `reason`, once, after all frames
    reason_tokens: PositiveInt = 1024  # that `reason` may generate

    # What it sees
    cameras: tuple[str, ...] = ()  # in this order; (): all of an episode, so name one where one will do: each adds time
    image_size: int = Field(default=224, ge=32)  # frames get about the pixels of a square with this edge; shape is kept
    stride: PositiveInt = (
        1  # every so manieth frame is shown, and the last; those between keep the number of the one before
    )

    # transformers
    # Whether to fetch the model from the hub when it is not here; in a file, with --allow-host huggingface.co.
    allow_download: Download = False
    device: str = "auto"  # cuda where there is one, cpu otherwise
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"  # auto: bfloat16 on a GPU, float32 on a processor
    attention: Literal["auto", "flash_attention_2", "sdpa"] = "auto"  # auto: the first where it is installed, on a GPU
    compile: bool = False  # fuse kernels with torch.compile, which takes a minute at the start and with each new length
    token_budget: PositiveInt = (
        32768  # tokens of the episodes that go through the model together; a 50-frame one: 3,700
    )

    # openai
    endpoint: EndpointConfig | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if "{task}" not in self.instruction + self.question:
            raise ValueError("the instruction (or the question) has no {task} in it, so the model would not be told it")
        if self.backend == "openai" and self.endpoint is None:
            raise ValueError("backend 'openai' needs an endpoint: {base_url: http://localhost:8000/v1}")
        if self.backend == "transformers" and self.endpoint is not None:
            raise ValueError("an endpoint is given, but the backend is 'transformers'; set backend: openai")
        return self

    @property
    def uses_task(self) -> bool:
        """Whether the verdict depends on the episode's own instruction."""
        return not self.task

    @property
    def requires_gpu(self) -> bool:
        return self.backend == "transformers" and self.device != "cpu"

    def build(self) -> "VlmJudge":
        from plaudit.judges.vlm.judge import VlmJudge

        return VlmJudge(self.scorer(), self.rule, self.calibration)

    def scorer(self) -> "LocalScorer | EndpointScorer":
        """The model by itself: `score` for log-odds, `reason` for its thoughts in words."""
        # Imported here: a config is read where there may be no torch.
        if self.backend == "openai":
            from plaudit.judges.vlm.endpoint import EndpointScorer

            return EndpointScorer(self)
        from plaudit.judges.vlm.local import LocalScorer

        return LocalScorer.load(self)
