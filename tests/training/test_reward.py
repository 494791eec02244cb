"""A reward model as the judge of whole runs: what reaches the learner, what is logged, what the alarm does."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from test_trainer import curve, run

from conftest import episode_rewards, same_episode
from glow import GlowConfig, bewildered, bright_model, saved
from plaudit.data.replay import ReplaySampler
from plaudit.data.rewards import RewardConfig
from plaudit.data.store import Store
from plaudit.encoders import SmallConfig
from plaudit.errors import BadFile, JudgeError, PlauditError
from plaudit.judges.classifier.checkpoint import RewardModel
from plaudit.judges.classifier.config import RewardTrainConfig, classifier_stage
from plaudit.judges.classifier.fit import train_reward_model
from plaudit.judges.classifier.judge import load_reward_model
from plaudit.judges.classifier.model import BinaryRewardClassifier
from plaudit.judges.labeling import SuccessDetector
from plaudit.judges.simulator import SimulatorJudge
from plaudit.rollout.vector import collect_rollout
from plaudit.rule import threshold_of
from plaudit.training.rollout_judge import with_judge
from plaudit.training.run_folder import RunFolder
from plaudit.training.trainer import RunState, Trainer, check_run
from plaudit.types import Labels
from processes import Forked
from slow import slow_but
from training_runs import create, train, train_config

GLOW = "env=glow policy.cameras=[] run.num_envs=4 learner.hidden_dims=[8] evaluation.episodes=2 "
GLOW += "judge.rule.k=1 judge.rule.n=1 "
LEARNERS = {
    "sac": GLOW + "learner=sac run.max_steps=120 learner.random_steps=20 learner.utd_ratio=0.1 learner.batch_size=16",
    "qchunk": GLOW
    + "learner=qchunk run.max_steps=120 learner.horizon=2 learner.num_samples=4 learner.velocity_net.width=16 "
    "learner.pretrain_updates=5 learner.utd_ratio=0.1 learner.batch_size=16",
    "ppo": GLOW
    + "learner=ppo run.max_steps=120 learner.update_epochs=2 learner.pretrain_updates=5 run.keep_episodes=true",
}
BRIGHT = "run.seed=6"  # some, but not all of its first four episodes get bright enough to be judged a success
TRUTH = {
    "env/success_once",
    "judge/accuracy",
    "audit/judge_success_rate",
    *(f"audit/corrected_success_rate{end}" for end in ("", "_low", "_high")),
    "audit/episodes",
    "audit/early_successes",
    "audit/fpr",
    "audit/fnr",
    "audit/success_gap",
    "audit/alarm",
    *(f"audit/{kind}_successes{end}" for kind in ("false", "missed") for end in ("", "_low", "_high")),
    "eval/success_once",
}  # what only a person sees


@pytest.fixture
def model(tmp_path: Path) -> Callable[[float], Path]:
    """The folder of a judge that calls success from some brightness on; a lamp has succeeded at 0.8."""
    return lambda cut: saved(bright_model(cut), tmp_path / f"from_{cut:g}")


def demonstrations(folder: Path, episodes: int = 3, *, up: float = 1.0) -> Path:
    """Somebody turns the lamp up, at 0.6 of full speed."""
    simulation, judge = GlowConfig().build(episodes), SimulatorJudge()
    act = lambda seen: np.full((episodes, 1), 0.6 * up, np.float32)  # noqa: E731
    played = collect_rollout(
        simulation, act, range(100, 100 + episodes), SuccessDetector(judge, episodes), steps_after_success=3
    )
    with Store.create(folder) as store:
        for episode, labels in played.episodes(simulation, judge):
            store.ledger.append(store.append(episode), labels)
    return folder


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# What the learner sees


@pytest.mark.parametrize("learner", LEARNERS)
def test_the_model_pays_ends_the_episodes_and_signs_the_labels(tmp_path: Path, model: Any, learner: str):
    folder = model(0.5)
    run(tmp_path / "run", f"{LEARNERS[learner]} judge={folder}")
    store, judge, succeeded = Store.open(tmp_path / "run/episodes"), load_reward_model(folder), 0
    for i, episode in store:
        labels = store.ledger.labels(i)
        bright = episode.frames["front"][1:, 0, 0, 0] >= 0.5 * 255
        assert (labels.judge.source, labels.judge.fingerprint) == ("classifier", judge.fingerprint)
        assert threshold_of(labels.judge) == 0.5 and labels.success[1:].tolist() == bright.tolist()
        assert not bright[:-1].any() and (bright[-1] or episode.steps == 12)  # it ended with its first bright frame
        assert not episode.terminated  # that it ended is the model's opinion, and stands in the labels alone
        succeeded += bright[-1]
    assert succeeded


def test_ood_episodes_are_told(tmp_path: Path):
    folder = saved(bewildered(bright_model(0.5)), tmp_path / "bewildered")
    with pytest.warns(UserWarning, match="100% of the last 5[0-9] episodes are out of distribution") as warned:
        run(tmp_path / "run", f"{LEARNERS['sac']} run.max_steps=720 judge={folder}")
    assert len(warned) == 1
    line = json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[-2])
    labels = Store.open(tmp_path / "run/episodes").ledger.labels(0)
    assert line["judge/ood_share"] == 1
    assert "its frames look like no training frames" in labels.ood and labels.withheld


@pytest.mark.parametrize("learner", slow_but("qchunk", of=LEARNERS))
def test_nothing_of_the_simulators_success_reaches_the_learner(tmp_path: Path, model: Any, learner: str):
    demos = demonstrations(tmp_path / "demos")
    words = f"{LEARNERS[learner]} judge={model(0.5)} audit.on_alarm=warn demos.store={demos}"
    run(tmp_path / "honest", words)
    run(tmp_path / "lying", words + " env.lies=true")
    honest, lying = curve(tmp_path / "honest"), curve(tmp_path / "lying")
    assert [line.get("env/success_once") for line in honest] != [line.get("env/success_once") for line in lying]
    unseen = [[{k: v for k, v in line.items() if k not in TRUTH} for line in lines] for lines in (honest, lying)]
    assert unseen[0] == unseen[1] and any(line.get("judge/success_once") for line in honest)
    states = [next((tmp_path / name / "checkpoints").glob("*/model.safetensors")) for name in ("honest", "lying")]
    weights = [load_file(state) for state in states]
    assert all(np.array_equal(weights[0][name], weights[1][name]) for name in weights[0] | weights[1])


def test_what_is_true_is_logged_beside_what_was_judged(tmp_path: Path, model: Any):
    run(tmp_path / "run", f"{LEARNERS['ppo']} {BRIGHT} judge={model(0.5)} audit.fraction=1")
    line = RunFolder.reopen(tmp_path / "run").metrics()[0]
    assert line["judge/success_once"] > line["env/success_once"] == 0
    assert line["judge/accuracy"] == 1 - line["judge/success_once"]
    assert line["audit/success_gap"] == line["judge/success_once"]
    assert line["rollout/rewards"] > 0 and line["time/compute_model_rewards"] > 0
    assert line["audit/alarm"] == 0  # four episodes say nothing yet


SURE_NOT = 0.0025  # what the judge says of a frame that is too dark, and 1 less that of one that is not


def at_the_end(bright: Any) -> Any:
    last = np.arange(len(bright)) == 11
    return np.where(bright, 1 - SURE_NOT, np.where(last, SURE_NOT, 0.0))


@pytest.mark.parametrize(
    ("rule", "paid"),
    [
        ("", lambda light, bright: 1.0 * bright),
        ("reward.reward_type=continuous", lambda light, bright: SURE_NOT + (1 - 2 * SURE_NOT) * bright),
        ("reward.mode=add", lambda light, bright: bright + light),
        ("reward.mode=terminal reward.reward_type=continuous", lambda light, bright: at_the_end(bright)),
        ("judge.rule.threshold=0.999", lambda light, bright: 0.0 * bright),
    ],
)
def test_the_rule_decides_what_is_paid(tmp_path: Path, model: Any, rule: str, paid: Callable[[Any, Any], Any]):
    run(tmp_path / "run", f"{LEARNERS['sac']} judge={model(0.5)} run.max_steps=60 {rule}")
    store, config = Store.open(tmp_path / "run/episodes"), RunFolder.reopen(tmp_path / "run").config.reward
    for i, episode in store:
        bright = episode.frames["front"][1:, 0, 0, 0] >= 0.5 * 255
        found = episode_rewards(store.ledger.labels(i), episode.privileged, config, 0.95)
        assert found == pytest.approx(paid(episode.state[1:, 0], bright), abs=1e-3)


def test_a_single_frame_is_not_enough_unless_it_is_told_to_be(tmp_path: Path, model: Any):
    folder, words = model(0.5), LEARNERS["ppo"].replace("judge.rule.k=1 judge.rule.n=1", BRIGHT)
    run(tmp_path / "quick", f"{words} judge={folder} judge.rule.k=1 judge.rule.n=1 run.max_steps=40")
    run(tmp_path / "careful", f"{words} judge={folder} run.max_steps=40")
    lengths = [curve(tmp_path / name)[0]["rollout/episode_length"] for name in ("quick", "careful")]
    assert lengths[1] > lengths[0]


@pytest.mark.parametrize("cameras", ["[front]", "[side]", "[front,side]"])
def test_a_policy_of_pixels_may_look_through_other_cameras_than_the_judge(tmp_path: Path, model: Any, cameras: str):
    words = LEARNERS["sac"].replace("policy.cameras=[]", f"policy.cameras={cameras}")
    run(tmp_path / "run", f"{words} env.obs=pixels env.cameras=[front,side] judge={model(0.5)} run.max_steps=60")
    names = load_file(tmp_path / "run/policy/model.safetensors")
    encoders = {name.split("cameras.")[1].split(".")[0] for name in names if "cameras." in name}
    assert encoders == set(cameras.strip("[]").split(","))
    assert Store.open(tmp_path / "run/episodes").ledger.labels(0).judge.source == "classifier"


# Demonstrations


@pytest.mark.parametrize("learner", LEARNERS)
def test_demonstrations_are_judged_in_a_file_of_the_run(tmp_path: Path, model: Any, learner: str):
    demos = demonstrations(tmp_path / "demos")
    before = files(demos)
    run(tmp_path / "run", f"{LEARNERS[learner]} judge={model(0.5)} demos.store={demos} run.max_steps=60")
    assert files(demos) == before
    judged = Store.open(demos, labels=tmp_path / "run/demo_labels")
    light = judged.episode(0).frames["front"][1:, 0, 0, 0] / 255
    assert judged.ledger.labels(0).success[1:].tolist() == (light >= 0.5).tolist()
    assert {judged.ledger.labels(i).judge.source for i in judged.ids} == {"classifier"}


def test_demonstrations_need_no_labels_and_those_left_out_stay_out(tmp_path: Path, model: Any):
    demos = demonstrations(tmp_path / "demos")
    (demos / "labels").write_bytes(b"")
    (demos / "labels.head").unlink()
    nothing = np.full(Store.open(demos).episode(1).steps + 1, np.nan)
    Store.open(demos).ledger.append(1, Labels.from_targets(nothing, source="human"))
    run(tmp_path / "run", f"{LEARNERS['sac']} judge={model(0.5)} demos.store={demos} run.max_steps=60")
    judged = Store.open(demos, labels=tmp_path / "run/demo_labels")
    assert [judged.ledger.newest(i, {"classifier"}) is not None for i in judged.ids] == [True, False, True]
    assert judged.ledger.is_excluded(1)


def test_the_end_of_a_demonstration_that_the_model_does_not_see_ends_nothing(tmp_path: Path):
    """Its last step would be worth nothing for ever; the judge knows of no end there."""
    store = Store.open(demonstrations(tmp_path / "demos"), labels=tmp_path / "labels")
    for i, episode in store:
        store.ledger.append(i, Labels.from_cutoff(steps=episode.steps, cutoff=None, source="classifier"))
        assert episode.terminated
    assert (ReplaySampler(store, gamma=0.5, trust_terminated=[False]).sample(200).discount == 0.5).all()
    assert (ReplaySampler(store, gamma=0.5).sample(200).discount == 0).any()


def test_demonstrations_without_success_in_the_models_eyes_are_told(tmp_path: Path, model: Any):
    demos = demonstrations(tmp_path / "demos", up=-1.0)
    with pytest.raises(JudgeError, match=r"sees success in none of the 3 demonstrations. .*--steps-after-success"):
        run(tmp_path / "run", f"{LEARNERS['sac']} judge={model(0.5)} demos.store={demos}")


def test_so_are_demonstrations_of_which_all_are_left_out(tmp_path: Path, model: Any):
    store = Store.open(demonstrations(tmp_path / "demos"))
    for i, episode in store:
        store.ledger.append(i, Labels.from_targets(np.full(episode.steps + 1, np.nan), source="human"))
    with pytest.raises(JudgeError, match=r"demos: there is no demonstration\. All are excluded, or"):
        run(tmp_path / "run", f"{LEARNERS['sac']} judge={model(0.5)} demos.store={store.folder}")


@pytest.mark.parametrize("dark", [3, 4])
def test_so_are_those_of_which_it_misses_most(tmp_path: Path, model: Any, dark: int):
    demos = demonstrations(tmp_path / "demos")
    with Store.open(demos, write=True) as store:
        for _, episode in Store.open(demonstrations(tmp_path / "dark", dark, up=-1.0)):
            store.append(episode)
    words = f"{LEARNERS['sac']} judge={model(0.5)} demos.store={demos}"
    with Trainer(create(tmp_path / "run", words), lambda _: iter) as trainer:
        said = trainer.judge.warning
    assert said.startswith("the judge sees success in 3 of the 7 demonstrations. ") if dark == 4 else not said


# Shaping by progress


@pytest.fixture(scope="module")
def knowing(tmp_path_factory: Any) -> Path:
    """A model that learned progress from lamps that were turned up and down."""
    folder = tmp_path_factory.mktemp("knowing")
    simulation, judge = GlowConfig().build(40), SimulatorJudge()
    speed = np.linspace(-1, 1, 40, dtype=np.float32)[:, None]
    played = collect_rollout(
        simulation, lambda seen: speed, range(40), SuccessDetector(judge, 40), steps_after_success=4
    )
    config = RewardTrainConfig(
        encoder=SmallConfig(widths=(4, 8)), predict_progress=True, epochs=12, lr=3e-3, hidden_dim=16
    )
    with Store.create(folder / "data") as store:
        for episode, labels in played.episodes(simulation, judge):
            store.ledger.append(store.append(episode), labels)
        return saved(
            train_reward_model(store, config, folder / "work", lambda epoch: True, lambda what: iter).model,
            folder / "model",
        )


def test_shaping_pays_for_progress_on_the_way(tmp_path: Path, knowing: Path):
    words = f"{LEARNERS['sac']} judge={knowing} judge.force=true run.max_steps=60 "
    run(tmp_path / "plain", words)
    run(tmp_path / "shaped", words + "reward.shaping=0.5")
    plain, shaped = (Store.open(tmp_path / name / "episodes") for name in ("plain", "shaped"))
    light = plain.episode(0).frames["front"][:, 0, 0, 0].astype(float)
    labels = plain.ledger.labels(0)
    assert labels.judge == shaped.ledger.labels(0).judge  # of the same first round; only what is paid differs
    paid = episode_rewards(labels, {}, RewardConfig(shaping=0.5), 0.95) - labels.success[1:]
    assert np.corrcoef(paid[:-1], np.diff(light)[:-1])[0, 1] > 0.5
    first = [curve(tmp_path / name)[0]["rollout/rewards"] for name in ("plain", "shaped")]
    assert first[0] != first[1]


def test_shaping_adds_up_to_nothing_that_depends_on_the_way(tmp_path: Path, knowing: Path):
    """Discounted, it leaves what a success is worth at its moment, less phi(start)."""
    demos = demonstrations(tmp_path / "demos")
    words = f"{LEARNERS['sac']} judge={knowing} judge.force=true demos.store={demos} run.max_steps=60 reward.shaping=1"
    run(tmp_path / "run", words)
    store, judge = Store.open(demos, labels=tmp_path / "run/demo_labels"), load_reward_model(knowing, force=True)
    for i, episode in store:
        labels = store.ledger.labels(i)
        reward = episode_rewards(labels, {}, RewardConfig(shaping=1), 0.95)
        total = (0.95 ** np.arange(episode.steps) * (reward - labels.success[1:])).sum()
        assert labels.success[-1]
        assert total == pytest.approx(0.95**episode.steps - judge.score_episode(episode).progress[0], abs=1e-3)


def test_a_model_of_progress_shapes_what_another_judge_pays(tmp_path: Path, knowing: Path):
    """The simulator says what succeeded; demonstrations too have the model's values."""
    shape = load_reward_model(knowing, force=True)
    demos = demonstrations(tmp_path / "demos")
    words = f"{LEARNERS['sac']} demos.store={demos} run.max_steps=60 judge.force=true reward.shaping=1"
    run(tmp_path / "run", f"{words} judge.progress={_progress_alone(shape, tmp_path / 'progress')}")
    own, shown = Store.open(tmp_path / "run/episodes"), Store.open(demos, labels=tmp_path / "run/demo_labels")
    for store in (own, shown):
        labels, episode = store.ledger.labels(0), store.episode(0)
        light = episode.frames["front"][:, 0, 0, 0]
        assert labels.judge.source == "simulator" and labels.success[1:].tolist() == (light[1:] >= 0.8 * 255).tolist()
        progress = labels.scores.progress
        assert progress is not None and np.corrcoef(progress, light)[0, 1] > 0.5


