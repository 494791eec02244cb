"""What a run and `plaudit label` make of their judge's certificate; a robot is not left to a judge without one."""

from pathlib import Path

import pytest

import glow
from command import plaudit
from five_judges import PushJudgeConfig, push_store
from plaudit.judges.certificate import Certificate
from plaudit.judges.classifier.config import ClassifierJudgeConfig
from plaudit.judges.classifier.judge import ClassifierJudge
from plaudit.judges.exam import examine
from plaudit.training.config_file import load_training_config
from plaudit.training.rollout_judge import describe_judge
from plaudit.types import JudgeId
from puppet import lines

LINE = "exam passed on 10 unseen episodes"


@pytest.fixture(scope="module")
def passed(tmp_path_factory) -> Certificate:
    """Of a judge that is good at something."""
    store = push_store(tmp_path_factory.mktemp("exam") / "episodes", 5, 5)
    config = PushJudgeConfig()
    return examine(store, config, config.build(), ("human",), store.ids, name="good")[0]


@pytest.fixture
def lab(tmp_path) -> Path:
    """With a model in `judge`."""
    glow.saved(glow.bright_model(0.3), tmp_path / "judge")
    return tmp_path


def give(lab: Path, certificate: Certificate, judge: JudgeId) -> None:
    owner = {"source": judge.source, "fingerprint": judge.fingerprint, "rule": judge.rule.model_dump_json()}
    certificate.model_copy(update=owner).save(lab / "judge" / "certificate.json")


def judge_of(lab: Path, **rule: object) -> ClassifierJudge:
    return ClassifierJudgeConfig.model_validate({"model": lab / "judge", "device": "cpu", "rule": rule}).build()


def robot(lab: Path) -> list[str]:
    words = [word for word in glow.online(lab / "judge") if not word.startswith("env=")]
    return [*words, "robot=puppet:PuppetConfig", f"robot.log={lab}/log", "robot.size=[8,8]", "run.name=run", "--serial"]


def test_a_robot_is_not_left_to_a_judge_without_a_certificate(lab, passed):
    said = plaudit("online", *robot(lab), cwd=lab, ok=False)
    assert "puppet:PuppetConfig is a robot, and its judge has no certificate; plaudit judge exam JUDGE STORE" in said
    assert "(or judge.force=true takes it as it is)" in said
    (lab / "judge" / "certificate.json").write_text("{")
    said = plaudit("online", *robot(lab), cwd=lab, ok=False)
    assert "certificate.json: this certificate cannot be read" in said and "judge.force=true" in said
    failed = passed.model_copy(update={"problems": ("it is clock-like",)})
    give(lab, failed, judge_of(lab).id)
    assert "its judge failed its exam: it is clock-like" in plaudit("online", *robot(lab), cwd=lab, ok=False)
    assert not (lab / "runs").exists() and not (lab / "log").exists()


def test_whose_certificate_it_is_shows_before_the_robot_moves(lab, passed):
    give(lab, passed, judge_of(lab).id)  # of another rule than the run's
    said = plaudit("online", *robot(lab), "--allow-untrained", cwd=lab, ok=False)
    assert "is the certificate of another judge: it was made for the rule" in said and "judge.force=true" in said
    assert not (lab / "runs" / "run").exists() and {*lines(lab / "log")} <= {"hold"}


def test_a_judge_with_its_certificate_is_left_to_the_robot(lab, passed):
    give(lab, passed, judge_of(lab, decode="per_frame").id)
    short = ("run.max_episodes=1", "audit.fraction=0", "--allow-untrained")
    plaudit("online", *robot(lab), *short, cwd=lab)
    assert LINE in (lab / "runs/run/events.jsonl").read_text()


def test_a_human_needs_no_certificate():
    config = load_training_config("online", None, ["robot=igris_b", "learner=sac", "judge=human"])
    assert not config.judge.config.needs_certificate


def test_train_and_label_show_it(lab, passed):
    glow.demos(lab / "demos", 2)
    label = ("label", "demos", "--judge", "classifier", "--model", "judge", "--dry-run")
    assert "certificate: none; plaudit judge exam" in plaudit(*label, cwd=lab)
    give(lab, passed, judge_of(lab).id)
    assert f"certificate: {LINE}" in plaudit(*label, cwd=lab)
    assert "is the certificate of another judge" in plaudit(*label, "--decode", "per_frame", cwd=lab)
    words = ["env=glow", "learner=ppo", f"judge={lab / 'judge'}"]
    assert describe_judge(load_training_config("train", None, words))[1].startswith(f"certificate: {LINE}")


def test_the_certificate_beside_a_judges_file_is_found(lab, passed):
    (lab / "strict.yaml").write_text(f"{{type: classifier, model: {lab}/judge, rule: {{threshold: 0.9}}}}")
    words = ["env=glow", "learner=ppo", f"judge={lab / 'strict.yaml'}"]
    judge = judge_of(lab, threshold=0.9)
    owner = {"source": judge.id.source, "fingerprint": judge.id.fingerprint, "rule": judge.id.rule.model_dump_json()}
    passed.model_copy(update=owner).save(lab / "strict.certificate.json")
    assert describe_judge(load_training_config("train", None, words))[1].startswith(f"certificate: {LINE}")
