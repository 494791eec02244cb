"""Tiny sound data sets of every layout that is read, to be damaged."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from plaudit.data.formats import WriteOptions
from plaudit.data.store import Store
from plaudit.data.transfer import export_dataset
from plaudit.types import Episode, Labels

LENGTH, SIZE, FPS = 6, (16, 32), 10
EPISODES = 3
CAMERA = "observation.images.front"


def make_sets(folder: Path) -> dict[str, Path]:
    """A sound data set of every layout, of three episodes."""
    rng = np.random.default_rng(0)
    with Store.create(folder / "store") as store:
        for i in range(EPISODES):
            frames = rng.integers(0, 256, (LENGTH + 1, *SIZE, 3), dtype=np.uint8)
            steps = np.arange(LENGTH + 1, dtype=np.float32)
            state = np.stack([steps, steps + 100 * i], axis=1)
            episode = Episode.of(frames={"front": frames}, state=state, actions=state[:-1], fps=FPS, task=f"task {i}")
            store.ledger.append(store.append(episode), Labels.from_cutoff(steps=LENGTH, cutoff=3, source="human"))
        found = {name: folder / name for name in ("v3 video", "v3 images", "npy", "pkl")}
        export_dataset(store, found["v3 video"], "lerobot", WriteOptions(codec="h264"))
        export_dataset(store, found["v3 images"], "lerobot", WriteOptions(video=False))
        export_dataset(store, found["npy"], "npy")
        export_dataset(store, found["pkl"], "pkl")
    for version in ("v2.0", "v2.1"):
        found[version] = _as_v2(found["v3 images"], folder / version, version)
    return found


def _as_v2(source: Path, target: Path, version: str) -> Path:
    """The same rows with a table an episode and lists of JSON lines; v2.0 keeps its images as files beside it."""
    (target / "meta").mkdir(parents=True)
    (target / "data/chunk-000").mkdir(parents=True)
    info = json.loads((source / "meta/info.json").read_text())
    info |= {
        "codebase_version": version,
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
    }
    (target / "meta/info.json").write_text(json.dumps(info))
    table = pq.read_table(next((source / "data").rglob("*.parquet")))
    rows = table.to_pylist()
    for i in range(EPISODES):
        own = [row for row in rows if row["episode_index"] == i]
        if version == "v2.0":
            for t, row in enumerate(own):
                path = f"images/front/{i:06d}_{t:06d}.png"
                (target / path).parent.mkdir(parents=True, exist_ok=True)
                (target / path).write_bytes(row["observation.images.front"]["bytes"])
                row["observation.images.front"] = {"bytes": None, "path": path}
        pq.write_table(pa.Table.from_pylist(own), target / f"data/chunk-000/episode_{i:06d}.parquet")
    episodes = [{"episode_index": i, "tasks": [f"task {i}"], "length": LENGTH} for i in range(EPISODES)]
    tasks = [{"task_index": i, "task": f"task {i}"} for i in range(EPISODES)]
    for name, lines in (("episodes", episodes), ("tasks", tasks)):
        (target / f"meta/{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return target