def _progress_alone(model: RewardModel, folder: Path) -> Path:
    """The output of a model that is its progress, as a model of that alone."""
    shape = model.classifier.model_copy(update={"predict_success": False})
    member = BinaryRewardClassifier(shape)
    tensors = model.members[0].state_dict()
    member.load_state_dict({k: v[1:] if k in ("head.4.weight", "head.4.bias") else v for k, v in tensors.items()})
    return saved(RewardModel([member], model.config.model_copy(update={"classifier": shape}), "cpu"), folder)


def test_shaping_without_progress_and_progress_without_images_are_refused(tmp_path: Path):
    for words, said in (
        ("reward.shaping=1", "judge 'simulator' does not measure progress; name a model that does: judge.progress="),
        ("judge.progress=model env.obs=state", "a judge sees camera images; write env.obs=both"),
    ):
        with pytest.raises(PlauditError, match=said):
            create(tmp_path / "run", f"{LEARNERS['sac']} {words}")


# The alarm

HOPELESS = " env.goal=9 audit.fraction=1"  # no lamp gets there


@pytest.mark.parametrize("learner", LEARNERS)
def test_a_judge_that_is_pleased_without_success_stops_the_run(tmp_path: Path, model: Any, learner: str):
    words = f"{LEARNERS[learner]} judge={model(0.45)}" + HOPELESS
    end = run(tmp_path / "run", words)
    assert end.episodes <= 8 and end.step < 120
    assert end.alarm is not None and "100% [100-100] of the judge's successes are false" in end.alarm
    assert curve(tmp_path / "run")[-2]["audit/alarm"] == 1
    assert (tmp_path / f"run/checkpoints/{end.step:012d}").is_dir() and (
        tmp_path / "run/policy/model.safetensors"
    ).exists()
    again = run(tmp_path / "run")
    assert (again.step, again.alarm) == (end.step, end.alarm)


