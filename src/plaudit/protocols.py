"""The verbs: what a robot, a policy, a judge and a learner must do, and the loop that asks them to.

    while True:
        episode = run_episode(robot, policy)             # rollout: numpy only, real time
        episode_id = store.append(episode)               # on disk before anything else happens
        ledger.append(episode_id, labeler.label(episode))  # now, or days later
        learner.update(replay.sample(256))
        policy.load_weights(learner.weights())           # the robot acts with what was learned

A plugin is a class with these methods; it inherits nothing. `plaudit.contracts` has a check for each.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from plaudit.types import AnyArray, BoolArray, Episode, FloatArray, Labels, Observation, Weights


@runtime_checkable
class Robot(Protocol):
    """Something that moves, or a simulation of it.

    with robot:
        observation = robot.reset()
        while not done:
            robot.act(policy.predict(observation)[0])
            observation = robot.observe()
    """

    cameras: Mapping[str, tuple[int, int]]  # name -> (H, W)
    state_dim: int
    action_dim: int
    fps: float

    def reset(self, seed: int | None = None) -> Observation:
        """Go to the start; a simulation with the same seed starts the same, a real robot ignores it."""
        ...

    def act(self, action: FloatArray) -> None:
        """Send one command [A]."""
        ...

    def observe(self) -> Observation:
        """The newest observation; a simulation steps its clock here."""
        ...

    def privileged(self) -> Mapping[str, AnyArray]:
        """What only a simulation knows of the last action: success, grasp, ...; a real robot returns {}."""
        ...

    def hold(self) -> None:
        """Stay where you are: called on every way out of the loop."""
        ...


@runtime_checkable
class ToldCommand(Protocol):
    """A robot that may send less than `act` asked for, and says what it sent: that is what gets recorded."""

    @property
    def command(self) -> FloatArray | None:
        """[A] what was sent last, in the units of `act`; None before anything was."""
        ...


@runtime_checkable
class Simulation(Protocol):
    """N copies of a simulated task, stepped together; arrays of an observation have a leading N.

    observation = simulation.reset(seeds)
    for _ in range(simulation.max_steps):
        observation, known = simulation.step(act(observation), active)
    """

    num_envs: int
    cameras: Mapping[str, tuple[int, int]]  # name -> (H, W)
    state_dim: int
    action_dim: int
    fps: float  # control steps a second
    max_steps: int  # of an episode
    task: str  # the instruction, in words

    def reset(self, seeds: Sequence[int]) -> Observation:
        """Start all of them; the same seed starts the same, whatever the others do."""
        ...

    def step(self, actions: AnyArray, active: BoolArray) -> tuple[Observation, Mapping[str, AnyArray]]:
        """Send actions [N, A], within [-1, 1], to those that are still active, [N].

        Returns what is seen of all, and what only a simulation knows, [N] each: `success`, and where there are such
        things `reward` (its own), `shaping` (the same without anything paid for success, for a judge to add to),
        `failure` (it cannot go on) and others.
        """
        ...

    def close(self) -> None: ...


@runtime_checkable
class Normalizer(Protocol):
    """Numpy in, numpy out; a policy is handed one and applies it inside."""

    def normalize_state(self, state: FloatArray) -> FloatArray: ...

    def normalize_image(self, image: AnyArray) -> FloatArray: ...

    def normalize_action(self, action: FloatArray) -> FloatArray: ...

    def denormalize_action(self, action: FloatArray) -> FloatArray: ...


@runtime_checkable
class Policy(Protocol):
    """Observations in, chunks of actions out. Torch, where there is any, stays inside.

    policy.freeze_all_model_params(); policy.warmup()
    chunk = policy.predict(observation, normalizer)                      # [H, A]
    chunk = policy.guided_inference(observation, normalizer, chunk, 4, 5)  # goes on from it without a jerk
    """

    components: Mapping[str, Any]  # name -> torch.nn.Module, the parts that learn; {} for none

    def predict(self, observation: Observation, normalizer: Normalizer) -> FloatArray:
        """One forward pass: actions [H, A] in the robot's units."""
        ...

    def guided_inference(
        self, observation: Observation, normalizer: Normalizer, previous: FloatArray, delay: int, executed: int
    ) -> FloatArray:
        """[H, A] that agrees with what is left of `previous` [H, A] after `executed` steps, the first `delay` of which
        will already have run when this call returns."""
        ...

    def warmup(self) -> None:
        """Run once what is slow the first time."""
        ...

    def freeze_all_model_params(self) -> None:
        """No gradients from here on."""
        ...

    def load_weights(self, weights: Weights) -> None:
        """Take the learner's newest."""
        ...


