"""The actors that label, without Ray around them: what they do is what their classes do."""

from glow import bright_model, demos, saved
from plaudit.cluster.ray_workers import AutoRewardLabelerActor, ManualRewardLabelerActor
from plaudit.data.store import Store
from plaudit.judges.classifier.config import ClassifierJudgeConfig
from plaudit.training.replay_buffer import ReplayBuffer
from plaudit.training.workers.handles import SerialHandle
from plaudit.training.workers.labelers import JudgeBundle, LabelingWindowConfig


def service(tmp_path) -> SerialHandle[ReplayBuffer]:
    """Two episodes of a robot that nobody has labeled."""
    replay = ReplayBuffer(tmp_path / "run")
    for i, episode in Store.open(demos(tmp_path / "demos", 2)):
        replay.add(episode, f"episode {i}")
    return SerialHandle("replay buffer", replay)


def test_a_model_labels_by_itself(tmp_path):
    replay = service(tmp_path)
    actor = AutoRewardLabelerActor(replay)
    judge = actor.load(JudgeBundle.of(ClassifierJudgeConfig(model=saved(bright_model(0.5), tmp_path / "judge"))))
    report = actor.label_pending()
    assert report.done == 2 and replay.worker.pending(judge) == []
    actor.close()
    replay.worker.close()


def test_a_human_is_shown_what_waits(tmp_path):
    replay = service(tmp_path)
    actor = ManualRewardLabelerActor(replay, LabelingWindowConfig(open=False))
    report = actor.label_pending()
    assert report.who.source == "human" and report.done == 0 and len(replay.worker.pending(report.who)) == 2
    actor.close()
    replay.worker.close()
