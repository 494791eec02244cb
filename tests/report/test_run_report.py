import json
import re
from pathlib import Path
from typing import Any

from plaudit.report.run import write_report

CONFIG = {"env": {"type": "lift"}, "learner": {"type": "sac"}, "seed": 0, "evaluation": {"stop_at": 0.9}}


def page(folder: Path, *lines: dict[str, Any]) -> str:
    """Of a run with these metrics, a line for each 100 steps."""
    metrics = [{"step": 100 * n, "time/seconds": n, "train/success": 0.5, **line} for n, line in enumerate(lines, 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return write_report(folder).read_text()


def judged(judge: float, true: float, alarm: float = 0.0) -> dict[str, float]:
    agreement = {"reward/agreement": 1 - abs(judge - true), "reward/gap": judge - true, "reward/alarm": alarm}
    return {"reward/success_once": judge, "env/success_once": true, **agreement}


def test_with_a_reward_model_in_charge_judged_and_true_success_share_a_chart(tmp_path):
    first, second = re.findall(r"<svg.*?</svg>", page(tmp_path, judged(0.5, 0.4), judged(0.9, 0.9)), re.DOTALL)[:2]
    assert all(name in first for name in ("held-back seeds", "judged, in training", "true, in training"))
    assert "agreement" in second and "judged minus true" in second


def test_a_run_that_the_simulator_judges_has_one_curve_of_training(tmp_path):
    shown = page(tmp_path, {"eval/success": 0.3})
    assert "in training" in shown and "judged, in training" not in shown and "agreement" not in shown


def test_where_the_alarm_rang_there_is_a_red_sentence_and_a_marked_line(tmp_path):
    shown = page(tmp_path, judged(0.5, 0.5), judged(0.9, 0.4, alarm=1.0))
    assert '<p class="bad">The alarm rang after 200 steps: the judge called 50% more' in shown
    assert len(re.findall(r">alarm</text>", shown)) == 2
    assert "alarm" not in page(tmp_path, judged(0.5, 0.5))


def test_films_are_inside_the_page_where_there_are_some(tmp_path):
    assert "<video" not in page(tmp_path, {})
    (tmp_path / "first.mp4").write_bytes(b"film")
    assert 'src="data:video/mp4;base64,ZmlsbQ=="' in page(tmp_path, {})
