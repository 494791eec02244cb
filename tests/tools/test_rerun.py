"""Files of Rerun, read back with its own reader."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from command import plaudit
from conftest import counting_episode
from plaudit.data.store import Store
from plaudit.errors import DisplayError, RolloutError, TargetNotEmpty
from plaudit.rollout.engine import EngineBase
from plaudit.rollout.recording import NO_ACTION, EpisodeBuffer
from plaudit.rollout.rerun import MAX_BEHIND, LiveEpisodes, RerunLog, save_episode, show_episode, streaming
from plaudit.types import HUMAN, POLICY, EnvSpec, JudgeId, Labels, Observation, Scores

SPEC = EnvSpec(2, 1, {"front": (8, 10)}, 10.0, "twin", 40)


def read(path: Path) -> dict[str, dict[int, Any]]:
    """Entity -> frame -> what was logged there."""
    from rerun.chunk import RrdReader

    entities: dict[str, dict[int, Any]] = {}
    for chunk in RrdReader(str(path)).stream().to_chunks():
        table = chunk.to_record_batch()
        if "frame" not in table.schema.names:
            continue
        values = next(name for name in table.schema.names if name.endswith((":scalars", ":blob", ":text")))
        for frame, value in zip(table["frame"].to_pylist(), table[values].to_pylist(), strict=True):
            entities.setdefault(chunk.entity_path.lstrip("/"), {})[frame] = (
                value if values.endswith(":scalars") else value[0]
            )
    return entities


def brightness(blob: Any) -> float:
    data = blob if isinstance(blob, bytes) else bytes(blob)
    return float(np.asarray(Image.open(io.BytesIO(data))).mean())


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An episode in which a person takes over at step 2, with labels of a person and of a judge with scores."""
    mode = np.array([POLICY, POLICY, HUMAN, POLICY], np.uint8)
    privileged = {"reward": np.array([0.0, 0.5, 1.0, 1.5], np.float32)}
    with Store.create(tmp_path / "store") as store:
        episode_id = store.append(counting_episode(control_mode=mode, privileged=privileged, meta={"ended": "timeout"}))
        prob = np.array([0.1, 0.2, 0.6, 0.8, np.nan], np.float32)
        scores = Scores(prob, progress=np.linspace(0, 1, 5, dtype=np.float32))
        judge = JudgeId("classifier", "f")
        labels = Labels(prob > 0.5, np.isfinite(prob), judge, scores, note="two frames")
        store.ledger.append(episode_id, labels)
        store.ledger.append(episode_id, Labels.from_cutoff(steps=4, cutoff=3, source="human"))
        yield store


def test_a_file_has_what_was_recorded_and_every_label(store: Store, tmp_path: Path):
    save_episode(store, 0, tmp_path / "episode.rrd")
    shown, episode = read(tmp_path / "episode.rrd"), store.episode(0)
    for frame in range(5):
        np.testing.assert_allclose(shown["state"][frame], episode.state[frame])
        assert brightness(shown["camera/front"][frame]) == pytest.approx(frame, abs=1)
    np.testing.assert_allclose([shown["action"][t][0] for t in range(4)], episode.actions[:, 0])
    assert [shown["takeover"][t] for t in range(4)] == [[0], [0], [1], [0]]
    np.testing.assert_allclose([shown["simulator/reward"][t + 1] for t in range(4)], [[0], [0.5], [1], [1.5]])
    assert shown["reward"] == {1: [0], 2: [0], 3: [1], 4: [1]}  # the person's labels count
    assert shown["label/human"] == {0: [0], 1: [0], 2: [0], 3: [1], 4: [1]}
    assert shown["label/classifier"] == {0: [0], 1: [0], 2: [1], 3: [1]}  # the last frame has no label
    np.testing.assert_allclose([shown["score/classifier"][t][0] for t in range(4)], [0.1, 0.2, 0.6, 0.8], rtol=1e-6)
    assert shown["progress/classifier"][4] == [1]


def test_events_are_text_at_their_frames(store: Store, tmp_path: Path):
    save_episode(store, 0, tmp_path / "episode.rrd")
    from rerun.chunk import RrdReader

    texts: dict[int, set[str]] = {}
    for chunk in RrdReader(str(tmp_path / "episode.rrd")).stream().to_chunks():
        table = chunk.to_record_batch()
        if chunk.entity_path == "/events":
            for frame, text in zip(table["frame"].to_pylist(), table["TextLog:text"].to_pylist(), strict=True):
                texts.setdefault(frame, set()).add(text[0])
    assert texts == {
        0: {"task: count", "classifier: two frames"},
        2: {"a person takes over", "classifier: success begins"},
        3: {"the policy acts again", "human: success begins"},
        4: {"ended by: timeout"},
    }


