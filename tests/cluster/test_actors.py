"""The actors that label, without Ray around them: what they do is what their classes do."""

from glow import bright_model, demos, saved
from plaudit.cluster.actors import AutoRewardLabelerActor, ManualRewardLabelerActor
from plaudit.data.store import Store
from plaudit.judges.classifier.labeler import ClassifierLabelerConfig
from plaudit.training.labeling_window import WindowConfig
from plaudit.training.replay_buffer import ReplayService
from plaudit.training.workers.judge import Appointed


def service(tmp_path) -> ReplayService:
    """Two episodes of a robot that nobody has labeled."""
    replay = ReplayService(tmp_path / "run")
    for i, episode in Store.open(demos(tmp_path / "demos", 2)):
        replay.append(episode, f"episode {i}")
    return replay


def test_a_model_labels_by_itself(tmp_path):
    replay = service(tmp_path)
    actor = AutoRewardLabelerActor(replay)  # type: ignore[arg-type]
    judge = Appointed.of(ClassifierLabelerConfig(model=saved(bright_model(0.5), tmp_path / "judge")))
    judged = actor.step(judge)
    assert (judged.done, judged.failed) == (2, 0) and replay.pending(actor.who(judge)) == []
    actor.close()
    replay.close()


def test_a_human_is_shown_what_waits(tmp_path):
    replay = service(tmp_path)
    actor = ManualRewardLabelerActor(replay, WindowConfig(window=False))  # type: ignore[arg-type]
    judged = actor.step()
    assert judged.who.source == "human" and judged.done == 0 and len(replay.pending(judged.who)) == 2
    actor.close()
    replay.close()
