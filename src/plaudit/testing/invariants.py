"""What must hold after every step of a run, whatever goes wrong around it.

watch = Watch(world, config, path)
with watch.acknowledged():           # notes every episode and label once the store has confirmed it
    ...
watch.check_online(...); watch.after_resume(); watch.at_end(...)
"""

import hashlib
import math
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from plaudit.data.ledger import Ledger
from plaudit.data.store import Store, is_store
from plaudit.judges.stats import Interval
from plaudit.learners.config import ExpoConfig, WeightedBcConfig
from plaudit.testing.oracle import Oracle, expected_rewards
from plaudit.testing.world import World
from plaudit.training.audit import Audit
from plaudit.training.config import TrainingConfig
from plaudit.training.run_folder import RunFolder
from plaudit.types import HUMAN

SILENT = "the simulated robot is silent"
DEMO = 3  # which number of a state says that it is of a demonstration
WINDOW = 3  # frames in which a rule can decide for the first time
FOREVER = 10**6  # steps
CLONES_AFTER = 200  # sampled rows, of which a learner that clones demonstrations gets one to clone


class Watch:
    """Checks one run, over all of its sessions."""

    def __init__(self, world: World, config: TrainingConfig, path: Path):
        self.world, self.config, self.path = world, config, path
        self._episodes: dict[tuple[Path, int], str] = {}  # acknowledged -> digest
        self._labels: dict[Path, list[tuple[int, str, float, str]]] = {}  # of a ledger: episode, source, time, digest
        self.stopped: set[str] = set()  # fingerprints of judges that an alarm has stopped
        self._stopped_saved: set[str] = set()  # those in a checkpoint of `train`
        self._version = self._robot_version = 0
        self.audit: Audit | None  # of a session of `train`
        self._silent_since: float | None
        self._rows = self._cloned_rows = 0
        self.max_due = 0.0
        self.new_session(config)

    def new_session(self, config: TrainingConfig) -> None:
        """Open readers of the files anew. `train` goes back to its checkpoint, before an alarm that came later."""
        self.config = config
        if config.schedule == "train":
            self.stopped = set(self._stopped_saved)
        self._oracles: dict[str, Oracle] = {}
        self._human: dict[int, Any] = {}  # episode -> [T] steps in which a person acted
        self._payable: dict[int, int] = {}  # episode, evicted or not -> steps with a label
        self._seen = 0
        self.audit = None
        self._silent_since = None  # a new session is patient anew, from its first fault
        self._newest: int | None = None  # episode at the last check of patience

    def saved(self) -> None:
        """`train` has written a checkpoint."""
        self._stopped_saved = set(self.stopped)

    # Acknowledged data

    @contextmanager
    def acknowledged(self) -> Iterator[None]:
        """Note what is acknowledged, for as long as the block lasts."""
        extend, note, write = Store.extend, Store._note, Ledger._write

        def stored(store: Store, episodes: Any, **options: Any) -> list[int]:
            ids = extend(store, episodes, **options)
            alive = set(store.ids)
            for i in ids:
                self._episodes[store.folder, i] = _digest(store, i)
            for folder, i in [key for key in self._episodes if key[0] == store.folder and key[1] not in alive]:
                del self._episodes[folder, i]
            return ids

        def noted(store: Store, what: str, ids: Any) -> Any:
            for i in ids:
                self._episodes.pop((store.folder, i), None)
            return note(store, what, ids)

        def labeled(ledger: Ledger, lines: Any) -> list[int]:
            numbers = write(ledger, lines)
            for (episode, _, _), number in zip(lines, numbers, strict=True):
                self._labels.setdefault(ledger.path, []).append(_label_key(ledger, episode, number))
            return numbers

        with ExitStack() as stack:
            for cls, name, new in ((Store, "extend", stored), (Store, "_note", noted), (Ledger, "_write", labeled)):
                stack.enter_context(patch.object(cls, name, new))
            yield

    def renamed(self, old: Path, new: Path) -> None:
        """A folder has another name now, and so has what was acknowledged in it."""

        def moved(path: Path) -> Path:
            return new / path.relative_to(old) if path.is_relative_to(old) else path

        self._episodes = {(moved(path), i): digest for (path, i), digest in self._episodes.items()}
        self._labels = {moved(path): keys for path, keys in self._labels.items()}

    def after_resume(self) -> None:
        """Everything that was acknowledged before a kill is there."""
        for folder in {folder for folder, _ in self._episodes}:
            store = Store.open(folder)
            evicted = store.ids[0] if store.ids and store.settings.capacity_bytes is not None else 0
            for _, i in [key for key in self._episodes if key[0] == folder and key[1] >= evicted]:
                is_same = i in store.ids and _digest(store, i) == self._episodes[folder, i]
                self.world.check(is_same, "no_loss", f"episode {i} of {folder.name} was acknowledged and is lost")
                store.verify(i)
        for path, keys in self._labels.items():
            if not is_store(path.parent):
                continue
            ledger = Ledger(path)
            there = {_label_key(ledger, i, v.number) for i in {key[0] for key in keys} for v in ledger.history(i)}
            lost = [key for key in keys if key not in there]
            self.world.check(not lost, "no_loss", f"labels of {path} were acknowledged and are lost: {lost[:2]}")

    # What is learned from

    def _check_alarm(self) -> None:
        """`train` knows of an alarm before the updates from the rollout that raised it."""
        blocks = self.audit is not None and self.audit.blocks_learning
        self.world.check(not blocks, "stopped_judge", "an update follows an alarm")

    def on_batch(self, learner: Any, batch: Any) -> None:
        """Each sampled transition pays what it should, and has the observations before it."""
        self._check_alarm()
        mixed, history = self.config.demos.any, self.config.policy.history
        episodes, steps = batch.episode.tolist(), batch.step.tolist()
        demos = (batch.state.reshape(len(episodes), -1)[:, DEMO] == 1).tolist()
        if history:
            frames = (batch.state[:, :, 2] * self.config.simulation.max_steps).round().tolist()
            expected = [[max(step - ago, 0) for ago in range(1 + history)] for step in steps]
            self.world.check(frames == expected, "history", f"frames {frames} are sampled, not {expected}")
        rewards, discounts = batch.reward.tolist(), batch.discount.tolist()
        self._refresh()
        for episode, step, demo, reward, discount in zip(episodes, steps, demos, rewards, discounts, strict=True):
            oracle = self._oracle("demos" if demo else "episodes")
            problem = oracle.problem(episode, step, reward, discount)
            self.world.check(not problem, "paid_right", ("demonstrations: " if demo else "") + problem)
            if not demo and self.stopped:
                paid = oracle.paying(episode)
                bad = paid is not None and paid.model in self.stopped
                self.world.check(not bad, "stopped_judge", f"episode {episode} is paid by a judge that was stopped")
        self._check_images(learner, batch, demos)
        self._check_interventions(batch, demos)
        self._cloned_rows += int((batch.part == 0).sum())
        self.world.counts["sampled rows"] += len(episodes)
        shown = self._oracle("demos") if mixed else None
        if shown is not None and any(map(shown.can_pay, shown.store.ids)):  # the judge has labeled one
            self._rows += len(episodes)
        clones = learner.config.clones_demos and self._rows >= CLONES_AFTER and not self._cloned_rows
        self.world.check(not clones, "clones_demos", f"nothing to clone among {self._rows} sampled rows")

    def _check_images(self, learner: Any, batch: Any, demos: list[bool]) -> None:
        """A row of the batch has the frames of its step, or their features by the frozen encoder of the run."""
        row = int(batch.step.sum()) % len(demos)
        episode, step = int(batch.episode[row]), int(batch.step[row])
        rows = [max(step - ago, 0) for ago in range(1 + self.config.policy.history)]
        for camera, images in batch.images.items():
            frames = self._oracle("demos" if demos[row] else "episodes").store.episode(episode).frames[camera][rows]
            expected = frames
            if (frozen := learner.encoder.frozen) is not None:
                with torch.inference_mode():  # `encode` would remember these frames
                    expected = frozen({camera: torch.from_numpy(frames)})[camera].numpy()
                self.world.counts["sampled features"] += 1
            same = np.allclose(images[row].numpy().reshape(expected.shape), expected, atol=1e-4)
            self.world.check(same, "images", f"step {step} of episode {episode} is sampled with other images")

    def _check_interventions(self, batch: Any, demos: list[bool]) -> None:
        """What is sampled as a demonstration is one, or a step in which a person acted."""
        config = self.config.learner.interventions
        mask = batch.action_mask.reshape(len(demos), -1).sum(1).tolist()
        rows = zip(batch.episode.tolist(), batch.step.tolist(), batch.part.tolist(), mask, demos, strict=True)
        for episode, step, part, actions, demo in rows:
            if demo:
                self.world.check(part == 0, "interventions", f"demonstration {episode} is sampled as experience")
                continue
            human = self._human_steps(episode)
            takeover = step + int(human[step:].argmax()) if human[step:].any() else len(human)
            message = f"step {step} of episode {episode} is sampled, and a person takes over at step {takeover}"
            dropped = 0 < takeover - step <= config.drop_before and takeover < len(human)
            self.world.check(not dropped, "interventions", message)
            if part == 0:
                shown = int(np.append(human[step:], False).argmin())  # steps from here without a break
                if self._imitates_successes and self._oracle("episodes").succeeds(episode):
                    shown = len(human) - step
                message = f"{actions} actions from step {step} of episode {episode} are cloned; {shown} are shown"
                self.world.check(0 < actions <= shown and config.share != 0, "interventions", message)
                self.world.counts["sampled interventions"] += 1

    @property
    def _imitates_successes(self) -> bool:
        """Whether the run's own successes are demonstrations too."""
        config: Any = self.config.learner
        tunes = isinstance(config, ExpoConfig) and config.finetune_lr > 0
        clones = isinstance(config, WeightedBcConfig) and config.method == "success"
        return tunes or clones or config.interventions.successes

    def _human_steps(self, episode: int) -> Any:
        """[T] in which a person acted."""
        if episode not in self._human:
            self._human[episode] = self._oracle("episodes").store.episode(episode).control_mode == HUMAN
        return self._human[episode]

    def on_rollout(self, learner: Any, rollout: Any) -> None:
        """The same of a rollout that is learned from as a whole."""
        self._check_alarm()
        config = self.config
        for n, length in enumerate(rollout.length.tolist()):
            privileged = {name: values[:length, n] for name, values in rollout.privileged.items()}
            progress = None if rollout.progress is None else rollout.progress[: length + 1, n]
            lost = "failure" in privileged and bool(privileged["failure"][-1])
            success, prob = rollout.success[: length + 1, n], rollout.success_prob[: length + 1, n]
            if success[: config.judge.config.rule.window[0]].any():  # before anything was done: not paid
                continue
            unseen = lost and not success[-1]  # a failure that the judge calls a success has the potential of a success
            right = expected_rewards(
                success, prob, progress, privileged, config.reward, learner.config.gamma, lost=unseen
            )
            if not rollout.used[:, n].any():  # withheld: out of distribution, or success before anything was done
                strange = bool(rollout.ood and rollout.ood[n]) or bool(success[:WINDOW].any())
                self.world.check(strange, "paid_right", f"rollout, seed {rollout.seeds[n]}: nothing of it is used")
                right = [0.0] * length
            paid = rollout.reward[:length, n].tolist()
            same = all(abs(a - b) < 1e-4 for a, b in zip(paid, right, strict=True))
            self.world.check(same, "paid_right", f"rollout, seed {rollout.seeds[n]}: paid {paid}, not {right}")
            ends = lost or (config.reward.terminates and bool(success[-1]))
            self.world.check(ends == bool(rollout.terminated[n]), "paid_right", f"seed {rollout.seeds[n]}: its end")

    def _oracle(self, kind: str) -> Oracle:
        if kind not in self._oracles:
            config, demos = self.config, kind == "demos"
            if demos:
                labels = self.path / "demo_labels" if config.relabels_demos else None
                assert config.demos.store is not None
                store, source = Store.open(config.demos.store, labels=labels), None
                original = Store.open(config.demos.store)
            else:
                store, source, original = Store.open(self.path / "episodes"), self.source, None
            steps = steps_of_reward(config.learner)
            self._oracles[kind] = Oracle(config, store, source, steps, demos=demos, original=original)
        return self._oracles[kind]

    @property
    def source(self) -> str:
        """Source of the judge's labels."""
        config: Any = self.config.judge.config
        return config.type

    def _refresh(self) -> None:
        for oracle in self._oracles.values():
            oracle.store.refresh()
            oracle.store.ledger.refresh()

    # After every step

    def check_audit(self, audit: Audit, fingerprint: str) -> None:
        """Estimates lie in their intervals, evidence is a number; which judge is stopped is noted."""
        if audit.blocks_learning:
            self.stopped.add(fingerprint)
        for name in ("false_successes", "missed_successes", "corrected_success"):
            rate: Interval = getattr(audit, name)
            inside = math.isnan(rate.value) or rate.low - 1e-9 <= rate.value <= rate.high + 1e-9
            self.world.check(inside, "inside_interval", f"{name} is {rate}: {rate.value} lies outside")
        self.world.check(_finite(audit.state_dict()), "no_nan", "the audit's evidence is not a number")

    def check_online(self, progress: Any, schedule: Any) -> None:
        """Counters match the disk, versions only grow, a robot that stays silent ends the run."""
        check, config, replay = self.world.check, self.config, progress.replay
        version, robot = progress.policy.version, progress.robot_version
        check(version >= self._version, "versions_grow", f"weights went from version {self._version} to {version}")
        if robot:  # of the newest episode; 0 before the first of a session
            check(
                robot >= self._robot_version, "versions_grow", f"the robot's {robot} comes after {self._robot_version}"
            )
            self._robot_version = robot
        self._version = version
        oracle = self._oracle("episodes")
        self._refresh()
        store = oracle.store
        ids = store.ids
        check(replay.episodes == (ids[-1] + 1 if ids else 0), "counters", f"{replay.episodes} episodes, not {len(ids)}")
        for i in {*store.ledger.changed_since(self._seen), *(set(ids) - self._payable.keys())}:
            paid = oracle.paying(i)  # of an evicted episode too
            self._payable[i] = paid.labels().steps if paid is not None and oracle.can_pay(i) else 0
        self._seen = len(store.ledger)
        if ids == list(range(len(ids))):  # none was evicted
            steps = sum(store.entry(i).steps for i in ids)
            check(replay.steps == steps, "counters", f"{replay.steps} steps, on disk {steps}")
        labeled = sum(self._payable.values())
        why = next((f"; episode {i}: {oracle.why_not(i)}" for i in reversed(ids) if not self._payable[i]), "")
        message = f"{replay.labeled_steps} labeled steps, by the ledger {labeled}{why}"
        check(replay.labeled_steps == labeled, "counters", message)
        extra = schedule.pretrain_updates + progress.extra_updates
        due = extra + config.learner.updates_due(replay.labeled_steps)
        if self.world.counts["answers"]:  # a person may have excluded an episode that was learned from
            due = max(due, extra + config.learner.updates_due(replay.steps))
        self.max_due = max(self.max_due, due)
        check(progress.updates <= self.max_due, "counters", f"{progress.updates} updates, {self.max_due} were due")
        check(_finite(progress.metrics()), "no_nan", "a metric is not a number")
        self._check_patience(store, ids)

    def robot_answers(self) -> None:
        """The robot has not failed in this episode, which may be dropped."""
        self._silent_since = None

    def _check_patience(self, store: Store, ids: list[int]) -> None:
        """Several episodes may be new: nothing is checked while the judge cannot be reached."""
        if self._newest is not None:  # else they are of the session before
            for i in ids[bisect_right(ids, self._newest) :]:
                silent = SILENT in str(store.entry(i).line["meta"].get("ended"))
                self._silent_since = (self._silent_since or self.world.now) if silent else None
                if self._silent_since is not None:
                    waited, patience = self.world.now - self._silent_since, self.config.policy.inference.patience_s
                    message = f"the robot fails in every episode for {waited:.0f} s, and patience_s is {patience:g}"
                    self.world.check(waited <= patience + 30, "patience", message)
        self._newest = ids[-1] if ids else -1

    def check_train(self, progress: Any, episodes: Any) -> None:
        """The same for a synchronous run."""
        if episodes is not None and episodes.store.ids == list(range(episodes.end)):
            store = episodes.store
            steps = sum(store.entry(i).steps for i in store.ids)
            counted = (progress.episodes, progress.step)
            self.world.check(counted == (len(store), steps), "counters", f"{counted}, on disk {(len(store), steps)}")

    def at_end(self, updates: int | None, due: float) -> None:
        """What was logged is a number, episodes act with ever newer weights, failures end them."""
        lines = RunFolder.reopen(self.path).metrics()
        self.world.check(all(map(_finite, lines)), "no_nan", "a logged metric is not a number")
        if updates is not None:
            self.world.check(updates >= int(due), "counters", f"{updates} updates at the end, {due:g} were due")
        if not is_store(self.path / "episodes"):
            return
        store, before = Store.open(self.path / "episodes"), 0
        for i, episode in store:
            weights = int(episode.meta.get("weights", before))
            self.world.check(weights >= before, "versions_grow", f"episode {i}: version {weights} after {before}")
            before = weights
            if "failure" in episode.privileged:
                lost = episode.privileged["failure"]
                whole = not lost[:-1].any() and (not lost[-1] or episode.terminated)
                self.world.check(whole, "env_ends", f"episode {i} goes on after the env's failure")


