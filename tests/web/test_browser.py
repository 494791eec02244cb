"""Labeling in two real browsers, with a server that is killed and started again."""

import time
from contextlib import ExitStack

import pytest
from newcomer import make_dataset, report_of, walk
from test_serve import NASTY, Serving

from browser import Browser, Page
from conftest import counting_episode
from plaudit.data.store import Store

EPISODES = 10
BEHIND = "document.getElementById('notice').innerText.includes('this page was out of date')"


def label_one(page: Page, success: bool) -> int:
    """Label the open episode by keyboard; returns its number once it is in the ledger. After a restart of the server,
    somebody else may have it: then the page shows another one."""
    page.run("document.getElementById('notice').replaceChildren()")
    summary = "success from frame 2" if success else "no success"
    page.press(*(("Home", "ArrowRight", "ArrowRight", "s") if success else ("f",)))
    page.wait(f"document.getElementById('summary').innerText == '{summary}' || {BEHIND}")
    if page.run(BEHIND):
        return label_one(page, success)
    episode = int(page.run("document.querySelector('.queue .current').innerText.match(/\\d+/)[0]"))
    page.press("Enter")
    page.wait(f"document.getElementById('notice').innerText.includes('episode {episode} is labeled')")
    return episode


def as_person(page: Page, name: str, address: str) -> None:
    page.run(f"localStorage.setItem('labeler', '{name}')")
    page.goto(f"{address}?{name}#/label/s")
    page.wait("document.querySelector('.queue .current')")


def test_two_people_label_at_once_and_a_killed_server_loses_nothing(tmp_path):
    with Store.create(tmp_path / "s") as store:
        store.extend([counting_episode(6, 10 * i, task=NASTY) for i in range(EPISODES)])
    with ExitStack() as servers, Browser() as browser:
        server = servers.enter_context(Serving(tmp_path / "s"))
        people = {name: browser.open(server.address) for name in ("ada", "grace")}
        for name, page in people.items():
            as_person(page, name, server.address)
        done: dict[int, tuple[str, bool]] = {}
        for number in range(EPISODES):
            name = ("ada", "grace")[number % 2]
            if number == 5:  # in the middle of an episode: what was marked is kept
                people[name].press("f")
                people[name].wait("document.getElementById('summary').innerText == 'no success'")
                server.kill()
                people[name].press("Enter")  # waits for the server
                time.sleep(0.5)
                server = servers.enter_context(Serving(tmp_path / "s", port=server.port))
                people[name].wait("document.getElementById('notice').innerText.includes('is labeled: no success')")
                episode = int(people[name].run("document.getElementById('notice').innerText.match(/\\d+/)[0]"))
                assert episode not in done
                done[episode] = (name, False)
                continue
            success = number % 3 == 0
            episode = label_one(people[name], success)
            assert episode not in done
            done[episode] = (name, success)
        assert people["ada"].run("document.querySelectorAll('img[src=x]').length") == 0
    with Store.open(tmp_path / "s") as store:
        assert set(done) == set(range(EPISODES))
        for episode, (name, success) in done.items():
            (version,) = store.ledger.history(episode)  # exactly once
            labels = version.labels()
            assert labels.labeler.name == name and labels.success.tolist() == [success and i >= 2 for i in range(7)]


@pytest.mark.slow
def test_episodes_are_filtered_scrubbed_and_untrusted_text_stays_text(tmp_path):
    with Store.create(tmp_path / "s") as store:
        store.extend([counting_episode(6, 10 * i, size=(48, 64), task=NASTY) for i in range(3)])
    with Serving(tmp_path / "s") as server, Browser() as browser:
        page = browser.open(server.address + "#/episodes/s", width=390, height=800)
        page.wait("document.querySelectorAll('.tile').length == 3")
        assert page.run("document.documentElement.scrollWidth <= 390")
        page.run(
            "(e => { e.value = 'success'; e.dispatchEvent(new Event('change')) })(document.querySelector('select'))"
        )
        page.wait("document.body.innerText.includes('No episode matches these filters')")
        page.run("document.querySelector('select[aria-label=agreement]').focus()")
        page.press("ArrowDown")  # changes the filter, and the keyboard stays on it
        page.wait("location.hash.includes('disagree=1') && document.activeElement.ariaLabel == 'agreement'")
        page.goto(server.address + "?2#/episode/s/1")
        page.wait("document.querySelector('.cameras img')?.complete")
        assert page.run("document.querySelector('h1').innerText") == NASTY
        page.press("ArrowRight", "ArrowRight")
        page.wait("document.querySelector('.cameras img').dataset.frame == 2")
        pixel = (
            "(async i => { await i.decode(); let c = document.createElement('canvas').getContext('2d');"
            " c.drawImage(i, 0, 0); return [...c.getImageData(3, 3, 1, 1).data] })"
            "(document.querySelector('.cameras img'))"
        )
        assert page.run(pixel) == [12, 12, 12, 255]
        page.press("End")
        page.wait("document.querySelector('.cameras img').dataset.frame == 6")


@pytest.mark.slow
def test_a_newcomer_gets_from_a_data_set_to_a_judge_in_the_browser_only(tmp_path):
    make_dataset(tmp_path / "squares")
    with Serving(tmp_path / "squares") as server, Browser() as browser:
        page = browser.open(server.address)
        walk(page, server.address, "squares")
        assert "held-out episodes" in page.text
        assert "Reward model: squares.judge" in report_of(page, server.address, "squares")
    with Store.open(tmp_path / "squares.store") as store:
        assert sum(store.ledger.newest(i) is not None for i in store.ids) == 10
