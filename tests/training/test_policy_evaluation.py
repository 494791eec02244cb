"""`plaudit eval` of a policy: on test seeds, by the simulator and by a judge."""

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command import plaudit
from conftest import counting_episode
from counting import CountingSimulation
from glow import saved
from plaudit.data.store import Store
from plaudit.errors import PolicyError
from plaudit.judges.simulator import SimulatorJudge
from plaudit.policies.config import GaussianConfig
from plaudit.policies.loader import PolicySpec
from plaudit.policies.scripted import ReplayConfig, ScriptedConfig
from plaudit.training.config_file import load_training_config
from plaudit.training.evaluation import EvalResult, PolicyActor, env_config_for, evaluate, make_eval_env
from plaudit.types import EnvSpec, Scores
from tiny_reward import tiny_model

pytest.importorskip("mujoco")


@pytest.fixture
def expert(tmp_path) -> Path:
    (tmp_path / "expert.yaml").write_text("policy: {type: scripted, expert: lift}\n")
    return tmp_path


def test_an_expert_succeeds_and_the_interval_is_that_of_so_few_episodes(expert):
    said = plaudit("eval", "expert.yaml", "--env", "lift", "--episodes", 4, cwd=expert)
    assert "expert.yaml on lift: success rate 100% (simulator; 95% CI 51% to 100%); 4 test seeds" in said


def test_a_judge_is_counted_beside_the_simulator_and_a_film_is_written(expert):
    saved(tiny_model(threshold=1.1), expert / "model")  # which never sees success
    words = ("--judge", "model", "--episodes", 2, "--video", "--set", "max_steps=4")
    said = plaudit("eval", "expert.yaml", "--env", "lift", *words, cwd=expert)
    assert "success rate 0% (simulator; 95% CI 0% to 66%), 0% (judge; 95% CI 0% to 66%)" in said
    assert "they agree on 100% of the episodes; 2 test seeds" in said
    assert "wrote runs/eval/expert_lift_0.mp4" in said and (expert / "runs/eval/expert_lift_0.mp4").stat().st_size > 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("expert.yaml",), "name the task that expert.yaml is to be evaluated on: --env lift"),
        ((".", "--env", "lift"), ". is neither a run nor a policy: it has no config.yaml and no policy.yaml"),
        (("expert.yaml", "--env", "lfit"), "there is no env 'lfit'; did you mean 'lift'"),
        (("expert.yaml", "--env", "lift", "--judge", "none"), "none"),
    ],
)
def test_mistakes_are_a_sentence(expert, words, sentence):
    said = plaudit("eval", *words, cwd=expert, ok=False)
    assert said.startswith("error: ") and sentence in said and said.count("\n") == 1


def test_a_policy_made_for_something_else_is_refused_with_both_sizes():
    spec = PolicySpec.of(GaussianConfig(state_dim=24, action_dim=7, cameras={"front": (64, 64)}))
    fits = EnvSpec(24, 7, {"front": (64, 64), "wrist": (32, 32)}, name="arm")
    spec.check_fits(fits)
    others = {
        "a state of 24 numbers, and that of arm has 17": EnvSpec(17, 7, fits.cameras, name="arm"),
        "an action of 7 numbers, and that of arm has 6": EnvSpec(24, 6, fits.cameras, name="arm"),
        "camera 'front', which arm does not have; .*top": EnvSpec(24, 7, {"top": (64, 64)}, name="arm"),
        "'front' of arm gives 32x48 images, this policy was made for 64x64": EnvSpec(
            24, 7, {"front": (32, 48)}, 0, "arm"
        ),
    }
    for sentence, other in others.items():
        with pytest.raises(PolicyError, match=sentence):
            spec.check_fits(other)


def test_each_environment_executes_whole_chunks_of_its_own(tmp_path):
    store = Store.create(tmp_path / "s")
    store.append(counting_episode(6))  # whose actions are 0, 1, 2, ...
    env = CountingSimulation(2)
    spec = PolicySpec.of(ReplayConfig(store=store.folder, horizon=2))
    actor, observation = PolicyActor(spec, env), env.reset([3, 4])
    for _ in range(2):  # a second batch of episodes begins anew
        act = actor.start()
        taken = np.stack([act(observation) for _ in range(4)])
        assert taken[:, :, 0].tolist() == [[0, 0], [1, 1], [1, 1], [1, 1]]  # clipped to what a simulation takes


class Late(SimulatorJudge):
    """Sees success two steps after the simulator; nothing of an episode whose seed is even."""

    def stream(self, num_envs):
        stream: Any = super().stream(num_envs)
        stream.step = lambda seen, info: Scores(
            np.float32((seen.state[:, 1] >= seen.state[:, 0] + 2) & (seen.state[:, 0] % 2 == 1))
        )
        return stream


@pytest.mark.parametrize(("seeds", "steps", "counts"), [((1, 1), 3, (2, 2, 2)), ((1, 2), 5, (2, 1, 1))])
def test_an_evaluation_with_a_judge_ends_when_both_have_seen_success(seeds, steps, counts):
    class Fixed(CountingSimulation):
        def reset(self, _):
            return super().reset(seeds)

    env = Fixed(2)
    act = lambda seen: np.ones((2, 1), np.float32)  # noqa: E731
    result = evaluate(env, lambda: act, 2, judge=Late())
    assert (result.successes, result.judge_successes, result.agreements) == counts
    assert env._count.max() == steps


def test_evaluations_of_a_run_render_only_what_the_policy_sees():
    config = load_training_config(
        "train", None, ["env=lift", "learner=sac", "env.obs=pixels", "env.cameras=[front,side,wrist]"]
    )
    learner = config.learner.build(EnvSpec(15, 4, {"wrist": (64, 64), "front": (64, 64)}), 0, "cpu")
    with closing(make_eval_env(config, learner)) as env:
        assert list(env.cameras) == ["front", "wrist"]


def test_the_task_shows_what_policy_and_judge_look_at():
    judge = tiny_judge()
    states = PolicySpec.of(ScriptedConfig(expert="lift"))
    assert env_config_for("lift", [], states, None).obs == "state"
    seen = env_config_for("lift", [], states, judge)
    assert (seen.obs, seen.cameras, seen.image_size) == ("both", ("front",), (16, 16))
    pixels = PolicySpec.of(GaussianConfig(state_dim=14, action_dim=4, cameras={"side": (16, 16)}))
    both = env_config_for("lift", [], pixels, judge)
    assert set(both.cameras) == {"side", "front"}


def tiny_judge():
    from plaudit.judges.classifier.judge import ClassifierJudge

    return ClassifierJudge(tiny_model())


def test_rates_have_intervals():
    assert EvalResult(100, 93).describe() == "success rate 93% (simulator; 95% CI 86% to 97%)"
    assert "95% (judge; 95% CI 89% to 98%); they agree on 98% of the episodes" in EvalResult(100, 93, 95, 98).describe()
