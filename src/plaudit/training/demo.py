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
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from textwrap import wrap
from typing import Any

from rich.console import Console

from plaudit.data.store import Store
from plaudit.envs.panda import PandaConfig
from plaudit.errors import DataError, TargetNotEmpty, format_count
from plaudit.files import read_json_lines, read_json_object
from plaudit.judges.certificate import ControlResult
from plaudit.judges.classifier.train_job import load_reward_train_job
from plaudit.judges.epochs import TrainingInterrupted
from plaudit.judges.metrics import EpisodePrediction, JudgeMetrics
from plaudit.report import page
from plaudit.report.judge import frame_gallery, judge_blocks, summary_line
from plaudit.report.run import write_run_report
from plaudit.report.run_data import RunData
from plaudit.report.verdict import Verdict, format_duration, format_percent, judge_verdict, quoted, train_further
from plaudit.rollout.collector import EpisodeTargets
from plaudit.rollout.scripted import collect_scripted
from plaudit.training.config_file import load_training_config
from plaudit.training.display import describe_trainer
from plaudit.training.evaluation import EvalResult, evaluate_run, record_videos
from plaudit.training.live import LiveSocket
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
    judge: tuple[str, ...] = ("encoder=small", "batch_size=64", "epochs=10", "lr=1e-3", "target_fpr=0.005")
    policy: tuple[str, ...] = (
        *("learner=sac", "learner.bc_weight=0.1", "learner.tau=0.01", "env=lift", "env.obs=pixels"),
        *("env.cameras=[front,side,wrist]", "policy.cameras=[front,wrist]", "policy.encoder=cloned"),
        *("demos.scripted=60", "demos.noise=0.05", "run.max_steps=20000", "run.checkpoint_freq=5000"),
        *("evaluation.freq=1200", "evaluation.episodes=50", "evaluation.stop_success_rate=0.98"),
    )
    sees: str = "two cameras, front and wrist, and the arm's joints"  # the policy
    eval_episodes: int = 100  # of the last stage


FROM_CAMERAS = DemoConfig()
FROM_STATE = DemoConfig(
    policy=(
        *("learner=sac", "env=lift", "env.obs=both", "env.cameras=[front,side]", "policy.cameras=[]"),
        *("demos.scripted=20", "run.max_steps=30000", "run.checkpoint_freq=5000"),
        *("evaluation.freq=1000", "evaluation.episodes=200", "evaluation.stop_success_rate=0.95"),
    ),
    sees="the arm's joints and the cube's position, which no real robot has",
)


@dataclass(frozen=True)
class DemoDisplay:
    """Where the stages show their progress: bars on a terminal, almost nothing in a test."""

    console: Console
    track: Callable[[str], Any]  # wraps a sequence in a progress bar of this name
    epochs: Callable[[int], AbstractContextManager[Progress]]  # of a judge; argument: their largest number
    steps: Callable[[Any], AbstractContextManager[Progress]]  # of a training run, by its config


@dataclass(frozen=True)
class Stage:
    """One step of the pipeline."""

    name: str
    about: str
    run: Callable[[], str]  # does what is left of it and returns its result in one line
    command: str  # that does the same


