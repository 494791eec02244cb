"""Whole runs, through the functions and the command that users call."""

import json
import random
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import torch
from safetensors.numpy import load_file

from conftest import counting_episode
from glow import Glow, GlowConfig, saved
from plaudit.data.store import Store
from plaudit.errors import BadFile, DataError, PlauditError, TargetNotEmpty
from plaudit.policies.loader import load_policy
from plaudit.registry import ENV_REGISTRY
from plaudit.training.evaluation import evaluate_run, record_videos
from plaudit.training.run_folder import RunFolder
from plaudit.training.trainer import RunState
from processes import Forked
from slow import slow_but
from tiny_reward import tiny_model
from training_runs import create, train

SMALL = {
    "sac": "learner=sac env=lift run.num_envs=4 run.max_steps=1200 demos.scripted=3 learner.utd_ratio=0.05 "
    "learner.hidden_dims=[16] run.checkpoint_freq=300 evaluation.freq=500 evaluation.episodes=4 "
    "learner.resets.every=25 learner.resets.relearn_updates=10",
    "qchunk": "learner=qchunk env=lift run.num_envs=4 run.max_steps=1200 demos.scripted=3 learner.utd_ratio=0.05 "
    "learner.pretrain_updates=5 learner.horizon=3 learner.num_samples=4 learner.hidden_dims=[16] learner.batch_size=32 "
    "learner.velocity_net.width=16 run.checkpoint_freq=300 evaluation.freq=500 evaluation.episodes=4",
    "ppo": "learner=ppo env=push reward.env_reward=dense run.num_envs=8 run.max_steps=2400 learner.hidden_dims=[16] "
    "learner.update_epochs=2 "
    "run.checkpoint_freq=400 evaluation.freq=800 evaluation.episodes=4",
}
SEEN = "env=lift env.obs=both env.image_size=[16,16] policy.cameras=[] judge={model} audit.fraction=1 "
JUDGED = {  # an untrained judge of lifts, whose opinion is as good as any to be exact about
    "sac, judged": SEEN
    + "learner=sac audit.on_alarm=warn run.num_envs=2 run.max_steps=240 demos.scripted=2 learner.hidden_dims=[16] "
    "learner.utd_ratio=0.05 run.checkpoint_freq=60 evaluation.freq=150 evaluation.episodes=2 "
    "learner.resets.every=5 learner.resets.relearn_updates=3 learner.resets.relabeled=0",
    "ppo, judged": SEEN
    + "learner=ppo audit.on_alarm=warn run.num_envs=4 run.max_steps=800 demos.scripted=3 learner.hidden_dims=[16] "
    "learner.update_epochs=2 learner.pretrain_updates=20 run.keep_episodes=true run.checkpoint_freq=200 "
    "evaluation.freq=300 evaluation.episodes=2",
}


def run(folder: Path, words: str = "", rounds: int | None = None, updates: int | None = None) -> RunState:
    """A new run, or one to go on with; stopped, as by Ctrl-C, after some rounds or updates from replay."""
    ended, asked = count(1), count()  # rounds that are over, updates that are made

    def going(_: RunState) -> bool:
        return next(ended) != rounds

    def stopped() -> bool:
        return next(asked) == updates

    return train(create(folder, words) if words else RunFolder.reopen(folder), going, stopped)


