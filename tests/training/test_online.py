"""The whole loop in one process: a lamp, a judge that looks at it, a learner that turns it up."""

import json
import time
from collections.abc import Collection
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import glow
from plaudit.data.ledger import Failures
from plaudit.data.replay import ReplaySampler
from plaudit.data.store import Store
from plaudit.errors import ConfigError, PolicyError, StoreFull, TargetNotEmpty, TrainingError
from plaudit.policies.loader import load_policy, read_weights, save_policy
from plaudit.report.run import write_run_report
from plaudit.rollout.operator import OperatorCommand, OperatorConfig
from plaudit.training.config_file import load_training_config
from plaudit.training.display import Display
from plaudit.training.online import Callback, OnlineState, OnlineTrainer
from plaudit.training.retrain import PromotionDecision, Retrainer
from plaudit.training.run_folder import RunFolder
from plaudit.training.setup import learner_env_spec
from plaudit.training.workers.env import EnvWorker
from plaudit.training.workers.group import LocalWorkerGroup
from plaudit.training.workers.handles import SerialHandle, Slot
from plaudit.training.workers.labelers import JudgeWorker
from plaudit.training.workers.learner import LearnerWorker
from plaudit.trust import allow_code
from plaudit.types import EnvSpec, Labels
from puppet import lines
from slow import slow_but
from tiny_reward import tiny_model

WEIGHTS = "policy/model.safetensors"


def asked(tmp_path: Path, *more: str, cut: float = 0.8) -> list[str]:
    if not (tmp_path / "judge").exists():
        glow.saved(glow.bright_model(cut), tmp_path / "judge")
    return [*glow.online(tmp_path / "judge"), *more]


@dataclass
class OnlineSession:
    """One run of the loop, from its beginning or from where it stood."""

    progress: OnlineState
    told: list[int] = field(default_factory=list)  # episodes, whenever something was told


def run_session(tmp_path: Path, *more: str, stop_after: int | None = None, cut: float = 0.8) -> OnlineSession:
    told: list[int] = []

    def watch(now: OnlineState) -> bool:
        told.append(now.episodes)
        return stop_after is None or now.episodes < stop_after

    return OnlineSession(run_of(tmp_path, *asked(tmp_path, *more, cut=cut), watch=watch), told)


def run_of(tmp_path: Path, *words: str, watch: Callback = lambda now: True) -> OnlineState:
    config = load_training_config("online", None, words)
    folder = RunFolder.open(tmp_path / "run", config)
    workers = LocalWorkerGroup(folder, serial=True)
    try:
        return OnlineTrainer(folder, workers).run(watch)
    finally:
        workers.close()
        folder.close()


@pytest.mark.slow
def test_a_policy_learns_from_the_judge_alone(tmp_path):
    more = (
        "run.max_episodes=60",
        "learner.utd_ratio=2",
        "learner.temperature_init=0.1",
        "evaluation.stop_success_rate=0.9",
    )
    end = run_session(tmp_path, *more, f"env.goal={glow.WITHIN_REACH}", cut=glow.WITHIN_REACH)
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    curve = [line["eval/success_once"] for line in lines if "eval/success_once" in line]
    assert curve[-1] >= 0.9 > curve[0]
    store = Store.open(tmp_path / "run/episodes")
    assert len(store) == end.progress.episodes
    assert all(store.ledger.newest(i, {"classifier"}) is not None for i in store.ids[:-1])


def test_updates_are_those_that_the_labeled_steps_have_earned(tmp_path):
    end = run_session(tmp_path, "run.max_episodes=10", "learner.utd_ratio=0.5")
    assert end.progress.step == 10 * 12
    assert end.progress.updates == 60
    assert end.progress.pending_updates == 0


def test_episodes_out_of_distribution_are_not_learned_from_in_a_simulation(tmp_path):
    glow.saved(glow.bewildered(glow.bright_model(0.45)), tmp_path / "judge")
    end = run_session(tmp_path, "run.max_episodes=4").progress
    assert end.judge_metrics["judge/ood_share"] == 1 and end.updates == 0
    store = Store.open(tmp_path / "run/episodes")
    assert all(store.ledger.labels(i, {"classifier"}).withheld for i in store.ids)


def test_a_model_of_progress_shapes_what_the_simulator_pays(tmp_path):
    progress = tiny_model(predict_success=False, predict_progress=True, any_size=True, image_size=(16, 16))
    words = [word for word in asked(tmp_path) if not word.startswith("judge")]
    folder = glow.saved(progress, tmp_path / "progress")
    more = ("judge=simulator", f"judge.progress={folder}", "reward.shaping=1", "run.max_episodes=4")
    end = run_of(tmp_path, *words, *more, "evaluation.episodes=1")
    labels = Store.open(tmp_path / "run/episodes").ledger.labels(0)
    assert end.updates and labels.judge.source == "simulator" and labels.scores.progress.shape == (13,)
    assert "%" in end.episode_progress


