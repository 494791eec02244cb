import numpy as np
from my_judge import BrightnessConfig

from plaudit.contracts import check_judge
from plaudit.types import Episode


def test_it_keeps_the_contract():
    brighter = np.arange(0, 250, 50, dtype=np.uint8)[:, None, None, None] + np.zeros((5, 4, 4, 3), np.uint8)
    episode = Episode.of(frames={"front": brighter}, state=np.zeros((5, 1)), actions=np.zeros((4, 1)))
    check_judge(BrightnessConfig().build(), [episode])
