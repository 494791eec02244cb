"""The whole way in small, as `make demo` runs it: labelled episodes, a judge that learns from their images, a policy
that learns from the judge alone, and a count of how often that policy truly succeeds.

    runs/demo/
      data/           the episodes, a store
      judge/          the reward model
      run/            the training run
      demo.json       which stages are done, and how long each took
      report.html     all of it on one page

Each stage is what a command does, with the words that stand in the report. One that was stopped goes on when the demo
is run again on the same folder.
"""

import json
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from plaudit.data.store import Store, is_store
from plaudit.envs.panda.config import PandaConfig
from plaudit.errors import DataError, TargetNotEmpty
from plaudit.judges.classifier.recipes import read_recipe
from plaudit.judges.classifier.training import Stopped
from plaudit.report.demo import Stage, clock, read_judge, write_demo_report
from plaudit.report.judge import percent
from plaudit.report.run import write_report
from plaudit.rollout.collect import Targets
from plaudit.rollout.scripted import collect
from plaudit.training.config import load_train_config
from plaudit.training.evaluation import Outcome, examine, film
from plaudit.training.reward_model import make_reward_model
from plaudit.training.run_folder import RunFolder
from plaudit.training.trainer import train

BAR = 0.9  # true success that the policy has to reach

# What is told of each epoch or round and says whether to go on; and whether somebody asked to stop.
Watching = tuple[Callable[[Any], bool], Callable[[], bool]]


@dataclass(frozen=True)
class Recipe:
    """What the stages are told, in the words of their commands."""

    # To one camera, a hand in front of a cube that lies on the table looks much like a hand that holds it, and a policy
    # finds that out: with the front camera alone, one run of three learned to hold it there now and then.
    cameras: tuple[str, ...] = ("front", "side")
    successes: int = 60
    failures: int = 120
    judge: tuple[str, ...] = (
        "encoder=small",
        "batch_size=64",
        "epochs=3",
        "lr=1e-3",
        "target_fpr=0.005",
    )
    policy: tuple[str, ...] = (
        "learner=sac",
        "env=lift",
        "env.obs=both",
        "env.cameras=[front,side]",
        "policy_cameras=[]",
        "scripted_demos=20",
        "steps=30000",
        "evaluation.every=1000",
        "evaluation.episodes=200",
        "evaluation.stop_at=0.95",
    )
    examined: int = 100  # episodes of the last stage


@dataclass(frozen=True)
class Screen:
    """How the stages are watched: on a terminal these are bars, in a test hardly anything."""

    console: Console
    track: Callable[[str], Any]  # wraps a sequence in a bar of this name
    epochs: Callable[[int, int], AbstractContextManager[Watching]]  # of a judge: members, epochs of each
    steps: Callable[[int], AbstractContextManager[Watching]]  # of a policy


class Diary:
    """Which stages are done, what came of each and how long it took, over all sittings."""

    def __init__(self, path: Path, seed: int):
        self._path = path
        if path.exists():
            self._told: dict[str, Any] = json.loads(path.read_text())
            if self._told["seed"] != seed:
                raise DataError(
                    f"{path.parent} was begun with --seed {self._told['seed']}; go on with that, or name another "
                    "folder with --folder"
                )
        elif path.parent.exists() and any(path.parent.iterdir()):
            raise TargetNotEmpty(
                f"{path.parent} holds something that is not a demo; nothing was written, name another with --folder"
            )
        else:
            self._told = {"seed": seed, "seconds": {}, "results": {}, "outcome": None}
            path.parent.mkdir(parents=True, exist_ok=True)
            self._write()

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        begun, before = time.monotonic(), self.seconds(stage)
        try:
            yield
        finally:
            self._told["seconds"][stage] = before + time.monotonic() - begun
            self._write()

    def seconds(self, stage: str) -> float:
        return self._told["seconds"].get(stage, 0.0)

    def result(self, stage: str) -> str | None:
        """In a sentence; None for a stage that is not done."""
        return self._told["results"].get(stage)

    def finish(self, stage: str, result: str) -> None:
        self._told["results"][stage] = result
        self._write()

    @property
    def outcome(self) -> Outcome:
        return Outcome(**self._told["outcome"])

    @outcome.setter
    def outcome(self, outcome: Outcome) -> None:
        self._told["outcome"] = asdict(outcome)

    def _write(self) -> None:
        new = self._path.with_suffix(".part")
        new.write_text(json.dumps(self._told, indent=1))
        new.replace(self._path)


@dataclass(frozen=True)
class Part:
    """A stage of the way."""

    name: str
    about: str
    work: Callable[[], str]  # does what is left of it; returns what came of it, in a sentence
    command: str  # that does the same


