"""The whole pipeline in small, as `make demo` runs it: labeled episodes, a judge trained on their images, a policy
trained on the judge's labels alone, and the true success rate of that policy.

    runs/demo/
      data/           the episodes, a store
      judge/          the reward model
      run/            the training run
      demo.json       which stages are done, and how long each took
      report.html     all of it on one page

Each stage calls what a command calls; the report lists the commands. Run again on the same folder, the demo resumes
the stage that was interrupted.
"""

import json
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

from markupsafe import Markup
from rich.console import Console

from plaudit.data.store import Store, is_store
from plaudit.envs.panda import PandaConfig
from plaudit.errors import DataError, TargetNotEmpty
from plaudit.files import read_json_lines, read_json_object
from plaudit.judges.classifier.train_job import load_reward_train_job
from plaudit.judges.controls import ControlResult
from plaudit.judges.epochs import TrainingInterrupted
from plaudit.judges.metrics import EpisodePrediction, JudgeMetrics
from plaudit.report import page
from plaudit.report.judge import frame_gallery, judge_blocks, judge_verdict, summary_line
from plaudit.report.run import write_run_report
from plaudit.report.text import format_duration, format_percent
from plaudit.rollout.collector import EpisodeTargets
from plaudit.rollout.scripted import collect_scripted
from plaudit.training.config_file import load_training_config
from plaudit.training.evaluation import EvalResult, evaluate_run, record_videos
from plaudit.training.reward_model import train_and_save
from plaudit.training.run_folder import RunFolder
from plaudit.training.trainer import Trainer

MIN_SUCCESS_RATE = 0.9  # true success that the policy has to reach

# The callback after each epoch or rollout, which returns whether to continue; and whether the user asked to stop.
Progress = tuple[Callable[[Any], bool], Callable[[], bool]]


@dataclass(frozen=True)
class DemoConfig:
    """The arguments of the stages, as their commands take them."""

    # To one camera, a gripper in front of a cube on the table looks like a gripper that holds it, and a policy exploits
    # that: with the front camera alone, one run of three learned to hold the gripper there.
    cameras: tuple[str, ...] = ("front", "side")
    target_success: int = 60
    target_failure: int = 120
    judge: tuple[str, ...] = ("encoder=small", "batch_size=64", "epochs=3", "lr=1e-3", "target_fpr=0.005")
    policy: tuple[str, ...] = (
        *("learner=sac", "env=lift", "env.obs=both", "env.cameras=[front,side]", "policy.cameras=[]"),
        *("demos.scripted=20", "run.max_steps=30000", "evaluation.freq=1000", "evaluation.episodes=200"),
        *("evaluation.stop_success_rate=0.95", "run.checkpoint_freq=5000"),
    )
    eval_episodes: int = 100  # of the last stage


@dataclass(frozen=True)
class DemoDisplay:
    """Where the stages show their progress: bars on a terminal, almost nothing in a test."""

    console: Console
    track: Callable[[str], Any]  # wraps a sequence in a progress bar of this name
    epochs: Callable[[int], AbstractContextManager[Progress]]  # of a judge, at most so many
    steps: Callable[[Any], AbstractContextManager[Progress]]  # of a training run, by its config


