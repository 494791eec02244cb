"""The tiny vision-language model as fixtures. Every test run imports this, so what is heavy is imported when used."""

import pytest


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """The folder of a tiny model."""
    from tiny_vlm import save_tiny

    return save_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def plain(tiny):
    from plain_vlm import Plain

    return Plain(tiny)


@pytest.fixture(scope="session")
def make_scorer(tiny):
    """Of the tiny model, on 64x64 images: four tokens a frame."""
    from plaudit.judges.vlm.config import VlmJudgeConfig

    def make(**settings):
        return VlmJudgeConfig(**{"model": str(tiny), "image_size": 64, **settings}).load_backend()

    return make


@pytest.fixture(scope="session")
def scorer(make_scorer):
    return make_scorer()
