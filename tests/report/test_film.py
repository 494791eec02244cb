import av
import numpy as np

from plaudit.report import film
from plaudit.report.film import Scene, save_film


def scene(steps: int, grey: int, called_from: int, probability: float = 0.9) -> Scene:
    """Frames of one grey; the judge calls from some frame on, and is right."""
    called = np.arange(steps + 1) >= called_from
    frames = np.full((steps + 1, 240, 240, 3), grey, np.uint8)
    return Scene(frames, called, called, np.where(called, probability, 0).astype(np.float32))


def shown(path) -> np.ndarray:
    with av.open(str(path)) as container:
        assert container.streams.video[0].codec_context.name == "h264"
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]).astype(int)


def test_scenes_stand_side_by_side_and_a_short_one_waits_for_the_longest(tmp_path):
    save_film(tmp_path / "film.mp4", [scene(4, 60, 9), scene(9, 200, 9), scene(2, 120, 9)], fps=10.0)
    pictures = shown(tmp_path / "film.mp4")
    assert pictures.shape == (10 + 8, 2 * (240 + film._STRIP) + film._GAP, 2 * 240 + film._GAP, 3)
    for t in (0, 9, 17):
        middles = [pictures[t, y, x] for y in (120, 390) for x in (120, 364)]
        assert np.allclose(middles, np.repeat([[60], [200], [120], [0]], 3, axis=1), atol=8)


def test_small_frames_are_enlarged_in_whole_steps(tmp_path):
    told = scene(2, 60, 9)
    small = Scene(told.frames[:, :64, :64], told.success, told.called, told.probability)
    save_film(tmp_path / "film.mp4", [small], fps=10.0, columns=1)
    assert shown(tmp_path / "film.mp4").shape[1:] == (192 + film._STRIP, 192, 3)


def test_the_bar_is_as_long_as_the_judge_is_sure_and_green_where_it_calls():
    def green(sure: float, t: int) -> int:
        bar = film._tile(scene(3, 0, called_from=2, probability=sure), t)[240 + film._STRIP // 2, :140]
        return int((bar == film._YES).all(axis=1).sum())

    assert green(0.9, t=1) == 0
    assert 0.6 < green(0.6, t=2) / green(0.9, t=2) < 0.72


def test_where_the_simulator_judges_only_the_truth_is_written():
    told = scene(3, 0, called_from=2)
    alone = Scene(told.frames, told.success, None, told.probability)
    assert (film._tile(alone, 1)[240:] == film._INK).all()
    assert (film._tile(alone, 3)[240:, 120:] != film._INK).any()
