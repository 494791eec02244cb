"""A tiny LeRobot v2.1 data set, written by hand from the format's description: what our reader is tested on."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from plaudit.data.formats.video import VideoWriter

CAMERA, FPS, SIZE = "observation.images.cam_high", 10, (48, 64)


def moving_square(frames: int, offset: int) -> np.ndarray:
    """A bright square that moves right, on a grey ground."""
    images = np.full((frames, *SIZE, 3), 60, np.uint8)
    for t in range(frames):
        x = (offset + 2 * t) % (SIZE[1] - 16)
        images[t, 16:32, x : x + 16] = (220, 180, 40)
    return images


def write_v21(folder: Path, lengths: tuple[int, ...] = (12, 9, 15), rewards: bool = False) -> Path:
    """Episode i has `lengths[i]` rows; state = row + 100 i, action = -row."""
    for name in ("meta", "data/chunk-000", f"videos/chunk-000/{CAMERA}"):
        (folder / name).mkdir(parents=True)
    vector = {"dtype": "float32", "shape": [2], "names": [["joint_a", "joint_b"]]}
    features: dict = {
        "observation.state": vector,
        "action": vector,
        CAMERA: {"dtype": "video", "shape": [*SIZE, 3], "names": ["height", "width", "channel"]},
    }
    if rewards:
        features["next.reward"] = {"dtype": "float32", "shape": [1], "names": None}
        features["next.done"] = {"dtype": "bool", "shape": [1], "names": None}
    for name, dtype in (
        ("timestamp", "float32"),
        *((n, "int64") for n in ("frame_index", "episode_index", "index", "task_index")),
    ):
        features[name] = {"dtype": dtype, "shape": [1], "names": None}
    index = 0
    for episode, length in enumerate(lengths):
        rows = np.arange(length, dtype=np.float32)
        columns = {
            "observation.state": [[100.0 * episode + r, r] for r in rows.tolist()],
            "action": [[-r, 0.5] for r in rows.tolist()],
            "timestamp": pa.array(rows / FPS, pa.float32()),
            "frame_index": np.arange(length),
            "episode_index": np.full(length, episode),
            "index": np.arange(index, index + length),
            "task_index": np.full(length, episode % 2),
        }
        if rewards:
            columns["next.reward"] = pa.array((rows >= length - 3).astype("f4"))
            columns["next.done"] = rows == length - 1
        pq.write_table(pa.table(columns), folder / f"data/chunk-000/episode_{episode:06d}.parquet")
        video = VideoWriter(folder / f"videos/chunk-000/{CAMERA}/episode_{episode:06d}.mp4", FPS, *SIZE, "h264", None)
        video.append(moving_square(length, episode))
        video.close()
        index += length
    info = {
        "codebase_version": "v2.1",
        "robot_type": "tester",
        "fps": FPS,
        "chunks_size": 1000,
        "total_episodes": len(lengths),
        "total_frames": index,
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
        "features": features,
    }
    (folder / "meta/info.json").write_text(json.dumps(info))
    tasks = [{"task_index": i, "task": task} for i, task in enumerate(("push", "pull"))]
    episodes = [{"episode_index": i, "tasks": [("push", "pull")[i % 2]], "length": n} for i, n in enumerate(lengths)]
    for name, rows in (("tasks", tasks), ("episodes", episodes)):
        (folder / f"meta/{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder
