"""Evaluating any policy on test seeds of a simulated task: `plaudit eval POLICY --env lift`.

A run is evaluated with its own learner (evaluation.py); this is for a policy's folder alone, or for a run's policy on
another task or with another judge. Episodes run side by side, each executing whole chunks, as `sequential` does on a
robot.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from plaudit.config import load
from plaudit.data.normalize import Normalizer
from plaudit.envs.panda import PandaConfig
from plaudit.errors import DataError, JudgeError
from plaudit.judges.classifier.judge import ClassifierJudge
from plaudit.judges.config import JudgeConfig, judge_tree
from plaudit.judges.detector import SuccessDetector
from plaudit.judges.simulator import SimulatorJudge
from plaudit.policies.config import NetworkPolicyConfig
from plaudit.policies.loader import POLICY_FILE, PolicySpec, load_policy
from plaudit.protocols import LiveJudge, VecEnv
from plaudit.registry import ENV_REGISTRY, JUDGE_REGISTRY
from plaudit.rollout.engine import build_policy, validate_chunk
from plaudit.rollout.vector import ActFn
from plaudit.training.evaluation import VIDEO_EPISODES, EvalResult, evaluate_actor, film
from plaudit.training.seeds import TEST_SEEDS
from plaudit.types import EnvSpec, FloatArray, Observation

MAX_ENVS = 50  # side by side


class PolicyActor:
    """One policy in N environments: each executes its chunk to the end, then the policy is asked again.

    A policy with networks is asked for one environment after the other. Others may keep track of where they are in an
    episode, so each environment has one of its own.
    """

    def __init__(self, spec: PolicySpec, env: VecEnv, name: str = ""):
        """name: of the task, as messages call it"""
        env_spec = EnvSpec(env.state_dim, env.action_dim, dict(env.cameras), env.fps, name)
        spec.check_fits(env_spec)
        self._spec, self._num_envs, self._action_dim = spec, env.num_envs, env.action_dim
        self._normalizer = (
            Normalizer.identity(env.state_dim, env.action_dim)
            if spec.normalizer is None
            else Normalizer.load(spec.normalizer)
        )
        shares = isinstance(spec.config, NetworkPolicyConfig)
        self._shared = build_policy(spec) if shares else None

    def start(self) -> ActFn:
        """Episodes that begin now."""
        shared = self._shared
        policies = [shared or build_policy(self._spec) for _ in range(self._num_envs)]
        waiting: list[deque[FloatArray]] = [deque() for _ in range(self._num_envs)]  # actions still to be executed

        def act(observation: Observation) -> FloatArray:
            for number, (policy, actions) in enumerate(zip(policies, waiting, strict=True)):
                if not actions:
                    images = {camera: frames[number] for camera, frames in observation.images.items()}
                    seen = Observation(images, observation.state[number])
                    actions.extend(validate_chunk(policy.predict(seen, self._normalizer), self._action_dim))
            return np.clip(np.stack([actions.popleft() for actions in waiting]), -1, 1)

        return act


def find_policy(path: Path) -> PolicySpec:
    """Of a policy's file, its folder, or the folder of a run."""
    places = [path, path / POLICY_FILE, path / "policy" / POLICY_FILE]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise DataError(
            f"{path} is neither a run nor a policy: it has no config.yaml and no {POLICY_FILE}; 'plaudit train' makes "
            "a run, 'plaudit train-policy' a policy"
        )
    return load_policy(found)


def find_judge(path: Path) -> LiveJudge:
    """Of a reward model's folder or .pt, or of a judge's file; it must be able to follow an episode."""
    config = JUDGE_REGISTRY.parse(judge_tree(path))
    assert isinstance(config, JudgeConfig)
    judge = config.build()
    if not isinstance(judge, LiveJudge):
        raise JudgeError(f"{path} scores whole episodes, and an evaluation needs its decision after every step")
    return judge


def env_config_for(
    name: str, settings: Sequence[str], spec: PolicySpec, judge: LiveJudge | None, own: Any | None = None
) -> Any:
    """The config of a task by its name, with the images that policy and judge look at.

    settings: like id=Pusher-v5; they win
    own: the config of the run's own task, to start from
    """
    config, cls = spec.config, ENV_REGISTRY.get(name)
    base = {} if own is None else own.model_dump(mode="json")
    cameras = dict(config.cameras) if isinstance(config, NetworkPolicyConfig) else {}
    wanted = _needed_images(cameras, judge)

    def with_obs(obs: str) -> Any:
        overrides = [f"type={name}", f"obs={obs}", *wanted, *settings]
        return load(cls, overrides=overrides, translate=lambda tree: {**base, **tree})

    if not wanted:
        return with_obs("state")
    if not cameras:
        return with_obs("both")
    for obs in ("pixels", "both"):  # which of the two it was trained with shows in the size of its state
        found = with_obs(obs)
        with closing(found.build(1)) as env:
            if env.state_dim == config.state_dim:
                return found
    return with_obs("both")


def _needed_images(cameras: Mapping[str, tuple[int, int]], judge: LiveJudge | None) -> list[str]:
    """Keys of an environment's config; none where nobody looks at images. cameras: of the policy"""
    wanted = {**cameras, **(judge.model.cameras if isinstance(judge, ClassifierJudge) else {})}
    sizes = sorted({tuple(size) for size in (*cameras.values(), *wanted.values())})
    if not sizes:
        return []
    if len(sizes) > 1:
        shown = " and ".join(f"{height}x{width}" for height, width in sizes)
        raise DataError(f"policy and judge look at images of {shown}, and an environment has one size for all cameras")
    return [f"cameras=[{','.join(wanted)}]", f"image_size=[{sizes[0][0]},{sizes[0][1]}]"]


def evaluate_policy(spec: PolicySpec, env_config: Any, episodes: int, judge: LiveJudge | None) -> EvalResult:
    """On test seeds, by the simulator and by a judge; None: by the simulator alone."""
    with closing(env_config.build(min(episodes, MAX_ENVS))) as env:
        actor = PolicyActor(spec, env, ENV_REGISTRY.name_of(env_config))
        detector = None if judge is None else SuccessDetector(judge, env.num_envs)
        return evaluate_actor(env, actor.start, episodes, TEST_SEEDS, detector)


def film_policy(spec: PolicySpec, env_config: Any, judge: LiveJudge | None, path: Path) -> bool:
    """A few test episodes; False where the environment has no images."""
    with closing(env_config.build(VIDEO_EPISODES)) as env:
        renders = isinstance(env_config, PandaConfig)
        if not renders and not env.cameras:
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        film(
            env,
            PolicyActor(spec, env, ENV_REGISTRY.name_of(env_config)).start,
            judge or SimulatorJudge(),
            path,
            renders=renders,
        )
    return True
