"""The interfaces of plugins, and the loop that calls them.

    for episode in engine.episodes(1000):                # robot and policy, in real time; numpy only
        episode_id = store.append(episode)               # on disk before anything else happens
        ledger.append(episode_id, label_episodes(judge, [episode])[0])  # now, or days later
        learner.update(replay.sample(256))
        engine.push(learner.weights())                   # the next episode acts with what was learned

A plugin is a class with these methods; it inherits nothing. `plaudit.contracts` has a check for each.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from plaudit.errors import PlauditError
from plaudit.rule import DecisionRule
from plaudit.types import AnyArray, BoolArray, EnvSpec, Episode, FloatArray, JudgeId, Observation, PolicyWeights, Scores


@runtime_checkable
class Robot(Protocol):
    """A robot, or a simulation of one. `plaudit.rollout.engine.ControlStep` calls it, once a tick:

    ```python
    observation = robot.reset()
    while not done:
        robot.act(policy.predict(observation, normalizer)[0])
        observation = robot.observe()
    robot.hold()
    ```
    """

    cameras: Mapping[str, tuple[int, int]]  # name -> (H, W)
    state_dim: int
    action_dim: int
    fps: float  # control steps per second

    @property
    def last_command(self) -> FloatArray | None:
        """[A] what the last `act` really sent, after the robot's own limits: this is recorded. None before the first
        command of an episode; a plain attribute does."""
        ...

    def reset(self, seed: int | None = None) -> Observation:
        """Move to the start; a simulation with the same seed starts the same, a real robot ignores it."""
        ...

    def act(self, action: FloatArray) -> None:
        """Send one command [A]."""
        ...

    def observe(self) -> Observation:
        """The newest observation; a simulation steps its clock here."""
        ...

    def privileged(self) -> Mapping[str, AnyArray]:
        """Privileged values of the last step: success, grasp, ...; a real robot returns {}. A true `failure` ends the
        episode."""
        ...

    def hold(self) -> None:
        """Stay where it is: called however an episode ends."""
        ...


@runtime_checkable
class VecEnv(Protocol):
    """N copies of a simulated task, stepped together; arrays of an observation have a leading N.
    `plaudit.rollout.vector.collect_rollout` calls it:

    ```python
    observation = env.reset(seeds)
    for _ in range(env.max_steps):
        observation, info = env.step(act(observation), active)
    ```
    """

    num_envs: int
    cameras: Mapping[str, tuple[int, int]]  # name -> (H, W)
    state_dim: int
    action_dim: int
    fps: float  # control steps a second
    max_steps: int  # of an episode
    task: str  # the instruction

    def reset(self, seeds: Sequence[int]) -> Observation:
        """Start an episode from each seed; the same seed starts the same, independent of the others."""
        ...

    def step(self, actions: AnyArray, active: BoolArray) -> tuple[Observation, Mapping[str, AnyArray]]:
        """Send actions [N, A], within [-1, 1], to those that are still active, [N].

        Returns the observations, and an info of [N] each: `success`, and optionally `reward` (its own), `shaping` (the
        same without the reward of success, for a judge to add to), `failure` (the episode is lost) and others.
        """
        ...

    def close(self) -> None:
        """Free what it holds."""
        ...


@runtime_checkable
class Normalizer(Protocol):
    """Converts between the robot's units and the policy's, in numpy; a policy receives one and applies it inside."""

    def normalize_state(self, state: FloatArray) -> FloatArray:
        """States [..., S]."""
        ...

    def normalize_image(self, image: AnyArray) -> FloatArray:
        """Images, uint8 [..., H, W, 3]."""
        ...

    def normalize_action(self, action: FloatArray) -> FloatArray:
        """Actions [..., A]."""
        ...

    def denormalize_action(self, action: FloatArray) -> FloatArray:
        """The inverse of `normalize_action`."""
        ...


@runtime_checkable
class Policy(Protocol):
    """Observations in, chunks of actions out. Torch, where there is any, stays inside. Both methods that infer are also
    called before the first episode, on a blank observation, to see how long they take.

    ```python
    policy.freeze_all_model_params(); policy.warmup()
    chunk = policy.predict(observation, normalizer)                      # [H, A]
    chunk = policy.guided_inference(observation, normalizer, chunk, 4, 5)  # continues it without a jump
    ```
    """

    components: Mapping[str, Any]  # name -> torch.nn.Module, the trainable ones; {} for none

    def predict(self, observation: Observation, normalizer: Normalizer) -> FloatArray:
        """One forward pass: actions [H, A] in the robot's units."""
        ...

    def guided_inference(
        self, observation: Observation, normalizer: Normalizer, previous: FloatArray, delay: int, executed: int
    ) -> FloatArray:
        """[H, A] that agrees with the rest of `previous` [H, A] after `executed` steps, of which the first `delay`
        actions will have run when this call returns."""
        ...

    def warmup(self) -> None:
        """Run once, so that the first `predict` of an episode is not slow."""
        ...

    def freeze_all_model_params(self) -> None:
        """Turn gradients off."""
        ...

    def load_weights(self, weights: PolicyWeights) -> None:
        """Replace the parameters of the components."""
        ...


