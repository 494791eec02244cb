"""Reward models that write their answer: SOLE-R1 and Robo-Dopamine's GRM. Both are a plain Qwen3-VL.

    SOLE-R1   one picture: first | previous | current frame, and the last answer   -> "...<answer>35%</answer>"
    GRM       eight images: start, goal, three before, three after                 -> "<score>+12%</score>"

The prompts of the authors are not part of Plaudit: `prompt_file` passes them. The default prompts describe the same
images and the same answer in our words, and published figures do not hold for them. Whose prompt it was is a part of
the fingerprint. Text is the likeliest one (published: sampled at temperature 1.0 and 0.1), so a score does not change
from call to call. An answer that is no score fails its episode and is never replaced by a number.
"""

import hashlib
import io
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from plaudit.data.formats.base import MAX_EDGE
from plaudit.data.formats.images import FORMATS, MAX_IMAGE, decode_image
from plaudit.errors import JudgeError
from plaudit.files import brief, read_own, readable
from plaudit.judges.published.clip import Clip
from plaudit.judges.published.config import IMAGE_MARK, GrmConfig, SoleConfig
from plaudit.judges.published.frames import fit_pixels, pixel_limits, resize
from plaudit.judges.published.small import EpisodeModel, SmallJudge
from plaudit.judges.published.words import generate
from plaudit.judges.vlm.chat_template import expand_images
from plaudit.judges.vlm.images import PATCH, TOKEN, patches
from plaudit.judges.vlm.loading import load_description, load_vlm, unknown_part
from plaudit.judges.vlm.prompt import CONTROL
from plaudit.types import ByteArray, Episode, FloatArray

TILE, GAP = 384, 5  # pixels of SOLE-R1's picture
GRM_LIMITS = 12544, 76800  # pixels of each of GRM's images
_NUMBER = r"\s*([+-]?\d{1,3}(?:\.\d{1,6})?)\s*%\s*"
SAME = 4.0  # levels of brightness, in each of 16x16 fields: below it two pictures show the same moment


