"""Evaluating a policy in simulation, on seeds that it was not trained on.

During a run, evaluations on EVAL_SEEDS decide when it stops, which makes the last one optimistic. A finished run is
measured on TEST_SEEDS, from its folder alone, with its own learner (`evaluate_run`). Other policies, or a run's policy
on another task or with another judge, are evaluated from the policy's folder (`evaluate_policy`): episodes run side by
side and execute whole chunks, as `sequential` does on a robot.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from plaudit.config import load
from plaudit.data.normalize import Normalizer
from plaudit.envs.panda import PandaConfig
from plaudit.errors import DataError, JudgeError, TrainingError
from plaudit.judges.classifier.judge import ClassifierJudge
from plaudit.judges.config import JudgeConfig, judge_tree
from plaudit.judges.labeling import SuccessDetector
from plaudit.judges.simulator import AS_IT_SAYS, SimulatorJudge
from plaudit.judges.stats import wilson
from plaudit.learners.config import DsrlConfig
from plaudit.policies.loader import POLICY_FILE, WEIGHTS_FILE, PolicySpec, load_policy, read_weights
from plaudit.policies.networks import load_components
from plaudit.protocols import Learner, LiveJudge, VecEnv
from plaudit.registry import ENV_REGISTRY, JUDGE_REGISTRY
from plaudit.report.verdict import Verdict, policy_verdict
from plaudit.report.video import EpisodeClip, save_grid_video
from plaudit.rollout.engine import build_policy, validate_chunk
from plaudit.rollout.vector import ActFn, RolloutBatch, collect_rollout
from plaudit.training.config import EVAL_SEEDS, TEST_SEEDS, TrainingConfig
from plaudit.training.retrain import current_judge
from plaudit.training.run_folder import RunFolder
from plaudit.training.setup import build_learner, frozen_encoder_of_run, learner_env_spec, learner_threads
from plaudit.types import AnyArray, BoolArray, ByteArray, EnvSpec, FloatArray, Observation, ProgressFn

MAX_ENVS, MAX_TEST_ENVS = 64, 50  # side by side, on eval seeds and on test seeds
VIDEO_EPISODES = 4
VIDEO_SIZE = (240, 240)  # pixels of each episode, where the simulation renders in any size


@dataclass(frozen=True)
class EvalResult:
    """Episodes of an evaluation that succeed."""

    episodes: int
    successes: int  # by the simulator
    judge_successes: int | None = None  # by the run's judge; None without one
    agreements: int | None = None  # episodes on which the two agree
    video: bytes | None = field(default=None, repr=False)  # an MP4 of the first episodes, for trackers

    @property
    def success_rate(self) -> float:
        """True success."""
        return self.successes / self.episodes

    @property
    def metrics(self) -> dict[str, float]:
        """By the names in docs/metrics.md."""
        judged = (
            {} if self.judge_successes is None else {"eval/judge_success_once": self.judge_successes / self.episodes}
        )
        return {"eval/success_once": self.success_rate, **judged}

    def describe(self) -> str:
        """success rate 93% (simulator; 95% CI 86% to 97%), ..."""
        line = f"success rate {self._rate(self.successes, 'simulator')}"
        if self.judge_successes is None or self.agreements is None:
            return line
        agree = f"they agree on {self.agreements / self.episodes:.0%} of the episodes"
        return f"{line}, {self._rate(self.judge_successes, 'judge')}; {agree}"

    def verdict(self, path: Path, better: str = "", task: str = "") -> Verdict:
        """Whether the policy at a path is usable. better, task: see `policy_verdict`"""
        why = f"{self.successes} of {self.episodes} test episodes succeed, measured by the simulator."
        if self.agreements is not None:
            why += f" The judge agrees in {self.agreements / self.episodes:.0%} of them."
        return policy_verdict(wilson(self.successes, self.episodes), why, path, better, task)

    def _rate(self, count: int, who: str) -> str:
        rate = wilson(count, self.episodes)
        return f"{rate.value:.0%} ({who}; 95% CI {rate.low:.0%} to {rate.high:.0%})"


def evaluate(
    env: VecEnv,
    make_act: Callable[[], ActFn],
    episodes: int,
    *,
    first_seed: int = EVAL_SEEDS,
    judge: LiveJudge | None = None,
    track: ProgressFn = iter,
) -> EvalResult:
    """Play a policy.

    make_act: called for each batch of episodes
    track: shows the progress over these batches
    judge: also decides. An episode ends when both have seen success, since nothing can change then
    """
    detector = SuccessDetector(judge or SimulatorJudge(), env.num_envs)
    batches = [range(seed, seed + env.num_envs) for seed in range(first_seed, first_seed + episodes, env.num_envs)]
    rollouts = [
        collect_rollout(env, make_act(), list(seeds), detector, steps_after_end=env.max_steps)
        for seeds in track(batches)
    ]
    actual = np.array([onset is not None for rollout in rollouts for onset in rollout.first_true])[:episodes]
    if judge is None:
        return EvalResult(episodes, int(actual.sum()))
    predicted = np.concatenate([rollout.success_once for rollout in rollouts])[:episodes]
    return EvalResult(episodes, int(actual.sum()), int(predicted.sum()), int((actual == predicted).sum()))


def evaluate_learner(
    config: TrainingConfig, learner: Learner, env: VecEnv, judge: LiveJudge | None = None
) -> EvalResult:
    """The learner's policy on eval seeds, without exploration, by the simulator and by a judge."""
    make_act = partial(learner.act_fn, explore=False)
    result = evaluate(env, make_act, config.evaluation.episodes, judge=judge)
    if {*config.run.trackers} <= {"tensorboard"}:
        return result
    with closing(config.simulation.build(VIDEO_EPISODES)) as filmed, TemporaryDirectory() as folder:
        video = Path(folder) / "episodes.mp4"
        shown = film(filmed, config.simulation, make_act, judge, video, first_seed=EVAL_SEEDS)
        return replace(result, video=video.read_bytes() if shown else None)


