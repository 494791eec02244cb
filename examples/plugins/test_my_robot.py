from my_robot import LampConfig

from plaudit.contracts import check_robot


def test_it_keeps_the_contract():
    check_robot(LampConfig(realtime=False).build())
