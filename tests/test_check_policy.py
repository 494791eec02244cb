"""Each of the seven rules of a policy has one that breaks it."""

import numpy as np
import pytest
import torch

from plaudit.contracts import check_policy
from plaudit.data.normalize import Normalizer, Stats
from plaudit.errors import ContractError
from plaudit.policies.config import ActorConfig, GaussianConfig
from plaudit.policies.networks import GaussianPolicy, encode
from plaudit.types import Observation

SEEN = Observation({"front": np.full((8, 8, 3), 90, np.uint8)}, np.float32([0.3, -0.2]))
STATS = Normalizer(
    {"observation.state": Stats(np.zeros(2, "f4"), np.ones(2, "f4")), "action": Stats(*np.ones((2, 3), "f4"))}
)


class Good(GaussianPolicy):
    def __init__(self):
        actor = ActorConfig(kind="squashed", hidden_dims=(8,))
        super().__init__(GaussianConfig(state_dim=2, action_dim=3, horizon=6, cameras={"front": (8, 8)}, actor=actor))


def test_a_good_one_passes():
    check_policy(Good(), SEEN, STATS, action_dim=3)


class NormalisesByItself(Good):  # 1
    def predict(self, observation, normalizer):
        return super().predict(observation, STATS)


class ReadsTheRawState(Good):  # 1
    def predict(self, observation, normalizer):
        return super().predict(observation, normalizer) + observation.state[0]


class ReadsTheRawImage(Good):  # 1
    def predict(self, observation, normalizer):
        return super().predict(observation, normalizer) + np.float32(observation.images["front"].mean())


class AsksInVain(Good):  # 1
    def predict(self, observation, normalizer):
        normalizer.normalize_state(observation.state)
        return normalizer.denormalize_action(np.zeros((6, 3), np.float32))


class AnswersInItsOwnUnits(Good):  # 1
    def predict(self, observation, normalizer):
        with torch.no_grad():
            features = encode(self.encoder, observation, normalizer, self.device)
            return self._act(features).view(6, 3).numpy()


class HidesItsParts(Good):  # 2
    def __init__(self):
        super().__init__()
        self.components = {"encoder": "somewhere"}  # type: ignore[assignment]


class KeepsItsWeights(Good):  # 2
    def load_weights(self, weights):
        pass


class TakesAnyWeights(Good):  # 2
    def load_weights(self, weights):
        for name, component in self.components.items():
            mine = {
                k.removeprefix(f"{name}/"): torch.tensor(v) for k, v in weights.tensors.items() if k.startswith(name)
            }
            component.load_state_dict(mine, strict=False)


class ForgetsThePreviousChunk(Good):  # 3
    def guided_inference(self, observation, normalizer, previous, delay, executed):
        return self.predict(observation, normalizer)


class WritesIntoThePreviousChunk(Good):  # 3
    def guided_inference(self, observation, normalizer, previous, delay, executed):
        previous[:] = super().guided_inference(observation, normalizer, previous, delay, executed)
        return previous


class WritesIntoTheObservation(Good):  # 4
    def predict(self, observation, normalizer):
        observation.state[:] = 0
        return super().predict(observation, normalizer)


class HandsTensorsToTheNormalizer(Good):  # 4, 5
    def predict(self, observation, normalizer):
        normalizer.normalize_state(torch.from_numpy(observation.state))
        return super().predict(observation, normalizer)


class ReturnsATensor(Good):  # 6
    def predict(self, observation, normalizer):
        return torch.from_numpy(super().predict(observation, normalizer))

    def warmup(self):
        """Its blend of two tensors would fail."""


class ReusesItsTensor(Good):  # 7
    def __init__(self):
        super().__init__()
        self.buffer = torch.zeros(6, 3)

    def predict(self, observation, normalizer):
        self.buffer.copy_(self.buffer + torch.from_numpy(super().predict(observation, normalizer)))
        return self.buffer.numpy()


class GoesOnLearning(Good):
    def freeze_all_model_params(self):
        self.encoder.requires_grad_(False)


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (NormalisesByItself, r"looks at the state, but not through normalizer.normalize_state\(\)"),
        (ReadsTheRawState, r"looks at the state, but not through normalizer.normalize_state\(\)"),
        (ReadsTheRawImage, r"looks at images, but not through normalizer.normalize_image\(\)"),
        (AsksInVain, "does not use the result"),
        (AnswersInItsOwnUnits, "have not been through normalizer.denormalize_action"),
        (HidesItsParts, "component 'encoder' is a str, not a torch module"),
        (KeepsItsWeights, "was given zeros, and did not set '.*' of component 'encoder'"),
        (TakesAnyWeights, "accepted weights that lack 'encoder/.*'"),
        (ForgetsThePreviousChunk, "does not continue the previous chunk"),
        (WritesIntoThePreviousChunk, "changed the previous chunk"),
        (WritesIntoTheObservation, "changed the observation"),
        (HandsTensorsToTheNormalizer, r"gave normalizer.normalize_state\(\) a Tensor"),
        (ReturnsATensor, r"predict\(\) must return a numpy array, got Tensor"),
        (ReusesItsTensor, "a chunk changed after it was returned"),
        (GoesOnLearning, "left actor.trunk.0.weight learning"),
    ],
)
def test_a_policy_that_breaks_a_rule_is_told_which(broken, said):
    observation = Observation(dict(SEEN.images), SEEN.state.copy())
    with pytest.raises(ContractError, match=said):
        check_policy(broken(), observation, STATS, action_dim=3)


def test_a_normaliser_made_of_torch_is_told():  # 5
    class Tensors(Normalizer):
        def normalize_state(self, state):
            return torch.from_numpy(state)

    with pytest.raises(ContractError, match="to use numpy alone; 'torch' is torch's"):  # this file imports it
        check_policy(Good(), SEEN, Tensors(STATS.stats), action_dim=3)
    Tensors.__module__ = "plaudit.data.normalize"
    with pytest.raises(ContractError, match=r"normalizer.normalize_state\(\) returned a Tensor"):
        check_policy(Good(), SEEN, Tensors(STATS.stats), action_dim=3)


def test_an_observation_of_tensors_is_not_for_a_policy():  # 4
    with pytest.raises(ContractError, match="a policy is shown numpy arrays, 'state' is a Tensor"):
        check_policy(Good(), Observation(SEEN.images, torch.zeros(2)), STATS, action_dim=3)
