import io

from PIL import Image
from rich.console import Console

from plaudit.data.store import Store
from plaudit.demo import run_demo


def test_the_demo_records_carries_checks_shows_and_starts_to_learn(tmp_path):
    said = io.StringIO()
    run_demo(tmp_path / "demo", 10, Console(file=said, width=120), lambda _: iter, watch=lambda _: False)  # one round
    store = Store.open(tmp_path / "demo/imported")
    assert [labels.succeeded for i in store.ids if (labels := store.ledger.labels(i))] == ([True] + [False] * 4) * 2
    for n in range(5):
        assert Image.open(tmp_path / f"demo/episode_{n}.png").size[0] > 1000
    assert "2 of 10" in said.getvalue()
    assert len(Store.open(tmp_path / "demo/run/demos")) == 20
    assert "<svg" in (tmp_path / "demo/run/report.html").read_text()