@runtime_checkable
class Labeler(Protocol):
    """A judge: a simulator's flag, a classifier, a vision-language model, a person.

    labeler.label([episode])[0].model == labeler.facts["model"]      # and so are its threshold, note and rule
    """

    source: str  # the name that stands on its labels

    @property
    def facts(self) -> Mapping[str, Any]:
        """What will stand on all of its labels: `model`, `threshold` and `note`, and `rule` where numbers are decoded.

        By these a run that was stopped finds what is done, and a judge that changed judges again: an episode whose
        newest label has the same model, threshold and rule (note, where it has no rule) is passed over.
        """
        ...

    def label(self, episodes: Sequence[Episode]) -> Sequence[Labels | Exception]:
        """One verdict an episode, in order. An episode it fails on gets the exception and stays unlabelled."""
        ...


@runtime_checkable
class Learner(Protocol):
    """Improves a policy from what was judged: one that learns from anything old takes batches of replay, one that
    learns only from what its newest policy did takes rounds of episodes."""

    def update(self, experience: Any) -> Mapping[str, Any]:
        """One step, from a `Batch` or a `Round`; returns metrics by the names in docs/metrics.md, as numbers or as
        tensors of one: these are asked for their number only when something is logged."""
        ...

    def weights(self) -> Weights:
        """The newest weights, with a version that only counts up."""
        ...

    def save(self, path: str) -> None: ...

    def load(self, path: str) -> None: ...


@runtime_checkable
class OffPolicyLearnerConfig(Protocol):
    """The config of a learner that learns off-policy: from batches of replay, whoever acted and however long ago.

    `plaudit online` takes any learner whose config has these, because labels come after an episode and the policy has
    moved on by then. An on-policy learner, such as PPO, has no use for them and leaves them out.
    """

    gamma: float  # discount of a step
    batch_size: int  # steps of an update
    updates_per_step: float  # updates for each labeled step of the robot
    demo_share: float  # of each batch, where there are demonstrations
    start_after: int  # steps of random actions first

    @property
    def horizon(self) -> int:
        """Actions that its policy returns at a time."""
        ...

    def build(self, spaces: Any, seed: int, device: str) -> "OffPolicyLearner":
        """The learner of a robot with these `plaudit.policies.networks.Spaces`."""
        ...


@runtime_checkable
class OffPolicyLearner(Learner, Protocol):
    """A learner of `Batch`es from replay, as `plaudit online` drives it.

    while True:
        metrics = learner.update(batch)      # on learner.device; version counts the updates
        push(learner.weights())              # for the policy that learner.policy_config(explore=True) builds
    """

    config: Any  # an OffPolicyLearnerConfig
    spaces: Any  # that it was built for
    device: Any  # torch.device
    version: int  # updates made
    clone_updates: int  # updates with demonstrations alone before the first episode
    sync: Any  # called with the parameters whose gradients are about to be used, to average them; None for one worker
    # What a checkpoint keeps of it.
    net: Any
    optimizers: Mapping[str, Any]
    rng: Any  # torch.Generator

    @property
    def replay_options(self) -> Mapping[str, Any]:
        """How to sample: gamma, n_step or chunk, cameras."""
        ...

    @property
    def components(self) -> Mapping[str, Any]:
        """The modules whose weights the robot's policy takes."""
        ...

    def policy_config(self, *, explore: bool = False) -> Any:
        """The config that builds the robot's policy."""
        ...

    def acting(self, *, explore: bool) -> Any:
        """A function from N observations to actions [N, A], for episodes in simulation."""
        ...