@runtime_checkable
class SampledPolicy(Policy, Protocol):
    """A policy that returns several chunks for one observation, to choose from (docs/pretrained.md).

    ```python
    chunks = policy.sample(observation, normalizer, 8)                 # [8, H, A]
    ```
    """

    noise_shape: tuple[int, int] | None  # (H, A) of the noise that a chunk starts from; None: it takes no noise

    def sample(
        self, observation: Observation, normalizer: Normalizer, count: int, noise: FloatArray | None = None
    ) -> FloatArray:
        """Chunks [count, H, A] in the robot's units, independent of each other.

        noise: [count, *noise_shape] that they start from: the same noise gives the same chunks. None: random
        """
        ...


@runtime_checkable
class RefiningPolicy(Policy, Protocol):
    """A policy whose slow part may use an older observation than its fast part.

    With `rtc`, `propose` runs in the background. At the boundary between two chunks, `refine` chooses among the
    candidates, or edits them, by the newest observation. `predict` is both with the same observation.
    """

    def propose(self, observation: Observation, normalizer: Normalizer, previous: Any = None) -> Any:
        """The candidates, passed to `refine` as they are.

        previous: `plaudit.policies.guidance.PreviousChunk` to continue; None: start anew
        """
        ...

    def refine(self, candidates: Any, observation: Observation, normalizer: Normalizer, elapsed: int) -> FloatArray:
        """The chunk [H, A] to execute. elapsed: actions of it that are in the past at this observation"""
        ...


@runtime_checkable
class InferenceEngine(Protocol):
    """Runs a policy on a robot, episode after episode; `plaudit.rollout.engine` explains what all of them do.

    with Rtc(robot, policy, config) as engine:           # configs: each is built in the process where it runs
        for episode in engine.episodes(10):
            store.append(episode)
            engine.push(learner.weights())               # the next episode acts with them

    An engine of your own is registered like a policy (`INFERENCE_REGISTRY`), takes the configs of robot, policy and
    teleoperator and a `config: InferenceConfig` (or a class derived from it), and is chosen by
    `--inference_algorithm my_module:MyEngine`. The robot is connected when the engine is made, once. The policy may be
    None: then `load_policy` comes later, when a policy could be made for `env_spec`. `EngineBase` has the attributes
    and methods that are the same in every engine.
    """

    env_spec: EnvSpec  # of the robot
    priority: str  # of the process that controls it, for people
    inference_summary: str  # how long its policy takes, for people; "" where that was not measured
    emergency_stop: Any  # `plaudit.robots.limits.EmergencyStop` of the robot, for whoever watches it
    recording: Any  # `plaudit.rollout.recording.EpisodeBuffer` of the running episode; None between episodes
    preview: Any  # an `EpisodeBuffer` of one row that `look` fills; None: no viewer

    @property
    def latency(self) -> Any:
        """`plaudit.rollout.recording.LatencyStats` of the episodes so far."""
        ...

    def load_policy(self, policy: Any) -> None:
        """Build a policy from its config, where it was not given from the start."""
        ...

    def episodes(
        self, count: int, *, task: str = "", seed: int | None = None, until: Callable[[], str] = str
    ) -> Iterator[Episode]:
        """Run `count` episodes and yield what was recorded.

        When something fails, the episode so far is yielded first, with the reason in `meta["ended"]`; then the error is
        raised. Ctrl-C does the same. The robot holds before either. After a `RolloutFault`, `recover` comes next.
        seed: of the first; a simulation starts from it, and the next episode from the next
        until: asked during an episode, many times a second: why it is to end now; "" to go on
        """
        ...

    def push(self, weights: PolicyWeights, now: bool = False) -> None:
        """New weights for the next episode, or for the next chunk; each episode's `meta["weights"]` has the version."""
        ...

    def recover(self) -> None:
        """Start again what a fault has ended, if anything; raises `RolloutFault` while that cannot be done."""
        ...

    def look(self) -> None:
        """Show what the robot observes now in `preview`. Called often while an operator waits; never raises."""
        ...

    def stop(self) -> None:
        """End the current episode, from another thread; it is yielded, marked, and it is the last."""
        ...

    def close(self) -> None:
        """The robot holds, and nothing is left running."""
        ...


