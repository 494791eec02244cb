"""The path of a newcomer: from a LeRobot data set to ten labels and a judge's report, in a browser only."""

from pathlib import Path
from urllib.parse import quote

from bright_square import CUTOFF, square_store
from browser import Page
from plaudit.data.formats import WriteOptions
from plaudit.data.store import Store
from plaudit.data.transfer import export_dataset
from waiting import wait_until

LABELED = 10


def make_dataset(folder: Path, episodes: int = 12, size: int = 64) -> None:
    """A LeRobot data set without labels: every second episode succeeds."""
    labeled = square_store(folder.with_name("labeled"), episodes // 2, episodes // 2, size=size)
    with Store.create(folder.with_name("unlabeled")) as store:
        one, other = labeled.ids[: episodes // 2], labeled.ids[episodes // 2 :]
        store.extend([labeled.episode(i) for pair in zip(one, other, strict=True) for i in pair])
        export_dataset(store, folder, "lerobot", WriteOptions(video=False), store.ids)
    labeled.close()


def click(page: Page, text: str) -> None:
    """The button or link with this text."""
    found = f"[...document.querySelectorAll('button, a')].find(one => one.innerText.trim().startsWith('{text}'))"
    page.wait(f"{found} && !{found}.disabled")
    page.run(f"{found}.click()")


def walk(page: Page, address: str, dataset: str, minutes: float = 60) -> None:
    """Import, label ten episodes by keyboard, train, and open the report."""
    page.run("localStorage.setItem('labeler', 'ada')")
    page.goto(f"{address}?start#/")
    click(page, "Import")
    click(page, "Open ")
    click(page, "Label these episodes")
    for number in range(LABELED):
        page.wait(f"document.getElementById('left')?.innerText.includes(', {number} completed')")
        keys = [*(("Home", *["ArrowRight"] * CUTOFF, "s") if number % 2 == 0 else ("f",)), "Enter"]
        page.press(*keys)
    page.wait(f"document.getElementById('left').innerText.includes(', {LABELED} completed')")
    page.goto(f"{address}?train#/")
    page.wait("document.querySelector('input[aria-label=minutes]')")
    page.run(f"document.querySelector('input[aria-label=minutes]').value = {minutes}")
    click(page, "Train")
    page.wait("document.querySelector('.task')")
    click(page, f"Open {dataset}.judge")
    page.wait("document.querySelector('.verdict') && document.getElementById('what-if')")


def report_of(page: Page, address: str, dataset: str) -> str:
    """The text of the judge's report."""
    page.goto(f"{address}report/judge/{quote(dataset + '.judge')}")
    wait_until(lambda: len(page.text) > 500, what="for the report")
    return page.text
