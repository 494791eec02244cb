"""Hints to take over: the threshold from held-out episodes, and what an operator sees while an episode runs."""

import numpy as np
import pytest

from conftest import counting_episode, labeled_store
from glow import saved
from plaudit.errors import DataError
from plaudit.rollout.engine import EngineBase, InferenceConfig
from plaudit.rollout.forecast import Forecast, ForecastConfig, Threshold, load_forecast, lowest_rise, rises
from plaudit.rollout.operator import Operator, OperatorConfig, OperatorStatus
from plaudit.rollout.recording import EpisodeBuffer
from plaudit.rollout.run import check_attended
from plaudit.types import EnvSpec, Observation, Scores
from tiny_reward import noise_episode, tiny_model
from waiting import wait_until

SPEC = EnvSpec(1, 1, {"front": (2, 2)}, 10.0, "box", 40)


class Brightness:
    """Task progress is the brightness of the newest frame."""

    def stream(self, num_envs: int) -> "Brightness":
        return self

    def reset(self, observation, mask=None) -> Scores:
        return self.step(observation, {})

    def step(self, observation, info) -> Scores:
        progress = observation.images["front"].mean(axis=(1, 2, 3), dtype=np.float32) / 255
        return Scores(np.zeros_like(progress), progress=progress)


def add(buffer: EpisodeBuffer, *brightness: int) -> None:
    for value in brightness:
        frame = np.full((2, 2, 3), value, np.uint8)
        buffer.add_observation(buffer.num_observations, Observation({"front": frame}, np.zeros(1, np.float32)), 0.0)


def test_the_threshold_flags_as_many_successes_as_it_may_and_as_many_failures_as_it_can():
    lowest = np.array([0.3, 0.05, 0.4, 0.2, 0.5, 0.3, 0.4, 0.3, 0.2, 0.6, 0.1, 0.0, 0.25])
    chosen = Threshold.choose(lowest, [True] * 10 + [False] * 3, 0.1)
    assert (chosen.value, chosen.false, chosen.caught) == (0.2, 0.1, 2 / 3)
    assert chosen.summary == "hints on held-out episodes: in 10% of 10 successes and 67% of 3 failures"
    assert Threshold.choose(np.zeros(12), [True] * 12, 0.1).false == 0  # successes that stall: no hint at all


def test_a_window_that_no_success_fills_is_refused():
    with pytest.raises(DataError, match=r"shorter than forecast\.window_s"):
        Threshold.choose(np.full(20, np.inf), [True] * 20, 0.1)


def test_only_what_comes_before_the_success_counts():
    progress = np.float32([0.0, 0.2, 0.4, 0.6, 0.6, 0.6])
    target = np.float32([0, 0, 0, 1, 1, 1])
    episode = counting_episode(5)  # 10 Hz
    assert lowest_rise(progress, target, episode, 0.2) == pytest.approx(0.4)
    assert lowest_rise(progress, np.zeros(6), episode, 0.2) == 0


@pytest.mark.parametrize("frames", [1, 4, 6, 7, 8])
def test_nothing_stalls_before_the_window_is_full(frames):
    grown = rises(np.zeros(frames), 6)
    assert grown.tolist() == [np.inf] * min(frames, 6) + [0.0] * max(frames - 6, 0)


def test_an_operator_sees_the_progress_and_a_hint_while_it_stalls():
    engine, seen = EngineBase(), list[OperatorStatus]()
    operator = Operator(gate=False, listener=seen.append)
    forecast = Forecast(Brightness(), Threshold(0.1, 20, 20, 0.1, 0.9), window_s=0.5)
    with forecast.watch(engine, operator):
        operator.wait_until_ready()
        engine.recording = buffer = EpisodeBuffer.allocate(SPEC, 40)
        add(buffer, *range(0, 102, 17))
        wait_until(lambda: operator.status.forecast == "progress 33%")
        assert not operator.status.hint
        add(buffer, *[85] * 6)
        wait_until(lambda: operator.status.hint == "take over: no progress for 0.5 s")
        add(buffer, 255)
        wait_until(lambda: operator.status.forecast == "progress 100%")
        assert not operator.status.hint
        operator.finish(None)
        operator.wait_until_ready()
        engine.recording = again = EpisodeBuffer.allocate(SPEC, 40)
        add(again, 51)
        wait_until(lambda: operator.status.forecast == "progress 20%")
    assert not any(status.hint for status in seen if status.phase != "episode")


def test_a_model_that_fails_ends_the_hints_and_nothing_else(capfd):
    class Blind(Brightness):
        def step(self, observation, info) -> Scores:
            raise DataError("camera 'front' is not in these images")

    engine, operator = EngineBase(), Operator(gate=False)
    with Forecast(Blind(), Threshold(0.1, 20, 20, 0.1, 0.9), 0.5).watch(engine, operator):
        operator.wait_until_ready()
        engine.recording = buffer = EpisodeBuffer.allocate(SPEC, 4)
        add(buffer, 1)
        wait_until(lambda: "hints stopped: camera 'front'" in "".join(capfd.readouterr()))
    assert operator.status.phase == "episode"


def test_the_threshold_is_chosen_on_labeled_episodes(tmp_path):
    model = saved(tiny_model(predict_success=False, predict_progress=True), tmp_path / "progress")
    episodes = [noise_episode(12, seed, fps=10.0) for seed in range(6)]
    labeled_store(tmp_path / "held_out", *episodes, cutoff=9).close()
    config = ForecastConfig(progress=model, store=tmp_path / "held_out", window_s=0.3, max_false=0.2)
    forecast = load_forecast(config)
    assert forecast.threshold.successes == 6 and forecast.threshold.false <= 0.2
    with pytest.raises(DataError, match="needs 10 successful episodes that the model has not seen, but there are 6"):
        load_forecast(config.model_copy(update={"max_false": 0.1}))


def test_hints_need_somebody_who_reads_them(tmp_path):
    config = ForecastConfig(progress=tmp_path, store=tmp_path)
    with pytest.raises(DataError, match="gives hints to an operator, but this run has none"):
        check_attended(InferenceConfig(), config, OperatorConfig(auto=True))
    check_attended(InferenceConfig(), config, OperatorConfig(auto=False))
