"""The frames that a LeRobot data set keeps in videos: which frame belongs to which row, and how much may be decoded."""

from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path

import numpy as np

from plaudit.data.formats.lerobot.episodes import Row, Video
from plaudit.data.formats.limits import FREE, check_decoded_size
from plaudit.data.formats.video import FramesMissing, announced_frames, codec_name, coded_frames, read_frames
from plaudit.errors import BadFile
from plaudit.files import Root
from plaudit.types import AnyArray, ByteArray


def video_codecs(root: Root, row: Row) -> dict[str, str]:
    """The codec of an episode's videos, by feature."""
    return {key: codec_name(root, video.path) for key, video in row.videos.items()}


class Videos:
    """The videos of one data set."""

    def __init__(self, root: Root, fps: float, counts: Mapping[Path, int], max_bytes: float, notes: dict[str, str]):
        """
        counts: how many rows of the data set each file belongs to
        max_bytes: what an episode may take in memory
        notes: filled in where the videos leave something open, the first time for each kind
        """
        self._root, self._fps, self._counts, self._max_bytes, self._notes = root, fps, counts, max_bytes, notes
        self._coded = cache(partial(coded_frames, root))

    def frames(self, row: Row, video: Video, times: AnyArray | None, height: int, width: int) -> ByteArray:
        """The frames of an episode, one for each row, and a last one that is left for the caller to fill.

        times: the rows' timestamps

        A row's frame is the one shown at its timestamp; by number where the two clocks differ. Timestamps that begin
        late or follow the wall clock lead to a neighbor's frame, or beyond the end. A video of as many frames as rows
        leaves no doubt which belongs to which.
        """
        self._check_coded(row, video, height, width)
        self._tell_of_surplus(row, video)
        tolerance = 0.5 / self._fps
        steady = times is not None and bool((np.abs(times - np.arange(len(times)) / self._fps) <= tolerance).all())
        if not steady and (frames := self._by_number(row, video, height, width)) is not None:
            return frames
        if times is None:
            raise BadFile(
                row.data,
                f"there is no 'timestamp' in this table, and {video.path} has not one frame a row; correct either",
            )
        try:
            return read_frames(self._root, video.path, video.start + times, tolerance, height, width, spare=1)
        except FramesMissing as error:
            if not steady:
                raise BadFile(
                    video.path,
                    f"this video has {len(self._coded(video.path)[0])} frames for {self._counts[video.path]} rows, "
                    f"and the rows' timestamps ({times[0]:.3f} to {times[-1]:.3f} s) do not follow its clock; write "
                    "either again",
                ) from error
            if (frames := self._by_number(row, video, height, width)) is not None:
                return frames
            raise

    def _by_number(self, row: Row, video: Video, height: int, width: int) -> ByteArray | None:
        """None where neither the file nor the episode's part of it has exactly one frame for each row."""
        times, _ = self._coded(video.path)
        if len(times) == self._counts[video.path]:
            times = times[video.first : video.first + row.length]
        elif video.end is None:
            return None
        else:
            half = 0.5 / self._fps
            times = times[(times >= video.start - half) & (times < video.end - half)]
        if len(times) != row.length:
            return None
        frames = read_frames(self._root, video.path, times, 1e-6, height, width, spare=1)
        self._notes.setdefault(
            "by number",
            f"timestamps do not follow the clock of the videos (first in episode {row.index}); where a video has "
            "one frame a row, its frames are taken by number",
        )
        return frames

    def _check_coded(self, row: Row, video: Video, height: int, width: int) -> None:
        """Refuse an episode that is large only because its file was padded: padding holds no frames."""
        nbytes = row.length * height * width * 3
        if nbytes > FREE:
            _, coded = self._coded(video.path)
            what = f"episode {row.index}"
            check_decoded_size(nbytes, coded, video.path, what, self._max_bytes, source="bytes of coded frames")

    def _tell_of_surplus(self, row: Row, video: Video) -> None:
        """A video with more frames than rows may belong to another episode; the timestamps alone do not show it."""
        if "surplus" in self._notes:
            return
        count, rows = announced_frames(self._root, video.path), self._counts[video.path]
        if count > rows:
            self._notes["surplus"] = (
                f"some videos have more frames than rows (first {video.path.name}, episode {row.index}: {count:,} for "
                f"{rows:,}) and may belong to another episode; frames are taken by timestamp, look at some of them"
            )
