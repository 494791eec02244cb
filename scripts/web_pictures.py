"""Makes the pictures of docs/images that show the pages of `plaudit serve`, from a store and a run.

    python scripts/web_pictures.py runs/web_pictures docs/images

Writes web_label.png and web_run.png. The first folder keeps the data and the run (about two minutes on two cores).
Needs Chromium.
"""

import subprocess
import sys
import time
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image
from report_pictures import CAMERAS, ROOT, plaudit

sys.path.insert(0, str(ROOT / "tests"))
from browser import Browser, Page

ADDRESS = "http://127.0.0.1:8433/"
DATA = ("collect", "data", "--env", "pick_place", *CAMERAS, "--target-success", "12", "--target-failure", "18")
RUN = "online env=pick_place env.obs=state demos.scripted=20 demos.noise=0.05 audit.fraction=0 learner=sac"
SETTINGS = "learner.bc_weight=0.1 learner.tau=0.01 teleop.type=scripted run.max_episodes=200 run.name=corrected"


def main() -> None:
    work, images = map(Path, sys.argv[1:3])
    work.mkdir(parents=True, exist_ok=True)
    plaudit(work, *DATA, "--size", "128")
    if not (work / "runs/corrected").exists():
        plaudit(work, *RUN.split(), *SETTINGS.split())
    serve = [sys.executable, "-m", "plaudit.cli", "serve", "data", "runs", "--port", "8433"]
    with subprocess.Popen(serve, cwd=work) as server, Browser() as browser:
        time.sleep(5)
        page = browser.open(ADDRESS, height=800)
        page.run("localStorage.setItem('theme', 'light'); localStorage.setItem('labeler', 'Kim')")
        page.goto(f"{ADDRESS}?1#/label/data?open=4")
        time.sleep(2)
        page.press("End", *6 * ["ArrowLeft"], "s")
        save(page, images / "web_label.png")
        page.goto(f"{ADDRESS}?2#/run/runs%2Fcorrected")
        save(page, images / "web_run.png")
        server.kill()


def save(page: Page, path: Path) -> None:
    """The page as it is in two seconds, in 128 colors."""
    time.sleep(2)
    with TemporaryDirectory() as scratch:
        page.picture(shot := Path(scratch) / "shot.png")
        image = Image.open(BytesIO(shot.read_bytes())).convert("RGB")
    image.quantize(128).save(path, "PNG", optimize=True)
    print(path)


if __name__ == "__main__":
    main()
