"""A dense curve of a published reward model: all prefixes of an episode in one pass, and one call of each.

    PYTHONPATH=src python benchmarks/published.py [--quick] [--compile] [--size 480x640]

Needs torch and transformers, and no download: on a GPU the models have the shapes of Qwen3-VL-4B and -8B with random
weights in bfloat16 and the heads of Robometer and RynnValue, and an episode has 50 frames. Without a GPU, or with
--quick, they are tiny models in float32.

    one pass       `PublishedJudge.score`, from frames in memory to scores in numpy: what a user gets
    a call each    transformers' own forward for every prefix, one after the other, up to its last hidden state

The two give the same values, which is checked first. The ceiling is what a large product of matrices reaches here.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import __version__ as transformers_version

import vlm
from bars import Bars
from plaudit.judges.published.clip import make_clip
from plaudit.judges.published.config import RobometerConfig, RynnValueConfig
from plaudit.judges.published.judge import PublishedJudge
from plaudit.judges.published.robometer import TOKENS, RobometerReader
from plaudit.judges.published.rynnvalue import RynnValueReader
from plaudit.judges.published.weights import PublishedModel
from plaudit.judges.vlm.chat_template import expand_images
from plaudit.judges.vlm.images import PATCH, patches

FOUR = {"text_config": {**vlm.LARGE["text_config"], "hidden_size": 2560, "intermediate_size": 9728}}
FOUR["vision_config"] = {
    **vlm.LARGE["vision_config"], "depth": 24, "hidden_size": 1024, "intermediate_size": 4096,
    "out_hidden_size": 2560, "deepstack_visual_indexes": [5, 11, 17],
}  # fmt: skip
TEMPLATE = vlm.TEMPLATE.replace("{% if m.content is string %}{{ m.content }}{% else %}", "").replace(
    "{% endfor %}{% endif %}<|im_end|>", "{% endfor %}<|im_end|>"
)
BINS = {"bins": 256, "min_value": 0.0, "max_value": 512.0, "support_transform": "symlog"}
REPEATS = 8
bars = Bars()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny models and a short episode")
    parser.add_argument("--compile", action="store_true", help="the judges' `compile` setting")
    parser.add_argument("--size", default="224x224", help="height and width of a frame")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    large = device.type == "cuda" and not options.quick
    height, width = map(int, options.size.split("x")) if large else (64, 64)
    size = height, width
    ceiling = vlm.product_flops_per_s(device)
    place = torch.cuda.get_device_name() if device.type == "cuda" else "no GPU"
    vlm.say(f"{place}; torch {torch.__version__}, transformers {transformers_version}")
    vlm.say(f"large products of matrices: {ceiling / 1e12:.3g} TFLOP/s; frames of {size[0]}x{size[1]}")
    for shape, settings in {"4B": FOUR, "8B": vlm.LARGE}.items() if large else {"tiny": vlm.TINY}.items():
        for kind in ("robometer", "rynnvalue"):
            with tempfile.TemporaryDirectory() as folder:
                measure(
                    f"{kind}_{shape}",
                    random_judge(kind, settings, device, Path(folder), options.compile),
                    size,
                    ceiling,
                    large,
                )
            if device.type == "cuda":
                torch.cuda.empty_cache()
    bars.report()


def measure(name: str, judge: PublishedJudge, size: tuple[int, int], ceiling: float, large: bool) -> None:
    frames, repeats = (50, 3) if large else (20, 1)
    episodes = [episode(frames, size, seed) for seed in range(4)]
    difference = agree(judge, episodes[0])
    work = operations(judge, episodes[:1])
    alone = vlm.seconds(lambda: judge.score(episodes[:1]), repeats)
    four = vlm.seconds(lambda: judge.score(episodes), repeats) / 4
    begun = time.perf_counter()
    calls(judge, episodes[0])
    vlm.synchronize()
    each = time.perf_counter() - begun
    shares = [work / seconds / ceiling for seconds in (alone, four)]
    vlm.say(
        f"{name}: one pass {1e3 * alone:.1f} ms ({shares[0]:.1%} of the ceiling), of four episodes {1e3 * four:.1f} ms "
        f"each ({shares[1]:.1%}); a call each {1e3 * each:.1f} ms; largest difference of values {difference:.2g}"
    )
    breakdown(judge, episodes[0])
    if large:
        bars.at_least(f"{name}_one_pass_over_a_call_each", each / alone, 10)
        bars.at_least(f"{name}_share_of_ceiling", max(shares), 0.6)
    else:
        bars.at_least(f"{name}_one_pass_over_a_call_each", each / alone, 1.5)


def breakdown(judge: PublishedJudge, one: Any) -> None:
    """Milliseconds of each part."""
    clip = make_clip(judge.config, 0, one)
    queries = [judge.reader.query(clip, int(frame)) for frame in clip.shown]
    tree = planted(judge, queries)
    packed = tree.pack()
    pictures = list(dict.fromkeys(tree.images))
    with torch.no_grad():
        parts = {
            "prompts": lambda: [judge.reader.query(clip, int(frame)) for frame in clip.shown],
            "tree": lambda: planted(judge, queries).pack(),
            "pixels": lambda: judge.engine.pixels(pictures, {0: clip}),
            "pixels and vision": lambda: judge.engine.encode(tree.images, {0: clip}),
            "all but prompts": lambda: judge.engine.hidden(queries, {0: clip}),
        }
        spent = ", ".join(f"{name} {1e3 * vlm.seconds(call, 2):.1f}" for name, call in parts.items())
    flat = sum(judge_tokens(query) for query in queries)
    vlm.say(f"  {len(packed.ids):,} tokens as a tree, {flat:,} in {len(queries)} prompts; ms: {spent}")


def planted(judge: PublishedJudge, queries: list[Any]) -> Any:
    tree = judge.engine.tree()
    for query in queries:
        tree.add(query)
    return tree


def judge_tokens(query: Any) -> int:
    return len(query.ids) + sum(one.grid[0] * one.grid[1] - 1 for one in query.images)


# One call of transformers for each prefix


@torch.no_grad()
def calls(judge: PublishedJudge, one: Any) -> torch.Tensor:
    clip = make_clip(judge.config, 0, one)
    values = [call(judge, judge.reader.query(clip, int(frame)), {0: clip}) for frame in clip.shown]
    return torch.cat(values)


def call(judge: PublishedJudge, query: Any, clips: Any) -> torch.Tensor:
    engine, model = judge.engine, judge.engine.model
    image = model.config.image_token_id
    ids = torch.from_numpy(expand_images(query.ids, frozenset({image}), [p.grid for p in query.images]).ids)
    ids = ids.to(engine.device)[None]
    pixels = engine.pixels(query.images, clips)[0]
    grids = torch.tensor([[1, p.sizes[-1][0] // PATCH, p.sizes[-1][1] // PATCH] for p in query.images])
    inputs: dict[str, Any] = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "mm_token_type_ids": (ids == image).int(),
        "pixel_values": patches(pixels, model.dtype).flatten(0, 1),
        "image_grid_thw": grids.to(engine.device),
    }
    if judge.reader.isolated:
        positions = model.model.get_rope_index(
            ids, mm_token_type_ids=inputs["mm_token_type_ids"], image_grid_thw=inputs["image_grid_thw"]
        )[0]
        inputs |= {"position_ids": positions, "attention_mask": slot_mask(ids[0], judge.reader.isolated, model.dtype)}
    hidden = model.model(**inputs, use_cache=False).last_hidden_state
    return judge.reader.decode(hidden[:, -query.reads :])


def slot_mask(ids: torch.Tensor, slots: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """[1, 1, L, L] additive, by the published rule."""
    is_slot = torch.isin(ids, torch.tensor(slots, device=ids.device))
    begins = is_slot & ~(torch.roll(is_slot, 1) & (torch.roll(ids, 1) == ids))
    number = torch.where(is_slot, begins.cumsum(0), -1)
    same = (number[:, None] == number[None]) & is_slot[:, None]
    order = torch.arange(len(ids), device=ids.device)
    sees = same | ((order[None] <= order[:, None]) & ~is_slot[None])
    return torch.zeros(1, 1, len(ids), len(ids), dtype=dtype, device=ids.device).masked_fill(
        ~sees, torch.finfo(dtype).min
    )


def agree(judge: PublishedJudge, one: Any) -> float:
    """The largest difference of the values between the two."""
    clip = make_clip(judge.config, 0, one)
    queries = [judge.reader.query(clip, int(frame)) for frame in clip.shown]
    ours = judge.reader.read(judge.engine, queries, {0: clip})
    return float((ours - calls(judge, one))[:, 0].abs().max())


def operations(judge: PublishedJudge, episodes: list[Any]) -> float:
    """Of one pass: two for each weight and token, what attention sees, and the vision tower. The end of the last layer
    runs for the tokens that are read."""
    clip = make_clip(judge.config, 0, episodes[0])
    tree = planted(judge, [judge.reader.query(clip, int(frame)) for frame in clip.shown])
    packed, images = tree.pack(), set(tree.images)
    config: Any = judge.engine.model.config
    text = config.text_config
    grid = next(iter(images)).grid
    read = sum(map(len, packed.reads))
    base = vlm.flops(config, len(packed.ids), len(images), (grid[0] * 2) * (grid[1] * 2), read)
    wide = text.num_attention_heads * text.head_dim
    square = text.num_hidden_layers * 2 * len(packed.ids) ** 2 * wide  # which the formula counts for one sequence
    seen = sum(4 * queries.shape[0] * queries.shape[1] * keys.shape[1] * wide for queries, keys, _ in packed.groups)
    return base - square + text.num_hidden_layers * seen


# Random models


def episode(frames: int, size: tuple[int, int], seed: int) -> Any:
    from plaudit.types import Episode

    images = np.random.default_rng(seed).integers(0, 256, (frames, *size, 3), np.uint8)
    return Episode.of(frames={"front": images}, actions=np.zeros((frames - 1, 1)), task=vlm.TASK)


def random_judge(
    kind: str, shape: dict[str, Any], device: torch.device, folder: Path, compiled: bool = False
) -> PublishedJudge:
    loaded = vlm.random_model(shape, device)
    tokenizer, width = loaded.tokenizer, shape["text_config"]["hidden_size"]
    words = TOKENS if kind == "robometer" else ("<value>", "<relative_value>")
    tokenizer.add_tokens(list(words), special_tokens=True)
    common: dict[str, Any] = {"model": str(folder), "device": device.type, "max_batch_tokens": 1 << 18}
    common["compile"] = compiled
    described: dict[str, Any] = {}
    if kind == "robometer":
        modules = {"progress_head": small_head(width, 10), "success_head": small_head(width, 1)}
    else:
        modules = {"value_heads.0.proj": nn.Linear(width * REPEATS, 256)}
        described = {
            "value_tokenizer_config": BINS,
            "value_head_config": {"head_type": "linear"},
            "value_token_repeat": REPEATS,
            "relative_value_token_repeat": REPEATS,
        }
        (folder / "config.json").write_text(json.dumps(described))
        (folder / "processor_config.json").write_text(json.dumps({"value_token_repeat": REPEATS}))
    heads = {f"{n}.{k}": v.detach().to(device) for n, m in modules.items() for k, v in m.state_dict().items()}
    model = PublishedModel(loaded.model, tokenizer, TEMPLATE, described, "random", "random", heads)
    reader: Any
    if kind == "robometer":
        config: Any = RobometerConfig(**common)
        reader = RobometerReader(config, model)
    else:
        config = RynnValueConfig(**common)
        reader = RynnValueReader(config, model)
    return PublishedJudge(config, reader, model)


def small_head(width: int, outputs: int) -> nn.Module:
    inner = width // 2
    return nn.Sequential(
        nn.Linear(width, inner), nn.LayerNorm(inner), nn.GELU(), nn.Dropout(0.1), nn.Linear(inner, outputs)
    )


if __name__ == "__main__":
    main()
