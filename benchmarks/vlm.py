"""A vision-language judge: labels for every frame in one pass, beside other ways to ask, and the share of the ceiling.

    PYTHONPATH=src python benchmarks/vlm.py [--quick] [--no-compile]

Needs torch and transformers, and no download: on a GPU the model has the shape of Qwen3-VL-8B (Cosmos-Reason2-8B is
one) with random weights in bfloat16, and episodes have 50 frames of 224x224. Without a GPU it is a tiny model on a
processor, which shows that all of it runs, and says little about speed.

    one pass       `Qwen3VLBackend.score`, from frames in memory to log-odds in numpy: what a user gets
    plain          transformers' own forward over the same tokens of one episode, up to its last hidden state
    a prompt each  transformers' own forward over 50 chats of one frame each, in one batch
    generation     64 tokens of text about 16 frames, by transformers, and nothing said of the other frames

The ceiling is what a large product of bfloat16 matrices reaches on this card in this run. Operations are counted by
formula: two for each weight and token, causal attention as half of the square, and the vision tower likewise. One pass
runs the end of the last layer for one token of each frame, and these operations are left out of its count. The bars
compare like with like: an episode at a time with an episode at a time. Generation in a batch stands beside them.
"""

import argparse
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AutoModelForImageTextToText, PreTrainedTokenizerFast, Qwen3VLConfig
from transformers import __version__ as transformers_version

from bars import Bars
from plaudit.judges.vlm.config import EXPLAIN_PROMPT, QUESTION, SYSTEM_PROMPT, VlmJudgeConfig
from plaudit.judges.vlm.loading import LoadedVlm
from plaudit.judges.vlm.local import Qwen3VLBackend, pad_batch
from plaudit.judges.vlm.prompt import build_prompt
from plaudit.judges.vlm.qwen3_vl import attention_on
from plaudit.types import Episode

TASK = "put the red cube into the bowl"
WRITTEN, SHOWN = 64, 16  # tokens of generated text, and frames it is about
SPECIAL = ("endoftext", "im_start", "im_end", "vision_start", "vision_end", "image_pad", "video_pad")
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{% if p.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LARGE: dict[str, Any] = {
    "text_config": {
        "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 262144,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 5e6, "mrope_section": [24, 20, 20], "mrope_interleaved": True,
        },
    },
    "vision_config": {
        "depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16, "out_hidden_size": 4096,
        "num_position_embeddings": 2304, "deepstack_visual_indexes": [8, 16, 24],
    },
}  # fmt: skip
TINY: dict[str, Any] = {
    "text_config": {
        "vocab_size": 1024, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 8192,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 1e4, "mrope_section": [6, 5, 5], "mrope_interleaved": True,
        },
    },
    "vision_config": {
        "depth": 3, "hidden_size": 64, "intermediate_size": 128, "num_heads": 2, "out_hidden_size": 128,
        "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1],
    },
}  # fmt: skip