def test_the_first_steps_earn_no_updates_where_the_learner_is_to_start_later(tmp_path):
    end = run_session(tmp_path, "run.max_episodes=10", "learner.utd_ratio=0.5", "learner.random_steps=80")
    assert (end.progress.step, end.progress.updates, end.progress.pending_updates) == (120, 20, 0)


def test_critics_start_anew_after_a_person_has_corrected_labels_and_relearn_before_others_follow(tmp_path):
    """Two of the first ten labels are turned around; the run is stopped and continued later."""
    corrected: list[int] = []

    def watch(now: OnlineState) -> bool:
        if now.episodes == 10 and not corrected:
            ledger = Store.open(tmp_path / "run/episodes").ledger
            for i in (0, 1):
                cutoff = None if ledger.labels(i).success_once else 12
                ledger.append(i, Labels.from_cutoff(steps=12, cutoff=cutoff, source="human"))
                corrected.append(i)
        return now.episodes < 15

    more = ("learner.utd_ratio=0.5", "learner.resets.relabeled=0.1", "learner.resets.relearn_updates=30")
    words = asked(tmp_path, *more, "run.max_episodes=20")
    first = run_of(tmp_path, *words, watch=watch)
    assert corrected and first.extra_updates == 30
    again = run_of(tmp_path, *words)
    assert (again.updates, again.extra_updates, again.pending_updates) == (120 + 30, 30, 0)


def test_a_run_that_was_stopped_goes_on_with_the_same_counters(tmp_path):
    first = run_session(tmp_path, "run.max_episodes=16", "learner.utd_ratio=0.25", stop_after=6)
    again = run_session(tmp_path, "run.max_episodes=16", "learner.utd_ratio=0.25")
    assert first.progress.episodes < 16
    assert first.progress.episodes <= again.told[0] <= first.progress.episodes + 1
    assert (again.progress.episodes, again.progress.updates) == (16, 48)
    assert again.progress.policy.version > first.progress.policy.version
    store = Store.open(tmp_path / "run/episodes")
    versions = [store.entry(i).line["meta"]["weights"] for i in store.ids]
    assert versions == sorted(versions)
    seeds = [store.entry(i).line["meta"]["seed"] for i in store.ids]
    assert len(set(seeds)) == 16


def test_a_rule_that_was_fitted_on_another_model_is_told_on_the_screen(tmp_path):
    record = {"date": "2026-01-01", "fingerprint": "another", "reference": ["human"], "episodes": 50, "successes": 20}
    record |= dict.fromkeys(("target_fpr", "fpr", "fpr_low", "fpr_high", "recall"), 0.1)
    end = run_session(tmp_path, "run.max_episodes=1", f"judge.calibration_record={json.dumps(record)}")
    assert "this judge's rule was fitted on another and it is" in end.progress.last_event


def test_another_run_is_not_continued_by_mistake(tmp_path):
    run_session(tmp_path, "run.max_episodes=2")
    with pytest.raises(TargetNotEmpty, match=r"another learner; resume it as it was"):
        run_session(tmp_path, "run.max_episodes=2", "learner.gamma=0.5")
    assert run_session(tmp_path, "run.max_episodes=4").progress.episodes == 4  # only longer


def test_a_run_whose_judge_was_wrong_goes_on_with_another(tmp_path):
    """As the alarm says: train one, and name it."""
    audit = ("audit.fraction=1.0", "learner.utd_ratio=0.1")
    stopped = run_session(tmp_path, "run.max_episodes=30", *audit, cut=0.3)
    assert stopped.progress.alarm is not None
    better = glow.saved(glow.bright_model(0.8), tmp_path / "better")
    end = run_session(tmp_path, "run.max_episodes=30", *audit, f"judge.model={better}")
    assert (end.progress.alarm, end.progress.episodes, end.progress.replay.outdated) == (None, 30, 0)


class LearnerElsewhere(LocalWorkerGroup):
    """Its learner is on a machine that has what the config asks for."""

    def __init__(self, folder):
        super().__init__(folder, serial=True)
        run = folder.config.run.model_copy(update={"device": "cpu"})
        there = folder.config.model_copy(update={"run": run})
        self.learner = Slot(
            SerialHandle("learner", LearnerWorker(there, folder.path, self.replay, self.state)), self.clock
        )


def test_only_the_learner_needs_the_device_that_it_learns_on(tmp_path):
    config = load_training_config("online", None, asked(tmp_path, "run.max_episodes=1", "run.device=cuda:99"))
    folder = RunFolder.open(tmp_path / "run", config)
    workers = LearnerElsewhere(folder)
    assert OnlineTrainer(folder, workers).run(lambda now: True).episodes == 1
    workers.close()
    folder.close()


class Hangs(SerialHandle):
    """A worker that never comes to an end, once it was asked for what it is there for."""

    busy_with = ("label_pending", "update", "evaluate", "save_checkpoint")

    def submit(self, method, *args, **kwargs):
        return Future() if method.__name__ in self.busy_with else super().submit(method, *args, **kwargs)