def test_a_judge_that_misses_successes_stops_the_run(tmp_path: Path, model: Any):
    """A lamp succeeds wherever it stands, and this judge asks for more light than there is."""
    audited = " audit.fraction=1"
    end = run(tmp_path / "run", f"{LEARNERS['ppo']} env.goal=0.01 judge={model(0.999)}" + audited)
    assert end.alarm is not None and "100% [100-100] of all episodes are successes that the judge missed" in end.alarm
    line = curve(tmp_path / "run")[-2]
    assert "audit/false_successes" not in line, "it called none"
    assert (line["audit/missed_successes"], line["audit/corrected_success_rate"], line["audit/alarm"]) == (1, 1, 1)


def test_a_run_may_go_on_in_spite_of_the_alarm(tmp_path: Path, model: Any):
    end = run(tmp_path / "run", f"{LEARNERS['ppo']} judge={model(0.3)} audit.on_alarm=warn" + HOPELESS)
    assert end.step >= 120 and end.alarm is not None


def test_what_the_alarm_noted_survives_a_stop(tmp_path: Path, model: Any):
    words = f"{LEARNERS['ppo']} {BRIGHT} judge={model(0.3)}" + HOPELESS
    whole = run(tmp_path / "whole", words)
    assert run(tmp_path / "parts", words, rounds=1).alarm is None
    assert run(tmp_path / "parts").alarm == whole.alarm
    assert curve(tmp_path / "parts") == curve(tmp_path / "whole")