class Demo:
    """The stages, each resumable, and the report. demo.json has the results so far and how long each stage took."""

    def __init__(self, folder: Path, display: DemoDisplay, config: DemoConfig, seed: int):
        self.folder, self.display, self.config, self.seed = folder, display, config, seed
        self.data, self.judge, self.run = folder / "data", folder / "judge", folder / "run"
        self.policy = [*config.policy, f"judge={self.judge}", f"run.seed={seed}"]
        self.first_seed = 1000 * seed  # of the collected episodes
        self._path = folder / "demo.json"
        started = {"seed": seed, "sees": config.sees}
        self._state: dict[str, Any] = {**started, "seconds": {}, "results": {}, "evaluation": None}
        if self._path.exists():
            self._state = read_json_object(self._path)
            if any(self._state.get(name) != value for name, value in started.items()):
                raise DataError(
                    f"{folder} was started with --seed {self._state['seed']} and a policy that sees "
                    f"{self._state.get('sees')}; use the same options, or name another folder with --output-dir"
                )
        elif folder.exists() and any(folder.iterdir()):
            raise TargetNotEmpty(
                f"{folder} holds something that is not a demo; nothing was written, name another with --output-dir"
            )
        else:
            folder.mkdir(parents=True, exist_ok=True)
            self._save_state()

    def _save_state(self) -> None:
        new = self._path.with_suffix(".part")
        new.write_text(json.dumps(self._state, indent=1))
        new.replace(self._path)

    def finish(self, stage: Stage) -> str:
        """Complete a stage and return its result. The time is counted even if the stage is interrupted."""
        seconds, results = self._state["seconds"], self._state["results"]
        if stage.name not in results:
            start, before = time.monotonic(), seconds.get(stage.name, 0.0)
            try:
                results[stage.name] = stage.run()
            finally:
                seconds[stage.name] = before + time.monotonic() - start
                self._save_state()
        return results[stage.name]

    def duration(self, stage: Stage | None = None) -> str:
        """Duration of a stage over all sessions; with None, of all stages."""
        seconds = self._state["seconds"]
        return format_duration(sum(seconds.values()) if stage is None else seconds[stage.name])

    @property
    def evaluation(self) -> EvalResult:
        """The evaluation of the policy."""
        return EvalResult(**self._state["evaluation"])

    def stages(self) -> list[Stage]:
        """The stages, in order."""
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
            Stage("policy", f"SAC, paid by the judge alone; it sees {config.sees}", self.train_policy, policy),
            Stage("evaluation", "the policy on test seeds, by the simulator", self.evaluate, evaluate),
        ]

    def collect_episodes(self) -> str:
        env = PandaConfig(type="lift", obs="both", cameras=self.config.cameras)
        targets = EpisodeTargets(self.config.target_success, self.config.target_failure)
        with Store.open_or_create(self.data) as store:
            bar = self.display.track("collecting")
            kept = collect_scripted(env, store, targets, seed=self.first_seed, progress=bar).kept
        counts = " and ".join(format_count(kept[kind], kind) for kind in ("success", "failure"))
        return f"{counts}, labeled by the simulator"

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
        with Trainer(run, self.display.track) as trainer:
            live = LiveSocket(run.path, describe=lambda: describe_trainer(trainer))
            with live, self.display.steps(run.config) as (on_rollout, stopped):
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
        result = evaluate_run(run, self.config.eval_episodes)
        self._state["evaluation"] = asdict(result)
        record_videos(run)
        write_run_report(self.run)
        return (
            f"success rate {result.success_rate:.0%} (simulator), {_rate(result.judge_successes, result)} (judge) on "
            f"{result.episodes} test seeds"
        )

    def verdict(self) -> Verdict:
        """The policy's verdict. The next step is the judge's exam, which a robot requires."""
        verdict = self.evaluation.verdict(self.run, train_further(RunData.load(self.run)))
        if verdict.tone != "good":
            return verdict
        exam = f"plaudit judge exam {quoted(self.judge)} {quoted(self.data)}"
        return replace(verdict, advice="Examine the judge before using it on a robot", command=exam)

    def report(self) -> Path:
        """The report of the run, with the stages before it and the judge after it."""
        result, stages = self.evaluation, self.stages()
        scores, controls, predictions = load_judge_record(self.judge)
        of_judge = judge_verdict(scores.causal, controls, judge=str(self.judge), store=str(self.data))
        blocks = [page.verdict_panel(of_judge), page.text(summary_line(scores), "muted")]
        blocks += judge_blocks(scores, controls, predictions)
        commands = page.code("\n".join(_wrap(stage.command) for stage in stages))
        rows = [(f"{n}. {one.name}", self.finish(one), self.duration(one)) for n, one in enumerate(stages, 1)]
        table = page.table([*rows, ("total", "", self.duration())], ("stage", "result", "time"))
        return write_run_report(
            self.run,
            self.folder / "report.html",
            title="From labeled episodes to a policy: lift the red cube",
            verdict=self.verdict(),
            summary="A script collects episodes, a classifier learns from their images what success looks like, and a "
            f"policy learns from the classifier's labels alone. The policy sees {self.config.sees}. Seed {self.seed}.",
            tiles={
                f"true success rate on {result.episodes} test seeds": f"{result.success_rate:.0%}",
                "success rate by the judge": _rate(result.judge_successes, result),
                "accuracy of the judge": _rate(result.agreements, result),
                "from nothing to the policy": self.duration(),
            },
            lead=[page.section("Stages", table)],
            appendix=[
                page.section("Judge", *blocks),
                *frame_gallery(Store.open(self.data), predictions),
                page.section("The commands", commands),
            ],
        )


def load_judge_record(folder: Path) -> tuple[JudgeMetrics, list[ControlResult], list[EpisodePrediction]]:
    """The metrics of a reward model, its negative controls and its predictions on held-out episodes."""
    record = read_json_object(folder / "model.json")
    predictions = [EpisodePrediction.from_json(line) for line in read_json_lines(folder / "held_out.jsonl")]
    controls = [ControlResult.model_validate(tree) for tree in record["controls"]]
    return JudgeMetrics.from_json(record["scores"]), controls, predictions


def run_demo(
    folder: Path,
    display: DemoDisplay,
    seed: int = 0,
    config: DemoConfig = FROM_CAMERAS,
) -> EvalResult:
    """Run all stages that are not done yet, then write the report. Raises `TrainingInterrupted` when a callback asked
    to stop."""
    demo = Demo(folder, display, config, seed)
    for number, stage in enumerate(demo.stages(), 1):
        display.console.print(f"{number}. {stage.name}: {stage.about}")
        result = demo.finish(stage)
        display.console.print(f"   {result}: {demo.duration(stage)}")
    path, evaluation = demo.report(), demo.evaluation
    display.console.print(demo.verdict())
    display.console.print(
        f"{evaluation.success_rate:.0%} true success on {evaluation.episodes} test seeds after {demo.duration()}, "
        f"trained on the judge's labels alone; report: {path}"
    )
    return evaluation


def _rate(count: int | None, result: EvalResult) -> str:
    return "-" if count is None else f"{count / result.episodes:.0%}"


def _wrap(command: str, width: int = 120) -> str:
    return " \\\n    ".join(wrap(command, width, break_long_words=False, break_on_hyphens=False))