class HangingJudge(LocalWorkerGroup):
    """Its judge never comes to an end."""

    def __init__(self, folder):
        super().__init__(folder, serial=True)
        self.judge = Slot(Hangs("judge", JudgeWorker(self.replay)), self.clock)


def test_while_the_judge_hangs_the_robot_goes_on_up_to_a_bound_that_is_told(tmp_path):
    config = load_training_config(
        "online", None, asked(tmp_path, "run.max_unlabeled_episodes=5", "run.worker_timeout_s=1")
    )
    folder = RunFolder.open(tmp_path / "run", config)
    workers = HangingJudge(folder)
    seen: list[OnlineState] = []
    trainer = OnlineTrainer(folder, workers)
    waits: list[str] = []
    awaited: set[str] = set()

    def watch(now: OnlineState) -> bool:
        seen.append(now)
        waits.append(now.env_waiting_for)
        awaited.update(now.awaited)
        return waits.count("labels: 5 unlabeled episodes (max 5)") < 3

    end = trainer.run(watch)
    workers.close()
    folder.close()
    assert end.episodes == 5 and awaited == {"judge"}
    assert "learner" not in end.errors and any((tmp_path / "run/checkpoints").iterdir()), "the judge used up its time"
    assert len(Store.open(tmp_path / "run/episodes")) == 5


def test_an_episode_the_judge_fails_on_stays_queued_and_is_counted(tmp_path):
    """It wants a camera that the robot does not have."""
    other = tmp_path / "other"
    glow.saved(glow.bright_model(0.8, camera="wrist"), other)
    end = run_session(
        tmp_path, "run.max_episodes=3", f"judge.model={other}", "run.max_unlabeled_episodes=3", stop_after=3
    )
    assert end.progress.replay.unlabeled == 3
    assert end.progress.replay.failed > 0


def starts_bright(tmp_path: Path) -> list[int]:
    """The episodes of the run that a dazzled judge cannot label."""
    store = Store.open(tmp_path / "run/episodes")
    return [i for i in store.ids if store.episode(i).frames["front"][0].mean() > 255 * 0.3]


def test_a_run_comes_to_its_end_although_some_episodes_can_never_be_labeled(tmp_path, monkeypatch):
    monkeypatch.setattr("plaudit.training.workers.labelers.RETRY_S", 0.5)
    end = run_session(
        tmp_path,
        "judge=glow:DazzledConfig",
        "run.max_episodes=12",
        "run.max_unlabeled_episodes=4",
        "evaluation.freq=1200",
    )
    given_up, counts = starts_bright(tmp_path), end.progress.replay
    assert 0 < len(given_up) < 12
    assert (counts.episodes, counts.unlabeled, counts.skipped) == (12, 0, len(given_up))
    assert end.progress.updates == 6 * (12 - len(given_up)), "nothing is earned by what nobody learns from"
    page = write_run_report(tmp_path / "run").read_text()
    assert f"could not label {len(given_up)} episode" in page and "it is too bright to see anything" in page
    assert len(end.told) < 150, "waits, where nothing is to be done, and does not spin"


def test_a_judge_that_can_label_nothing_ends_the_run_with_its_reason(tmp_path, monkeypatch):
    """Instead of a robot that plays a thousand episodes for nothing."""
    monkeypatch.setattr("plaudit.training.workers.labelers.RETRY_S", 0.5)
    sentence = "the judge could not label any of the last 2 episodes: it is too bright to see anything; they are kept"
    with pytest.raises(TrainingError, match=sentence):
        run_session(
            tmp_path,
            "judge=glow:DazzledConfig",
            "judge.most=0",
            "run.max_episodes=1000",
            "run.max_unlabeled_episodes=2",
        )
    assert len(Store.open(tmp_path / "run/episodes")) <= 3
    again = run_session(
        tmp_path, "judge=glow:DazzledConfig", "judge.most=1", "run.max_episodes=4", "run.max_unlabeled_episodes=2"
    )
    assert (again.progress.episodes, again.progress.replay.unlabeled, again.progress.replay.skipped) == (4, 0, 0)


def test_a_judge_with_a_mistake_in_it_ends_the_run_with_a_sentence_and_the_learner_is_saved(tmp_path, monkeypatch):
    monkeypatch.setattr("plaudit.training.workers.labelers.RETRY_S", 0.5)
    sentence = (
        r"the judge could not label any of the last 2 episodes: the judge raised ValueError: it is too bright to see "
        r"anything \(glow.py, line \d+\); they are kept, and the same command tries them again"
    )
    with pytest.raises(TrainingError, match=sentence):
        run_session(
            tmp_path,
            "judge=glow:DazzledConfig",
            "judge.raises=true",
            "judge.most=0",
            "run.max_episodes=1000",
            "run.max_unlabeled_episodes=2",
        )
    assert RunFolder.reopen(tmp_path / "run").newest_state() is not None


