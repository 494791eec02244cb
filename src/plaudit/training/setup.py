"""What a run begins with: its demonstrations, the units of its actions, and its learner.

The demonstrations are a store that the config names, or scripted ones made at the start.

A learner's actions lie within [-1, 1]. A simulation takes them as they are. A robot has units of its own, and a
normalizer converts. With the mean and standard deviation of a data set a learner would never leave one deviation around
the mean, so what counts is a range:

    policy.normalizer    as it is, or that of the policy that the run starts from
    demonstrations       the minimum and maximum of each joint in them
    acting policy        where neither is there, three standard deviations around the mean of its own normalizer, or of
                         that of the base which the learner improves

They stay what they were when the run began, in its folder (policy/normalizer.json), go to every machine with the
config, and are stored with the policy that is learned.
"""

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plaudit.contracts import missing_members
from plaudit.data.batch import FeatureCache
from plaudit.data.frame_codecs import StoreImages
from plaudit.data.normalize import Normalizer
from plaudit.data.store import Store
from plaudit.devices import resolve_device
from plaudit.errors import ContractError, DataError, TrainingError, did_you_mean
from plaudit.learners.base import EncoderSpec, torch_threads
from plaudit.learners.config import FromBaseConfig
from plaudit.policies.config import CLONED
from plaudit.policies.loader import ALLOW_UNTRAINED, FROZEN_FILE, load_policy, read_weights, write_weights
from plaudit.policies.networks import FROZEN, load_components, weights_of
from plaudit.protocols import Learner, VecEnv
from plaudit.robots.config import RobotConfig
from plaudit.rollout.scripted import record_demos
from plaudit.training.config import TrainingConfig, demo_seed
from plaudit.training.replay_buffer import SampleOptions
from plaudit.training.run_folder import RunFolder
from plaudit.types import AnyArray, Batch, EnvSpec, PolicyWeights

if TYPE_CHECKING:
    from plaudit.data.device_frames import DeviceFrames
    from plaudit.policies.pretrained import FrozenEncoder


LINGER_STEPS = 10  # after success, so that a judge that needs several frames sees it too


def check_demos(config: TrainingConfig) -> None:
    """Refuse a store without episodes, or without labels that will not be labeled."""
    if config.demos.store is None:
        return
    store = Store.open(config.demos.store)
    if not store.ids:
        raise DataError(f"{store.folder} has no episodes, so there are no demonstrations; record some (plaudit record)")
    if not len(store.ledger) and not config.relabels_demos:
        raise DataError(f"{store.folder} has no labels; label it first (plaudit label)")


def check_demos_fit(demos: Store, env_spec: EnvSpec, name: str) -> None:
    """Refuse demonstrations of another robot or task: other sizes of state, action or camera images.

    name: of the robot or task of the run
    """
    if not demos.ids:  # no scripted demonstration succeeded
        return
    episode = demos.episode(demos.ids[0])
    for what, array, numbers in (
        ("states", episode.state, env_spec.state_dim),
        ("actions", episode.actions, env_spec.action_dim),
    ):
        if array.shape[1] != numbers:
            raise DataError(
                f"{demos.folder} has {what} of {array.shape[1]} numbers, and {name} has {numbers}; name demonstrations "
                "of the same robot or task with the same observations (env.obs)"
            )
    for camera, size in env_spec.cameras.items():
        if camera not in episode.frames:
            raise DataError(
                f"{demos.folder} has no camera '{camera}', which the policy sees; "
                f"{did_you_mean(camera, episode.frames)} (policy.cameras says what it sees)"
            )
        recorded, wanted = ("x".join(map(str, each)) for each in (episode.frames[camera].shape[1:3], size))
        if recorded != wanted:
            raise DataError(
                f"{demos.folder} has images of {recorded} from camera '{camera}', and {name} gives {wanted}; set that "
                "size, or name demonstrations of the same size"
            )