class Demo:
    """The stages. Each does what is left of it and returns what came of it."""

    def __init__(self, folder: Path, screen: Screen, recipe: Recipe, seed: int):
        self.folder, self.screen, self.recipe, self.seed = folder, screen, recipe, seed
        self.data, self.judge, self.run = folder / "data", folder / "judge", folder / "run"
        self.policy = [*recipe.policy, f"reward.model={self.judge}", f"seed={seed}"]
        self.diary = Diary(folder / "demo.json", seed)
        self._first_seed = 1000 * seed  # of the collected episodes

    def collect(self) -> str:
        env = PandaConfig(type="lift", obs="both", cameras=self.recipe.cameras)
        targets = Targets(self.recipe.successes, self.recipe.failures)
        with Store.open(self.data, write=True) if is_store(self.data) else Store.create(self.data) as store:
            kept = collect(env, store, targets, seed=self._first_seed, track=self.screen.track("collecting")).kept
        return f"{kept['success']} successes and {kept['failure']} failures, labelled by the simulator"

    def teach(self) -> str:
        config = read_recipe(None, {"seed": self.seed}, self.recipe.judge)[0].training
        if not self.judge.exists():  # it appears whole
            with self.screen.epochs(config.members, config.epochs) as (watch, _):
                make_reward_model(Store.open(self.data), self.judge, config, watch, self.screen.track)
        scores, controls, _ = read_judge(self.judge)
        asked = [control for control in controls if control.frames]
        return (
            f"precision {percent(scores.precision)} and recall {percent(scores.recall)} on the frames of "
            f"{scores.episodes} episodes held out, {sum(c.passed for c in asked)} of {len(asked)} controls passed"
        )

    def learn(self) -> str:
        there = (self.run / "config.json").exists()
        run = RunFolder.reopen(self.run) if there else RunFolder.create(self.run, load_train_config(None, self.policy))
        with self.screen.steps(run.config.steps) as (watch, stopped):
            end = train(run, watch, self.screen.track)
        if stopped():
            raise Stopped
        agreement = [line["reward/agreement"] for line in run.metrics() if "reward/agreement" in line]
        alarm = "" if end.alarm is None else f"; the alarm rang: {end.alarm}"
        return (
            f"{end.step:,} steps, {end.evaluated or 0:.0%} true success on held-back seeds; judge and truth agreed on "
            f"{percent(sum(agreement) / len(agreement))} of {end.episodes:,} episodes in training{alarm}"
        )

    def examine(self) -> str:
        run = RunFolder.reopen(self.run)
        outcome = self.diary.outcome = examine(run, self.recipe.examined)
        film(run)
        write_report(self.run)
        return (
            f"{outcome.true} of {outcome.episodes} truly succeed on seeds that nothing was chosen by, "
            f"the judge says {outcome.judged}"
        )

    def parts(self) -> list[Part]:
        """In the order in which they are done."""
        recipe, seed = self.recipe, f"seed={self.seed}"
        cameras = " ".join(f"--camera {camera}" for camera in recipe.cameras)
        counts = f"--target-success {recipe.successes} --target-failure {recipe.failures}"
        return [
            Part(
                "collect",
                "episodes from a script, good ones and bad ones",
                self.collect,
                f"plaudit collect {self.data} --env lift {cameras} {counts} --seed {self._first_seed}",
            ),
            Part(
                "judge",
                "a classifier learns from their images what success looks like",
                self.teach,
                f"plaudit train-reward {self.data} {shlex.join(recipe.judge)} {seed} --out {self.judge}",
            ),
            Part(
                "policy",
                "SAC learns to lift the cube; nobody but the judge tells it when it has",
                self.learn,
                f"plaudit train {shlex.join(self.policy)} name={self.run.name} --folder {self.folder}",
            ),
            Part(
                "evaluation",
                "the policy on fresh seeds, counted by what is true",
                self.examine,
                "python -c "
                + shlex.quote(
                    "from pathlib import Path; from plaudit.training.run_folder import RunFolder; "
                    "from plaudit.training.evaluation import examine; "
                    f'print(examine(RunFolder.reopen(Path("{self.run}")), {recipe.examined}))'
                ),
            ),
        ]

    def report(self) -> Path:
        outcome, path = self.diary.outcome, self.folder / "report.html"
        stages = [
            Stage(part.name, self.diary.result(part.name) or "", self.diary.seconds(part.name), part.command)
            for part in self.parts()
        ]
        numbers = {
            f"of {outcome.episodes} held-back episodes truly succeed": f"{outcome.success:.0%}",
            "were called a success by the judge": f"{outcome.judged / outcome.episodes:.0%}",
            "of these verdicts are right": f"{outcome.agreed / outcome.episodes:.0%}",
            "from nothing to the policy": clock(sum(stage.seconds for stage in stages)),
        }
        write_demo_report(
            path,
            "From labelled episodes to a policy: lift the red cube",
            "A script plays, a classifier learns from the images what success looks like, and a policy learns from "
            f"the classifier's word alone. Seed {self.seed}.",
            numbers,
            [] if outcome.success >= BAR else [f"The policy is below the bar of {BAR:.0%} true success."],
            stages,
            data=self.data,
            judge=self.judge,
            run=self.run,
        )
        return path


def run_demo(folder: Path, screen: Screen, seed: int = 0, recipe: Recipe = Recipe()) -> Outcome:  # noqa: B008 - frozen
    """All stages that are not done yet, then the report. `Stopped` where whoever watches wanted no more."""
    demo = Demo(folder, screen, recipe, seed)
    for number, part in enumerate(demo.parts(), 1):
        screen.console.print(f"{number}. {part.name}: {part.about}")
        result = demo.diary.result(part.name)
        if result is None:
            with demo.diary.timed(part.name):
                result = part.work()
            demo.diary.finish(part.name, result)
        screen.console.print(f"   {result}: {clock(demo.diary.seconds(part.name))}")
    path, outcome = demo.report(), demo.diary.outcome
    together = clock(sum(demo.diary.seconds(part.name) for part in demo.parts()))
    screen.console.print(
        f"{outcome.success:.0%} true success over {outcome.episodes} held-back episodes after {together}, with no "
        f"success signal but the judge's; look at {path}"
    )
    return outcome