class Forgetful(LearnerWorker):
    """Runs out of memory now and then."""

    fails = 3

    def setup(self, *args):
        info = super().setup(*args)
        update = self.learner.update

        def forgets(batch):
            if self.fails:
                self.fails -= 1
                raise RuntimeError("CUDA out of memory")
            return update(batch)

        self.learner.update = forgets
        return info


class ForgetfulLearner(LocalWorkerGroup):
    def __init__(self, folder):
        super().__init__(folder, serial=True)
        self.learner = Slot(
            SerialHandle("learner", Forgetful(folder.config, folder.path, self.replay, self.state)), self.clock
        )


def test_a_part_that_failed_in_a_way_nobody_foresaw_is_asked_again_and_the_run_goes_on(tmp_path):
    config = load_training_config("online", None, asked(tmp_path, "run.max_episodes=6", "run.worker_timeout_s=30"))
    folder = RunFolder.open(tmp_path / "run", config)
    workers = ForgetfulLearner(folder)
    troubles: set[str] = set()

    def watch(now: OnlineState) -> bool:
        troubles.update(now.errors.values())
        return True

    end = OnlineTrainer(folder, workers).run(watch)
    workers.close()
    folder.close()
    assert (end.episodes, end.updates, dict(end.errors)) == (6, 36, {})
    assert [trouble.partition(" (")[0] for trouble in troubles] == [
        "the learner failed: RuntimeError: CUDA out of memory"
    ]


class Pressed(EnvWorker):
    """Somebody presses Ctrl-C twice while an episode is played."""

    def rollout(self, seed=None):
        raise KeyboardInterrupt


class Interrupted(LocalWorkerGroup):
    def __init__(self, folder):
        super().__init__(folder, serial=True)
        self.env = Slot(SerialHandle("env", Pressed(folder.config, self.replay, self.state)), self.clock)


def test_ctrl_c_in_the_middle_of_a_part_is_no_failure_of_that_part(tmp_path):
    config = load_training_config("online", None, asked(tmp_path))
    folder = RunFolder.open(tmp_path / "run", config)
    workers = Interrupted(folder)
    with pytest.raises(KeyboardInterrupt):
        OnlineTrainer(folder, workers).run(lambda now: True)
    workers.close()
    folder.close()
    assert not (tmp_path / "run/failures.log").exists()


class FullDisk(LocalWorkerGroup):
    """The disk is full for the first few episodes."""

    full = 3

    def __init__(self, folder):
        super().__init__(folder, serial=True)
        assert isinstance(self.replay, SerialHandle)
        buffer = self.replay.worker
        add = buffer.add

        def full(episode, key):
            if self.full:
                self.full -= 1
                raise StoreFull("the disk is full")
            return add(episode, key)

        buffer.add = full


@pytest.mark.parametrize(("full", "patience", "recovers"), [(3, 30, True), (10**6, 1, False)])
def test_a_full_disk_is_waited_for_and_nothing_is_played_meanwhile(tmp_path, full, patience, recovers):
    config = load_training_config(
        "online", None, asked(tmp_path, "run.max_episodes=3", f"run.worker_timeout_s={patience}")
    )
    folder = RunFolder.open(tmp_path / "run", config)
    workers = FullDisk(folder)
    workers.full = full
    trainer = OnlineTrainer(folder, workers)
    try:
        if recovers:
            assert trainer.run(lambda now: True).episodes == 3
        else:
            with pytest.raises(
                TrainingError, match="the disk is full; it did not recover within 1 s; resume with the same command"
            ):
                trainer.run(lambda now: True)
    finally:
        workers.close()
        folder.close()


def test_a_judge_that_calls_failures_a_success_stops_the_learner(tmp_path):
    """It calls a lamp bright at 0.3 that succeeds at 0.8."""
    audit = ("audit.fraction=1.0",)
    end = run_session(tmp_path, "run.max_episodes=60", *audit, "env.goal=2.0", cut=0.3)  # no lamp ever truly succeeds
    assert end.progress.episodes < 60
    assert end.progress.alarm is not None and "are false (max 10%)" in end.progress.alarm
    assert end.progress.updates < end.progress.step


def test_a_policy_that_does_not_fit_is_told_of_part_by_part(tmp_path):
    config = load_training_config("online", None, asked(tmp_path))
    body_learner = config.learner.model_copy(update={"hidden_dims": (16,)}).build(EnvSpec(2, 1, {}), 0, "cpu")
    path = save_policy(tmp_path / "policy", body_learner.policy_config(), body_learner.weights())
    with pytest.raises(PolicyError) as told:
        run_session(tmp_path, f"policy.path={path}")
    sentences = str(told.value).splitlines()
    assert "'actor/head.weight' is [16, 2], the learner's is [32, 2]" in " ".join(sentences)
    assert len(sentences) >= 3
    assert not (tmp_path / "run/policy/model.safetensors").exists()


