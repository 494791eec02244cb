from my_env import LampEnvConfig

from plaudit.contracts import check_vec_env


def test_it_keeps_the_contract():
    check_vec_env(LampEnvConfig(obs="both", image_size=(8, 8)).build(num_envs=3))