class StageLog:
    """Which stages are done, their results and how long each took, over all sessions: demo.json."""

    def __init__(self, path: Path, seed: int):
        self._path = path
        if path.exists():
            self._state: dict[str, Any] = read_json_object(path)
            if self._state["seed"] != seed:
                raise DataError(
                    f"{path.parent} was started with --seed {self._state['seed']}; use that seed, or name another "
                    "folder with --output-dir"
                )
        elif path.parent.exists() and any(path.parent.iterdir()):
            raise TargetNotEmpty(
                f"{path.parent} holds something that is not a demo; nothing was written, name another with --output-dir"
            )
        else:
            self._state = {"seed": seed, "seconds": {}, "results": {}, "evaluation": None}
            path.parent.mkdir(parents=True, exist_ok=True)
            self._write()

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the time that the block takes to that of the stage, also where it is interrupted."""
        start, before = time.monotonic(), self.seconds(stage)
        try:
            yield
        finally:
            self._state["seconds"][stage] = before + time.monotonic() - start
            self._write()

    def seconds(self, stage: str) -> float:
        return self._state["seconds"].get(stage, 0.0)

    def result(self, stage: str) -> str | None:
        """The result in one line; None for a stage that is not done."""
        return self._state["results"].get(stage)

    def finish(self, stage: str, result: str) -> None:
        self._state["results"][stage] = result
        self._write()

    @property
    def evaluation(self) -> EvalResult:
        """The evaluation of the policy."""
        return EvalResult(**self._state["evaluation"])

    @evaluation.setter
    def evaluation(self, result: EvalResult) -> None:
        self._state["evaluation"] = asdict(result)

    def _write(self) -> None:
        new = self._path.with_suffix(".part")
        new.write_text(json.dumps(self._state, indent=1))
        new.replace(self._path)


@dataclass(frozen=True)
class Stage:
    """One step of the pipeline."""

    name: str
    about: str
    run: Callable[[], str]  # does what is left of it and returns its result in one line
    command: str  # that does the same


class Demo:
    """The stages, each resumable, and the report."""

    def __init__(self, folder: Path, display: DemoDisplay, config: DemoConfig, seed: int):
        self.folder, self.display, self.config, self.seed = folder, display, config, seed
        self.data, self.judge, self.run = folder / "data", folder / "judge", folder / "run"
        self.policy = [*config.policy, f"judge={self.judge}", f"run.seed={seed}"]
        self.log = StageLog(folder / "demo.json", seed)
        self.first_seed = 1000 * seed  # of the collected episodes

    def stages(self) -> list[Stage]:
        """In their order."""
        config = self.config
        cameras = " ".join(f"--camera {camera}" for camera in config.cameras)
        targets = f"--target-success {config.target_success} --target-failure {config.target_failure}"
        collect = f"plaudit collect {self.data} --env lift {cameras} {targets} --seed {self.first_seed}"
        judge = f"plaudit train-reward {self.data} {shlex.join(config.judge)} seed={self.seed} -o {self.judge}"
        policy = f"plaudit train {shlex.join(self.policy)} run.name={self.run.name} --folder {self.folder}"
        evaluate = f"plaudit eval {self.run} --episodes {config.eval_episodes}"
        return [
            Stage("collect", "successful and failed episodes of a script", self.collect_episodes, collect),
            Stage("judge", "a classifier learns from their images what success looks like", self.train_judge, judge),
            Stage("policy", "SAC learns to lift the cube from the judge's labels alone", self.train_policy, policy),
            Stage("evaluation", "the policy on test seeds, by the simulator", self.evaluate, evaluate),
        ]

    def collect_episodes(self) -> str:
        env = PandaConfig(type="lift", obs="both", cameras=self.config.cameras)
        targets = EpisodeTargets(self.config.target_success, self.config.target_failure)
        with Store.open(self.data, write=True) if is_store(self.data) else Store.create(self.data) as store:
            kept = collect_scripted(
                env, store, targets, seed=self.first_seed, progress=self.display.track("collecting")
            ).kept
        return f"{kept['success']} successes and {kept['failure']} failures, labeled by the simulator"

    def train_judge(self) -> str:
        config = load_reward_train_job(None, {"seed": self.seed}, self.config.judge)[0].training
        if not self.judge.exists():  # it appears complete or not at all
            with self.display.epochs(config.epochs) as (on_epoch, stopped):
                train_and_save(
                    Store.open(self.data), self.judge, config, on_epoch, self.display.track, lambda _: not stopped()
                )
        scores, controls, _ = load_judge_record(self.judge)
        run = [control for control in controls if control.frames]
        return (
            f"precision {format_percent(scores.precision)} and recall {format_percent(scores.recall)} (frames) on "
            f"{scores.episodes} held-out episodes, {sum(c.passed for c in run)} of {len(run)} negative controls passed"
        )

    def train_policy(self) -> str:
        if (self.run / "config.yaml").exists():
            run = RunFolder.reopen(self.run)
        else:
            run = RunFolder.create(self.run, load_training_config("train", None, self.policy))
        with Trainer(run, self.display.track) as trainer, self.display.steps(run.config) as (on_rollout, stopped):
            end = trainer.run(on_rollout, stopped)
        if stopped():
            raise TrainingInterrupted
        accuracy = [line["judge/accuracy"] for line in run.metrics() if "judge/accuracy" in line]
        alarm = "" if end.alarm is None else f"; audit alarm: {end.alarm}"
        return (
            f"{end.step:,} steps, {end.eval_success or 0:.0%} true success on eval seeds; the judge was right about "
            f"{format_percent(sum(accuracy) / len(accuracy))} of {end.episodes:,} training episodes{alarm}"
        )

    def evaluate(self) -> str:
        run = RunFolder.reopen(self.run)
        result = self.log.evaluation = evaluate_run(run, self.config.eval_episodes)
        record_videos(run)
        write_run_report(self.run)
        return (
            f"success rate {result.success_rate:.0%} (simulator), {_rate(result.judge_successes, result)} (judge) on "
            f"{result.episodes} test seeds"
        )

    def report(self) -> Path:
        """The report of the run, with the stages before it and the judge after it."""
        result = self.log.evaluation
        scores, controls, predictions = load_judge_record(self.judge)
        below = f"The policy is below {MIN_SUCCESS_RATE:.0%} true success."
        verdict = judge_verdict(scores.causal, controls, judge=str(self.judge), store=str(self.data))
        blocks = [verdict, page.text(summary_line(scores)), *judge_blocks(scores, controls, predictions)]
        commands = page.code("\n".join(_wrap(stage.command) for stage in self.stages()))
        return write_run_report(
            self.run,
            self.folder / "report.html",
            title="From labeled episodes to a policy: lift the red cube",
            summary="A script collects episodes, a classifier learns from their images what success looks like, and a "
            f"policy learns from the classifier's labels alone. Seed {self.seed}.",
            tiles={
                f"true success rate on {result.episodes} test seeds": f"{result.success_rate:.0%}",
                "success rate by the judge": _rate(result.judge_successes, result),
                "accuracy of the judge": _rate(result.agreements, result),
                "from nothing to the policy": format_duration(self.total_seconds()),
            },
            lead=[
                *([page.text(below, "warning")] if result.success_rate < MIN_SUCCESS_RATE else []),
                self._stage_table(),
            ],
            appendix=[
                page.section("Judge", *blocks),
                *frame_gallery(Store.open(self.data), predictions),
                page.section("The commands", commands),
            ],
        )

    def total_seconds(self) -> float:
        return sum(self.log.seconds(stage.name) for stage in self.stages())

    def _stage_table(self) -> Markup:
        rows = [
            (f"{n}. {stage.name}", self.log.result(stage.name) or "", format_duration(self.log.seconds(stage.name)))
            for n, stage in enumerate(self.stages(), 1)
        ]
        rows.append(("total", "", format_duration(self.total_seconds())))
        return page.section("Stages", page.table(rows, ("stage", "result", "time")))


def load_judge_record(folder: Path) -> tuple[JudgeMetrics, list[ControlResult], list[EpisodePrediction]]:
    """The metrics of a reward model, its negative controls and its predictions on held-out episodes."""
    record = read_json_object(folder / "model.json")
    predictions = [EpisodePrediction.from_json(line) for line in read_json_lines(folder / "held_out.jsonl")]
    controls = [ControlResult(**tree) for tree in record["controls"]]
    return JudgeMetrics.from_json(record["scores"]), controls, predictions


def run_demo(
    folder: Path,
    display: DemoDisplay,
    seed: int = 0,
    config: DemoConfig = DemoConfig(),  # noqa: B008 - frozen
) -> EvalResult:
    """Run all stages that are not done yet, then write the report. Raises `TrainingInterrupted` when a callback asked
    to stop."""
    demo = Demo(folder, display, config, seed)
    for number, stage in enumerate(demo.stages(), 1):
        display.console.print(f"{number}. {stage.name}: {stage.about}")
        result = demo.log.result(stage.name)
        if result is None:
            with demo.log.timed(stage.name):
                result = stage.run()
            demo.log.finish(stage.name, result)
        display.console.print(f"   {result}: {format_duration(demo.log.seconds(stage.name))}")
    path, result = demo.report(), demo.log.evaluation
    display.console.print(
        f"{result.success_rate:.0%} true success on {result.episodes} test seeds after "
        f"{format_duration(demo.total_seconds())}, trained on the judge's labels alone; report: {path}"
    )
    return result


def _rate(count: int | None, result: EvalResult) -> str:
    return "-" if count is None else f"{count / result.episodes:.0%}"


def _wrap(command: str, width: int = 120) -> str:
    return " \\\n    ".join(wrap(command, width, break_long_words=False, break_on_hyphens=False))
