"""Where parts go, decided from what nodes say of themselves: no Ray is needed to follow it."""

import pytest

from plaudit.cluster.placement import SHARE, Node, Placement, difference, gpus_of, own_labels, own_versions, versions_of
from plaudit.config import parse
from plaudit.errors import ClusterError, ConfigError
from plaudit.training.config import ClusterConfig


def node(number: int, roles: str = "", gpus: int = 0, **facts: object) -> Node:
    """10.0.0.<number>; the first is the head."""
    resources = {f"{role}_pc": 1.0 for role in roles.split()} | {f"node:10.0.0.{number}": 1.0}
    ids = tuple(map(str, range(gpus)))
    return Node(
        **{
            "id": f"{number:056x}",
            "address": f"10.0.0.{number}",
            "resources": resources,
            "gpu_ids": ids,
            "head": number == 1,
            **facts,
        }
    )


THREE = [node(1, "training", gpus=2), node(2, "inference", gpus=1), node(3, "labeling", gpus=1)]
SPEC = {"actor": "0-0", "env": "0-0", "rollout": "0-0", "reward": "0-1"}


def visible(placement: Placement, part: str, rank: int = 0) -> str:
    return placement.options(part, rank)["runtime_env"]["env_vars"]["CUDA_VISIBLE_DEVICES"]


def test_each_part_asks_for_the_resource_of_its_role():
    placement = Placement(ClusterConfig(), THREE)
    asked = {part: placement.options(part)["resources"] for part in ("learner", "replay", "state", "env", "labeler")}
    assert asked == {
        "learner": {"training_pc": SHARE},
        "replay": {"training_pc": SHARE},
        "state": {"training_pc": SHARE},
        "env": {"inference_pc": SHARE},
        "labeler": {"labeling_pc": SHARE},
    }


def test_each_learner_has_a_gpu_of_its_own():
    placement = Placement(ClusterConfig(num_learners=2), THREE)
    assert [visible(placement, "learner", rank) for rank in (0, 1)] == ["0", "1"]


def test_parts_that_need_no_gpu_see_none():
    assert visible(Placement(ClusterConfig(), THREE), "replay") == ""


def test_all_roles_on_one_machine_deal_from_the_same_gpus():
    placement = Placement(ClusterConfig(), [node(1, "training inference labeling", gpus=2)])
    assert [visible(placement, part) for part in ("learner", "env", "labeler")] == ["0", "1", "0"]


def test_a_machine_that_was_given_some_of_its_gpus_calls_them_by_their_own_numbers():
    assert gpus_of({"plaudit.gpus": "2_3"}, 2) == ("2", "3")
    assert gpus_of({}, 2) == ("0", "1")


def test_a_part_may_have_another_role():
    config = parse(ClusterConfig, {"workers": {"replay": "labeling"}})
    assert Placement(config, THREE).options("replay")["resources"] == {"labeling_pc": SHARE}


def test_the_placement_of_the_reward_tutorial():
    """All on GPU 0, and the reward, which may use 0 and 1, on the one that nobody else uses."""
    config = parse(ClusterConfig, {"component_placement": SPEC})
    placement = Placement(config, [node(1, gpus=2)])
    assert [visible(placement, part) for part in ("learner", "env", "labeler")] == ["0", "0", "1"]
    assert placement.options("labeler")["resources"] == {"node:10.0.0.1": SHARE}


def test_numbers_count_gpus_over_the_nodes_and_the_head_is_first():
    config = parse(ClusterConfig, {"component_placement": {"actor": "0-1", "env,rollout": 2, "reward": "3"}})
    placement = Placement(config, THREE[::-1])
    pinned = [next(iter(placement.options(part)["resources"])) for part in ("learner", "env", "labeler", "replay")]
    assert pinned == ["node:10.0.0.1", "node:10.0.0.2", "node:10.0.0.3", "node:10.0.0.1"]


