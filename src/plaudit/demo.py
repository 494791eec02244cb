"""The main job in small, as `make demo` runs it; it grows with the package."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from plaudit.data.check import check
from plaudit.data.formats import WriteOptions
from plaudit.data.store import Store
from plaudit.data.transfer import export_dataset, import_dataset
from plaudit.envs.panda.config import PandaConfig
from plaudit.errors import TargetNotEmpty
from plaudit.policies.expert import OUTCOMES
from plaudit.report.run import write_report
from plaudit.report.sheet import draw_sheet, save_sheet
from plaudit.report.tables import store_table
from plaudit.rollout.demos import record_demos
from plaudit.train.config import load_train_config
from plaudit.train.folder import RunFolder
from plaudit.train.loop import Progress, train

TRAINING_STEPS = 20_000
TRAINING = ["env=lift", "learner=sac", "scripted_demos=20", f"steps={TRAINING_STEPS}", "evaluation.stop_at=0.9"]


def run_demo(
    folder: Path,
    episodes: int,
    console: Console,
    progress: Callable[[str], Any],
    watch: Callable[[Progress], bool],
) -> None:
    """Record, label, export, import, check, show; then learn the task."""
    if folder.exists() and any(folder.iterdir()):
        raise TargetNotEmpty(f"{folder} holds something already; nothing was written, name another with --folder")
    env = PandaConfig(type="lift", obs="both", cameras=("front", "wrist"), image_size=(96, 96))
    with Store.create(folder / "recorded") as recorded:
        record_demos(env, recorded, episodes=episodes, outcomes=OUTCOMES, noise=0.1, track=progress("recording"))
        console.print(f"1. recorded {len(recorded)} scripted episodes, good and bad ones, into {recorded.folder}")
        exact = WriteOptions(
            video=False
        )  # a codec smears the hard edges of these pictures; camera images it hardly does
        export_dataset(recorded, folder / "lerobot", "lerobot", exact, track=progress("exporting"))
        console.print(f"2. exported them as a LeRobot v3.0 data set, {folder / 'lerobot'}")
    import_dataset(folder / "lerobot", folder / "imported", track=progress("importing"))
    report = check(folder / "imported")
    console.print(f"3. imported that into {folder / 'imported'}: {report.episodes} episodes, every checksum right")
    _draw(folder, console)
    run = RunFolder.create(folder / "run", load_train_config(None, TRAINING))
    console.print("5. learning to lift, from 20 scripted demonstrations and the simulator's verdicts: about a minute")
    end = train(run, watch, progress)
    write_report(run.path)
    console.print(
        f"   {end.evaluated or 0:.0%} success on seeds held back, after {end.step:,} steps and {end.seconds:.0f} s; "
        f"the curve is in {run.path / 'report.html'}"
    )


def _draw(folder: Path, console: Console) -> None:
    store = Store.open(folder / "imported")
    for episode_id, outcome in zip(store.ids, OUTCOMES, strict=False):
        title = f"Episode {episode_id}: {store.episode(episode_id).task} ({outcome})"
        picture = draw_sheet(store.episode(episode_id), store.ledger.labels(episode_id), title=title)
        save_sheet(picture, folder / f"episode_{episode_id}.png")
    shown = ", ".join(f"_{n} ({outcome})" for n, outcome in enumerate(OUTCOMES))
    console.print(f"4. drew contact sheets, {folder}/episode{shown}\n")
    console.print(*store_table(store), "", sep="\n")