def test_a_run_begins_with_the_weights_of_a_policy(tmp_path):
    config = load_training_config("online", None, asked(tmp_path))
    learner = config.learner.build(EnvSpec(2, 1, {}), 99, "cpu")
    path = save_policy(tmp_path / "policy", learner.policy_config(), learner.weights())
    run_session(tmp_path, f"policy.path={path}", "run.max_episodes=1", "learner.utd_ratio=0.01")
    published = read_weights(tmp_path / "run/policy/model.safetensors")
    for name, array in learner.weights().tensors.items():
        np.testing.assert_array_equal(published.tensors[name], array)


@pytest.mark.parametrize(
    ("mistake", "sentence"),
    [
        ("lerner=sac", "unknown key 'lerner'; did you mean 'learner'?"),
        ("policy.inference=rtc", "rtc controls in real time; write"),
        (
            "policy.inference=rtc policy.inference.realtime=true",
            "rtc needs chunks of actions, and the policy of learner 'sac' returns one",
        ),
        ("policy.behavior=pretrained", "policy.behavior=pretrained needs a policy.path"),
        (
            "policy.inference.stop_on=success",
            "policy.inference.stop_on ends an episode by what only the simulator knows",
        ),
        ("audit.minutes_per_hour=5", "a human's time, and here no human audits; leave it out, or set audit.by=human"),
        ("judge", "'judge' is not KEY=VALUE"),
        (
            "judge.retrain.train_overrides.epoch=3",
            "unknown key 'judge.retrain.train_overrides.epoch'; did you mean 'epochs'?",
        ),
    ],
)
def test_mistakes_are_told_before_anything_is_made(tmp_path, mistake, sentence):
    with pytest.raises(ConfigError, match=sentence.replace("?", r"\?")):
        run_session(tmp_path, *mistake.split())
    assert not (tmp_path / "run").exists()


def test_the_simulators_own_flag_may_end_episodes_where_the_simulator_judges(tmp_path):
    words = [word for word in asked(tmp_path) if not word.startswith("judge")]
    config = load_training_config("online", None, [*words, "judge=simulator", "policy.inference.stop_on=success"])
    assert config.engine.inference.stop_on == "success"


@pytest.mark.parametrize(
    ("words", "driven"),
    [
        ("learner=sac", "sequential"),
        (
            "learner=qchunk policy.inference.realtime=true",
            "sequential",
        ),  # the whole chunk is executed, as its backup is
        ("learner=qchunk learner.critic_horizon=2 policy.inference.realtime=true", "rtc"),
        ("learner=qchunk", "sequential"),
        ("learner=sac policy.behavior=pretrained policy.path=policy.yaml policy.inference.realtime=true", "rtc"),
    ],
)
def test_control_does_not_wait_for_inference_where_that_can_be(tmp_path, monkeypatch, words, driven):
    monkeypatch.chdir(tmp_path)
    Path("policy.yaml").write_text("policy: {type: 'puppet:CounterConfig'}")
    allow_code("puppet")
    asked = ["env=lift", "env.obs=both", "policy.cameras=[]", "judge=human", *words.split()]
    assert load_training_config("online", None, asked).engine.algorithm == driven


def test_a_camera_that_the_robot_has_not_got(tmp_path):
    with pytest.raises(ConfigError, match=r"policy\.cameras has 'top', which the environment does not show"):
        run_session(tmp_path, "policy.cameras=[top]")


@pytest.mark.parametrize("learner", slow_but("sac", of=["sac", "qchunk"]))
def test_both_learners_learn_from_pixels_or_states_with_demonstrations(tmp_path, learner):
    """Whether it runs, and what is asked of the demonstrations first."""
    glow.saved(glow.bright_model(0.8), tmp_path / "judge")
    demos = glow.demos(tmp_path / "demos", episodes=6)
    words = [
        *asked(tmp_path),
        f"learner={learner}",
        f"demos.store={demos}",
        "policy.cameras=[front]",
        "run.max_episodes=3",
    ]
    if learner == "qchunk":
        words = [word for word in words if not word.startswith("learner.hidden_dims")]
        words += ["learner.pretrain_updates=20", "learner.horizon=3", "learner.num_samples=4"]
    config = load_training_config("online", None, words)
    folder = RunFolder.open(tmp_path / "run", config)
    workers = LocalWorkerGroup(folder, serial=True)
    waits: set[str] = set()

    def watch(now: OnlineState) -> bool:
        waits.add(now.env_waiting_for)
        return True

    end = OnlineTrainer(folder, workers).run(watch)
    workers.close()
    folder.close()
    assert end.episodes == 3
    pretrained = 20 if learner == "qchunk" else 0
    assert end.updates == pretrained + int(36 * config.learner.utd_ratio)
    assert any("pretraining on demonstrations" in reason for reason in waits) == (learner == "qchunk")
    judged = Store.open(demos, labels=tmp_path / "run/demo_labels").ledger
    assert all(judged.newest(i).source == "classifier" for i in range(6))
    assert end.replay.demo_successes == 6 and "sees success" not in end.last_event


