"""What a learner's actions from -1 to 1 are on a robot: the whole range that was demonstrated, and no more."""

import json
import re
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

import glow
from command import plaudit
from plaudit.data.normalize import ACTION, Normalizer
from plaudit.data.store import Store
from plaudit.errors import ConfigError, DataError, TrainingError
from plaudit.policies.loader import load_policy
from plaudit.training.config import TrainingConfig
from plaudit.training.config_file import load_training_config
from plaudit.training.run_folder import RunFolder
from plaudit.training.setup import check_demos_fit, check_trained, resolve_normalizer
from plaudit.trust import allow_code
from plaudit.types import EnvSpec, Episode, Labels
from puppet import received

LOW, HIGH = np.array([-3, 0.5], np.float32), np.array([5, 0.5], np.float32)  # the second joint never moved
PUPPET = "robot=puppet:PuppetConfig robot.log=log robot.size=[8,8] robot.fps=50"


@pytest.fixture
def lab(tmp_path, monkeypatch) -> Path:
    """With demonstrations whose deviation is far less than their range, statistics of them, and a judge."""
    monkeypatch.chdir(tmp_path)
    glow.saved(glow.bright_model(0.01), tmp_path / "judge")
    rng = np.random.default_rng(0)
    with Store.create("demos") as store:
        for _ in range(4):
            actions = rng.normal(0, 0.3, (6, 2)).astype(np.float32)
            actions[:2, 0], actions[:, 1] = (-3.0, 5.0), 0.5
            frames = dict.fromkeys(("front", "wrist"), np.zeros((7, 8, 8, 3), np.uint8))
            episode = Episode.of(frames=frames, actions=actions, state=np.zeros((7, 1), np.float32))
            store.ledger.append(store.append(episode), Labels.from_cutoff(steps=6, cutoff=4, source="human"))
    Normalizer.from_store(Store.open("demos")).save("deviation.json")
    return tmp_path


def settled(*words: str, folder: str = "run") -> TrainingConfig:
    asked = load_training_config("online", None, [*PUPPET.split(), "learner=qchunk", "judge=human", *words])
    Path(folder).mkdir(exist_ok=True)
    return resolve_normalizer(RunFolder(Path(folder), asked))


def reach(units: object) -> list[list[float]]:
    """The least and the greatest action that can be said."""
    normalizer = Normalizer.load(units)  # type: ignore[arg-type]
    return [normalizer.denormalize_action(np.full(2, end, np.float32)).round(3).tolist() for end in (-1, 1)]


def test_the_range_of_the_demonstrations(lab):
    config = settled("demos.store=demos")
    assert reach(config.policy.normalizer) == [LOW.tolist(), HIGH.tolist()]
    assert config.policy.inference.normalizer == config.policy.normalizer, (
        "the robot's side and the learner speak of the same"
    )


def test_they_stay_what_they_were_when_the_run_began(lab):
    before = settled("demos.store=demos")
    with Store.open("demos", write=True) as store:
        store.append(Episode.of(frames={}, actions=np.full((3, 2), 9.0), state=np.zeros((4, 1), np.float32)))
    assert settled("demos.store=demos") == before
    assert reach(settled("demos.store=demos", folder="another").policy.normalizer)[1] == [9.0, 9.0]


def test_an_excluded_demonstration_does_not_widen_the_range(lab):
    with Store.open("demos", write=True) as store:
        excluded = store.append(Episode.of(frames={}, actions=np.full((3, 2), 9.0), state=np.zeros((4, 1), np.float32)))
        store.ledger.append(excluded, Labels.from_targets(np.full(4, np.nan), source="human"))
    assert reach(settled("demos.store=demos").policy.normalizer) == [LOW.tolist(), HIGH.tolist()]


@pytest.mark.parametrize(
    ("ours", "said"),
    [
        (EnvSpec(1, 2, {"front": (8, 8)}), ""),
        (EnvSpec(3, 2, {}), "demos has states of 1 numbers, and lift has 3; name demonstrations of the same robot"),
        (EnvSpec(1, 4, {}), "demos has actions of 2 numbers, and lift has 4"),
        (EnvSpec(1, 2, {"frnt": (8, 8)}), "demos has no camera 'frnt', which the policy sees; did you mean 'front'?"),
        (EnvSpec(1, 2, {"wrist": (64, 48)}), "images of 8x8 from camera 'wrist', and lift gives 64x48; set that size"),
    ],
)
def test_demonstrations_of_another_robot_are_refused(lab, ours, said):
    with nullcontext() if not said else pytest.raises(DataError, match=re.escape(said)):
        check_demos_fit(Store.open("demos"), ours, "lift")


