"""What a learner's actions, which lie within [-1, 1], are on a robot.

A simulation takes them as they are. A robot has units of its own, and a normalizer converts. With the mean and standard
deviation of a data set a learner would never leave one deviation around the mean, so what counts is a range:

    policy.normalizer    as it is, or that of the policy that the run starts from
    demonstrations       the minimum and maximum of each joint in them
    acting policy        where neither is there, three standard deviations around the mean of its own normalizer, or of
                         that of the base which the learner improves

They stay what they were when the run began, in its folder (policy/normalizer.json), go to every machine with the
config, and are stored with the policy that is learned.
"""

from typing import Any

from plaudit.data.normalize import Normalizer
from plaudit.data.store import Store
from plaudit.errors import TrainingError
from plaudit.learners.config import FromBaseConfig
from plaudit.policies.loader import ALLOW_UNTRAINED, load_policy
from plaudit.training.config import TrainingConfig
from plaudit.training.run_folder import RunFolder

NUM_STD = 3.0  # standard deviations of a range
MAX_OUT_OF_RANGE = 0.02  # fraction of the demonstrated actions that a policy may be unable to express


def resolve_normalizer(folder: RunFolder) -> TrainingConfig:
    """The run's config with the normalizer itself; it is chosen once, and read from the folder then."""
    config = folder.config
    if config.simulated:
        return config
    kept, inference = folder.policy / "normalizer.json", config.policy.inference
    normalizer = Normalizer.load(kept) if kept.exists() else _choose(folder)
    if normalizer is not None and not kept.exists():
        folder.policy.mkdir(exist_ok=True)
        normalizer.save(kept)
    learning: dict[str, Any] | None = None if normalizer is None else normalizer.tree
    acting = learning
    if config.policy.behavior == "pretrained":
        acting = None if inference.normalizer is None else Normalizer.load(inference.normalizer).tree
    update = {"inference": inference.model_copy(update={"normalizer": acting}), "normalizer": learning}
    return config.model_copy(update={"policy": config.policy.model_copy(update=update)})


def check_trained(config: TrainingConfig) -> None:
    """Refuse to let a policy explore on a robot that has learned nothing, or whose actions have no units there."""
    policy, robot = config.policy, config.target_name
    if config.simulated or policy.inference.allow_untrained:
        return
    if policy.behavior == "pretrained" and policy.path is not None:
        load_policy(policy.path).check_trained(robot, scaled=policy.inference.normalizer is not None)
    elif policy.normalizer is None:
        raise TrainingError(
            f"nothing says what actions from -1 to 1 are on {robot}, and they would be sent as they are. Give it "
            "demonstrations (demos.store=), or statistics (policy.normalizer=, from plaudit data stats --range), or "
            f"say that you want this: {ALLOW_UNTRAINED}"
        )
    elif policy.path is None and not config.demos.any and not isinstance(config.learner, FromBaseConfig):
        raise TrainingError(
            f"this policy is untrained, and {robot} would move at random; give it demonstrations (demos.store=) or a "
            f"policy to start from (policy.path=), or say that you want this: {ALLOW_UNTRAINED}"
        )


def _choose(folder: RunFolder) -> Normalizer | None:
    config, demos = folder.config, folder.demo_store
    if config.policy.normalizer is not None:
        named = Normalizer.load(config.policy.normalizer)
        outside = 0.0 if demos is None else named.beyond(Store.open(demos))
        if outside > MAX_OUT_OF_RANGE:
            raise TrainingError(
                f"{outside:.0%} of the actions in {demos} lie outside of what the policy can express, which is -1 to 1 "
                f"of policy.normalizer. Take the demonstrations' own range: plaudit data stats {demos} --range, and "
                "write policy.normalizer=stats.json"
            )
        return named
    if demos is not None:
        return Normalizer.from_store(Store.open(demos), by_range=True)
    acting = config.policy.inference.normalizer
    if acting is None and isinstance(config.learner, FromBaseConfig):
        acting = config.learner.base_spec.normalizer
    return None if acting is None else Normalizer.load(acting).widen(NUM_STD)
