"""What happens at the boundary between two chunks: refining by the newest observation, takeovers, chunks too late."""

import time
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from plaudit.errors import RolloutError
from plaudit.policies.config import FlowConfig, PolicyConfig
from plaudit.policies.flow import FlowPolicy
from plaudit.policies.guidance import PreviousChunk
from plaudit.protocols import Normalizer, RefiningPolicy
from plaudit.rollout.engine import InferenceConfig, Sequential
from plaudit.rollout.rtc import Rtc
from plaudit.types import HUMAN, FloatArray, Observation, PolicyWeights
from puppet import Counter, CounterConfig, HandConfig, PuppetConfig


class ChooserConfig(PolicyConfig):
    took: float = 0.0  # s, of the candidates
    num_samples: int = 1
    horizon: int = 40

    def build(self) -> "Chooser":
        return Chooser(self)


class Chooser(Counter):
    """The second number of an action is the step at which it was chosen: 1,000 x that of the candidates besides."""

    def __init__(self, config: ChooserConfig):
        super().__init__(CounterConfig(horizon=config.horizon))
        self.settings, self.num_samples = config, config.num_samples

    def propose(self, observation: Observation, normalizer: Normalizer, previous: PreviousChunk | None = None) -> Any:
        time.sleep(self.settings.took)
        assert previous is None or previous.delay >= 1
        return observation.state[0]

    def refine(self, candidates: Any, observation: Observation, normalizer: Normalizer, elapsed: int) -> FloatArray:
        assert observation.state[0] == candidates + elapsed
        steps = candidates + np.arange(self.settings.horizon)
        return np.stack([steps, np.full(len(steps), 1000 * candidates + observation.state[0])], 1).astype(np.float32)

    def predict(self, observation: Observation, normalizer: Normalizer) -> FloatArray:
        return self.refine(self.propose(observation, normalizer), observation, normalizer, 0)

    def guided_inference(
        self, observation: Observation, normalizer: Normalizer, previous: FloatArray, delay: int, executed: int
    ) -> FloatArray:
        return self.predict(observation, normalizer)

    def load_weights(self, weights: PolicyWeights) -> None: ...


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def test_candidates_are_refined_by_the_newest_observation(log):
    assert isinstance(Chooser(ChooserConfig()), RefiningPolicy) and not isinstance(
        Counter(CounterConfig()), RefiningPolicy
    )
    config = InferenceConfig(max_episode_steps=50, execution_horizon=15)
    with Rtc(PuppetConfig(log=log), ChooserConfig(took=0.05), config) as engine:
        (episode,) = engine.episodes(1)
    assert episode.actions[:, 0].tolist() == list(range(50))
    proposed, chosen = divmod(np.unique(episode.actions[:, 1]).astype(int), 1000)
    assert proposed[0] == chosen[0] == 0  # control waits for the first chunk
    assert (chosen[1:] >= proposed[1:] + 3).all()  # 50 ms are 5 steps of 10 ms
    first_use = [int(np.flatnonzero(episode.actions[:, 1] == 1000 * p + c)[0]) for p, c in zip(proposed, chosen)]
    assert all(used - c >= 0 for used, c in zip(first_use, chosen))


def test_in_turn_both_parts_see_the_same_observation(log):
    with Sequential(PuppetConfig(log=log), ChooserConfig(), InferenceConfig(max_episode_steps=45)) as engine:
        (episode,) = engine.episodes(1)
    assert np.unique(episode.actions[:, 1]).tolist() == [0, 40_040]


def test_a_takeover_discards_the_chunk_that_is_being_inferred(log):
    hand = HandConfig(first=20, last=21)  # within the inference that begins at step 10 or soon after
    config = InferenceConfig(max_episode_steps=120, execution_horizon=10, idle_action="repeat")
    with Rtc(PuppetConfig(log=log), CounterConfig(took=0.3), config, hand) as engine:
        (episode,) = engine.episodes(1)
    assert (episode.control_mode[20:22] == HUMAN).all() and episode.meta["discarded_chunks"] == 1
    after = episode.actions[22:, 0]
    idle = int(np.argmax(after != 500))
    assert idle > 0 and (after[:idle] == 500).all()  # nothing that was inferred before the takeover is executed
    assert after[idle:].tolist() == list(range(22 + idle, 120))


def test_chunks_that_come_after_their_last_action_are_reported(log):
    config = InferenceConfig(max_episode_steps=80)
    with Rtc(PuppetConfig(log=log), CounterConfig(horizon=10, took=0.3), config) as engine:
        (episode,) = engine.episodes(1)
    assert episode.meta["expired_chunks"] >= 1
    assert ("expired chunks", str(episode.meta["expired_chunks"])) in engine.latency.table()
    assert engine.latency.lost_chunks["expired_chunks"] == episode.meta["expired_chunks"]


def test_samples_that_do_not_fit_the_control_period_are_refused_with_the_measured_latency(log):
    sentence = r"takes \d+ control steps \(\d+ ms at 100 Hz, for 32 samples\).*fewer samples"
    with pytest.raises(RolloutError, match=sentence):
        Rtc(PuppetConfig(log=log), ChooserConfig(took=0.2, num_samples=32, horizon=20))


class SlowFlowConfig(FlowConfig):
    policy_class: ClassVar[str] = "test_refining:SlowFlow"

    def build(self) -> "SlowFlow":
        return SlowFlow(self)


class SlowFlow(FlowPolicy):
    def guided_inference(self, *arguments: Any) -> FloatArray:
        time.sleep(0.08)
        return super().guided_inference(*arguments)


def test_a_delay_beyond_that_of_the_training_is_refused_before_the_robot_moves(log):
    sizes = {"state_dim": 1, "action_dim": 2, "device": "cpu", "horizon": 40}
    flow = SlowFlowConfig(**sizes, guidance="prefix", max_prefix=4, velocity_net={"width": 16, "depth": 1})
    with pytest.raises(RolloutError, match=r"takes \d+ control steps, and this policy was trained .* over at most 4"):
        Rtc(PuppetConfig(log=log), flow)
