"""Makes docs/images/label_window.png: the labeling window on real episodes, without a screen.

    python scripts/label_window.py path/to/g1_bottle docs/images/label_window.png

The data set is any that `plaudit data import` reads, with a `cutoffs.json` ({episode: first success frame}) in it. The
first episodes are imported into a folder that is gone afterwards; the curves of the two judges are made up.
"""

import os
import sys
import tempfile
from io import BytesIO
from pathlib import Path

from plaudit.rule import DecisionRule
from plaudit.types import JudgeId, Scores

os.environ["QT_QPA_PLATFORM"] = "offscreen"

import numpy as np
from PIL import Image
from PySide6.QtCore import QBuffer, QIODevice
from PySide6.QtWidgets import QApplication

from plaudit.data.cutoffs import read_cutoffs
from plaudit.data.store import Store
from plaudit.data.transfer import import_dataset
from plaudit.judges.human.session import Session
from plaudit.judges.human.window import LabelWindow
from plaudit.types import Labels

EPISODES = 9
JUDGES = {"classifier": (4, 0.7), "vlm": (-25, 0.5)}  # frames that each is late by, and its threshold


def made_up(steps: int, cutoff: int, source: str, rng: np.random.Generator) -> Labels:
    """A judge that is late or early, and in two minds around its moment."""
    late, threshold = JUDGES[source]
    doubt = np.convolve(rng.normal(0, 2.5, steps), np.ones(6) / 6, "same")
    logit = np.clip((np.arange(steps + 1) - cutoff - late) / 6, -4, 4) + np.append(0, doubt)
    probability = (1 / (1 + np.exp(-logit))).astype(np.float32)
    success = np.arange(steps + 1) >= cutoff + late + int(rng.integers(-3, 4))
    judge = JudgeId(source, rule=DecisionRule(threshold=threshold, decode="cutoff").key())
    return Labels(success, np.ones(steps + 1, bool), judge, Scores(probability))


def main(source: Path, target: Path) -> None:
    app = QApplication([])
    cutoffs = read_cutoffs(source / "cutoffs.json")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / source.name
        import_dataset(source, folder, progress=lambda sources: iter(sources[:EPISODES]))
        store, rng = Store.open(folder), np.random.default_rng(4)
        for i in store.ids:
            store.ledger.extend([(i, made_up(store.entry(i).steps, cutoffs[i], judge, rng)) for judge in JUDGES])
        os.chdir(scratch)  # the window shows the store's path
        window = LabelWindow(Session.open(Path(source.name), name=""), poll=False)
        window.resize(1280, 860)
        window.show()
        for episode_id in store.ids[:4]:
            window.session.cursor.seek(cutoffs[episode_id])
            window.act("success_from_here")
            if episode_id != store.ids[3]:
                window.act("complete")
        for _ in range(3):
            window.act("forward_10")
        app.processEvents()
        picture = png(window)
        window.close()
    target.write_bytes(picture)


def png(window: LabelWindow) -> bytes:
    """In 256 colors, a third of the size."""
    buffer = QBuffer()
    buffer.open(QIODevice.OpenModeFlag.WriteOnly)
    window.grab().save(buffer, "PNG")  # pyright: ignore[reportCallIssue, reportArgumentType]
    small = BytesIO()
    image = Image.open(BytesIO(bytes(buffer.data().data()))).convert("RGB")
    image.quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=2).save(small, "PNG", optimize=True)
    return small.getvalue()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("name the folder of g1_bottle and the picture to write: scripts/label_window.py g1_bottle window.png")
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
