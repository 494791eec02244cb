"""The settings of published reward models as judges. No torch, because a config is also read where there is none."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from plaudit.config import (
    Fraction,
    KeyVariable,
    LocalFilesOnly,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ServerUrl,
    SmallInt,
)
from plaudit.files import read_own, readable
from plaudit.judges.certificate import certificate_beside
from plaudit.judges.config import PROGRESS, SUCCESS, JudgeConfig, Signal

Rate = Annotated[float, Field(gt=0, le=120)]  # frames per second


class PublishedConfig(JudgeConfig):
    """What all of them have."""

    model: str  # a folder as it was published, or converted by LeRobot; of a plain Qwen3-VL also a hub id
    base: str = ""  # the folder of the Qwen3-VL that it was made from, where its own lacks tokenizer or description
    camera: str = ""  # the one that it sees; "": the only one of an episode
    task: str = ""  # in words; "": each episode's own
    frame_stride: PositiveInt = 1  # every n-th frame is scored, and the last; the frames between keep the score before
    cost_s: NonNegativeFloat = 5.0
    device: str = "auto"  # cuda where there is one, cpu otherwise
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"  # auto: bfloat16 on a GPU, float32 on a CPU
    # Implementation; auto: flash_attention_2 if it is installed.
    attention: Literal["auto", "flash_attention_2", "sdpa"] = "auto"
    compile: bool = False  # fuse kernels with torch.compile, which takes a minute at the start
    max_batch_tokens: PositiveInt = 65536  # tokens that go through the model together, shared ones counted once

    @property
    def certificate_path(self) -> Path | None:
        return certificate_beside(Path(self.model)) if Path(self.model).is_dir() else None

    @property
    def uses_task(self) -> bool:
        return not self.task

    @property
    def needs_calibration(self) -> bool:
        """Whether it was never fitted: the scores of a published model have no threshold for this task."""
        return self.resolved().calibration_record is None

    @property
    def requires_gpu(self) -> bool:
        return self.device != "cpu"

    def build(self) -> Any:
        """The `PublishedJudge`, with its model loaded."""
        return import_module("plaudit.judges.published.judge").build_judge(self)


class RobometerConfig(PublishedConfig):
    """Robometer: progress and success of each frame."""

    type: Literal["robometer"] = "robometer"
    # upstream: up to 8 frames of a prefix, shrunk to 480 pixels first; lerobot: always 4 frames, not shrunk.
    protocol: Literal["upstream", "lerobot"] = "upstream"
    max_frames: SmallInt | None = None  # of a prefix; None: as the protocol has it

    @property
    def signals(self) -> Mapping[str, Signal]:
        return {
            SUCCESS: Signal("P(success) of the prefix that ends at the frame"),
            PROGRESS: Signal("progress of the prefix that ends at the frame", unit="fraction"),
        }


class RynnValueConfig(PublishedConfig):
    """RynnValue: remaining seconds of each frame."""

    type: Literal["rynnvalue"] = "rynnvalue"
    protocol: Literal["upstream", "lerobot"] = "upstream"  # upstream: frames of up to 640 pixels; lerobot: as they are
    max_frames: SmallInt = 8  # of a prefix
    robot: str = ""  # what the robot is, in words, for models that were trained with it
    view: str = ""  # where the camera is, in words
    done_within_s: PositiveFloat = 1.0  # success is that no more than this is left
    horizon_s: PositiveFloat | None = None  # progress is 1 - remaining / horizon; None: no progress
    max_entropy: Fraction = 0.9  # of the bins, as a share of the largest: above it the video does not show the task

    @property
    def signals(self) -> Mapping[str, Signal]:
        soon = f"probability that at most {self.done_within_s:g} s remain until the task is done"
        if self.horizon_s is None:
            return {SUCCESS: Signal(soon)}
        left = f"1 - remaining seconds / {self.horizon_s:g}"
        return {SUCCESS: Signal(soon), PROGRESS: Signal(left, unit="fraction", scope="task")}


class RoboRewardConfig(PublishedConfig):
    """RoboReward: a score from 1 to 5."""

    type: Literal["roboreward"] = "roboreward"
    # decoded: the published protocol, which generates text; expectation: ours, the mean of the five scores.
    variant: Literal["decoded", "expectation"] = "decoded"
    rate: Rate = 1.0  # frames per second that are shown
    fps: Rate | None = None  # of episodes that do not say it
    max_new_tokens: SmallInt = 128  # of an answer
    local_files_only: LocalFilesOnly = True  # download nothing

    @property
    def signals(self) -> Mapping[str, Signal]:
        what = "generated score" if self.variant == "decoded" else "mean score (our variant, not the published one)"
        return {SUCCESS: Signal(f"{what} of the prefix, (score - 1) / 4", unit="fraction")}


class TopRewardConfig(PublishedConfig):
    """TOPReward: the log-probability that the video completes the task, of any Qwen3-VL."""

    type: Literal["topreward"] = "topreward"
    model: str = "Qwen/Qwen3-VL-8B-Instruct"
    protocol: Literal["upstream", "lerobot"] = "upstream"  # upstream: 224x224 pixels, evenly spaced; lerobot: the last
    chat_template: bool = False  # whether "True" is the assistant's answer; otherwise it continues the text
    rate: Rate = 2.0  # frames per second that are shown
    fps: Rate | None = None  # of episodes that do not say it
    max_frames: SmallInt = 16  # of a prefix
    scale: Literal["none", "minmax"] = "none"  # minmax: progress as published, scaled within each episode
    local_files_only: LocalFilesOnly = True  # download nothing

    @property
    def signals(self) -> Mapping[str, Signal]:
        how = "as the assistant's answer" if self.chat_template else "as the continuation of the text"
        success = {SUCCESS: Signal(f"probability of the token True {how}", unit="score")}
        if self.scale == "none":
            return success
        what = "log-probability, scaled from the smallest to the largest of the episode"
        return {**success, PROGRESS: Signal(what, unit="fraction", scope="episode")}


class SarmConfig(PublishedConfig):
    """SARM as LeRobot saves it: stage and progress, by a small network over CLIP. `base` is the folder of CLIP."""

    type: Literal["sarm"] = "sarm"
    head: Literal["sparse", "dense"] = "sparse"  # which of its annotations: whole stages, or finer ones

    @property
    def signals(self) -> Mapping[str, Signal]:
        what = Signal("progress at the middle of a window that reaches into the future", unit="fraction", scope="task")
        return {SUCCESS: what, PROGRESS: what}

    def build(self) -> Any:
        """The `SmallJudge`, with its networks loaded."""
        return import_module("plaudit.judges.published.sarm").build_judge(self)


class RewindConfig(PublishedConfig):
    """ReWiND: progress, by a small network. `base` is the folder of DINOv2."""

    type: Literal["rewind"] = "rewind"
    text_model: str  # the folder of MiniLM

    @property
    def signals(self) -> Mapping[str, Signal]:
        what = Signal("progress of the prefix that ends at the frame", unit="fraction")
        return {SUCCESS: what, PROGRESS: what}

    def build(self) -> Any:
        """The `SmallJudge`, with its networks loaded."""
        return import_module("plaudit.judges.published.rewind").build_judge(self)


MAX_PROMPT = 1 << 16  # bytes
IMAGE_MARK = "<image>"  # where a prompt shows an image
SOLE_PROMPT = """\
A robot works on this task: {task}
The picture shows three moments from left to right: the start, the step before, and now. Black areas are padding.
<image>
At the step before, {previous}% of the task was done. Compare the moments and think about what has changed. How many
percent of the task are done now? 100 means that it is complete; use negative numbers for a state worse than the start.
Write your thoughts between <think> and </think>, and then the number like this: <answer>40%</answer>"""
GRM_PROMPT = """\
A robot works on this task: {task}
The start, seen from the front: <image>
The goal, seen from the front: <image>
The state before, seen from the front, the left wrist and the right wrist: <image><image><image>
The state after, from the same three views: <image><image><image>
How much nearer to the goal, or farther from it, is the state after than the state before? Give percent of the way,
with a sign, like this: <score>+15%</score>"""


class WritingConfig(PublishedConfig):
    """What models have that write their answer."""

    # With {task}, <image> for each image, and of sole {previous}. A line of --- ends the system text. "": ours
    prompt: str = ""
    prompt_file: Path | None = None  # the same from a file
    local_files_only: LocalFilesOnly = True  # download nothing

    @model_validator(mode="after")
    def _one_prompt(self) -> Self:
        if self.prompt and self.prompt_file is not None:
            raise ValueError("give prompt or prompt_file, not both")
        return self

    @property
    def has_own_prompt(self) -> bool:
        """Whether the prompt is not Plaudit's."""
        return bool(self.prompt) or self.prompt_file is not None

    def prompt_text(self) -> str:
        """The prompt that is asked."""
        if self.prompt_file is not None:
            with readable(self.prompt_file, "this is no text of a prompt ({})"):
                return read_own(self.prompt_file, MAX_PROMPT).decode()
        return self.prompt or (SOLE_PROMPT if isinstance(self, SoleConfig) else GRM_PROMPT)

    def _signal(self, what: str) -> Mapping[str, Signal]:
        whose = "the configured prompt" if self.has_own_prompt else "Plaudit's own prompt, not the published one"
        signal = Signal(f"{what}, by {whose}", unit="fraction")
        return {SUCCESS: signal, PROGRESS: signal}

    def build(self) -> Any:
        """The `SmallJudge`, with its model loaded."""
        return import_module("plaudit.judges.published.generated").build_judge(self)