def test_a_stop_within_the_first_rounds_after_cloning_changes_nothing(tmp_path: Path):
    words = f"{LEARNERS['ppo']} learner.critic_warmup_iterations=3 run.max_steps=200 "
    words += f"demos.store={demonstrations(tmp_path / 'demos')}"
    run(tmp_path / "whole", words)
    for rounds in (1, 1, None):
        run(tmp_path / "parts", words if not (tmp_path / "parts").exists() else "", rounds=rounds)
    assert curve(tmp_path / "parts") == curve(tmp_path / "whole")


# Another model takes over


def test_another_model_judges_all_again_and_the_alarm_begins_anew(tmp_path: Path, model: Any):
    lenient, strict, demos = model(0.3), model(0.6), demonstrations(tmp_path / "demos")
    stopped = run(tmp_path / "run", f"{LEARNERS['sac']} judge={lenient} demos.store={demos}" + HOPELESS)
    folder = with_judge(RunFolder.reopen(tmp_path / "run"), [f"judge.model={strict}"])
    judge = classifier_stage(RunFolder.reopen(folder.path).config.judge.config)
    assert judge is not None and judge.model == strict
    past = json.loads((folder.path / "judge/history.jsonl").read_text())
    old, new = (load_reward_model(path).fingerprint for path in (lenient, strict))
    assert past == {"step": stopped.step, "judge": "classifier", "fingerprint": old}
    end = run(tmp_path / "run", rounds=1)
    assert (end.episodes, end.alarm) == (stopped.episodes + 4, None)
    for store in (Store.open(folder.path / "episodes"), Store.open(demos, labels=folder.path / "demo_labels")):
        assert [v.line["model"] for v in store.ledger.history(0)] == [old, new]
        light = store.episode(0).frames["front"][1:, 0, 0, 0] / 255
        assert store.ledger.labels(0).success[1:].tolist() == (light >= 0.6).tolist()


