"""Words of somebody else on a terminal, a page and in a log."""

import io

import numpy as np
import pytest
from rich.live import Live
from rich.table import Table

from plaudit.cli.common import PlainConsole
from plaudit.processes import print_error
from plaudit.report import page
from plaudit.report.plots import line_chart
from plaudit.report.verdict import Verdict
from plaudit.trust import plain

HOSTILE = "\x1b]0;owned\x07[red]x[/red]\r\x9b2J\u202eevil\u2066\udcff:smile:\x7f"

pytestmark = pytest.mark.usefixtures("written_charts")


def printed(what: object) -> str:
    file = io.StringIO()
    PlainConsole(file=file, force_terminal=True, width=200).print(what)
    return file.getvalue()


def test_control_characters_are_shown_as_what_they_are():
    assert plain("a\x1b[2Jb\x07\r\x9b\x7f\u202e\u2069\udcff") == r"a\x1b[2Jb\x07\x0d\x9b\x7f\u202e\u2069\xff"


def test_letters_tabs_and_lines_stay():
    said = "Öl auf 机器人\tund 🤖\nzwei"
    assert plain(said) == said


def table() -> Table:
    made = Table("head", title=HOSTILE)
    made.add_row(HOSTILE)
    return made


@pytest.mark.parametrize("what", [HOSTILE, table()], ids=["text", "table"])
def test_a_console_obeys_no_word_it_is_given(what):
    said = printed(what)
    assert "\\x1b]0;owned" in said and "[red]x[/red]" in said and ":smile:" in said
    assert not any(sign in said for sign in ("\x1b]", "\x07", "\r", "\x9b", "\u202e", "\x7f"))
    said.encode()


def test_rich_itself_still_moves_the_cursor():
    file = io.StringIO()
    with Live("one", console=PlainConsole(file=file, force_terminal=True), auto_refresh=False) as live:
        live.update("two", refresh=True)
    assert "\x1b[2K" in file.getvalue()


def test_a_page_shows_no_control_characters_and_no_tags():
    image = page.thumbnail(np.zeros((8, 8, 3), np.uint8), f"<b>{HOSTILE}")
    hostile = Verdict("<script>", f"<b>{HOSTILE}", HOSTILE, f"plaudit label '<script>{HOSTILE}'")
    chart = line_chart({f"<b>{HOSTILE}": [[(0, 1)]], "$": []}, title=f"<script>{HOSTILE}", x="<b>", y="$x")
    table = page.table([(page.span("<b>\u202e"), HOSTILE)], header=(f"<b>{HOSTILE}",))
    html = page.render_page(HOSTILE, hostile, [page.text(f"<b>{HOSTILE}"), table, image, page.chart(chart)])
    assert "<script>" not in html and "<b>" not in html
    assert "\x1b" not in html and "\u202e" not in html


def test_a_password_is_not_shown():
    assert "word" not in printed("http://me:word@here/v1 and http://here/?token=word")


def test_an_error_of_a_robots_process_does_not_control_the_terminal(capsys):
    print_error(ValueError(HOSTILE))
    printed = capsys.readouterr().err
    assert "ValueError: \\x1b]0;owned" in printed
    assert not set(printed) & {"\x1b", "\x07", "\x9b", "\u202e"}
