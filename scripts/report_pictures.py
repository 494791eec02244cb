"""Makes the pictures of docs/images that show reports and an episode, from real runs.

    python scripts/report_pictures.py runs/pictures docs/images

Writes demo_report.png, online_report.png, exam_report.png and episode_0.png. The first folder keeps the demo and the
online run (about 8 minutes on two cores); later calls only write their pages and pictures again. The five judges of the
exam are those of tests/five_judges.py. Needs Chromium; `--browser` names another program with its flags.
"""

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
from io import BytesIO
from pathlib import Path

from PIL import Image

from plaudit.data.store import Store
from plaudit.judges.exam import examine, rank
from plaudit.report.exam import write_exam_report
from plaudit.report.verdict import exam_verdict

ROOT = Path(__file__).resolve().parents[1]
CAMERAS = ("--camera", "front", "--camera", "side")
ONLINE = ("judge.model=demo/judge", "judge.retrain=null", "run.max_episodes=200", "run.name=online")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


def plaudit(folder: Path, *words: str) -> None:
    """Run a command in a folder, so that pages show paths relative to it."""
    command = [sys.executable, "-m", "plaudit", *words]
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": paths}, check=True)


def make_runs(work: Path) -> None:
    """The demo and an online run with its judge. A run that was stopped is resumed; one that has ended is not repeated,
    but its page is written again."""
    work.mkdir(parents=True, exist_ok=True)
    plaudit(work, "demo", "--output-dir", "demo")
    if not (work / "online").exists():
        if not (work / "demos").exists():
            plaudit(work, "env", "record", "demos", "--env", "lift", *CAMERAS, "--steps-after-success", "10")
        config = ROOT / "examples/configs/online_sim_sac.yaml"
        plaudit(work, "online", "--config", str(config), "--folder", ".", *ONLINE)
    elif '"finished: ' not in (work / "online/events.jsonl").read_text():
        plaudit(work, "online", "--resume", "online")
    plaudit(work, "report", "online")


def make_exam(work: Path, page: Path) -> None:
    """The page of an exam of five judges, three of which do not pass."""
    sys.path.insert(0, str(ROOT / "tests"))
    from five_judges import KINDS, PushJudgeConfig, push_store

    with contextlib.chdir(work):  # the page shows the store's path
        push_store(Path("episodes"), 16, 12)
        push_store(Path("memory"), 4, 4, first_seed=500)
        data, examined = Store.open(Path("episodes")), []
        for kind in KINDS:
            config = PushJudgeConfig(kind=kind, memory=Path("memory") if kind == "overfit" else None)
            examined.append(examine(data, config, config.build(), ("human",), data.ids, name=kind))
        examined.sort(key=lambda one: rank(one[0]))
        verdict = exam_verdict([certificate for certificate, _ in examined], {}, "episodes")
        write_exam_report(page, examined, verdict)


def screenshot(browser: str, page: Path, picture: Path, width: int, height: int) -> None:
    """The top of a page, in 256 colors, which is a third of the size."""
    with tempfile.TemporaryDirectory() as scratch:
        shot = Path(scratch) / "shot.png"
        size = f"--window-size={width},{height}"
        command = [browser, *FLAGS, f"--user-data-dir={scratch}/profile", size, f"--screenshot={shot}"]
        subprocess.run([*command, page.resolve().as_uri()], check=True, capture_output=True, timeout=120)
        image = Image.open(BytesIO(shot.read_bytes())).convert("RGB")
    image.quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=2).save(picture, "PNG", optimize=True)
    print(picture)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the pictures of reports for the docs.")
    parser.add_argument("work", type=Path, help="keeps the runs")
    parser.add_argument("images", type=Path, help="the folder of the pictures")
    parser.add_argument("--browser", default="chromium")
    options = parser.parse_args()
    work, images = options.work.resolve(), options.images.resolve()
    make_runs(work)
    screenshot(options.browser, work / "demo/report.html", images / "demo_report.png", 1280, 1500)
    screenshot(options.browser, work / "online/report.html", images / "online_report.png", 1280, 1300)
    with tempfile.TemporaryDirectory() as scratch:
        make_exam(Path(scratch), Path(scratch) / "report.html")
        screenshot(options.browser, Path(scratch) / "report.html", images / "exam_report.png", 1280, 1450)
    plaudit(work, "data", "sheet", "demo/data", "0", "--frames", "16", "--output", str(images / "episode_0.png"))


if __name__ == "__main__":
    main()
