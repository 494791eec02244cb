"""Trying a policy out before the robot moves: where it runs, how long it takes."""

import pytest

from plaudit.errors import ConfigError, DeviceError
from plaudit.policies.config import FlowConfig, GaussianConfig
from plaudit.policies.loader import PolicySpec
from plaudit.policies.scripted import ScriptedPolicy
from plaudit.rollout.engine import InferenceConfig
from plaudit.rollout.inference import NUM_INFERENCES, Warmup, warm_up
from plaudit.training.config_file import load_training_config
from plaudit.training.workers.learner import LearnerInfo, robot_policy
from plaudit.types import EnvSpec, Observation

ARM = EnvSpec(3, 2, {"front": (8, 8)}, 20.0, "arm")
FLOW = PolicySpec.of(FlowConfig(state_dim=3, action_dim=2, cameras=ARM.cameras, horizon=6, num_inference_steps=1))


def test_a_policy_infers_on_blank_observations_where_it_will_act():
    warmup = warm_up(FLOW.build(), ARM, InferenceConfig(execution_horizon=2))
    assert warmup is not None and len(warmup.took) == NUM_INFERENCES
    assert (warmup.horizon, warmup.executed, warmup.device) == (6, 2, "cpu")  # auto, and there is no GPU


def test_the_fastest_inference_decides_whether_chunks_fit_and_the_slowest_is_the_delay():
    warmup = Warmup(20.0, 20, 10, (0.012, 0.13, 0.7), "cuda:0")
    assert (warmup.delay, warmup.problem()) == (14, "")
    assert warmup.summary == "12 to 700 ms on cuda:0, 14 steps; 10 of 20 actions executed, 10 steps fit"
    assert "takes 12 control steps (600 ms at 20 Hz)" in Warmup(20.0, 20, 10, (0.6, 0.7), "cpu").problem()


def test_commands_that_would_be_too_old_to_be_sent_are_a_problem_of_chunks_too():
    slow = Warmup(10.0, 50, 30, (0.1,), "cpu")
    assert slow.problem(3.0) == "" == slow.problem(None)
    sentence = "30 steps of a chunk are executed (policy.inference.execution_horizon), the last of them 3.0 s after"
    assert sentence in slow.problem(2.9)


def test_a_script_is_not_asked_before_its_first_episode():
    def script(_: Observation) -> None:
        raise AssertionError("it counts")

    assert warm_up(ScriptedPolicy(script, 6), ARM, InferenceConfig()) is None


def test_a_device_that_is_not_there_is_one_sentence():
    sentence = "there is no device 'cuda:7' here; this machine has 0 GPUs that torch can use; write auto, or cpu"
    with pytest.raises(DeviceError, match=sentence):
        FLOW.on("cuda:7").build()
    with pytest.raises(ConfigError, match=r"policy.device': 'gpu' is not a device; write cpu, cuda, cuda:1 or auto"):
        load_training_config("online", None, ["env=lift", "learner=sac", "judge=simulator", "policy.device=gpu"])
    with pytest.raises(ConfigError, match=r"policy.device is not for plaudit train: .* write run.device"):
        load_training_config("train", None, ["env=lift", "learner=sac", "policy.device=cpu"])


@pytest.mark.parametrize(("asked", "device"), [((), "auto"), (("policy.device=cuda:1",), "cuda:1")])
def test_the_policy_of_an_online_run_acts_on_the_device_that_is_asked_for(asked, device):
    config = load_training_config("online", None, ["env=lift", "learner=sac", "judge=simulator", *asked])
    acting = GaussianConfig(state_dim=3, action_dim=2)
    info = LearnerInfo(updates=0, pretrain_updates=0, policy_config=acting, exploring_config=acting)
    assert robot_policy(config, info).policy["device"] == device