class Writer(EpisodeModel):
    """Asks a Qwen3-VL about images and reads a percentage."""

    layout = "transformers"
    images: int  # of a prompt
    words: tuple[str, ...] = ("task",)  # that a prompt is filled with
    answer: str  # the tag around the percentage

    def __init__(self, config: Any):
        if (reason := unknown_part(config.model, load_description(config))) is not None:
            raise JudgeError(reason)
        loaded = load_vlm(config)
        self.config, self._model = config, loaded.model
        self._tokenizer, self._template = loaded.tokenizer, loaded.template
        self._system, self._prompt = self._read_prompt(config.prompt_text())
        digest = hashlib.sha256(config.prompt_text().encode())
        self.fingerprint = f"{loaded.fingerprint} {digest.hexdigest()} {loaded.model.dtype}"
        own = "the prompt is Plaudit's, not that of the authors; pass theirs with prompt_file="
        self.warnings = () if config.has_own_prompt else (f"{own}, or published figures do not hold",)

    def _read_prompt(self, text: str) -> tuple[str, list[str]]:
        """The system text, and the pieces of the user's turn between its images."""
        system, _, user = text.strip().rpartition("\n---\n")
        pieces = user.split(IMAGE_MARK)
        if len(pieces) != self.images + 1 or IMAGE_MARK in system:
            raise JudgeError(
                f"the prompt shows {text.count(IMAGE_MARK)} images, and {self.config.type} has {self.images}; write "
                f"{IMAGE_MARK} for each"
            )
        for word in self.words:
            if f"{{{word}}}" not in text:
                raise JudgeError(f"the prompt has no {{{word}}}, so the model would not learn it")
        if control := CONTROL.search(text):
            raise JudgeError(f"the prompt holds {control[0]}; leave control tokens out, the chat template adds them")
        return system, pieces

    def ask(self, frame: int, images: Sequence[ByteArray], limits: tuple[int, int], **words: str) -> float:
        """The percentage that the model writes about these images, as a fraction."""
        text = self.write(images, limits, words)
        _, _, final = text.rpartition("</think>")
        matches = re.findall(rf"<{self.answer}>{_NUMBER}</{self.answer}>", final)
        if len(matches) != 1 or final.count(f"<{self.answer}>") != 1 or abs(float(matches[0])) > 100:
            raise JudgeError(
                f"the model's text about frame {frame} is no <{self.answer}>N%</{self.answer}> from -100 to 100: "
                f"{brief(text[-80:])}; is this a {self.config.type} model, and its prompt?"
            )
        return float(matches[0]) / 100

    @torch.no_grad()
    def write(self, images: Sequence[ByteArray], limits: tuple[int, int], words: dict[str, str]) -> str:
        """The likeliest text after the prompt."""
        model, token = self._model, self._model.config.image_token_id
        frames = [resize(torch.from_numpy(one.copy())[None], [_fit(one, limits)]) for one in images]
        text = self._tokenizer.apply_chat_template(
            self._messages(words), chat_template=self._template, tokenize=False, add_generation_prompt=True
        )
        ids = np.array(self._tokenizer(text, add_special_tokens=False)["input_ids"], np.int64)
        if (shown := int((ids == token).sum())) != self.images:
            raise JudgeError(f"the chat template of {self.config.model} shows {shown} of {self.images} images")
        sizes = [(one.shape[1], one.shape[2]) for one in frames]
        ids = expand_images(ids, frozenset({token}), [(h // TOKEN, w // TOKEN) for h, w in sizes]).ids
        ids = torch.from_numpy(ids).to(model.device)[None]
        inputs = {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "mm_token_type_ids": (ids == token).int(),
            "pixel_values": torch.cat([patches(one.to(model.device), model.dtype).flatten(0, 1) for one in frames]),
            "image_grid_thw": torch.tensor([(1, h // PATCH, w // PATCH) for h, w in sizes]).to(model.device),
        }
        return generate(model, self._tokenizer, inputs, self.config.max_new_tokens)

    def _messages(self, words: dict[str, str]) -> list[dict[str, Any]]:
        """The chat. A task that looks like a mark of the prompt stays a task: pieces are filled one by one."""

        def fill(text: str) -> str:
            return re.sub(r"\{(task|previous)\}", lambda match: words.get(match[1], match[0]), text)

        content: list[dict[str, Any]] = []
        for number, piece in enumerate(self._prompt):
            content += [{"type": "image"}] if number else []
            content += [{"type": "text", "text": fill(piece)}] if piece else []
        system = [{"role": "system", "content": [{"type": "text", "text": fill(self._system)}]}] if self._system else []
        return [*system, {"role": "user", "content": content}]


def _fit(image: ByteArray, limits: tuple[int, int]) -> tuple[int, int]:
    try:
        return fit_pixels((image.shape[0], image.shape[1]), *limits)
    except ValueError as error:
        raise JudgeError(str(error)) from None


def camera_frames(episode: Episode, camera: str) -> ByteArray:
    """The recorded frames of a further camera."""
    if camera not in episode.frames:
        raise JudgeError(f"the judge looks at camera '{camera}', and the episode has: {', '.join(episode.frames)}")
    return episode.frames[camera][episode.observed]


# SOLE-R1


class Sole(Writer):
    """SOLE-R1: each answer is a part of the next prompt, so an episode is a chain of calls."""

    parts = ("wrist", "max_new_tokens")
    images, answer, words = 1, "answer", ("task", "previous")

    def __init__(self, config: SoleConfig):
        super().__init__(config)
        self._limits = pixel_limits(Path(config.model), config.base)

    def progress(self, clip: Clip, episode: Episode) -> FloatArray:
        """[F] the first frame is the start: 0."""
        rows = [clip.frames] + ([camera_frames(episode, self.config.wrist)] if self.config.wrist else [])
        values = [0.0]
        for before, now in pairwise(clip.shown.tolist()):
            picture = compose([[row[0], row[before], row[now]] for row in rows])
            values.append(self.ask(now, [picture], self._limits, task=clip.task, previous=f"{100 * values[-1]:.0f}"))
        return np.array(values, np.float32).clip(0, 1)


def compose(rows: Sequence[Sequence[ByteArray]]) -> ByteArray:
    """One picture of rows of frames: each in the middle of a black square, with black gaps."""
    height, width = (len(cells) * (TILE + GAP) - GAP for cells in (rows, rows[0]))
    picture = np.zeros((height, width, 3), np.uint8)
    for y, row in enumerate(rows):
        for x, frame in enumerate(row):
            scale = TILE / max(frame.shape[:2])
            size = [max(1, round(edge * scale)) for edge in frame.shape[:2]]
            top, left = ((TILE - edge) // 2 + place * (TILE + GAP) for edge, place in zip(size, (y, x), strict=True))
            shown = Image.fromarray(frame).resize((size[1], size[0]), Image.Resampling.BICUBIC)
            picture[top : top + size[0], left : left + size[1]] = np.asarray(shown)
    return picture


# GRM


class Grm(Writer):
    """GRM: how much nearer to the goal one state is than another."""

    parts = ("mode", "left", "right", "max_new_tokens")
    images, answer = 8, "score"

    def __init__(self, config: GrmConfig):
        super().__init__(config)
        self._goal = read_image(config.goal)
        self.fingerprint += f" {hashlib.sha256(self._goal.tobytes()).hexdigest()}"

    def progress(self, clip: Clip, episode: Episode) -> FloatArray:
        """[F] by the mode of the config."""
        check_goal(self._goal, episode)
        cameras = [
            camera_frames(episode, camera) if camera else clip.frames
            for camera in (self.config.left, self.config.right)
        ]
        views = [clip.frames, *cameras]  # without wrist cameras, the front image is repeated, as upstream does

        def compare(frame: int, before: Sequence[ByteArray]) -> float:
            images = [clip.frames[0], self._goal, *before, *(view[frame] for view in views)]
            return self.ask(frame, images, GRM_LIMITS, task=clip.task)

        return np.array(_CURVES[self.config.mode](clip.shown.tolist(), views, self._goal, compare), np.float32).clip(
            0, 1
        )


Compare = Callable[[int, Sequence[ByteArray]], float]


def _incremental(shown: list[int], views: list[ByteArray], goal: ByteArray, compare: Compare) -> list[float]:
    values = [0.0]
    for before, now in pairwise(shown):
        score, last = compare(now, [view[before] for view in views]), values[-1]
        values.append(last + (1 - last) * score if score >= 0 else last + last * score)
    return values


def _forward(shown: list[int], views: list[ByteArray], goal: ByteArray, compare: Compare) -> list[float]:
    return [0.0, *(compare(now, [view[0] for view in views]) for now in shown[1:])]


def _backward(shown: list[int], views: list[ByteArray], goal: ByteArray, compare: Compare) -> list[float]:
    return [1 + compare(now, [goal] * len(views)) for now in shown]


_CURVES = {"incremental": _incremental, "forward": _forward, "backward": _backward}


def check_goal(goal: ByteArray, episode: Episode) -> None:
    """Refuse a goal that is a frame of the episode: the model would recognize it, and failures would look complete."""
    wanted = _coarse(goal)
    for camera in episode.frames:
        for number, frame in enumerate(camera_frames(episode, camera)):
            if np.abs(_coarse(frame) - wanted).max() < SAME:
                raise JudgeError(
                    f"the goal image shows frame {number} of camera '{camera}' of this episode. The model would only "
                    "recognize it, and every failure would look complete; take the goal from another episode"
                )


def _coarse(image: ByteArray) -> FloatArray:
    return np.asarray(Image.fromarray(image).convert("L").resize((16, 16), Image.Resampling.BOX), np.float32)


def read_image(path: Path) -> ByteArray:
    """uint8 [H, W, 3] of an image file."""
    with readable(path, "this is no image that can be read ({}); give a PNG or JPEG file"):
        data = read_own(path, MAX_IMAGE)
        width, height = Image.open(io.BytesIO(data), formats=FORMATS).size
        if max(width, height) > MAX_EDGE:
            raise ValueError(f"{height}x{width} pixels")
        return decode_image(data, "goal", height, width)


def build_judge(config: Any) -> SmallJudge:
    """The judge of a config, with its model loaded."""
    return SmallJudge(config, Sole(config) if config.type == "sole" else Grm(config))
