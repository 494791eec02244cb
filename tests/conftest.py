"""Data you can follow by eye: action = step, state = 10 x step, and each frame is filled with its own number."""

import builtins
import gc
import importlib
import os
import shutil
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # several test processes share the cores, and torch's threads would spin
os.environ["CUDA_VISIBLE_DEVICES"] = ""  # numbers are compared with a processor's, whatever the machine has
os.environ["QT_QPA_PLATFORM"] = "offscreen"  # windows are tested without a screen; Qt reads this when it is imported

import hypothesis
import numpy as np
import pytest
from markupsafe import Markup

from plaudit.data.frame_codecs import Codec, StoreImages, decode_packets, encode_block, packets_of
from plaudit.data.rewards import Decisions, RewardConfig, learning_signal
from plaudit.data.store import Store
from plaudit.trust import CODE, HOSTS
from plaudit.types import Episode, Labels
from processes import FORKED_CHILDREN, keep_copy, make_films_small
from waiting import stretch
from workers import run_tests

gc.disable()  # until all is imported: the collector would look at millions of objects that stay, again and again

# A process that a shell starts in the background inherits Ctrl-C as ignored, and so would every child of these tests.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

MEMORY, MEMORY_NEEDED = Path("/dev/shm"), 4 << 30
LIMIT_S = 200.0  # of a test on a quiet machine; tests of clusters have twice that
pytest_plugins = ["cluster_fixtures", "vlm_fixtures"]

# The files that need most processor time run first, so that no test process is left alone with one of them at the end.
LONGEST = (
    *("test_vlm_tune", "test_policy_encoder", "test_online_command", "test_online", "test_reward", "test_simulator"),
    *("test_so101", "test_rynnvalue", "test_record", "test_encoders"),
    *("test_fit", "test_rtc_failures", "test_cli_reward", "test_rtc", "test_rollout_run", "test_trainer"),
    *("test_judge", "test_strangers", "test_rlinf_export", "test_rlinf", "test_cli_collect", "test_cli_cameras"),
    *("test_formats", "test_safety", "test_cli_config", "test_demo", "test_crash", "test_architecture"),
    *("test_hostile_sets", "test_retrain", "test_faults", "test_exam", "test_unseen", "test_cross_fit"),
    *("test_cli_env", "test_scripts", "test_cli", "test_replay", "test_store", "test_run"),
)
# What some tests import when they need it, for up to ten seconds of CPU time. Where all tests run, it is imported once,
# before the processes that run them are forked, instead of in each.
LAZY = (
    *("torch._dynamo", "torch.utils.tensorboard", "transformers.models.qwen3_vl.modeling_qwen3_vl", "peft"),
    *("sklearn.metrics", "sklearn.isotonic", "scipy.stats", "scipy.optimize", "uvicorn"),
)
MANY = 1000  # tests
REPORTS = Path(__file__).parent / "report"
MakeEpisode = Callable[..., Episode]
few = 100  # descriptors that were left by the last collection


hypothesis.settings.register_profile("fast", max_examples=50, deadline=None)
hypothesis.settings.register_profile("thorough", max_examples=1000, deadline=None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--jobs", type=int, default=1, help="processes that run tests; see tests/workers.py")


def pytest_configure(config: pytest.Config) -> None:
    """Few random examples where slow tests are left out, many where they are not; folders of tests in memory."""
    hypothesis.settings.load_profile("fast" if "not slow" in config.option.markexpr else "thorough")
    if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > MEMORY_NEEDED:  # stores sync to disk after every change
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


@pytest.hookimpl(trylast=True)
def pytest_sessionstart() -> None:
    """Imports as they are without PySide6, which pytest-qt loads: it looks for features of its own at every import."""
    builtins.__import__ = vars(builtins).get("__orig_import__", builtins.__import__)


def pytest_collection_finish(session: pytest.Session) -> None:
    """What was imported is never looked at again by the garbage collector: a seventh of the processor time of tests."""
    if session.config.option.jobs > 1 and len(session.items) > MANY:
        with warnings.catch_warnings(action="ignore"):
            for name in LAZY:
                importlib.import_module(name)
    gc.freeze()
    gc.enable()
    if session.items:
        keep_copy()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.stem, len(order)))


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """With `--jobs`, in several processes."""
    jobs = session.config.option.jobs
    if jobs < 2 or session.config.option.collectonly or session.testsfailed:
        return None
    run_tests(session, jobs)
    return True


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[object]:
    """No test hangs for ever, and none fails because the machine is busy with something else."""
    item.add_marker(pytest.mark.timeout(stretch(LIMIT_S * (2 if item.get_closest_marker("cluster") else 1))))
    return (yield)


@pytest.fixture(autouse=True)
def descriptors_stay_few() -> Iterator[None]:
    """A run that is over holds its files until the garbage is collected; many machines allow a process 1,024."""
    global few
    yield
    if _descriptors() > few + 200:
        gc.collect()
        few = _descriptors()


