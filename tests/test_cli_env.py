"""The commands on environments, as a user types them."""

from pathlib import Path

import av
import pytest
from PIL import Image

pytest.importorskip("plaudit.envs.panda.cameras", exc_type=ImportError)  # the tests below need MuJoCo 4

from command import plaudit
from plaudit.data.store import Store


def test_list_shows_the_tasks_and_what_to_install(tmp_path):
    said = plaudit("env", "list", cwd=tmp_path, alone=True)
    assert "lift the red cube" in said and "32 / 15" in said and "metaworld" in said


def test_view_draws_a_sheet_or_a_video(tmp_path):
    said = plaudit("env", "view", "push", "--outcome", "miss", "--size", "32", cwd=tmp_path, alone=True)
    assert "push.png shows 50 steps of push.\nwhy: The episode does not succeed." in said
    assert Image.open(tmp_path / "push.png").width > 500
    words = ["--camera", "front", "--camera", "wrist", "--randomize", "--size", "32x40", "--output", "film.mp4"]
    assert "The episode succeeds." in plaudit("env", "view", "lift", *words, cwd=tmp_path)
    with av.open(str(tmp_path / "film.mp4")) as film:
        assert (film.streams.video[0].height, film.streams.video[0].width) == (320, 800)


def test_an_environment_is_named_by_its_dotted_path(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "examples/plugins"))
    said = plaudit("env", "view", "my_env:LampEnvConfig", "--size", 16, "--output", "lamp.png", cwd=tmp_path)
    assert "lamp.png shows" in said and "steps of my_env:LampEnvConfig" in said


def test_bench_measures_with_and_without_images(tmp_path):
    said = plaudit("env", "bench", "lift", "--num-envs", 2, "--seconds", 0.1, "--size", 16, cwd=tmp_path, alone=True)
    assert "steps/s" in said and "state and images of 16" in said


def test_record_adds_to_a_store(tmp_path):
    words = ["--outcomes", "success,miss", "--noise", 0.05, "--size", 16]
    said = plaudit("env", "record", "store", "--episodes", 3, *words, cwd=tmp_path, alone=True)
    assert "why: 3 episodes recorded into store: 2 success, 1 miss." in said
    more = ["--seed", 50, "--camera", "side", "--steps-after-success", 3]
    plaudit("env", "record", "store", "--episodes", 2, *more, *words, cwd=tmp_path)
    store = Store.open(tmp_path / "store")
    assert [list(episode.frames) for _, episode in store] == [["front"]] * 3 + [["side"]] * 2
    assert [store.ledger.labels(i).success.sum() for i in (0, 3)] == [1, 4]  # with three frames more


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["view", "lfit"], "there is no env 'lfit'; did you mean 'lift'?"),
        (["view", "lift", "--camera", "wirst"], "key 'cameras': there is no camera 'wirst'; did you mean 'wrist'?"),
        (["view", "lift", "--size", "0"], "of at most 4096 pixels, not '0'"),
        (["view", "lift", "--size", "big"], "a size is an edge like 128, or height x width like 96x128, of at most"),
        (["view", "lift", "--outcome", "mis"], "there is no outcome 'mis'; did you mean 'miss'?"),
        (["view", "lift", "--output", "x.gif"], "x.gif is neither a .png nor an .mp4; name one of these"),
        (["record", "store", "--env", "gymnasium", "--set", "id=Pendulum-v1"], "there is no scripted expert for"),
        (["record", "store", "--env", "gymnasium"], "key 'id' is missing; it has no default: add --set id=..."),
        (["record", "store", "--outcomes", "success,"], "there is no outcome ''; known: drop, miss"),
    ],
)
def test_mistakes_are_answered_in_a_sentence(tmp_path, words, sentence):
    assert sentence in plaudit("env", *words, cwd=tmp_path, ok=False)
