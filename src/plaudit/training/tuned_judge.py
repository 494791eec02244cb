"""Making an adapter of a vision-language judge: a folder that appears whole (judges/vlm/adapter.py says what is in it).

While it trains there is a work folder beside it, as of a reward model, from which the same call goes on.
"""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from plaudit.data.store import Store
from plaudit.data.transfer import new_folder
from plaudit.judges.config import ADAPTER_FILE
from plaudit.judges.epochs import EpochMetrics, StepMetrics, never_stop
from plaudit.judges.vlm.config import VlmSettings
from plaudit.judges.vlm.tune import TuneConfig, TuneResult, tune_judge
from plaudit.training.reward_model import check_output_path, epochs_curve, save_curve, work_folder


def tune_and_save(
    store: Store,
    target: Path,
    judge: VlmSettings,
    config: TuneConfig,
    watch: Callable[[EpochMetrics], bool] = never_stop,
    on_step: Callable[[StepMetrics], bool] = never_stop,
    ids: Sequence[int] | None = None,
) -> TuneResult:
    """Train, measure, write. `TrainingInterrupted` where a callback wanted no more: the same call goes on."""
    check_output_path(target, "--output")
    work = work_folder(target)
    with epochs_curve(work, watch) as on_epoch_end:
        tuned = tune_judge(store, judge, config, work, on_epoch_end, on_step, ids)
    with new_folder(target) as folder:
        tuned.save(folder)
        (folder / ADAPTER_FILE).write_text(tuned.info(folder).model_dump_json(indent=1))
        save_curve(folder, work, tuned.history)
    shutil.rmtree(work)
    return tuned
