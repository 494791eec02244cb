import io

from PIL import Image
from rich.console import Console

from plaudit.data.store import Store
from plaudit.demo import run_demo


def test_the_demo_records_carries_checks_and_shows(tmp_path):
    said = io.StringIO()
    run_demo(tmp_path / "demo", 6, Console(file=said, width=120), lambda _: iter)
    store = Store.open(tmp_path / "demo/imported")
    assert len(store) == 6
    assert [labels.succeeded for i in store.ids if (labels := store.ledger.labels(i))] == [True, False, False] * 2
    for n in range(3):
        assert Image.open(tmp_path / f"demo/episode_{n}.png").size[0] > 1000
    assert "2 of 6" in said.getvalue()