def die_after(folder: Path, rounds: int) -> None:
    """Go on with a run, which is killed before it comes to another checkpoint."""
    left = [rounds]

    def watch(_: RunState) -> bool:
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return True

    train(RunFolder.reopen(folder), watch)


@pytest.mark.parametrize("learner", slow_but("sac", of=["sac", "ppo"]))
def test_another_model_takes_over_a_killed_run_as_one_that_was_stopped_at_its_checkpoint(
    tmp_path: Path, model: Any, learner: str
):
    lenient, strict = model(0.4), model(0.6)
    words = f"{LEARNERS[learner]} judge={lenient} audit.on_alarm=warn"
    for name in ("stopped", "killed"):
        run(tmp_path / name, words, rounds=1)
    with Forked(die_after, tmp_path / "killed", 2) as process:
        assert process.wait() == -signal.SIGKILL
    assert len(Store.open(tmp_path / "killed/episodes")) == 12  # four are in the checkpoint
    for name in ("stopped", "killed"):
        with_judge(RunFolder.reopen(tmp_path / name), [f"judge.model={strict}"])
        run(tmp_path / name)
    assert curve(tmp_path / "killed") == curve(tmp_path / "stopped")
    stores = [Store.open(tmp_path / name / "episodes") for name in ("stopped", "killed")]
    assert len(stores[0]) == len(stores[1]) > 12
    for (i, one), (j, other) in zip(*stores, strict=True):
        assert same_episode(one, other)
        bright = other.frames["front"][1:, 0, 0, 0] >= 0.6 * 255
        assert (
            stores[0].ledger.labels(i).success[1:].tolist()
            == stores[1].ledger.labels(j).success[1:].tolist()
            == [*bright]
        )