def curve(folder: Path) -> list[dict[str, Any]]:
    """All that was measured, but for the clock."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if not name.startswith("time/")} for line in lines]


@pytest.fixture(scope="module", params=slow_but("sac, judged", of=[*SMALL, *JUDGED]))
def words(request: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """One run after the other, with a reward model as the judge of the last two."""
    if request.param in SMALL:
        return SMALL[request.param]
    model = saved(tiny_model(threshold=0.6), tmp_path_factory.mktemp("models") / "judge")
    return JUDGED[request.param].format(model=model)


@pytest.fixture(scope="module")
def whole(words: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nothing happened to; not to be changed."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    run(folder, words + " run.keep_episodes=true")
    return folder


def test_the_same_seed_makes_the_same_curve(tmp_path: Path, words: str, whole: Path):
    run(tmp_path / "again", words)
    run(tmp_path / "other", words + " run.seed=1", rounds=2)
    other = curve(tmp_path / "other")
    assert other and other != curve(whole)[: len(other)]
    assert curve(tmp_path / "again") == curve(whole)


def test_a_run_that_was_stopped_and_resumed_makes_the_curve_of_one_that_was_not(
    tmp_path: Path, words: str, whole: Path
):
    run(tmp_path / "parts", words, rounds=2)
    run(tmp_path / "parts", rounds=1)
    run(tmp_path / "parts")
    assert curve(tmp_path / "parts") == curve(whole)


def test_a_run_that_was_stopped_between_updates_and_resumed_makes_the_curve_of_one_that_was_not(
    tmp_path: Path, words: str, whole: Path
):
    if "learner=ppo" in words:
        pytest.skip("its update of a rollout is one")
    run(tmp_path / "parts", words, updates=2)
    run(tmp_path / "parts", updates=0)
    run(tmp_path / "parts", updates=4)
    state = RunFolder.reopen(tmp_path / "parts").newest_state()
    assert state is not None and state["rollout"] and state["updates"]["updates_due"] >= 1  # in the middle
    run(tmp_path / "parts")
    assert curve(tmp_path / "parts") == curve(whole)


@pytest.mark.slow
def test_a_run_that_came_to_no_checkpoint_begins_anew_and_makes_the_same_curve(tmp_path: Path, words: str, whole: Path):
    run(tmp_path / "lost", words + " run.keep_episodes=true", rounds=3)
    shutil.rmtree(tmp_path / "lost/checkpoints")
    run(tmp_path / "lost")
    assert curve(tmp_path / "lost") == curve(whole)
    stores = [Store.open(folder / "episodes") for folder in (tmp_path / "lost", whole)]
    assert [e.meta["seed"] for _, e in stores[0]] == [e.meta["seed"] for _, e in stores[1]]  # none is there twice


@pytest.mark.slow  # test_reward.py kills a run too, and a shorter one
def test_a_run_that_was_killed_and_resumed_makes_the_curve_of_one_that_was_not(tmp_path: Path, words: str, whole: Path):
    folder = create(tmp_path / "killed", words).path
    for attempt in range(2):
        before = set((folder / "checkpoints").glob("[0-9]*"))
        with Forked(run, folder) as process:
            while process.poll() is None and set((folder / "checkpoints").glob("[0-9]*")) <= before:
                time.sleep(0.01)
            time.sleep(random.Random(attempt).uniform(0, 0.3))  # anywhere: in a round, an update, a write
            process.send_signal(signal.SIGKILL)
            assert process.wait() in (-signal.SIGKILL, 0), "it failed by itself"
    run(folder)
    assert curve(folder) == curve(whole)


@pytest.mark.parametrize("demos", [0, 2])
def test_a_learner_of_replay_starts_to_learn_after_the_steps_that_it_is_told_to_wait(tmp_path: Path, demos: int):
    words = (
        "learner=sac env=lift env.max_steps=10 run.num_envs=2 run.max_steps=80 learner.hidden_dims=[8] "
        f"learner.batch_size=8 learner.utd_ratio=0.5 learner.random_steps=50 evaluation.episodes=1 "
        f"demos.scripted={demos}"
    )
    run(tmp_path / "whole", words)
    learned = [
        (line["step"], "loss/critic" in line) for line in curve(tmp_path / "whole") if "judge/success_once" in line
    ]
    assert learned == [(20, False), (40, False), (60, True), (80, True)]
    facts = json.loads(next((tmp_path / "whole/checkpoints").glob("*/state.json")).read_text())
    assert facts["version"] == 15  # half of the steps from 50 to 80
    run(tmp_path / "parts", words, rounds=3)
    run(tmp_path / "parts")
    assert curve(tmp_path / "parts") == curve(tmp_path / "whole")


COMPONENTS = {
    "sac": {"encoder", "actor"},
    "qchunk": {"encoder", "velocity_net", "critic_encoder", "critic"},
    "ppo": {"encoder", "actor"},
}


@pytest.mark.slow
@pytest.mark.parametrize("learner", COMPONENTS)
def test_a_policy_of_pixels_trains_and_resumes(tmp_path: Path, learner: str):
    own = {
        "qchunk": "demos.scripted=2 learner.pretrain_updates=2 learner.utd_ratio=0.1 learner.batch_size=16",
        "sac": "demos.scripted=2 learner.random_steps=20 learner.utd_ratio=0.1 learner.batch_size=16",
        "ppo": "reward.env_reward=dense learner.update_epochs=1",
    }
    words = (
        f"learner={learner} env=lift env.obs=pixels env.cameras=[front,wrist] env.image_size=[24,24] "
        f"env.max_steps=15 run.num_envs=2 run.max_steps=90 learner.hidden_dims=[16] evaluation.episodes=2 "
        f"evaluation.freq=30 run.checkpoint_freq=30 {own[learner]}"
    )
    run(tmp_path / "whole", words)
    run(tmp_path / "parts", words, rounds=1)
    run(tmp_path / "parts")
    assert curve(tmp_path / "parts") == curve(tmp_path / "whole")
    assert any(
        name.startswith("encoder/cameras.wrist") for name in load_file(tmp_path / "whole/policy/model.safetensors")
    )
    on_a_robot = load_policy(tmp_path / "whole/policy/policy.yaml").build()
    assert set(on_a_robot.components) == COMPONENTS[learner]


def test_cameras_may_record_while_the_policy_learns_from_the_state(tmp_path: Path):
    run(
        tmp_path / "run",
        "learner=ppo env=lift env.obs=both env.image_size=[16,16] policy.cameras=[] run.keep_episodes=true "
        "run.num_envs=2 run.max_steps=100 evaluation.episodes=1 learner.hidden_dims=[8] learner.update_epochs=1",
    )
    store = Store.open(tmp_path / "run/episodes")
    assert len(store) == 2 and store.episode(0).frames["front"].shape[1:] == (16, 16, 3)
    assert store.ledger.labels(0).judge.source == "simulator"
    assert list((tmp_path / "run/tensorboard").glob("events.*"))
    assert not any(name.startswith("encoder/") for name in load_file(tmp_path / "run/policy/model.safetensors"))


def test_somebody_elses_environment_trains_too(tmp_path: Path):
    end = run(
        tmp_path / "run",
        "learner=sac env=gymnasium env.id=Pendulum-v1 env.max_steps=20 run.num_envs=2 run.max_steps=80 "
        "learner.batch_size=8 learner.utd_ratio=0.1 evaluation.episodes=1",
    )
    assert (end.step, end.episodes, end.eval_success) == (80, 4, 0.0)


@pytest.mark.slow
def test_sac_learns_to_lift_from_a_few_demonstrations(tmp_path: Path):
    """Does it learn at all: a policy that was taught nothing lifts the cube in none of twenty episodes."""
    words = (
        "learner=sac env=lift demos.scripted=20 run.max_steps=12000 learner.hidden_dims=[64,64] learner.batch_size=128 "
        "learner.n_step=3 learner.tau=0.01 evaluation.freq=1000 evaluation.episodes=20 evaluation.stop_success_rate=0.3"
    )
    end = run(tmp_path / "run", words)
    assert end.eval_success is not None and end.eval_success >= 0.3
    first = next(line for line in curve(tmp_path / "run") if "eval/success_once" in line)
    assert first["eval/success_once"] < 0.1


@pytest.mark.slow
def test_q_chunking_learns_to_lift_from_a_few_demonstrations(tmp_path: Path):
    """What demonstrations alone are worth is measured at step 0; what it does from then on makes it better."""
    words = (
        "learner=qchunk env=lift demos.scripted=20 run.max_steps=4000 learner.pretrain_updates=100 "
        "learner.num_samples=4 learner.num_inference_steps=3 learner.hidden_dims=[64,64] learner.batch_size=96 "
        "evaluation.freq=400 evaluation.episodes=20 evaluation.stop_success_rate=0.3"
    )
    end = run(tmp_path / "run", words)
    first = curve(tmp_path / "run")[0]
    assert (first["step"], first["eval/success_once"] < 0.1) == (0, True)
    assert end.eval_success is not None and end.eval_success >= 0.3


@pytest.mark.parametrize("env", ["lift", "gymnasium env.id=Pendulum-v1"])
def test_a_chunk_that_is_longer_than_an_episode_is_refused(tmp_path: Path, env: str):
    with pytest.raises(PlauditError, match="horizon is 5, and an episode is over after 4 steps"):
        run(tmp_path / "run", f"learner=qchunk learner.horizon=5 env.max_steps=4 env={env}")


def test_a_run_that_is_good_enough_stays_as_it_is_when_resumed(tmp_path: Path):
    words = (
        "learner=ppo env=glow env.obs=state env.goal=0.3 run.num_envs=4 run.max_steps=4000 learner.hidden_dims=[8] "
        "learner.update_epochs=1 "
        "evaluation.freq=40 evaluation.episodes=4 evaluation.stop_success_rate=0.5"
    )
    first = run(tmp_path / "run", words)
    again = run(tmp_path / "run")
    assert first.step == again.step < 4000
    assert first.eval_success is not None and first.eval_success >= 0.5 and again.eval_success == first.eval_success


class Worn(Glow):
    """A lamp that breaks after some steps. It notes how many there are, and what torch computes with meanwhile."""

    there: ClassVar[list["Worn"]] = []
    threads: ClassVar[set[int]] = set()

    def __init__(self, config: "WornConfig", num_envs: int):
        super().__init__(config, num_envs)
        self._left = config.lasts
        self.there.append(self)

    def step(self, actions: Any, active: Any) -> Any:
        self.threads.add(torch.get_num_threads())
        self._left -= 1
        if not self._left:
            raise OSError("the lamp broke")
        return super().step(actions, active)

    def close(self) -> None:
        self.there.remove(self)


@ENV_REGISTRY.register("worn")
class WornConfig(GlowConfig):
    type: Literal["worn"] = "worn"  # type: ignore[assignment]
    lasts: int

    def build(self, num_envs: int = 1) -> Worn:
        return Worn(self, num_envs)


WORN = (
    "learner=ppo env=worn env.obs=state run.num_envs=2 run.max_steps=48 learner.hidden_dims=[8] "
    "learner.update_epochs=1 evaluation.episodes=2 evaluation.freq=24 env.lasts="
)


@pytest.fixture
def three_threads() -> Iterator[None]:
    """Of torch; not what a learner of states takes."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("three_threads")
