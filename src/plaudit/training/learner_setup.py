"""Building the learner of a run, wherever it learns."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plaudit.contracts import missing_members
from plaudit.data.features import FeatureCache
from plaudit.data.normalize import Normalizer
from plaudit.data.store import Store
from plaudit.devices import resolve_device
from plaudit.errors import ContractError, TrainingError
from plaudit.learners.base import EncoderSpec, torch_threads
from plaudit.learners.config import FromBaseConfig
from plaudit.policies.config import CLONED
from plaudit.policies.loader import FROZEN_FILE, read_weights, write_weights
from plaudit.policies.networks import FROZEN, load_components, weights_of
from plaudit.protocols import Learner, VecEnv
from plaudit.robots.config import RobotConfig
from plaudit.training.config import TrainingConfig
from plaudit.training.replay_buffer import SampleOptions
from plaudit.training.run_folder import RunFolder
from plaudit.types import AnyArray, Batch, EnvSpec, PolicyWeights

if TYPE_CHECKING:
    from plaudit.data.device_frames import DeviceFrames
    from plaudit.policies.pretrained import FrozenEncoder


def learner_env_spec(config: TrainingConfig, env: VecEnv | EnvSpec) -> EnvSpec:
    """What the learner sees of an env or a robot, and does to it."""
    chosen = env.cameras if config.policy.cameras is None else config.policy.cameras
    for camera in chosen:
        if camera not in env.cameras:
            cameras = ", ".join(env.cameras) or "none"
            raise TrainingError(
                f"policy.cameras has '{camera}', which {config.target_name} does not have; it has: {cameras}"
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