def test_the_ends_that_the_old_model_saw_are_no_ends_to_the_new(tmp_path: Path, model: Any):
    run(tmp_path / "run", f"{LEARNERS['sac']} judge={model(0.45)}" + HOPELESS)
    with_judge(RunFolder.reopen(tmp_path / "run"), [f"judge.model={model(0.99)}"])
    run(tmp_path / "run", rounds=1)
    assert (ReplaySampler(Store.open(tmp_path / "run/episodes"), gamma=0.5).sample(200).discount == 0.5).all()


def test_after_a_model_that_was_of_no_use_the_one_before_may_return(tmp_path: Path, model: Any):
    lenient, blind, demos = model(0.3), model(1.5), demonstrations(tmp_path / "demos")
    run(tmp_path / "run", f"{LEARNERS['sac']} judge={lenient} demos.store={demos} run.max_steps=120", rounds=1)
    with_judge(RunFolder.reopen(tmp_path / "run"), [f"judge.model={blind}"])
    with pytest.raises(JudgeError, match="sees success in none"):
        run(tmp_path / "run")
    with_judge(RunFolder.reopen(tmp_path / "run"), [f"judge.model={lenient}"])
    assert (tmp_path / "run/judge/history.jsonl").read_text() == ""
    run(tmp_path / "run", rounds=1)