def test_a_run_that_breaks_leaves_nothing_open_and_torch_as_it_was(tmp_path: Path):
    writers = lambda: [t for t in threading.enumerate() if "EventLogger" in type(t).__name__]  # noqa: E731
    before = len(writers())
    with pytest.raises(OSError, match="the lamp broke"):
        run(tmp_path / "run", WORN + "15")  # in the second round: the first is logged
    assert curve(tmp_path / "run") and not Worn.there
    assert len(writers()) == before and torch.get_num_threads() == 3
    assert Worn.threads == {1}


@pytest.mark.usefixtures("three_threads")
@pytest.mark.parametrize("show", [record_videos, partial(evaluate_run, episodes=2)])
def test_a_policy_that_is_shown_leaves_nothing_open_and_torch_as_it_was(tmp_path: Path, show: Any):
    run(tmp_path / "run", WORN + "1000")
    show(RunFolder.reopen(tmp_path / "run"))  # a film of nothing to see is none
    broken = RunFolder.reopen(tmp_path / "run")
    seen = broken.config.env.model_copy(update={"lasts": 2, "obs": "both"})
    policy = broken.config.policy.model_copy(update={"cameras": ()})
    broken.config = broken.config.model_copy(update={"env": seen, "policy": policy})
    with pytest.raises(OSError, match="the lamp broke"):
        show(broken)
    assert not Worn.there and torch.get_num_threads() == 3