@runtime_checkable
class Teleoperator(Protocol):
    """Where a human's commands come from; while there is one, the policy's is not sent.

    The process that controls the robot calls it at every tick, so it must not wait for anything.
    """

    relative: bool  # whether a command is added to the last one (targets), or sent as it is (velocities)

    def begin_episode(self, robot: Any) -> None:
        """Called after each reset of the robot, before the first command."""
        ...

    def command(self) -> FloatArray | None:
        """[A], or None where the policy acts. Returns at once."""
        ...

    def close(self) -> None:
        """Free what it holds."""
        ...


@runtime_checkable
class Judge(Protocol):
    """Scores the frames of episodes: a simulator's flag, a classifier, a vision-language model, a human.

    ```python
    for episode, scores in zip(episodes, judge.score(episodes)):
        labels_from_scores(judge.id, judge.rule, episode, scores)     # plaudit.rule: labels are made nowhere else
    ```
    """

    id: JudgeId  # part of its labels: a run that resumes skips episodes with labels of the same id
    rule: DecisionRule  # by which its scores become success

    def score(self, episodes: Sequence[Episode]) -> Sequence[Scores | PlauditError | None]:
        """One answer per episode, in order: scores [T+1]; an error where only this one cannot be scored; None where
        there is no answer yet, and the caller should try again.

        Causal: `success_prob[t]` depends on observations 0 to t only.
        """
        ...


@runtime_checkable
class LiveJudge(Judge, Protocol):
    """A judge that also scores while episodes run, in N environments or on one robot."""

    def stream(self, num_envs: int) -> "ScoreStream":
        """A new stream."""
        ...


@runtime_checkable
class ScoreStream(Protocol):
    """Scores of N episodes while they run.

    ```python
    scores = stream.reset(observation)               # the first frames of N episodes
    scores = stream.step(observation, info)          # the next ones
    scores = stream.reset(observation, mask)         # some environments start again
    ```
    """

    def reset(self, observation: Observation, mask: BoolArray | None = None) -> Scores:
        """[N] of first frames. mask: [N] the environments that start again, None: all; the scores of others are NaN."""
        ...

    def step(self, observation: Observation, info: Mapping[str, AnyArray]) -> Scores:
        """[N] of the next frames. info: privileged values, for judges of a simulator only."""
        ...


@runtime_checkable
class Learner(Protocol):
    """Improves a policy from labeled experience: an off-policy learner from batches of replay, an on-policy one from
    rollouts of its newest policy.

    ```python
    while True:
        metrics = learner.update(experience)  # a `Batch` on learner.device, or a rollout; version counts updates
        publish(learner.weights())            # for the policy that learner.policy_config(explore=True) builds
    ```

    `plaudit.learners.base.LearnerBase` has all of it but make_net, make_optimizers, update, policy_config, components,
    and act_fn or choose_chunks. Its `windows` says what is sampled.
    """

    on_policy: bool
    config: Any  # that built it
    version: int  # updates made
    env_spec: EnvSpec  # that it was built for
    device: Any  # torch.device
    pretrain_updates: int  # with demonstrations alone, where there are some, before the first episode
    rng: Any  # torch.Generator of all that it samples
    sync: Any  # called with the parameters whose gradients are about to be used, to average them; None for one worker

    @property
    def replay_options(self) -> Mapping[str, Any]:
        """How to sample what it learns from: gamma, n_step or horizon, cameras."""
        ...

    @property
    def components(self) -> Mapping[str, Any]:
        """The modules whose weights the robot's policy takes."""
        ...

    def update(self, experience: Any) -> Mapping[str, Any]:
        """One update; returns metrics by the names in docs/metrics.md, as numbers or as tensors of one, which are read
        only when something is logged."""
        ...

    def act_fn(self, *, explore: bool) -> Callable[[Observation], FloatArray]:
        """A function from observations of N envs to actions [N, A], for one rollout in simulation."""
        ...

    def weights(self) -> PolicyWeights:
        """The newest weights of the policy, with a version that only counts up."""
        ...

    def policy_config(self, *, explore: bool = False) -> Any:
        """The config that builds the robot's policy."""
        ...

    def state_dict(self) -> Mapping[str, Any]:
        """All that is needed to continue, tensors by name."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the state of a learner with the same config."""
        ...