class SoleConfig(WritingConfig):
    """SOLE-R1: progress in percent after written thoughts, each frame with the answer before."""

    type: Literal["sole"] = "sole"
    wrist: str = ""  # a second camera, shown in a second row
    max_new_tokens: SmallInt = 600  # of an answer

    @property
    def signals(self) -> Mapping[str, Signal]:
        return self._signal("generated progress of the prefix")


class GrmConfig(WritingConfig):
    """Robo-Dopamine's GRM: progress between two states in percent, next to an image of the goal."""

    type: Literal["grm"] = "grm"
    goal: Path  # an image of the finished task, of another episode
    # incremental: from the frame before; forward: from the first frame; backward: from the goal.
    mode: Literal["incremental", "forward", "backward"] = "incremental"
    left: str = ""  # the camera of the left wrist; "": the front image again
    right: str = ""  # the camera of the right wrist; "": the front image again
    max_new_tokens: SmallInt = 32  # of an answer

    @property
    def signals(self) -> Mapping[str, Signal]:
        return self._signal(f"{self.mode} progress from generated comparisons")


class RobometerServerConfig(JudgeConfig):
    """A judge behind a server that speaks Robometer's protocol: Robometer's own, RynnValue's, `plaudit judge serve`."""

    type: Literal["robometer_server"] = "robometer_server"
    url: ServerUrl  # http://localhost:8000; where a file names another machine, --allow-host MACHINE
    model: str = ""  # what it serves, for people; another name is another judge
    api_key_env: KeyVariable = "PLAUDIT_API_KEY"  # the variable with its token, sent as a bearer token if it is set
    camera: str = ""  # as of PublishedConfig, and so the next two
    task: str = ""  # in words; "": each episode's own
    frame_stride: PositiveInt = 1  # every n-th frame is scored, and the last
    max_frames: SmallInt = 8  # of a prefix
    # multipart: frames as .npy files; json: as lists, ten times as many bytes.
    wire: Literal["multipart", "json"] = "multipart"
    # What progress_pred holds. seconds: remaining ones, of RynnValue's server.
    values: Literal["progress", "seconds"] = "progress"
    horizon_s: PositiveFloat = 60.0  # of values=seconds: progress is 1 - remaining / horizon
    samples: SmallInt = 16  # prefixes of a request
    timeout: PositiveFloat = 120.0  # seconds that one answer may take, to its last byte
    retries: NonNegativeInt = 2  # of a request that failed; waits 0.5 s, 1 s, ...
    cost_s: NonNegativeFloat = 5.0

    @property
    def uses_task(self) -> bool:
        return not self.task

    @property
    def needs_calibration(self) -> bool:
        return self.resolved().calibration_record is None

    @property
    def signals(self) -> Mapping[str, Signal]:
        progress = Signal("progress of the prefix, by the server", unit="fraction")
        if self.values == "seconds":
            progress = Signal(f"1 - remaining seconds / {self.horizon_s:g}", unit="fraction", scope="task")
        return {SUCCESS: Signal("P(success) of the prefix, by the server", unit="score"), PROGRESS: progress}

    def build(self) -> Any:
        """The `ServerJudge`; the server is not asked yet."""
        return import_module("plaudit.judges.published.client").ServerJudge(self)