def test_demonstrations_that_the_judge_does_not_see_succeed_are_told_on_the_screen(tmp_path):
    demos = glow.demos(tmp_path / "demos", episodes=6)  # which end with their first frame of success
    rule = ("judge.rule.decode=k_of_n", "judge.rule.k=2", "judge.rule.n=3")
    end = run_session(tmp_path, "run.max_episodes=1", f"demos.store={demos}", *rule)
    assert "the judge sees success in none of the 6 demonstrations" in end.progress.last_event


class ReadyCandidate(Retrainer):
    """Has a better judge at hand: one that draws the line where it is. (A lamp cannot be learned here: a white picture,
    which every judge has to call a failure, is its success.)"""

    _found: PromotionDecision | None = None

    def launch(self, store: Path, unchosen: Collection[int] | None = None) -> None:
        glow.saved(glow.bright_model(0.8), self._candidate)
        version = len(Store.open(store).ledger)
        self._found = self._write(PromotionDecision(0, True, "it is better", None, None, None, version, 0.0, 0.0), 0.0)

    @property
    def running(self) -> bool:
        return self._found is not None

    def poll(self) -> PromotionDecision | None:
        found, self._found = self._found, None
        return found


def test_a_judge_that_was_wrong_is_replaced_and_says_everything_again(tmp_path, monkeypatch):
    """The first calls a lamp bright from 0.3 on, which is so from 0.8 on."""
    monkeypatch.setattr("plaudit.training.monitor.Retrainer", ReadyCandidate)
    audit = (
        "audit.fraction=1.0",
        "judge.retrain.min_new_labels=1000",
    )  # only when it rings
    audit += ("run.max_episodes=30", "learner.utd_ratio=0.1")
    config = load_training_config("online", None, asked(tmp_path, *audit, cut=0.3))
    folder = RunFolder.open(tmp_path / "run", config)
    workers = LocalWorkerGroup(folder, serial=True)
    alarms: list[str | None] = []

    def watch(now: OnlineState) -> bool:
        alarms.append(now.alarm)
        return True

    end = OnlineTrainer(folder, workers).run(watch)
    workers.close()
    folder.close()
    assert any(alarm is not None for alarm in alarms)
    assert (end.alarm, end.episodes) == (None, 30)
    assert end.judge_metrics["judge/version"] == 1
    assert abs(end.judge_metrics["audit/success_gap"]) < 0.1
    assert end.replay.outdated == 0
    store = Store.open(tmp_path / "run/episodes")
    said = [[v.line["model"] for v in store.ledger.history(i) if v.source == "classifier"] for i in store.ids]
    assert len(set(said[0])) == 2  # what the first said is kept
    assert {models[-1] for models in said} == {said[-1][-1]}  # and nobody learns from it any more


class Endless(Retrainer):
    """Is never done."""

    started: ClassVar[list["Endless"]] = []
    _under_way = False

    def launch(self, store: Path, unchosen: Collection[int] | None = None) -> None:
        self.started.append(self)
        self._under_way = True

    @property
    def running(self) -> bool:
        return self._under_way

    def poll(self) -> PromotionDecision | None:
        return None

    def stop(self) -> None:
        self._under_way = False


def test_the_end_of_a_run_begins_no_retraining(tmp_path, monkeypatch):
    monkeypatch.setattr("plaudit.training.monitor.Retrainer", Endless)
    monkeypatch.setattr(Endless, "started", [])
    words = asked(tmp_path, "audit.fraction=1.0", "judge.retrain.min_new_labels=2", "judge.retrain.min_episodes=2")
    run_of(tmp_path, *words, watch=lambda now: not Endless.started)
    (retrainer,) = Endless.started
    assert not retrainer.running


def test_a_stopped_run_shows_that_it_waits_for_the_retraining_and_saves_the_learner_meanwhile(tmp_path):
    words = ("audit.fraction=1.0", "judge.retrain.min_new_labels=2", "judge.retrain.min_episodes=2")
    folder = RunFolder.open(tmp_path / "run", load_training_config("online", None, asked(tmp_path, *words)))
    workers = LocalWorkerGroup(folder, serial=True)
    trainer = OnlineTrainer(folder, workers)
    awaited: list[tuple[str, ...]] = []
    checkpoints = tmp_path / "run/checkpoints"
    saved_before: list[bool] = []

    def watch(now: OnlineState) -> bool:
        if now.awaited:
            awaited.append(tuple(now.awaited))
            saved_before.append(any(checkpoints.iterdir()))
        return not trainer.monitor.retraining

    trainer.run(watch)
    workers.close()
    folder.close()
    assert any("retraining" in names for names in awaited) and not trainer.monitor.retraining
    assert saved_before[-1], "the learner waited for the retraining"


def test_nobody_audits_the_simulator_and_nobody_is_waited_for(tmp_path):
    """Nor is a person asked, unless the config says that one audits."""
    words = [word for word in asked(tmp_path, "run.max_episodes=4") if not word.startswith("judge")]
    end = OnlineSession(run_of(tmp_path, *words, "judge=simulator"))
    assert end.progress.replay.unlabeled == 0
    assert not any(name.startswith("audit/") for name in end.progress.judge_metrics)
    config = load_training_config("online", None, [*words, "judge=simulator"])
    assert "audit" not in Display(config).line(end.progress)
    audited = load_training_config("online", None, [*words, "judge=simulator", "audit.by=human"])
    assert audited.human_audits