def test_an_interrupted_file_is_removed_and_another_is_never_replaced(store: Store, tmp_path: Path):
    def interrupted(frames: Any) -> Any:
        yield next(iter(frames))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save_episode(store, 0, tmp_path / "episode.rrd", interrupted)
    assert not list(tmp_path.glob("*.rrd")) and not list(tmp_path.glob(".*.rrd"))
    (tmp_path / "episode.rrd").write_text("own")
    with pytest.raises(TargetNotEmpty, match="exists"):
        save_episode(store, 0, tmp_path / "episode.rrd")
    assert (tmp_path / "episode.rrd").read_text() == "own"


def test_the_viewer_needs_a_screen(store: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    with pytest.raises(DisplayError, match=r"\.rrd"):
        show_episode(store, 0)


def observe(buffer: EpisodeBuffer, row: int) -> None:
    images = {"front": np.full((8, 10, 3), row, np.uint8)}
    buffer.add_observation(row, Observation(images, np.array([row, -row], np.float32)), 100 + row / 10)


def act(buffer: EpisodeBuffer, step: int, mode: int = POLICY) -> None:
    buffer.add_command(step, np.array([step], np.float32), mode, NO_ACTION, 0.0, 0)


def test_a_running_episode_is_logged_as_it_grows_and_frames_count_on(tmp_path: Path):
    live = LiveEpisodes(log := RerunLog(str(tmp_path / "live.rrd"), "live"))
    for number in range(2):
        buffer = EpisodeBuffer.allocate(SPEC, 40)
        live.begin(buffer, "lift")
        for row in range(3):
            observe(buffer, row)
            live.read()
            if row < 2:
                act(buffer, row, HUMAN if number and row else POLICY)
            live.read()
    log.close()
    shown = read(tmp_path / "live.rrd")
    assert shown["state"] == {frame: [frame % 3, -(frame % 3)] for frame in range(6)}
    assert shown["action"] == {0: [0], 1: [1], 3: [0], 4: [1]}
    assert shown["events"] == {0: "episode 1: lift", 3: "episode 2: lift", 4: "a person takes over"}
    assert len(shown["camera/front"]) == 6


def test_a_log_that_falls_behind_leaves_images_out_and_nothing_else(tmp_path: Path):
    live = LiveEpisodes(log := RerunLog(str(tmp_path / "live.rrd"), "live"))
    buffer = EpisodeBuffer.allocate(SPEC, 40)
    live.begin(buffer, "")
    for row in range(40):
        observe(buffer, row)
        act(buffer, row)
    live.read()
    log.close()
    shown = read(tmp_path / "live.rrd")
    assert len(shown["state"]) == len(shown["action"]) == 40
    assert set(shown["camera/front"]) == set(range(40 - MAX_BEHIND, 40))


class Recorded(EngineBase):
    """An engine that only has a running episode."""

    env_spec = SPEC


def test_an_engine_streams_to_a_process_which_never_replaces_a_file(tmp_path: Path):
    (tmp_path / "run.rrd").write_text("earlier session")
    engine, target = Recorded(), str(tmp_path / "run.rrd")
    with streaming(target, engine):
        engine.recording = buffer = EpisodeBuffer.allocate(SPEC, 40)
        for row in range(3):
            observe(buffer, row)
            act(buffer, row)
    assert set(read(tmp_path / "run_2.rrd")["action"]) == {0, 1, 2}
    assert (tmp_path / "run.rrd").read_text() == "earlier session"


def test_a_target_that_cannot_be_opened_is_an_error_before_the_robot_moves(tmp_path: Path):
    target = str(tmp_path / "none" / "run.rrd")
    with pytest.raises(RolloutError, match=r"rerun=.*none.*run\.rrd"), streaming(target, Recorded()):
        pytest.fail("the block must not begin")


def test_the_command_streams_what_it_records(tmp_path: Path):
    (tmp_path / "policy.yaml").write_text("policy: {type: 'puppet:CounterConfig'}")
    words = ("run", "--robot", "puppet:PuppetConfig", "--policy_yaml", "policy.yaml", "--store", "store", "--steps", 5)
    settings = (f"robot.log={tmp_path / 'log'}", "policy.inference=sequential", "rerun=run.rrd")
    plaudit(*words, *settings, cwd=tmp_path)
    shown, episode = read(tmp_path / "run.rrd"), Store.open(tmp_path / "store").episode(0)
    np.testing.assert_allclose([shown["action"][step] for step in range(5)], episode.actions)
    np.testing.assert_allclose([shown["state"][frame] for frame in range(6)], episode.state)


def test_a_viewer_that_is_not_there_does_not_stop_an_engine(tmp_path: Path):
    engine = Recorded()
    with streaming("rerun+http://127.0.0.1:1/proxy", engine):
        engine.recording = buffer = EpisodeBuffer.allocate(SPEC, 40)
        observe(buffer, 0)
    assert buffer.num_observations == 1