def unseen_success(successes: int, count: int) -> str:
    """A warning if the judge sees success in less than half of the demonstrations; "" otherwise."""
    if 2 * successes >= count:
        return ""
    return (
        f"the judge sees success in {successes or 'none'} of the {count} demonstrations. They may end with their first "
        "frame of success, where a careful judge needs a few more (record them with --steps-after-success 10). Or its "
        "rule is too strict (judge.rule), or they show another task."
    )


def open_demos(folder: RunFolder, progress: Callable[[str], Any]) -> Store | None:
    """The demonstrations; None where there are none. Scripted ones are made the first time."""
    config, path = folder.config, folder.demo_store
    if path is None:
        return None
    if config.demos.scripted and not path.exists():
        part = path.with_name(".demos.part")  # a run that is killed meanwhile makes the same ones again
        shutil.rmtree(part, ignore_errors=True)
        with Store.create(part) as store:
            record_demos(
                config.simulation,
                store,
                episodes=config.demos.scripted,
                noise=config.demos.noise,
                seed=demo_seed(config.run.seed),
                steps_after_success=LINGER_STEPS if config.relabels_demos else 0,
                progress=progress("demonstrations"),
            )
        part.rename(path)
    return Store.open(path)


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
        store = Store.open(demos)
        ids = [i for i in store.ids if not store.ledger.is_excluded(i)]
        return Normalizer.from_store(store, by_range=True, ids=ids)
    acting = config.policy.inference.normalizer
    if acting is None and isinstance(config.learner, FromBaseConfig):
        acting = config.learner.base_spec.normalizer
    return None if acting is None else Normalizer.load(acting).widen(NUM_STD)


def learner_env_spec(config: TrainingConfig, env: VecEnv | EnvSpec) -> EnvSpec:
    """What the learner sees of an env or a robot, and does to it."""
    chosen = env.cameras if config.policy.cameras is None else config.policy.cameras
    stored = dict(StoreImages.parse(config.run.store_images).cameras)
    for key, named in {"policy.cameras": chosen, "run.store_images": stored}.items():
        for camera in named:
            if camera not in env.cameras:
                cameras = ", ".join(env.cameras) or "none"
                raise TrainingError(
                    f"{key} has '{camera}', which {config.target_name} does not have; it has: {cameras}"
                )
    if isinstance(env, EnvSpec):
        _check_stale_chunks(config, env)
    return EnvSpec(env.state_dim, env.action_dim, {camera: env.cameras[camera] for camera in chosen})


def _check_stale_chunks(config: TrainingConfig, robot: EnvSpec) -> None:
    """Refuse a backup over actions that the robot's safety limits keep back as too old."""
    backup, robot_config = config.backup_horizon or 1, config.engine.robot
    stale = robot_config.limits(robot.action_dim).stale_chunk_s if isinstance(robot_config, RobotConfig) else None
    if stale is not None and robot.fps and backup > stale * robot.fps:
        raise TrainingError(
            f"the learner's backup spans {backup} actions, {backup / robot.fps:.1f} s of this robot, and commands are "
            f"not sent {stale:g} s after their observation (robot.safety.stale_chunk_s); lower learner.horizon, or "
            "raise the limit"
        )


def frozen_encoder(
    config: TrainingConfig,
    env_spec: EnvSpec,
    saved: PolicyWeights | None,
    demos: Store | None,
    progress_bar: Callable[[str], Any],
    prepare: Callable[[Batch[AnyArray]], Batch[AnyArray]] = lambda batch: batch,
) -> "FrozenEncoder | None":
    """The frozen part of the policy's image encoder; None if it has none.

    saved: its weights, in a run that is resumed; None: it is trained on the demonstrations, or its file is loaded
    prepare: normalizes a batch
    """
    encoder = config.policy.encoder
    if not encoder.is_frozen or not env_spec.cameras:
        return None
    from plaudit.learners.bc import clone_encoder
    from plaudit.policies.pretrained import FrozenEncoder

    device = resolve_device(config.run.device)
    if saved is not None:
        frozen = FrozenEncoder(encoder, env_spec.cameras, pretrained=False).to(device)
        load_components({FROZEN: frozen}, saved)
        return frozen
    if encoder.type != CLONED:
        return FrozenEncoder(encoder, env_spec.cameras).to(device)
    assert demos is not None  # the config is refused
    track = progress_bar("cloning demonstrations")
    return clone_encoder(encoder, env_spec, demos, prepare, seed=config.run.seed, device=device, track=track)


