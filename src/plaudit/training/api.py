"""The functions of the Python API. `import plaudit` exposes them and the main classes; docs/api.md lists all of them.

    import plaudit

    plaudit.train_reward("data", "judge")
    judge = plaudit.load_judge("judge")
    plaudit.label("episodes", judge)
    run = plaudit.train("env=lift", "learner=sac", "judge=judge")

Settings are the same `key=value` words as on the command line.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plaudit.judges.classifier.fit import TrainResult
    from plaudit.judges.evaluation import JudgeEvaluation
    from plaudit.judges.labeling import LabelStats
    from plaudit.protocols import Judge
    from plaudit.training.evaluation import EvalResult
    from plaudit.training.trainer import RunState


def load_judge(judge: str | Path, *settings: str) -> "Judge":
    """Load a judge: a folder or file, or a name such as "simulator".

    Example:
        >>> plaudit.load_judge("runs/reward_model", "rule.threshold=0.8")
    """
    from plaudit.judges.config import load_named_judge

    return load_named_judge(str(judge), settings).build_with_progress()


def label(store: str | Path, judge: "Judge", *, episodes: Sequence[int] | None = None) -> "LabelStats[int]":
    """Label the episodes of a store that this judge has not labeled yet. Labels are written as they come.

    Returns which episodes were labeled and which failed.

    Example:
        >>> plaudit.label("episodes", plaudit.load_judge("judge"))
    """
    from plaudit.data.store import Store
    from plaudit.judges.labeling import LabelRunner, StoreQueue

    opened = Store.open(Path(store))
    return LabelRunner(judge, StoreQueue(opened, opened.ids if episodes is None else episodes)).run()


def train_reward(store: str | Path, folder: str | Path, *settings: str) -> "TrainResult":
    """Train a success classifier on a labeled store and write it to a folder, with its report.

    Example:
        >>> plaudit.train_reward("data", "runs/judge", "encoder=small", "epochs=4")
    """
    from plaudit.data.store import Store
    from plaudit.judges.classifier.train_job import load_reward_train_job
    from plaudit.training.reward_model import train_and_save

    job, _ = load_reward_train_job(None, {}, settings)
    return train_and_save(Store.open(Path(store)), Path(folder), job.training, lambda _: True, lambda _: iter)


def evaluate_judge(store: str | Path, judge: "Judge", *, sources: Sequence[str] = ("human",)) -> "JudgeEvaluation":
    """Compare a judge with the labels of trusted sources: error rates, calibration and negative controls.

    Example:
        >>> plaudit.evaluate_judge("unseen", judge, sources=["human"]).metrics.roc_auc
    """
    from plaudit.data.store import Store
    from plaudit.judges.evaluation import evaluate as compare
    from plaudit.judges.evaluation import load_reference_labels

    opened = Store.open(Path(store))
    return compare(opened, judge, load_reference_labels(opened, sources))


def train(*settings: str, config: str | Path | None = None, folder: str | Path = "runs") -> "RunState":
    """Train a policy in simulation, as `plaudit train` does. Returns the state at the end of the run.

    Example:
        >>> plaudit.train("env=lift", "learner=sac", "demos.scripted=20", "run.max_steps=8000")
    """
    from plaudit.training.config_file import load_training_config
    from plaudit.training.run_folder import RunFolder
    from plaudit.training.trainer import Trainer, check_run

    parsed = load_training_config("train", None if config is None else Path(config), list(settings))
    check_run(parsed)
    with Trainer(RunFolder.create(Path(folder) / parsed.run_name, parsed), lambda _: iter) as trainer:
        return trainer.run(lambda _: True)


def evaluate(run: str | Path, *, episodes: int = 50) -> "EvalResult":
    """Evaluate the newest policy of a run on test seeds.

    Example:
        >>> plaudit.evaluate("runs/lift_sac_0").success_rate
    """
    from plaudit.training.evaluation import evaluate_run
    from plaudit.training.run_folder import RunFolder

    return evaluate_run(RunFolder.reopen(Path(run)), episodes)
