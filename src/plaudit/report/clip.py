"""An episode as a video, its cameras side by side, large enough to see something."""

from pathlib import Path

import numpy as np

from plaudit.data.formats.video import VideoWriter
from plaudit.judges.scored import side_by_side
from plaudit.types import Episode

_HEIGHT = 320  # pixels that a frame is enlarged to, in whole steps


def save_clip(episode: Episode, path: Path) -> None:
    """Write all frames at the episode's own speed."""
    pictures = []
    for frames in episode.frames.values():
        times = max(1, _HEIGHT // frames.shape[1])
        pictures.append(frames.repeat(times, axis=1).repeat(times, axis=2))
    film = side_by_side(pictures)
    film = np.pad(film, ((0, 0), (0, film.shape[1] % 2), (0, film.shape[2] % 2), (0, 0)))  # videos have even sizes
    writer = VideoWriter(path, episode.fps or 20.0, film.shape[1], film.shape[2], "h264", None)
    writer.append(film)
    writer.close()