def test_a_call_of_the_learner_ends_after_the_update_in_which_its_time_is_over(tmp_path):
    folder = RunFolder.open(tmp_path / "run", load_training_config("online", None, asked(tmp_path)))
    workers = LocalWorkerGroup(folder, serial=True)
    OnlineTrainer(folder, workers).run(lambda now: now.updates < 6)
    before = workers.learner.handle.call(LearnerWorker.update, 0).updates
    report = workers.learner.handle.call(LearnerWorker.update, 50, 0.0)
    assert (report.made, report.updates) == (1, before + 1)
    workers.learner.handle.call(LearnerWorker.save_checkpoint)
    resumed = LearnerWorker(folder.config, folder.path, workers.replay, workers.state)
    resumed.setup(learner_env_spec(folder.config, workers.env.handle.call(EnvWorker.describe)), "simulator")
    first = np.random.default_rng(folder.config.run.seed * 1009)
    assert isinstance(resumed._sampler, ReplaySampler)
    assert resumed._sampler.rng.integers(2**60) != first.integers(2**60), "it would draw the same batches again"
    workers.close()
    folder.close()


class HangingLearner(LocalWorkerGroup):
    """Workers are busy at the same time, and the learner never comes to an end."""

    def __init__(self, folder):
        super().__init__(folder, serial=True)
        self.serial = False
        learner = LearnerWorker(folder.config, folder.path, self.replay, self.state)
        self.learner = Slot(Hangs("learner", learner), self.clock)


def test_a_learner_that_hangs_does_not_keep_a_run_from_being_stopped(tmp_path):
    config = load_training_config("online", None, asked(tmp_path, "run.worker_timeout_s=1"))
    folder = RunFolder.open(tmp_path / "run", config)
    workers = HangingLearner(folder)
    end = OnlineTrainer(folder, workers).run(lambda now: now.episodes < 2)
    workers.close()
    folder.close()
    assert end.episodes >= 2
    assert end.errors["learner"].startswith("the learner did not finish within 1 s: what it has learned")
    assert load_policy(folder.policy / "policy.yaml").build().components


class ElsewhereState(LocalWorkerGroup):
    """Its state manager writes to another machine's disk."""

    def __init__(self, folder):
        super().__init__(folder, serial=True)
        folder.policy.rename(folder.path / "another machine")


def test_a_placement_with_which_the_policy_could_not_be_saved_is_refused_before_the_first_episode(tmp_path):
    config = load_training_config("online", None, asked(tmp_path))
    folder = RunFolder.open(tmp_path / "run", config)
    workers = ElsewhereState(folder)
    trainer = OnlineTrainer(folder, workers)
    with pytest.raises(TrainingError, match=r"the state manager does not write to .*/run/policy on this machine"):
        trainer.run(lambda now: True)
    workers.close()
    folder.close()
    assert not trainer.started


def test_a_person_in_charge_labels_in_their_own_time(tmp_path):
    """What a window would write into the store's ledger is written here by hand."""
    words = [
        word
        for word in asked(tmp_path, "run.max_episodes=6", "run.max_unlabeled_episodes=2")
        if not word.startswith("judge")
    ]
    config = load_training_config("online", None, [*words, "judge=human", "judge.window.open=false"])
    folder = RunFolder.open(tmp_path / "run", config)
    workers = LocalWorkerGroup(folder, serial=True)
    waited: list[int] = []

    def watch(now: OnlineState) -> bool:
        if "unlabeled episodes" in now.env_waiting_for:
            waited.append(now.replay.unlabeled)
            store = Store.open(tmp_path / "run/episodes")
            unlabeled = [i for i in store.ids if store.ledger.newest(i) is None]
            store.ledger.append(unlabeled[0], Labels.from_cutoff(steps=12, cutoff=None, source="human"))
        if now.episodes == 6 and now.replay.unlabeled:
            store = Store.open(tmp_path / "run/episodes")
            for i in [i for i in store.ids if store.ledger.newest(i) is None]:
                store.ledger.append(i, Labels.from_cutoff(steps=12, cutoff=4, source="human"))
        return True

    end = OnlineTrainer(folder, workers).run(watch)
    workers.close()
    folder.close()
    assert max(waited) == 2
    assert (end.episodes, end.replay.unlabeled, end.updates) == (6, 0, 36)
    assert "plaudit label" in end.window_status


# What a run does in one process is a matter of counts, whatever the clock says


class LateCandidate(ReadyCandidate):
    """One whose training takes longer or shorter."""

    looks = 0  # before it is there

    def poll(self) -> PromotionDecision | None:
        if self.running and self.looks:
            type(self).looks -= 1
            return None
        return super().poll()


