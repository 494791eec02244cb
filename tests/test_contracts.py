from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch

from conftest import counting_episode
from counting import CountingSimulation
from own_learner import Imitation, ImitationConfig, UnfinishedConfig
from plaudit.contracts import check_judge, check_learner, check_policy, check_robot, check_vec_env
from plaudit.data.normalize import Normalizer
from plaudit.data.store import Store
from plaudit.envs.adapters.gymnasium import GymnasiumConfig
from plaudit.envs.panda import PandaConfig
from plaudit.errors import ContractError
from plaudit.judges.classifier.judge import ClassifierJudge
from plaudit.judges.labeling import LabelRunner, StoreQueue, SuccessDetector, stale_episodes
from plaudit.judges.simulator import SimulatorJudge
from plaudit.learners.config import PpoConfig, QChunkConfig, SacConfig
from plaudit.policies.config import ActorConfig
from plaudit.registry import LEARNER_REGISTRY
from plaudit.rollout.vector import collect_rollout
from plaudit.rule import DecisionRule
from plaudit.types import EnvSpec, JudgeId, Observation, Scores
from tabletop import ScriptedLift, Tabletop
from tiny_reward import noise_episode, tiny_model


class Light:
    """A `LiveJudge`: the brighter a frame, the likelier a success."""

    def __init__(self):
        self.rule = DecisionRule()
        self.id = JudgeId("light", "1", self.rule.key())

    def score(self, episodes):
        return [self.look(episode.frames["front"]) for episode in episodes]

    def look(self, frames):
        return Scores((frames.mean(axis=(1, 2, 3)) / 255).astype(np.float32))

    def stream(self, num_envs):
        return LightStream(self)


class LightStream:
    def __init__(self, judge):
        self._judge = judge

    def reset(self, observation, mask=None):
        prob = self._judge.look(observation.images["front"]).success_prob
        return Scores(prob if mask is None else np.where(mask, prob, np.float32(np.nan)))

    def step(self, observation, info):
        return self._judge.look(observation.images["front"])


def test_the_drawn_table_keeps_the_robots_contract():
    check_robot(Tabletop())


def test_the_scripted_policy_keeps_the_policys_contract():
    robot = Tabletop()
    check_policy(ScriptedLift(), robot.reset(0), Normalizer({}), robot.action_dim)


def test_a_plain_judge_keeps_the_judges_contract():
    check_judge(Light(), [counting_episode(steps=3), counting_episode(steps=5)])


def test_a_robot_whose_frames_have_another_size_is_named():
    class Wrong(Tabletop):
        cameras: Mapping[str, tuple[int, int]] = {"front": (96, 128), "wrist": (32, 32)}

        def observe(self):
            return Observation(
                {"front": np.zeros((96, 128, 3), "u1"), "wrist": np.zeros((64, 64, 3), "u1")}, np.zeros(5, "f4")
            )

    with pytest.raises(ContractError, match=r"camera 'wrist' must be uint8 \[32, 32, 3\]"):
        check_robot(Wrong())


def test_a_robot_that_reuses_the_image_it_handed_out_is_named():
    class Reusing(Tabletop):
        def observe(self):
            fresh = super().observe()
            self.front = getattr(self, "front", fresh.images["front"].copy())
            self.front[:] = fresh.images["front"]
            return Observation({"front": self.front, "wrist": fresh.images["wrist"]}, fresh.state)

        def act(self, action):
            super().act(np.float32([0.05, -0.05, 1]))

    with pytest.raises(ContractError, match="changed after it was returned; hand out copies"):
        check_robot(Reusing())


def test_a_simulation_that_ignores_its_seed_is_named():
    class Restless(Tabletop):
        def reset(self, seed=None):
            return super().reset(None)

    with pytest.raises(ContractError, match="must start the same"):
        check_robot(Restless())


def test_a_policy_that_returns_float64_is_named():
    class Wide(ScriptedLift):
        def predict(self, observation, normalizer=None):
            return super().predict(observation, normalizer).astype(np.float64)

    robot = Tabletop()
    with pytest.raises(ContractError, match=r"predict\(\) must return finite float32"):
        check_policy(Wide(), robot.reset(0), Normalizer({}), 3)


def test_the_judges_that_come_with_it_keep_the_contract():
    success = np.array([False, True, False, True])
    check_judge(SimulatorJudge(), [counting_episode(steps=4, privileged={"success": success})])
    for history in (0, 2):
        check_judge(ClassifierJudge(tiny_model(num_history_frames=history, history_stride=2)), [noise_episode()])


class Vandal(Light):
    def score(self, episodes):
        episodes[0].actions[:] = 7
        return super().score(episodes)


class Prophet(Light):
    def look(self, frames):
        return Scores(np.full(len(frames), frames[-1].mean() / 255, np.float32))


class Spy(Light):
    def score(self, episodes):
        return [Scores(np.append(0, e.privileged["success"]).astype(np.float32)) for e in episodes]


class Restless(Light):
    def score(self, episodes):
        self.id = JudgeId("light", self.id.fingerprint + "1", self.rule.key())
        return super().score(episodes)


class Short(Light):
    def score(self, episodes):
        return [Scores(np.zeros(2, np.float32)) for _ in episodes]


class Nameless(Light):
    def __init__(self):
        super().__init__()
        self.id = JudgeId("", "1", self.rule.key())


class OtherwiseLive(Light):
    def stream(self, num_envs):
        class Stream(LightStream):
            def step(self, observation, info):
                return Scores(np.full(num_envs, 0.5, np.float32))

        return Stream(self)