def test_a_hand_over_that_makes_no_sense_is_refused_and_changes_nothing(tmp_path: Path, model: Any):
    run(tmp_path / "run", f"{LEARNERS['ppo']} judge={model(0.3)}" + HOPELESS)
    run(tmp_path / "plain", f"{LEARNERS['ppo']} run.max_steps=40")
    before = files(tmp_path / "run")
    same = saved(bright_model(0.3), tmp_path / "copy")
    with pytest.raises(JudgeError, match="has this judge already"):
        with_judge(RunFolder.reopen(tmp_path / "run"), [f"judge.model={same}"])
    with pytest.raises(BadFile, match="not a reward model"):
        with_judge(RunFolder.reopen(tmp_path / "run"), [f"judge.model={tmp_path}"])
    with pytest.raises(JudgeError, match="the simulator gives the rewards"):
        with_judge(RunFolder.reopen(tmp_path / "plain"), [f"judge={same}"])
    assert files(tmp_path / "run") == before


# Models that cannot judge


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "env.cameras=[side]",
            "looks at camera 'front' in 8x8, and this environment has no such camera; write",
        ),
        ("env.image_size=[16,16]", "looks at camera 'front' in 8x8, and this environment shows it in 16x16"),
        ("reward.shaping=0.5", "this reward model has not learned progress"),
        ("reward.reward_model.image_keys=[wrist]", "image_keys of the reward model is ['wrist'], and the model itself"),
        ("reward.reward_model.image_keys=[base_camera,wrist]", "the reward model is ['base_camera', 'wrist'], and"),
        ("reward.reward_model.image_size=[3,64,64]", "image_size of the reward model is [3, 64, 64]"),
        (
            "reward.reward_model.hidden_dim=256",
            "hidden_dim of the reward model is 256, and the model itself that it is 4",
        ),
        ("reward.resnet.num_spatial_blocks=8", "num_spatial_blocks of the reward model is 8"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_before_anything_is_made(
    tmp_path: Path, model: Any, words: str, said: str
):
    with pytest.raises(PlauditError) as caught:
        create(tmp_path / "run", f"{LEARNERS['ppo']} judge={model(0.5)} {words}")
    assert said in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_model_that_failed_a_control_needs_to_be_forced(tmp_path: Path):
    folder = saved(bright_model(0.5, problems=("it cannot tell noise",)), tmp_path / "bad")
    words = f"{LEARNERS['ppo']} judge={folder} run.max_steps=40"
    with pytest.raises(JudgeError, match=r"it cannot tell noise.*judge.force=true"):
        create(tmp_path / "run", words)
    assert not (tmp_path / "run").exists()
    assert run(tmp_path / "run", words + " judge.force=true").step >= 40


def test_a_run_says_who_judges_it_and_what_it_does_not_believe(tmp_path: Path, model: Any):
    recipe = (
        "use_pretrain=false freeze_encoder=true pretrained_encoder_path=resnet10.pt image_keys=[front] hidden_dim=4"
    )
    block = " ".join(f"reward.reward_model.{word}" for word in [f"checkpoint_path={model(0.5)}", *recipe.split()])
    who, certificate, *notes = check_run(train_config(f"{LEARNERS['ppo']} {block} reward.reward_model_type=resnet"))
    assert who.startswith("judge: classifier ")
    assert who.endswith(", 1 of 1 frames at 0.5; reward: replace, binary; cameras: front 8x8")
    assert certificate.startswith("certificate: none; plaudit judge exam JUDGE STORE makes one")
    assert notes[0].startswith("this reward model cannot tell which episodes are out of distribution")
    assert notes[1:] == [
        "the config says use_pretrain is False, the model says True; the model is used",
        "the config says freeze_encoder is True, the model says False; the model is used",
        "the config says reward_model_type is resnet, the model says small; the model is used",
        "resnet10.pt is not read: the encoder's weights are in the model",
    ]


def test_without_a_model_nobody_is_introduced(tmp_path: Path):
    assert check_run(train_config(LEARNERS["ppo"])) == ()