def test_a_run_whose_judge_is_the_simulator_has_one_success_rate(tmp_path: Path):
    run(tmp_path / "run", WORN + "1000")
    said = evaluate_run(RunFolder.reopen(tmp_path / "run"), episodes=2).describe()
    assert "(simulator; " in said and "judge" not in said and "agree" not in said


def test_metrics_are_replaced_as_a_whole_when_a_run_goes_on(tmp_path: Path):
    run(tmp_path / "run", WORN + "1000", rounds=1)
    metrics, kept = tmp_path / "run/metrics.jsonl", tmp_path / "kept.jsonl"
    with metrics.open("a") as file:
        file.write('{"step": 999999, "judge/success_once": 1.0}\n')  # of a round that is lost
    kept.hardlink_to(metrics)  # whoever has the old file open
    before = kept.read_text()
    run(tmp_path / "run")
    assert kept.read_text() == before and all(line["step"] <= 48 for line in curve(tmp_path / "run"))


def test_a_folder_with_a_run_is_not_written_over(tmp_path: Path):
    create(tmp_path / "run", SMALL["ppo"])
    with pytest.raises(TargetNotEmpty, match="--resume"):
        create(tmp_path / "run", SMALL["ppo"])


def test_resuming_what_is_no_run_is_refused(tmp_path: Path):
    with pytest.raises(BadFile, match="not a run"):
        RunFolder.reopen(tmp_path)


def test_demonstrations_without_labels_are_refused(tmp_path: Path):
    with Store.create(tmp_path / "demos") as store:
        store.append(counting_episode())
    with pytest.raises(DataError, match="no labels"):
        run(tmp_path / "run", f"learner=sac env=lift demos.store={tmp_path / 'demos'}")
    assert not (tmp_path / "run").exists()