def check_noise(config: TrainingConfig, learner: Any, env: VecEnv, progress_bar: Callable[[str], ProgressFn]) -> None:
    """Before a run of DSRL: refuse a base that acts worse from random noise of the actor's form than from its own."""
    if not isinstance(config.learner, DsrlConfig) or not config.learner.check_episodes:
        return
    episodes = config.learner.check_episodes
    results = [
        evaluate(
            env,
            partial(learner.act_at_random, normal=normal),
            episodes,
            track=progress_bar(f"checking the base: {episodes} episodes from {kind} noise"),
        )
        for normal, kind in ((True, "normal"), (False, "the actor's"))
    ]
    usual, chosen = (wilson(result.successes, episodes) for result in results)
    if not usual.value:
        raise TrainingError(
            f"the base never succeeds in {episodes} episodes, and DSRL only chooses among what the base does; train "
            "the base on more demonstrations, or use learner=expo, which edits its actions"
        )
    if chosen.high < usual.low:
        form = (
            "repeated over the chunk" if config.learner.repeat_noise else f"of at most {config.learner.noise_bound:g}"
        )
        advice = "write learner.repeat_noise=false" if config.learner.repeat_noise else "change learner.noise_bound"
        raise TrainingError(
            f"the base succeeds in {usual.value:.0%} of {episodes} episodes, and in {chosen.value:.0%} from random "
            f"noise {form}: it was not trained for such noise; {advice} (learner.check_episodes=0 skips this check)"
        )