bars = Bars()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer sizes of batch and fewer repeats")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    on_gpu = device.type == "cuda"
    frames, size = (50, 224) if on_gpu else (12, 64)
    loaded = random_model(LARGE if on_gpu else TINY, device)
    config = VlmJudgeConfig(image_size=size, device=device.type, max_batch_tokens=1 << 20)
    ceiling = product_flops_per_s(device)
    place = torch.cuda.get_device_name() if on_gpu else "no GPU, so a tiny model in float32 on a processor"
    say(f"{place}; torch {torch.__version__}, transformers {transformers_version}, {attention_on(device, 'auto')}")
    say(f"large products of matrices: {ceiling / 1e12:.3g} TFLOP/s")
    scorer = Qwen3VLBackend(config, loaded)
    episodes = [random_episode(frames, size, seed) for seed in range(16)]
    tokens = scorer.pack(0, episodes[0]).layout.tokens
    shape = loaded.model.config, tokens, frames, (size // 16) ** 2
    work, plain = flops(*shape, read=frames), flops(*shape)
    say(
        f"an episode: {frames} frames of {size}x{size}, {tokens} tokens, {work / 1e12:.3g} TFLOP in one pass, "
        f"{plain / 1e12:.3g} plain"
    )
    agree(scorer, episodes[0])

    sizes = (1, 8) if options.quick else (1, 4, 8, 16)
    repeats = 2 if options.quick else 5
    table = Table(tokens, work, ceiling)
    for count in sizes:
        table.one_pass(f"one pass, {count} at a time", scorer, episodes[:count], repeats)
    breakdown(scorer, episodes[: sizes[-1]])
    others(table, scorer, episodes, repeats, plain)
    if on_gpu:
        other_kernels(table, config, loaded, episodes[:8], repeats)
    if on_gpu and not options.no_compile:
        compiled = Qwen3VLBackend(config.model_copy(update={"compile": True}), loaded)
        for count in sizes[::-1]:
            torch.compiler.reset()  # each size compiled for itself, as a run over episodes of one length would be
            table.one_pass(f"one pass compiled, {count} at a time", compiled, episodes[:count], repeats)
            breakdown(compiled, episodes[:count])
    conclude(table, on_gpu)


class Table:
    """What was measured, a line each."""

    def __init__(self, tokens: int, work: float, ceiling: float):
        self._tokens, self._work, self._ceiling = tokens, work, ceiling
        self.rates: dict[str, float] = {}  # name -> episodes/s
        self.shares: dict[str, float] = {}  # of the ceiling, where a line does the work of a whole episode
        say(f"{'':34}{'episodes/s':>12}{'ms each':>10}{'tokens/s':>12}{'of ceiling':>12}")

    def one_pass(self, name: str, scorer: Qwen3VLBackend, episodes: list[Episode], repeats: int) -> None:
        self.add(name, len(episodes), lambda: scorer.score(episodes), repeats, self._work)

    def add(self, name: str, count: int, call: Callable[[], object], repeats: int, work: float = 0.0) -> None:
        """work: operations of the call for each of `count` whole episodes; 0: it does something else"""
        try:
            rate = count / seconds(call, repeats)
        except (RuntimeError, TypeError, ValueError) as error:  # one way that fails costs its line, not the rest
            say(f"{name:34} failed: {type(error).__name__}: {str(error).splitlines()[0][:150]}")
            return
        self.rates[name] = rate
        share = speed = ""
        if work:
            self.shares[name] = rate * work / self._ceiling
            share, speed = f"{self.shares[name]:12.1%}", f"{rate * self._tokens:12,.0f}"
        say(f"{name:34}{rate:12.3f}{1e3 / rate:10.1f}{speed:>12}{share}")


def others(table: Table, scorer: Qwen3VLBackend, episodes: list[Episode], repeats: int, plain: float) -> None:
    """How else one could ask: all by transformers itself. plain: operations of its forward"""
    model, job = scorer.model, scorer.pack(0, episodes[0])
    picture = scorer.explanation_inputs(job.prompt)
    ids = torch.from_numpy(job.layout.ids).to(scorer.device)[None]
    table.add("plain, 1 at a time", 1, lambda: forward(model.model, with_ids(picture, ids)), repeats, plain)
    first = ids[:, : job.layout.answer_positions[0] + 1].expand(job.prompt.num_frames, -1).contiguous()
    table.add(
        "a prompt each, 1 at a time", 1, lambda: forward(model, with_ids(picture, first), logits_to_keep=1), repeats
    )
    shown = build_prompt(scorer.config, random_episode(SHOWN, scorer.image_sizes(job.prompt)[0][0], 0))
    few = scorer.explanation_inputs(shown)
    table.add("generation, 1 at a time", 1, lambda: write(scorer, few), max(1, repeats // 2))
    eight = {name: torch.cat([values] * 8) for name, values in few.items()}
    table.add("generation, 8 at a time", 8, lambda: write(scorer, eight), max(1, repeats // 2))


def other_kernels(
    table: Table, config: VlmJudgeConfig, loaded: LoadedVlm, episodes: list[Episode], repeats: int
) -> None:
    """Attention by kernels that are not torch's first choice."""
    scorer = Qwen3VLBackend(config.model_copy(update={"attention": "sdpa"}), loaded)
    if attention_on(loaded.model.device, "auto") != "sdpa":
        table.one_pass(f"one pass sdpa, {len(episodes)} at a time", scorer, episodes, repeats)
    with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION], set_priority=True):
        table.one_pass(f"one pass cuDNN, {len(episodes)} at a time", scorer, episodes, repeats)


def with_ids(inputs: dict[str, torch.Tensor], ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """The same pictures among other words."""
    image_id = inputs["input_ids"][inputs["mm_token_type_ids"] == 1][0]
    types = (ids == image_id).int()
    return {**inputs, "input_ids": ids, "attention_mask": torch.ones_like(ids), "mm_token_type_ids": types}


@torch.inference_mode()
def forward(model: Any, inputs: dict[str, torch.Tensor], **options: Any) -> Any:
    return model(**inputs, use_cache=False, **options)


@torch.inference_mode()
def write(scorer: Qwen3VLBackend, inputs: dict[str, torch.Tensor]) -> Any:
    return scorer.model.generate(
        **inputs, min_new_tokens=WRITTEN, max_new_tokens=WRITTEN, do_sample=False, pad_token_id=0
    )


def agree(scorer: Qwen3VLBackend, episode: Episode) -> None:
    """That the pass that is timed is the model: the same last hidden states as transformers' own forward."""
    job = scorer.pack(0, episode)
    ids = torch.from_numpy(job.layout.ids).to(scorer.device)[None]
    try:
        hidden = forward(scorer.model.model, with_ids(scorer.explanation_inputs(job.prompt), ids)).last_hidden_state
    except (RuntimeError, TypeError, ValueError) as error:
        say(f"transformers' own forward failed: {str(error).splitlines()[0][:150]}")
        return
    with torch.inference_mode():
        theirs = scorer.decoder.yes_minus_no(hidden[0, torch.from_numpy(job.layout.answer_positions).to(scorer.device)])
        ours = scorer.forward([job])
    say(f"log-odds: spread {ours.std():.3g}, largest difference from transformers' {(ours - theirs).abs().max():.3g}")


@torch.inference_mode()
def breakdown(scorer: Qwen3VLBackend, episodes: list[Episode]) -> None:
    """Milliseconds of each part of one pass over these."""
    jobs = [scorer.pack(number, episode) for number, episode in enumerate(episodes)]
    arrays = pad_batch([job.layout for job in jobs])
    ids, positions, answers = (torch.from_numpy(values).to(scorer.device) for values in arrays)
    features, where = scorer.encode_images(jobs, ids.shape[1])
    places = torch.from_numpy(where).to(scorer.device)
    parts = {
        "layout": lambda: [scorer.pack(number, episode) for number, episode in enumerate(episodes)],
        "vision": lambda: scorer.encode_images(jobs, ids.shape[1]),
        "decoder": lambda: scorer.decoder.read(ids, positions, places, features, answers),
    }
    spent = ", ".join(f"{name} {1e3 * seconds(call, 2):.1f}" for name, call in parts.items())
    say(f"  {len(episodes)} at a time, ms: {spent}")


def conclude(table: Table, on_gpu: bool) -> None:
    single = table.rates["one pass, 1 at a time"]
    best = max((name for name in table.rates if name.startswith("one pass")), key=lambda name: table.rates[name])
    say(f"best: {best}, {table.rates[best]:.2f} episodes/s, {table.shares[best]:.1%} of the ceiling")
    written = table.rates.get("generation, 1 at a time", math.nan)
    batched = table.rates.get("generation, 8 at a time", math.nan)
    each = table.rates.get("a prompt each, 1 at a time", math.nan)
    say(
        f"an episode at a time: {single / written:.1f} x generation, {single / each:.1f} x a prompt each; at its best "
        f"{table.rates[best] / batched:.1f} x generation in batches of 8"
    )
    if on_gpu:
        bars.at_least("vlm_one_pass_over_generation", single / written, 10)
        bars.at_least("vlm_share_of_ceiling", table.shares[best], 0.4)
    else:
        say("the bars of 10 x generation and 40% of the ceiling are for the 8B shape on a GPU; here only:")
        bars.at_least("vlm_one_pass_over_generation_tiny_cpu", single / written, 2)
    bars.report()


def flops(config: Qwen3VLConfig, tokens: int, frames: int, patches: int, read: int | None = None) -> float:
    """Of one pass over an episode. read: tokens that the end of the last layer runs for; None: all"""
    text: Any = config.text_config
    see: Any = config.vision_config
    wide = text.num_attention_heads * text.head_dim
    narrow = text.num_key_value_heads * text.head_dim
    layer = 2 * text.hidden_size * (wide + narrow) + 3 * text.hidden_size * text.intermediate_size
    end = text.hidden_size * wide + 3 * text.hidden_size * text.intermediate_size  # after attention
    unread = 0 if read is None else tokens - read
    decoder = text.num_hidden_layers * (2 * layer * tokens + 2 * tokens**2 * wide) - 2 * end * unread
    block = 4 * see.hidden_size**2 + 2 * see.hidden_size * see.intermediate_size
    blocks = see.depth * frames * (2 * block * patches + 4 * patches**2 * see.hidden_size)
    merged = 4 * see.hidden_size
    mergers = (1 + len(see.deepstack_visual_indexes)) * 2 * (merged**2 + merged * see.out_hidden_size)
    embed = 2 * 3 * 2 * 16 * 16 * see.hidden_size
    return float(decoder + blocks + frames * patches * (embed + mergers / 4))


def random_model(shape: dict[str, Any], device: torch.device) -> LoadedVlm:
    tokenizer = small_tokenizer()
    ids: dict[str, Any] = {name: tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in SPECIAL}
    config = Qwen3VLConfig(
        **shape,
        image_token_id=ids["image_pad"],
        video_token_id=ids["video_pad"],
        vision_start_token_id=ids["vision_start"],
        vision_end_token_id=ids["vision_end"],
    )
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    with device:  # where they are drawn: no copy on the host
        model = AutoModelForImageTextToText.from_config(
            config, dtype=dtype, attn_implementation=attention_on(device, "auto")
        )
    return LoadedVlm(model.eval().requires_grad_(False), tokenizer, tokenizer, TEMPLATE, "random")


def small_tokenizer() -> PreTrainedTokenizerFast:
    """About a token a word in our prompts, as the real one has it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    special = [f"<|{name}|>" for name in SPECIAL]
    trainer = trainers.BpeTrainer(
        vocab_size=1000,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(
        2 * [SYSTEM_PROMPT, QUESTION, EXPLAIN_PROMPT, TASK, "Yes", "No", "user", "assistant"], trainer
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")


def random_episode(frames: int, size: int, seed: int) -> Episode:
    images = np.random.default_rng(seed).integers(0, 256, (frames, size, size, 3), np.uint8)
    return Episode.of(frames={"front": images}, actions=np.zeros((frames - 1, 1)), task=TASK)


def product_flops_per_s(device: torch.device) -> float:
    side, dtype = (8192, torch.bfloat16) if device.type == "cuda" else (1024, torch.float32)
    one, other = (torch.randn(side, side, dtype=dtype, device=device) for _ in range(2))
    return 20 * 2 * side**3 / seconds(lambda: [one @ other for _ in range(20)], 3)


def seconds(call: Callable[[], object], repeats: int) -> float:
    """Median, from nothing under way to nothing under way; the first call warms up."""
    times = []
    for _ in range(repeats + 1):
        synchronize()
        begun = time.perf_counter()
        call()
        synchronize()
        times.append(time.perf_counter() - begun)
    return float(np.median(times[1:]))


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
