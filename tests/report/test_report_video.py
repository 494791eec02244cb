import av
import numpy as np

from plaudit.report import video
from plaudit.report.video import EpisodeClip, save_grid_video


def clip(steps: int, gray: int, success_from: int, probability: float = 0.9) -> EpisodeClip:
    """Frames of one gray; the judge predicts success from some frame on, and is right."""
    predicted = np.arange(steps + 1) >= success_from
    frames = np.full((steps + 1, 240, 240, 3), gray, np.uint8)
    return EpisodeClip(frames, predicted, predicted, np.where(predicted, probability, 0).astype(np.float32))


def shown(path) -> np.ndarray:
    with av.open(str(path)) as container:
        assert container.streams.video[0].codec_context.name == "h264"
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]).astype(int)


def test_episodes_are_side_by_side_and_a_short_one_stays_on_its_last_frame(tmp_path):
    save_grid_video(tmp_path / "film.mp4", [clip(4, 60, 9), clip(9, 200, 9), clip(2, 120, 9)], fps=10.0)
    pictures = shown(tmp_path / "film.mp4")
    assert pictures.shape == (10 + 8, 2 * (240 + video.CAPTION_HEIGHT) + video.GAP, 2 * 240 + video.GAP, 3)
    for t in (0, 9, 17):
        middles = [pictures[t, y, x] for y in (120, 390) for x in (120, 364)]
        assert np.allclose(middles, np.repeat([[60], [200], [120], [0]], 3, axis=1), atol=8)


def test_small_frames_are_enlarged_by_whole_factors(tmp_path):
    clip_ = clip(2, 60, 9)
    small = EpisodeClip(clip_.frames[:, :64, :64], clip_.success, clip_.predicted, clip_.success_prob)
    save_grid_video(tmp_path / "film.mp4", [small], fps=10.0, columns=1)
    assert shown(tmp_path / "film.mp4").shape[1:] == (192 + video.CAPTION_HEIGHT, 192, 3)


def test_the_bar_is_as_long_as_the_probability_and_blue_where_success_is_predicted():
    def blue(prob: float, t: int) -> int:
        bar = video.draw_tile(clip(3, 0, success_from=2, probability=prob), t)[240 + video.CAPTION_HEIGHT // 2, :140]
        return int((bar == video.SUCCESS).all(axis=1).sum())

    assert blue(0.9, t=1) == 0
    assert 0.6 < blue(0.6, t=2) / blue(0.9, t=2) < 0.72


def test_where_the_simulator_is_the_judge_there_is_no_bar():
    clip_ = clip(3, 0, success_from=2)
    alone = EpisodeClip(clip_.frames, clip_.success, None, clip_.success_prob)
    assert (video.draw_tile(alone, 1)[240:] == video.BACK).all()
    assert (video.draw_tile(alone, 3)[240:, 120:] != video.BACK).any()
