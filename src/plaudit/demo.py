"""The main job in small, as `make demo` runs it; it grows with the package."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from plaudit.data.check import check
from plaudit.data.formats import WriteOptions
from plaudit.data.normalize import Normalizer
from plaudit.data.store import Store
from plaudit.data.transfer import export_dataset, import_dataset
from plaudit.envs.tabletop import Tabletop
from plaudit.errors import TargetNotEmpty
from plaudit.policies.scripted import Outcome, ScriptedLift
from plaudit.report.sheet import draw_sheet, save_sheet
from plaudit.report.tables import store_table
from plaudit.rollout.loop import run_episode
from plaudit.types import Labels

STEPS = 40
OUTCOMES: tuple[Outcome, ...] = ("success", "miss", "drop")


def run_demo(folder: Path, episodes: int, console: Console, progress: Callable[[str], Any]) -> None:
    """Record, label, export, import, check, show."""
    if folder.exists() and any(folder.iterdir()):
        raise TargetNotEmpty(f"{folder} holds something already; nothing was written, name another with --folder")
    robot, unit = Tabletop(), Normalizer({})
    with Store.create(folder / "recorded") as recorded:
        for seed in progress("recording")(range(episodes)):
            policy = ScriptedLift(OUTCOMES[seed % len(OUTCOMES)])
            episode = run_episode(robot, policy, unit, steps=STEPS, task=robot.task, seed=seed)
            assert episode.success is not None
            labels = Labels(episode.success.astype("f4"), episode.success, start=0.0, source="simulator")
            recorded.ledger.append(recorded.append(episode), labels)
        console.print(f"1. recorded {len(recorded)} scripted episodes into {recorded.folder}")
        exact = WriteOptions(video=False)  # a codec smears the hard edges of a drawing; camera images it hardly touches
        export_dataset(recorded, folder / "lerobot", "lerobot", exact, track=progress("exporting"))
        console.print(f"2. exported them as a LeRobot v3.0 data set, {folder / 'lerobot'}")
    import_dataset(folder / "lerobot", folder / "imported", track=progress("importing"))
    report = check(folder / "imported")
    console.print(f"3. imported that into {folder / 'imported'}: {report.episodes} episodes, every checksum right")
    store = Store.open(folder / "imported")
    for episode_id in store.ids[: len(OUTCOMES)]:
        title = f"Episode {episode_id}: {store.episode(episode_id).task} ({OUTCOMES[episode_id]})"
        picture = draw_sheet(store.episode(episode_id), store.ledger.labels(episode_id), title=title)
        save_sheet(picture, folder / f"episode_{episode_id}.png")
    console.print(f"4. drew contact sheets: {folder}/episode_0.png (a success), _1 (a miss), _2 (a drop)\n")
    console.print(*store_table(store), sep="\n")
