"""The keys of a config, and values for them that their own types, bounds and choices allow.

    keys = leaves(config)                       # dotted key -> schema and default
    value = any_value(keys["learner.tau"], "learner.tau", seed)

Numbers are drawn up to a factor of 100 from their default, within their bounds and `CAPS`. What has no meaning in a
simulated run is in `NEVER`, with the reason.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from plaudit.config import Config
from plaudit.testing.world import pick, uniform
from plaudit.training.config import JudgeSettings

CAPS: Mapping[str, int] = {  # of what takes time: the last words of a key -> the largest value
    **dict.fromkeys(("hidden_dims", "velocity_net.width", "encoder.features"), 16),
    **dict.fromkeys(("batch_size", "pretrain_batch_size", "clone_batch_size", "pretrain_updates"), 32),
    **dict.fromkeys(("clone_updates", "relearn_updates"), 20),
    **dict.fromkeys(("num_samples", "num_critics", "num_subsample_critics", "num_inference_steps", "history"), 4),
    **dict.fromkeys(("update_epochs", "velocity_net.depth", "random_shift_pad", "evaluation.episodes"), 4),
    **dict.fromkeys(("num_envs", "num_minibatches", "check_episodes"), 8),
    **dict.fromkeys(("num_threads", "utd_ratio"), 2),
    "run.max_steps": 1000,
    "horizon": 4,  # steps of the shortest episodes
}
TEXTS: Mapping[str, tuple[Any, ...]] = {  # keys whose type is not enough to draw from
    "task": ('push "it" to the {goal}, 100% \u00fcber',),
    "policy.inference.name": ("a robot",),
    "judge.window.labeler": ("J. Doe",),
    "judge.retrain.sources": (["human"], ["simulator"], ["human", "simulator", "cutoff"]),
    "run.name": ("my-run_2.0",),
    "run.store_images": ("jpeg:90", "front=lossless"),
    "run.trackers": ([],),
    "collect.store_images": ("lossless",),
    "collect.cameras": (["front"],),
}
_MODEL, _GPU = "a file of a real model", "simulated runs have no GPU"
_DEVICE, _RTC = "commands come from the scenario, not from a device", "rtc acts in real time"
NEVER: Mapping[str, str] = {  # a key, or its beginning -> why it is not drawn
    "robot": "a device; `env` is driven as a robot",
    "rerun": "a viewer",
    "forecast": _MODEL,
    "cluster": "the workers of a simulated run take turns in one process",
    "env.cameras": "the simulated judge sees camera 'front'",
    "env.image_size": "the simulated judge reads its pictures",
    **dict.fromkeys(("operator.auto", "operator.sources", "operator.device", "operator.cue"), _DEVICE),
    **dict.fromkeys(("operator.keys", "operator.buttons"), _DEVICE),
    **dict.fromkeys(("policy.inference.realtime", "policy.inference.delay_window"), _RTC),
    "policy.inference.control_cpu": _RTC,
    **dict.fromkeys(("policy.normalizer", "policy.inference.normalizer"), "a simulation takes actions as they are"),
    "policy.encoder.options": _MODEL,
    **dict.fromkeys(("policy.device", "run.device", "run.replay_on_gpu", "judge.device"), _GPU),
    **dict.fromkeys(("judge.certificate", "judge.progress", "judge.network", "reward.reward_model"), _MODEL),
    **dict.fromkeys(("judge.rights", "judge.calibration_record"), _MODEL),
    **dict.fromkeys(("judge.retrain.data", "judge.retrain.train_overrides"), "candidates are drawn, not trained"),
    "judge.window.open": "people label without a window",
    **dict.fromkeys(("demos.scripted", "demos.noise"), "only built-in tasks have a scripted expert"),
    **dict.fromkeys(("collect.positive_dir", "collect.negative_dir", "collect.save_dir"), "copies for other programs"),
    "run.resume_dir": "the command's; resuming is simulated",
}
NONE = {"type": "null"}
Leaf = tuple[Mapping[str, Any], Any]  # JSON schema, default


def leaves(config: Config, above: str = "") -> dict[str, Leaf]:
    """The keys of a config: values, and sections that a config has by default and can be without."""
    keys: dict[str, Leaf] = {}
    for name, field in type(config).model_fields.items():
        value, inline = getattr(config, name), isinstance(config, JudgeSettings) and name == "config"
        schema, default = _schemas(type(config))[name], field.get_default(call_default_factory=True)
        is_section = isinstance(value, Config)
        if is_section:
            keys |= leaves(value, above if inline else f"{above}{name}.")
        if not is_section or (
            NONE in schema.get("anyOf", ()) and default is not None
        ):  # a section that can be left out
            keys[above + name] = schema, default
    return keys


@cache
def _schemas(cls: type[Config]) -> dict[str, Any]:
    return cls.model_json_schema()["properties"]


def belongs(key: str, names: Iterable[str]) -> bool:
    """Whether a key is one of these, or inside one."""
    return any(f"{key}.".startswith(f"{name}.") for name in names)


def any_value(leaf: Leaf, key: str, *lot: object) -> Any:
    """A value that the type of a key allows; None or its default where nothing can be drawn."""
    schema, default = leaf
    if key in TEXTS:
        return pick(TEXTS[key], *lot)
    kinds = schema.get("anyOf", [schema])
    if NONE in kinds and uniform(*lot, "none") < 0.2:
        return None
    cap = next((cap for name, cap in CAPS.items() if f".{key}".endswith(f".{name}")), None)
    for kind in kinds:
        if "enum" in kind:
            return pick(kind["enum"], *lot)
        if kind.get("type") == "boolean":
            return pick((True, False), *lot)
        if kind.get("type") in ("integer", "number"):
            return _number(kind, default, cap, *lot)
        if kind.get("minItems") and kind.get("items", {}).get("type") == "integer":
            return [_number(kind["items"], None, cap, *lot, n) for n in range(pick((1, 2), *lot, "count"))]
    return None if NONE in kinds else default


def _number(schema: Mapping[str, Any], default: Any, cap: float | None, *lot: object) -> int | float:
    low = schema.get("minimum", schema.get("exclusiveMinimum", -1e9))
    high = min(schema.get("maximum", schema.get("exclusiveMaximum", 1e9)), 1e9 if cap is None else cap)
    if "minimum" in schema and "maximum" in schema and uniform(*lot, "edge") < 0.1:
        return low
    if schema["type"] == "integer":
        low += "exclusiveMinimum" in schema
    if high - low <= 10 and (schema["type"] == "integer" or "exclusiveMinimum" not in schema):
        number = low + uniform(*lot) * (high - low + (schema["type"] == "integer"))
    else:
        number = (abs(default) if isinstance(default, int | float) and default else 1) * 100 ** (2 * uniform(*lot) - 1)
        number = max(low, min(high, -number if low < 0 and uniform(*lot, "sign") < 0.5 else number))
    return int(number) if schema["type"] == "integer" else float(f"{number:.4g}")