def steps_of_reward(learner: Any) -> int:
    """Steps whose rewards add up in a sampled transition."""
    if isinstance(learner, WeightedBcConfig):
        values = learner.method in ("advantage", "conditioned")
        return (learner.advantage_steps or FOREVER) if values else learner.action_horizon
    return learner.backup_horizon if learner.backup_horizon > 1 else getattr(learner, "n_step", 1)


def _digest(store: Store, episode_id: int) -> str:
    """Of what an episode holds, however its frames are stored."""
    episode = store.episode(episode_id)
    arrays = {**episode.frames, **episode.privileged, "state": episode.state, "actions": episode.actions}
    digest = hashlib.sha256(repr((episode.meta, episode.terminated, sorted(arrays))).encode())
    for name in sorted(arrays):
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()


def _label_key(ledger: Ledger, episode: int, number: int) -> tuple[int, str, float, str]:
    version = ledger.version(episode, number)
    labels = version.labels()
    data = labels.success.tobytes() + labels.labeled.tobytes()
    return episode, version.source, version.time, hashlib.sha256(data).hexdigest()[:16]


def _finite(tree: Any) -> bool:
    """Whether no number in a tree is NaN or infinite; evidence of 0, minus infinity as a logarithm, is a number."""
    if isinstance(tree, dict):
        return all(_finite(value) for value in tree.values())
    if isinstance(tree, list | tuple):
        return all(_finite(value) for value in tree)
    return not isinstance(tree, float) or not (math.isnan(tree) or tree == math.inf)