def frozen_encoder_of_run(
    folder: RunFolder, env_spec: EnvSpec, demos: Store | None, progress_bar: Callable[[str], Any]
) -> "FrozenEncoder | None":
    """The same of a run in a folder, which keeps the weights."""
    path = folder.policy / FROZEN_FILE
    saved = read_weights(path) if path.exists() else None
    frozen = frozen_encoder(folder.config, env_spec, saved, demos, progress_bar)
    if frozen is not None and saved is None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_weights(path, weights_of(0, {FROZEN: frozen}))
    return frozen


def build_learner(config: TrainingConfig, env_spec: EnvSpec, frozen: "FrozenEncoder | None" = None) -> Any:
    """The run's learner as its seed makes it. frozen: the frozen part of its image encoder"""
    spec = EncoderSpec(config.policy.encoder, frozen, config.policy.history)
    options: dict[str, Any] = {} if spec == EncoderSpec() else {"encoder": spec}
    if isinstance(config.learner, FromBaseConfig) and config.policy.normalizer is not None:
        options["around"] = Normalizer.load(config.policy.normalizer)
    learner = config.learner.build(env_spec, config.run.seed, str(resolve_device(config.run.device)), **options)
    missing = missing_members(learner, Learner)
    if missing:
        raise ContractError(
            f"learner '{config.learner_name}' builds a {type(learner).__name__}, which lacks {', '.join(missing)}; see "
            "plaudit.protocols.Learner for what a run needs of it"
        )
    return learner


def feature_cache(learner: Any, folder: Path | None) -> FeatureCache | None:
    """What encodes frames for the replay of a learner with a frozen encoder; None for others.

    folder: where features are kept; None: nowhere
    """
    encoder = getattr(learner, "encoder", None)
    frozen = encoder.frozen if isinstance(encoder, EncoderSpec) else None
    if frozen is None:
        return None
    return FeatureCache(frozen.encode, frozen.shapes, frozen.fingerprint, folder)


def device_frames(config: TrainingConfig, learner: Any) -> "DeviceFrames | None":
    """Where the replay of a learner keeps frames: on its GPU; None: on the disk."""
    wanted, device = config.run.replay_on_gpu, str(learner.device)
    if not device.startswith("cuda"):
        if wanted:
            raise TrainingError(f"run.replay_on_gpu is set, and the learner is on '{device}'; set run.device=cuda")
        return None
    if wanted is False or not learner.env_spec.cameras:
        return None
    from plaudit.data.device_frames import DeviceFrames

    return DeviceFrames(device, required=wanted is True)


def sample_options(config: TrainingConfig, learner: Any, source: str, seed: int) -> SampleOptions:
    """What a learner from replay samples. source: whose labels count"""
    interventions = learner.config.interventions
    if learner.config.imitates_successes:
        interventions = interventions.model_copy(update={"successes": True})
    return SampleOptions(
        source=source,
        **learner.replay_options,
        demo_ratio=learner.config.demo_ratio,
        interventions=interventions,
        reward=config.reward,
        terminate_on_success=config.reward.terminates,
        trust_demos=not config.relabels_demos,
        hold_back=config.labels_late_by,
        seed=seed,
    )


def learner_threads(config: TrainingConfig, env_spec: EnvSpec) -> AbstractContextManager[None]:
    """Threads of torch, for as long as the learner computes."""
    return torch_threads(config.run.num_threads, images=bool(env_spec.cameras) and not config.policy.encoder.is_frozen)
