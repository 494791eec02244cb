"""Makes the pictures of docs/images that show the pages of `plaudit serve`, from stores, runs and judges in a folder.

    python scripts/web_pictures.py FOLDER docs/images        # the pictures of the documentation
    python scripts/web_pictures.py FOLDER OUT --all          # every page, light, dark and on a phone, to be reviewed

FOLDER may be that of report_pictures.py, whose demo is shown. What it lacks is made (about 15 minutes
on two cores). Needs Chromium.
"""

import argparse
import json
import re
import subprocess
import sys
import urllib.request
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

from PIL import Image
from report_pictures import CAMERAS, ROOT, make_runs, plaudit

sys.path.insert(0, str(ROOT / "tests"))
from browser import Browser, Page
from pty_process import PtyProcess
from waiting import wait_until

PORT = 8433
ADDRESS = f"http://127.0.0.1:{PORT}/"
JUDGE = (
    "train-reward data --output-dir judge --backbone small --lr 1e-3",
    "label data --judge classifier --model judge",
    "judge exam judge data",
)
DATA = ("collect", "data", "--env", "lift", *CAMERAS, "--target-success", "60", "--target-failure", "120")
DOCS = {"web_label.png": "label", "web_run.png": "run", "web_episodes.png": "episodes"}
SIZES = {"": (1280, 900), "_phone": (390, 800)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("images", type=Path)
    parser.add_argument("--all", action="store_true", help="every page in every form, to its end")
    options = parser.parse_args()
    make_data(options.folder)
    options.images.mkdir(parents=True, exist_ok=True)
    serve = [sys.executable, "-m", "plaudit", "serve", ".", "--port", str(PORT)]
    with subprocess.Popen(serve, cwd=options.folder) as server, Browser() as browser:
        try:
            wait_until(answers, what="for the server")
            pages = addresses(options.folder.resolve().name)
            if options.all:
                review(browser, pages, options.images)
            else:
                page = browser.open(ADDRESS, *SIZES[""])
                for name, kind in DOCS.items():
                    show(page, pages[kind], "light")
                    save(page, options.images / name)
                live_view(browser, options.folder, options.images / "live_view.png")
        finally:
            server.terminate()


def make_data(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "data").exists():
        plaudit(folder, *DATA, "--size", "128")
    if not (folder / "judge").exists():
        for command in JUDGE:
            plaudit(folder, *command.split())
    make_runs(folder)


def answers() -> bool:
    try:
        return urllib.request.urlopen(ADDRESS, timeout=5).status == 200
    except OSError:
        return False


def addresses(name: str) -> dict[str, str]:
    """Page -> what follows the # of its address."""
    items = json.load(urllib.request.urlopen(f"{ADDRESS}api/library"))
    runs = [item["name"] for item in items if item["kind"] == "run"]
    data, run, judge = (quote(f"{name}/{part}", safe="") for part in ("data", "demo/run", "judge"))
    return {
        "overview": "/",
        "episodes": f"/episodes/{data}",
        "episode": f"/episode/{data}/4?frame=40",
        "label": f"/label/{data}?open=4",
        "run": f"/run/{run}",
        "judge": f"/judge/{judge}",
        "compare": "/compare?" + "&".join(f"run={quote(one)}" for one in runs),
        "empty": f"/episodes/{data}?task=nothing",
    }


def review(browser: Browser, pages: dict[str, str], images: Path) -> None:
    for suffix, size in SIZES.items():
        page = browser.open(ADDRESS, *size)
        for theme in ("light", "dark"):
            for name, address in pages.items():
                show(page, address, theme)
                save(page, images / f"{name}_{theme}{suffix}.png", whole=True)


def show(page: Page, address: str, theme: str) -> None:
    page.run(f"localStorage.setItem('theme', '{theme}'); localStorage.setItem('labeler', 'labeler-1')")
    page.goto(f"{ADDRESS}?{theme}#{address}")
    page.wait("!document.getElementById('page').hasAttribute('aria-busy') && document.querySelector('h1')")
    if address.startswith("/label"):
        page.wait("document.querySelector('.strip')")
        page.press("End", *6 * ["ArrowLeft"], "s")
    quiet = "performance.getEntriesByType('resource').every(one => one.responseEnd > 0)"
    seen = "(one.loading != 'lazy' || one.getBoundingClientRect().top < innerHeight)"
    page.wait(f"[...document.images].every(one => !{seen} || (one.complete && one.naturalWidth)) && {quiet}")
    page.run("new Promise(done => setTimeout(done, 700))")  # charts and thumbnails that came last


def live_view(browser: Browser, folder: Path, path: Path) -> None:
    """The page of `plaudit record` during an episode."""
    demos = ("record", f"{folder}/live_view", "--env", "lift", "--seed", "3", "--countdown", "0")
    env = ("robot.env.cameras=[front,side]", "robot.env.image_size=[128,128]")
    with PtyProcess(*demos, *env) as run:
        run.expect("scene ready?")
        address = re.search(r"http://\S+", run.text)
        assert address is not None
        page = browser.open(address[0], 1000, 640)
        run.press(" ")
        page.wait("document.querySelector('img')?.naturalWidth")
        run.press("k")
        page.run("new Promise(done => setTimeout(done, 700))")
        save(page, path)
        run.press("dq")
        run.wait()


def save(page: Page, path: Path, *, whole: bool = False) -> None:
    """In 256 colors."""
    with TemporaryDirectory() as scratch:
        page.picture(shot := Path(scratch) / "shot.png", whole=whole)
        image = Image.open(BytesIO(shot.read_bytes())).convert("RGB")
    image.quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=2).save(path, "PNG", optimize=True)
    print(path)


if __name__ == "__main__":
    main()