def make_eval_env(config: TrainingConfig, learner: Learner, judge: LiveJudge | None = None) -> VecEnv:
    """The run's task for its evaluations. Unused cameras are not rendered."""
    env, episodes, seen = config.simulation, config.evaluation.episodes, learner.env_spec.cameras
    if judge is not None and config.judge.config.sees_images:
        seen = env.cameras
    if env.obs == "both" and not seen:
        env = env.model_copy(update={"obs": "state"})
    elif seen and {*seen} < {*env.cameras}:
        env = env.model_copy(update={"cameras": tuple(camera for camera in env.cameras if camera in seen)})
    return env.build(-(-episodes // -(-episodes // MAX_ENVS)))  # in rollouts of about the same size


def evaluate_run(folder: RunFolder, episodes: int) -> EvalResult:
    """The newest policy of a run on test seeds, by the simulator and by the run's judge, if that is another."""
    with ExitStack() as stack:
        env, learner = _open(folder, min(episodes, MAX_TEST_ENVS), stack)
        _load_newest(folder, learner)
        act_fn = partial(learner.act_fn, explore=False)
        return evaluate(env, act_fn, episodes, first_seed=TEST_SEEDS, judge=run_judge(folder))


def record_videos(folder: RunFolder) -> list[Path]:
    """`videos/first.mp4` and `videos/last.mp4`; none of a simulation without images."""
    paths = [folder.path / "videos" / name for name in ("first.mp4", "last.mp4")]
    with ExitStack() as stack:
        env, learner = _open(folder, VIDEO_EPISODES, stack)
        judge = run_judge(folder)
        for path in paths:
            if not film(env, folder.config.simulation, partial(learner.act_fn, explore=False), judge, path):
                return []
            _load_newest(folder, learner)  # after the first video
    return paths


def film(
    env: VecEnv,
    env_config: Any,
    make_act: Callable[[], ActFn],
    judge: LiveJudge | None,
    path: Path,
    first_seed: int = TEST_SEEDS,
) -> bool:
    """Film test episodes, one in each environment, in a grid; False where the environment has no images."""
    renders = isinstance(env_config, PandaConfig)  # in any size, whatever the policy sees
    if not renders and not env.cameras:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    watching = judge or SimulatorJudge()
    detector = FilmingDetector(watching, env) if renders else SuccessDetector(watching, env.num_envs)
    seeds = list(range(first_seed, first_seed + env.num_envs))
    rollout = collect_rollout(env, make_act(), seeds, detector, terminate_on_success=True)
    images = detector.frames if isinstance(detector, FilmingDetector) else next(iter(rollout.images.values()))
    frames = np.asarray(images)  # [T+1, N, H, W, 3]
    actual = np.concatenate([np.zeros((1, env.num_envs), bool), _successes(rollout)])
    shown = None if isinstance(watching, SimulatorJudge) else rollout.success
    episodes = [(slice(steps + 1), n) for n, steps in enumerate(rollout.length.tolist())]
    clips = [
        EpisodeClip(frames[at], actual[at], None if shown is None else shown[at], rollout.success_prob[at])
        for at in episodes
    ]
    save_grid_video(path, clips, env.fps)
    return True


def run_judge(folder: RunFolder) -> LiveJudge | None:
    """The run's current judge, if it is not the simulator and can score while an episode runs.

    A vision-language model and a human cannot, nor a rule that needs the whole episode.
    """
    if folder.config.judge.is_human:
        return None
    judge = current_judge(folder.config.judge.config, folder.judge).build()
    if not judge.rule.causal:
        return None
    is_simulator = isinstance(judge, SimulatorJudge) and judge.rule == AS_IT_SAYS
    return judge if isinstance(judge, LiveJudge) and not is_simulator else None


class FilmingDetector(SuccessDetector):
    """A detector that also renders, in a size for people."""

    def __init__(self, judge: LiveJudge, env: Any):
        super().__init__(judge, env.num_envs)
        self._env = env
        self.frames: list[ByteArray] = []  # [N, H, W, 3] each

    def reset(self, observation: Observation, mask: BoolArray | None = None) -> BoolArray:
        self.frames.append(self._env.render("front", VIDEO_SIZE))
        return super().reset(observation, mask)

    def step(self, observation: Observation, info: Mapping[str, AnyArray]) -> BoolArray:
        self.frames.append(self._env.render("front", VIDEO_SIZE))
        return super().step(observation, info)


def _open(folder: RunFolder, num_envs: int, stack: ExitStack) -> tuple[VecEnv, Any]:
    """The run's task, and its learner before any update."""
    config = folder.config
    if not config.simulated:
        raise DataError(f"{folder.path} is a run of a robot, whose true success is unknown; evaluate in a simulation")
    env = stack.enter_context(closing(config.simulation.build(num_envs)))
    env_spec = learner_env_spec(config, env)
    stack.enter_context(learner_threads(config, env_spec))
    return env, build_learner(config, env_spec, frozen_encoder_of_run(folder, env_spec, None, lambda _: iter))


def _load_newest(folder: RunFolder, learner: Any) -> None:
    """Load the policy of the newest checkpoint, or the one that was published last."""
    if folder.config.schedule == "train":
        folder.load_checkpoint(learner)
    else:
        load_components(learner.components, read_weights(folder.policy / WEIGHTS_FILE))


def _successes(rollout: RolloutBatch) -> BoolArray:
    """[T, N] true success."""
    return rollout.privileged["success"].astype(bool) & rollout.valid


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
        self._normalizer = Normalizer.identity(env.state_dim, env.action_dim)
        if spec.normalizer is not None:
            self._normalizer = Normalizer.load(spec.normalizer)
        self._shared = None if spec.inputs is None else build_policy(spec)
        self._task = env.task

    def start(self) -> ActFn:
        """Episodes that begin now."""
        policies = [self._shared or build_policy(self._spec) for _ in range(self._num_envs)]
        waiting: list[deque[FloatArray]] = [deque() for _ in range(self._num_envs)]  # actions still to be executed

        def act(observation: Observation) -> FloatArray:
            observation = replace(observation, task=self._task)
            for number, (policy, actions) in enumerate(zip(policies, waiting, strict=True)):
                if not actions:
                    chunk = policy.predict(observation[number], self._normalizer)
                    actions.extend(validate_chunk(chunk, self._action_dim))
            return np.clip(np.stack([actions.popleft() for actions in waiting]), -1, 1)

        return act


def find_policy(path: Path) -> PolicySpec:
    """Load a policy from its file, its folder, or the folder of a run."""
    places = [path, path / POLICY_FILE, path / "policy" / POLICY_FILE]
    file = (
        path if (path / "model.safetensors").is_file() else next((place for place in places if place.is_file()), None)
    )
    if file is None:
        raise DataError(
            f"{path} is neither a run nor a policy: it has no config.yaml and no {POLICY_FILE}; 'plaudit train' makes "
            "a run, 'plaudit train-policy' a policy"
        )
    return load_policy(file)


def find_judge(path: Path) -> LiveJudge:
    """Build a judge from a reward model's folder or .pt, or a judge's file; it must score while an episode runs."""
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
    inputs, cls = spec.inputs, ENV_REGISTRY.get(name)
    base = {} if own is None else own.model_dump(mode="json")
    cameras = {} if inputs is None else dict(inputs.cameras)
    shown = {**cameras, **(judge.model.cameras if isinstance(judge, ClassifierJudge) else {})}
    sizes = sorted({tuple(size) for size in (*cameras.values(), *shown.values())})
    if len(sizes) > 1:
        both = " and ".join(f"{height}x{width}" for height, width in sizes)
        raise DataError(f"policy and judge look at images of {both}, and an environment has one size for all cameras")
    wanted = [f"cameras=[{','.join(shown)}]", f"image_size=[{sizes[0][0]},{sizes[0][1]}]"] if sizes else []

    def with_obs(obs: str) -> Any:
        overrides = [f"type={name}", f"obs={obs}", *wanted, *settings]
        return load(cls, overrides=overrides, translate=lambda tree: {**base, **tree})

    if not wanted:
        return with_obs("state")
    if not cameras:
        return with_obs("both")
    for obs in ("pixels", "both"):  # which of the two it was trained with shows in the size of its state
        env_config = with_obs(obs)
        with closing(env_config.build(1)) as env:
            if inputs is not None and env.state_dim == inputs.state_dim:
                return env_config
    return with_obs("both")


def evaluate_policy(spec: PolicySpec, env_config: Any, episodes: int, judge: LiveJudge | None) -> EvalResult:
    """Evaluate a policy on test seeds, by the simulator and by a judge; None: by the simulator alone."""
    with closing(env_config.build(min(episodes, MAX_TEST_ENVS))) as env:
        actor = PolicyActor(spec, env, ENV_REGISTRY.name_of(env_config))
        return evaluate(env, actor.start, episodes, first_seed=TEST_SEEDS, judge=judge)


def film_policy(spec: PolicySpec, env_config: Any, judge: LiveJudge | None, path: Path) -> bool:
    """Film a few test episodes; False where the environment has no images."""
    with closing(env_config.build(VIDEO_EPISODES)) as env:
        actor = PolicyActor(spec, env, ENV_REGISTRY.name_of(env_config))
        return film(env, env_config, actor.start, judge, path)