@pytest.mark.parametrize(
    ("judge", "sentence"),
    [
        (Vandal, "changed the episode"),
        (Prophet, "it is not causal"),
        (Spy, "depends on what only the simulator knows"),
        (Restless, "id changed"),
        (Short, "scored 2 frames of an episode that has 5"),
        (Nameless, "needs a source"),
        (OtherwiseLive, r"stream\(\) scores an episode otherwise"),
        (object, "object is not a Judge: it lacks id, rule, score"),
    ],
)
def test_a_judge_that_breaks_the_contract_is_named(judge, sentence):
    with pytest.raises(ContractError, match=sentence):
        check_judge(judge(), [counting_episode(steps=4, privileged={"success": np.array([0, 1, 0, 1], bool)})])


def test_a_judge_that_keeps_the_contract_labels_a_store_once(tmp_path):
    store = Store.create(tmp_path / "s")
    ids = [store.append(counting_episode(steps=3)) for _ in range(3)]
    check_judge(Light(), [store.episode(i) for i in ids])
    assert LabelRunner(Light(), StoreQueue(store, ids)).run().done == ids
    assert stale_episodes(store.ledger, Light().id, ids) == []


def test_something_else_is_no_robot():
    with pytest.raises(ContractError, match="object is not a Robot: it lacks act, action_dim, cameras"):
        check_robot(object())


def test_the_simulations_here_keep_the_contract():
    check_vec_env(CountingSimulation(3))
    check_vec_env(PandaConfig(type="push", obs="both", cameras=("front", "wrist"), image_size=(16, 20)).build(2))
    check_vec_env(GymnasiumConfig(type="gymnasium", id="Pendulum-v1").build(2))


LEARNERS = [SacConfig(hidden_dims=(8,)), QChunkConfig(horizon=2, hidden_dims=(8,), num_samples=2), ImitationConfig()]


@pytest.mark.parametrize("config", LEARNERS, ids=lambda c: type(c).__name__)
@pytest.mark.parametrize("cameras", [{}, {"front": (16, 16)}], ids=["state", "images"])
def test_the_learners_from_replay_keep_the_contract(config, cameras):
    check_learner(config, EnvSpec(2, 1, cameras))


def test_the_on_policy_learner_keeps_the_contract():
    simulation, config = CountingSimulation(3), PpoConfig(hidden_dims=(8,), update_epochs=1, num_minibatches=2)
    env_spec = EnvSpec(simulation.state_dim, simulation.action_dim, {})
    act = config.build(env_spec, 0, "cpu").act_fn(explore=True)
    check_learner(config, env_spec, collect_rollout(simulation, act, [3, 4, 5], SuccessDetector(SimulatorJudge(), 3)))


def test_what_a_learner_lacks_is_named():
    with pytest.raises(ContractError, match="Unfinished is not a Learner: it lacks act_fn, components, config, device"):
        check_learner(UnfinishedConfig(), EnvSpec(2, 1, {}))


class Forgetful(Imitation):
    """Its checkpoint lacks the optimizer."""

    def load_state_dict(self, state):
        before = self.optimizers["all"].state_dict()
        super().load_state_dict(state)
        self.optimizers["all"].load_state_dict(before)


class Careless(Imitation):
    """It samples from torch's own generator."""

    def update(self, batch):
        return super().update(replace(batch, reward=batch.reward + torch.rand(len(batch.reward))))


class Stuck(Imitation):
    def update(self, batch):
        self.version += 1
        return {"loss/actor": 0.0}


class Uncounted(Imitation):
    def update(self, batch):
        metrics = super().update(batch)
        self.version = 0
        return metrics


class Strange(Imitation):
    """The policy that it names is another's."""

    def policy_config(self, *, explore=False):
        return super().policy_config().model_copy(update={"actor": ActorConfig(hidden_dims=(9,))})


class Mumbling(Imitation):
    def update(self, batch):
        return {**super().update(batch), "loss/actor": float("nan")}


@pytest.mark.parametrize(
    ("learner", "message"),
    [
        (Forgetful, "continued differently from its own state_dict"),
        (Careless, "gave other weights the second time"),
        (Stuck, "4 updates left the weights of the policy as they were"),
        (Uncounted, "version is 0 after 1 updates"),
        (Strange, "the policy of policy_config\\(\\) does not take the learner's weights"),
        (Mumbling, "metric 'loss/actor' is nan"),
    ],
)
def test_a_learner_that_breaks_the_contract_is_refused_with_a_sentence(learner, message):
    config = LEARNER_REGISTRY.parse({"type": f"{__name__}:{learner.__name__}"})
    with pytest.raises(ContractError, match=message):
        check_learner(config, EnvSpec(2, 1, {}))


class Moving(CountingSimulation):
    def step(self, actions, active):
        return super().step(actions, np.ones_like(active))


class Chancy(CountingSimulation):
    def reset(self, seeds):
        return super().reset([seed + np.random.default_rng().integers(1, 1000) for seed in seeds])


class Silent(CountingSimulation):
    def step(self, actions, active):
        observation, known = super().step(actions, active)
        return observation, {"reward": known["reward"]}


class Bright(CountingSimulation):
    cameras = {"front": (2, 3)}  # noqa: RUF012 - not what it shows


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (Moving, "moved environments that were not active"),
        (Chancy, "another start the second time"),
        (Silent, "must report 'success'"),
        (Bright, "camera .front. must be uint8"),
    ],
)
def test_a_simulation_that_breaks_the_contract_is_told_how(broken, said):
    with pytest.raises(ContractError, match=said):
        check_vec_env(broken(2))


def test_a_robot_that_does_not_tell_what_it_sent_is_told_so():
    robot = Tabletop()
    robot.act = lambda action: None  # its last_command stays None
    with pytest.raises(ContractError, match="last_command must be what act\\(\\) sent, 3 finite numbers, it is None"):
        check_robot(robot)