def test_without_gpus_numbers_count_nodes():
    config = parse(ClusterConfig, {"component_placement": {"actor": 0, "env": 1, "reward": "all"}})
    placement = Placement(config, [node(1), node(2), node(3)])
    assert placement.options("env")["resources"] == {"node:10.0.0.2": SHARE}
    assert placement.options("labeler")["resources"] == {"node:10.0.0.3": SHARE}  # of all, the one left over


def test_a_part_that_is_placed_by_number_finds_a_node_that_was_started_again():
    config = parse(ClusterConfig, {"component_placement": {"actor": 0, "env": 1, "reward": 1}})
    placement = Placement(config, [node(1), node(2)])
    again = node(2, id="f" * 56)  # the id changes, the address does not
    assert placement.options("env")["resources"].keys() <= again.resources.keys()


def test_a_role_that_no_node_has():
    with pytest.raises(ClusterError) as told:
        Placement(ClusterConfig(), THREE[:2])
    assert str(told.value) == (
        "no node offers 'labeling_pc', which the labeler asks for; start one with: plaudit cluster start "
        "--role labeling --head ADDRESS; the cluster has: inference_pc, training_pc"
    )


def test_a_node_that_died_offers_nothing():
    with pytest.raises(ClusterError, match="no node offers 'labeling_pc'"):
        Placement(ClusterConfig(), [*THREE[:2], node(3, "labeling", alive=False)])


def test_a_gpu_beyond_those_there():
    config = parse(ClusterConfig, {"component_placement": SPEC | {"reward": "0-4"}})
    with pytest.raises(ClusterError, match=r"the labeler on GPU 4, and the cluster has 4 of them, .*3 on 10\.0\.0\.3"):
        Placement(config, THREE)


def test_a_judge_that_needs_a_gpu_where_there_is_none():
    nodes = [*THREE[:2], node(3, "labeling", hostname="desk")]
    with pytest.raises(ClusterError, match=r"the labeler needs a GPU and there is none on desk \(10\.0\.0\.3\); .*cpu"):
        Placement(ClusterConfig(), nodes, requires_gpu=["labeler"])
    Placement(ClusterConfig(), nodes)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"component_placement": {**SPEC, "rewrd": 0}}, "unknown component 'rewrd'.*did you mean 'reward'"),
        ({"component_placement": {**SPEC, "actor": "3-1"}}, "component_placement.actor is '3-1'; write a number"),
        ({"component_placement": {**SPEC, "actor": "gpu0"}}, "is 'gpu0'"),
        ({"component_placement": {**SPEC, "rollout": 1}}, "env and rollout are one worker here"),
        ({"component_placement": {"actor": 0}}, "does not say where these are: env, reward"),
        ({"component_placement": SPEC, "workers": {"env": "training"}}, "component_placement and workers both say"),
        ({"num_learners": 0}, "num_learners"),
        ({"workers": {"env": "robot"}}, "workers.env"),
    ],
)
def test_placements_that_cannot_be_meant(values, sentence):
    with pytest.raises(ConfigError, match=sentence):
        parse(ClusterConfig, values)


def test_a_node_with_other_versions_is_refused_before_anything_starts():
    ours = own_versions()
    odd = node(3, "labeling", hostname="desk", versions={**ours, "plaudit": "0.0.9"})
    with pytest.raises(ClusterError, match=rf"desk \(10\.0\.0\.3\) has plaudit 0\.0\.9 instead of {ours['plaudit']}; "):
        Placement(ClusterConfig(), [*THREE[:2], odd], versions=ours)


def test_builds_of_one_torch_for_different_machines_go_together():
    ours = {"python": "3.11.7", "ray": "2.60.0", "torch": "2.13.0+cu130", "plaudit": "0.1.0"}
    assert difference(ours, {**ours, "torch": "2.13.0+cpu"}) is None
    assert difference(ours, {**ours, "torch": "2.12.1"}) == "torch 2.12.1 instead of 2.13.0+cu130"
    assert difference(ours, {}) is None


def test_versions_survive_being_labels():
    assert versions_of(own_labels()) == own_versions()