def _descriptors() -> int:
    with os.scandir("/dev/fd") as entries:
        return sum(1 for _ in entries)


@pytest.fixture(autouse=True)
def forked_children(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Child processes are forked from a process that has all imported; see tests/processes.py."""
    if "fresh_interpreters" not in request.fixturenames:
        monkeypatch.setattr("plaudit.processes.subprocess", FORKED_CHILDREN)


@pytest.fixture
def fresh_interpreters() -> None:
    """Child processes begin with nothing imported, as for a user: for tests of what they import."""


@pytest.fixture(autouse=True)
def nothing_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test allows files to ask for is not allowed in the next."""
    for name in (CODE, HOSTS):
        monkeypatch.setenv(name, "")


@pytest.fixture(scope="module", autouse=True)
def short_pages(request: pytest.FixtureRequest) -> Iterator[Callable[[], pytest.MonkeyPatch]]:
    """Matplotlib needs most of a short run's CPU time to write a page of charts, and films most of the rest; only
    `written_charts` has it do so. In tests of reports the curves of a chart go into its figure, which is not turned
    into text. Elsewhere a chart is left out, and films have few pixels.

    Of a module, so that what its fixtures make is short too. Yields what shortens pages anew.
    """
    with pytest.MonkeyPatch.context() as patch:

        def shorten() -> pytest.MonkeyPatch:
            reports = request.path.is_relative_to(REPORTS)
            if plots := sys.modules.get("plaudit.report.plots"):
                patch.setattr(plots, "to_svg" if reports else "render", lambda *_: Markup("<svg></svg>"))
            if not reports:
                make_films_small(patch.setattr)
            return patch

        shorten()
        yield shorten


@pytest.fixture
def written_charts(short_pages: Callable[[], pytest.MonkeyPatch]) -> Iterator[None]:
    """Pages are written as a user gets them: for tests that look at their charts."""
    short_pages().undo()
    yield
    short_pages()


def counting_episode(steps: int = 4, first: int = 0, size: tuple[int, int] = (8, 10), **facts: object) -> Episode:
    """Frame t is filled with first + t; state is 10 x that, action is t."""
    numbers = first + np.arange(steps + 1)
    height, width = size
    front = np.broadcast_to(numbers.astype(np.uint8)[:, None, None, None], (steps + 1, height, width, 3))
    return Episode.of(
        frames={"front": front},
        state=np.stack([10.0 * numbers, -numbers], axis=1),
        actions=np.arange(steps, dtype=np.float32)[:, None],
        **{"fps": 10.0, "task": "count", **facts},
    )


def episode_rewards(labels: Labels, env_info: Mapping[str, Any], config: RewardConfig, gamma: float) -> np.ndarray:
    """[T] the reward of each action of one episode; NaN where the observation after it is not labeled."""
    failed = np.asarray(env_info.get("failure", np.zeros(labels.steps, bool)))
    return learning_signal(Decisions.of(labels), failed, env_info, config, gamma).reward


def same_episode(one: Episode, other: Episode) -> bool:
    """Every array and every fact alike."""
    arrays = [(one.state, other.state), (one.actions, other.actions), (one.control_mode, other.control_mode)]
    arrays += [(one.frames[c], other.frames[c]) for c in one.frames]
    arrays += [(one.privileged[n], other.privileged[n]) for n in one.privileged]
    facts = ("task", "fps", "robot", "terminated", "padded")
    return (
        set(one.frames) == set(other.frames)
        and set(one.privileged) == set(other.privileged)
        and all(np.array_equal(a, b) for a, b in arrays)
        and all(getattr(one, fact) == getattr(other, fact) for fact in facts)
    )


def as_stored(episode: Episode, images: str) -> Episode:
    """The episode as a store with this setting returns it: with what its codecs decode to."""
    codecs = dict(StoreImages.parse(images).of(list(episode.frames)))
    return replace(
        episode, frames={c: _decoded(Codec.parse(codecs.get(c, "raw")), f) for c, f in episode.frames.items()}
    )


def _decoded(codec: Codec, frames: np.ndarray) -> np.ndarray:
    if codec.is_raw:
        return frames
    packets = packets_of(np.frombuffer(encode_block(codec, frames), np.uint8), 0, len(frames) - 1)
    return np.stack(list(decode_packets(codec, packets, *frames.shape[1:3])))


def labeled_store(folder: Path, *episodes: Episode, cutoff: int | None = None, **options: int) -> Store:
    """A store of these episodes, each labeled with success from `cutoff` on."""
    store = Store.create(folder, **options)
    for episode in episodes:
        labels = Labels.from_cutoff(steps=episode.steps, cutoff=cutoff, source="human")
        store.ledger.append(store.append(episode), labels)
    return store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store")