def jumping_clocks(monkeypatch, seed: int) -> None:
    """Every look at a clock comes a moment or half a minute after the last."""
    rng = np.random.default_rng(seed)
    for name in ("monotonic", "perf_counter", "time"):
        told = [getattr(time, name)()]

        def tell(told: list[float] = told) -> float:
            told[0] += float(rng.choice([1e-6, 0.01, 0.7, 30.0], p=[0.6, 0.2, 0.1, 0.1]))
            return told[0]

        monkeypatch.setattr(time, name, tell)


def what_was_done(run: Path) -> dict[str, object]:
    """Every array of every episode, every label in its order, and all that was learned."""
    store = Store.open(run / "episodes")
    done: dict[str, object] = {}
    for i in store.ids:
        episode = store.episode(i)
        arrays = {"state": episode.state, "actions": episode.actions, **episode.frames, **episode.privileged}
        meta = {key: episode.meta[key] for key in ("seed", "weights", "ended")}
        done[f"episode {i}"] = {name: array.tobytes() for name, array in arrays.items()} | meta
    done["labels"] = [{key: v for key, v in version.line.items() if key != "time"} for version in store.ledger.since(0)]
    done["failures"] = [(failure.episode, failure.model) for failure in Failures(store.ledger).all()]
    (newest, *_) = sorted((run / "checkpoints").iterdir(), reverse=True)
    done["learner"] = {path.name: path.read_bytes() for path in newest.iterdir()}
    done["policy"] = {name: array.tobytes() for name, array in read_weights(run / WEIGHTS).tensors.items()}
    return done


def test_the_same_run_does_the_same_whatever_the_clock_says(tmp_path, monkeypatch):
    """Run, labeled, failed on, audited, alarmed, labeled again by a promoted judge, learned, published, evaluated."""
    monkeypatch.setattr("plaudit.training.monitor.Retrainer", LateCandidate)
    monkeypatch.setattr("plaudit.training.workers.labelers.RETRY_S", 3.0)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    words = [
        *asked(tmp_path, cut=0.3),
        "judge=glow:DazzledConfig",
        "judge.most=0.38",
        "run.max_episodes=20",
        "evaluation.freq=120",
    ]
    words += [
        "audit.fraction=1.0",
        "judge.retrain.min_new_labels=1000",
        "run.publish_freq=7",
    ]
    words += ["evaluation.episodes=5", "run.checkpoint_freq=40", "learner.utd_ratio=0.25"]
    seen = {}
    for name, looks in (("prompt", 0), ("late", 4)):
        LateCandidate.looks = looks
        if name == "late":
            jumping_clocks(monkeypatch, seed=3)
        config = load_training_config("online", None, [*words, f"run.name={name}"])
        folder = RunFolder.open(tmp_path / name, config)
        workers = LocalWorkerGroup(folder, serial=True)
        end = OnlineTrainer(folder, workers).run(lambda now: True)
        workers.close()
        folder.close()
        assert (end.episodes, end.judge_metrics["judge/version"]) == (20, 1)
        assert end.replay.skipped > 0
        seen[name] = what_was_done(tmp_path / name) | {"updates": end.updates, "published": end.policy.version}
    assert seen["prompt"].keys() == seen["late"].keys()
    assert [what for what in seen["prompt"] if seen["prompt"][what] != seen["late"][what]] == []


def test_an_operator_starts_marks_and_discards_the_episodes_of_a_run_and_stops_it(tmp_path):
    """The judge is asked only about what they did not mark."""
    log = tmp_path / "log"
    robot = ("robot=puppet:PuppetConfig", f"robot.log={log}", "robot.size=[8,8]", "audit.fraction=0")
    endless = ("run.max_episodes=100", "policy.inference.realtime=true", "policy.inference.max_episode_steps=9999")
    endless += ("learner.utd_ratio=0.1", "judge.force=true")
    words = [word for word in asked(tmp_path, *robot, *endless) if not word.startswith("env=")]
    config = load_training_config("online", None, words)
    run = RunFolder.create(tmp_path / "run", config.model_copy(update={"operator": OperatorConfig(auto=False)}))
    workers, answers = LocalWorkerGroup(run), ["failure", "discard", "success", "end", "stop"]

    def watch(now: OnlineState) -> bool:
        if now.operator.phase == "gate":
            assert not lines(log) or lines(log)[-1] == "hold"
            workers.operate(OperatorCommand.START)
        elif not now.operator.message and [line[:3] for line in lines(log)[-3:]] == ["act"] * 3:
            workers.operate(OperatorCommand(answers.pop(0)))
        return True

    try:
        end = OnlineTrainer(run, workers).run(watch)
    finally:
        workers.close()
        run.close()
    store = Store.open(run.episodes)
    assert end.operator.stopped and end.episodes == 4 and not answers
    assert [store.ledger.labels(i).success_once for i in (0, 1)] == [False, True]
    assert [{v.source for v in store.ledger.history(i)} for i in (0, 1, 2)] == [{"operator"}] * 2 + [{"classifier"}]
    assert [one.meta["operator"] for _, one in Store.open(tmp_path / "run/episodes_discarded")] == ["discard"]
