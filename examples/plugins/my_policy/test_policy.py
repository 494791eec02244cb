import numpy as np

from plaudit.contracts import check_policy
from plaudit.data.normalize import Normalizer
from plaudit.policies.loader import load_policy
from plaudit.trust import allow_code
from plaudit.types import Observation


def test_it_keeps_the_contract():
    seen = Observation(images={}, state=np.float32([0.5]))
    allow_code("my_policy")
    policy = load_policy("my_policy/policy.yaml").build()
    check_policy(policy, seen, Normalizer.identity(state_dim=1, action_dim=1), action_dim=1)