def test_without_demonstrations_three_deviations_of_the_policy_that_acts(lab):
    save = "policy: {type: 'puppet:CounterConfig'}\nnormalizer: deviation.json"
    Path("policy.yaml").write_text(save)
    allow_code("puppet")
    config = settled("policy.path=policy.yaml", "policy.behavior=pretrained")
    stats = Normalizer.load("deviation.json").stats[ACTION]
    assert reach(config.policy.normalizer)[1] == pytest.approx((stats.mean + 3 * stats.std).tolist(), abs=1e-3)
    assert reach(config.policy.inference.normalizer)[1] == pytest.approx((stats.mean + stats.std).tolist(), abs=1e-3)


def test_statistics_that_do_not_reach_as_far_as_the_demonstrations_are_refused(lab):
    with pytest.raises(
        TrainingError, match=r"17% of the actions in .*demos lie outside of what the policy can express"
    ):
        settled("demos.store=demos", "policy.normalizer=deviation.json")
    assert not Path("run/policy/normalizer.json").exists()


@pytest.mark.parametrize(
    ("units", "sentence"), [("none.json", "no such statistics file"), ("{mean: 1}", "not statistics")]
)
def test_what_is_no_statistics_is_told_as_that(lab, units, sentence):
    with pytest.raises(DataError, match=sentence):
        settled(f"policy.normalizer={units}")


def test_a_simulation_has_none(lab):
    asked = ["env=glow:GlowConfig", "learner=sac", "judge=human"]
    config = load_training_config("online", None, asked)
    assert resolve_normalizer(RunFolder(lab, config)) is config
    with pytest.raises(ConfigError, match=r"policy\.normalizer is for robots"):
        load_training_config("online", None, [*asked, "policy.normalizer=deviation.json"])


def test_a_robot_is_told_actions_of_that_range_and_so_is_the_next_who_drives_it(lab):
    words = (
        "learner=qchunk learner.hidden_dims=[8] learner.horizon=2 learner.num_samples=2 learner.batch_size=4 "
        "judge=classifier judge.force=true "
        "learner.pretrain_updates=5 judge.model=judge judge.rule.decode=per_frame "
        "policy.inference=sequential policy.inference.max_episode_steps=6 "
        "policy.cameras=[] audit.fraction=0 judge.retrain=null demos.store=demos run.max_episodes=4 "
        "evaluation.episodes=1 run.name=run --serial"
    )
    plaudit("online", *PUPPET.split(), *words.split(), cwd=lab)
    told = received(lab / "log")
    assert (told >= LOW - 1e-3).all() and (told <= HIGH + 1e-3).all()
    assert np.ptp(told[:, 0]) > 2, "more than -1 to 1 has room for"
    assert load_policy(lab / "runs/run/policy/policy.yaml").normalizer == lab / "runs/run/policy/normalizer.json"
    (lab / "log").unlink()
    policy = ("--policy_yaml", "runs/run/policy/policy.yaml", "--inference_algorithm", "sequential", "--steps", 20)
    plaudit("run", "--robot", "puppet:PuppetConfig", *policy, "robot.log=log", "robot.size=[8,8]", cwd=lab)
    again = received(lab / "log")
    assert (again[:, 1] == pytest.approx(0.5)) and (again[:, 0] >= LOW[0] - 1e-3).all()


def test_a_robot_is_not_explored_with_by_a_policy_that_learned_nothing(lab):
    with pytest.raises(TrainingError, match="nothing says what actions from -1 to 1 are on puppet:PuppetConfig, and "):
        check_trained(settled())
    statistics = settled("policy.normalizer=deviation.json", folder="statistics")
    with pytest.raises(TrainingError, match=r"untrained, and puppet:PuppetConfig would move at random; give it demo"):
        check_trained(statistics)
    check_trained(settled("demos.store=demos", folder="demonstrated"))
    check_trained(settled("policy.inference.allow_untrained=true", folder="asked for"))


def test_somebody_is_told_where_nothing_says_what_they_are(lab):
    words = "learner=qchunk judge=classifier judge.force=true judge.model=none run.name=run --serial"
    assert "none: this is not a reward model" in plaudit("online", *PUPPET.split(), *words.split(), cwd=lab, ok=False)
    words = words.replace("none run", "judge policy.cameras=[top] run")
    said = plaudit("online", *PUPPET.split(), *words.split(), cwd=lab, ok=False)
    assert "nothing says what actions from -1 to 1 are on puppet:PuppetConfig, and they would be sent as" in said


def test_statistics_by_range_are_a_command(lab):
    plaudit("data", "stats", "demos", "--range", "-o", "range.json", cwd=lab)
    assert reach(json.loads((lab / "range.json").read_text())) == [LOW.tolist(), HIGH.tolist()]
    assert Normalizer.load(lab / "range.json").beyond(Store.open(lab / "demos")) == 0
