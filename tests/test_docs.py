"""The documents tell the truth: what they name exists."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

import glow
from command import COMMANDS, check_command, plaudit
from plaudit.config import read_yaml
from plaudit.errors import ConfigError
from plaudit.training.config_file import load_training_config

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")] + sorted(
    (ROOT / "docs").glob("*.md")
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", prose):
        if "://" not in target:
            path = page.parent / target if target else page
            assert path.exists(), f"{page.name} links to {target}"
            assert not anchor or anchor in anchors(path), f"{page.name} links to {target}#{anchor}"


def anchors(page: Path) -> set[str]:
    """Its headings, as GitHub turns them into anchors."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_named_in_code_style_exist(page):
    for name in re.findall(r"`((?:src|tests|benchmarks|examples|docs)/[\w./-]+)`", page.read_text()):
        assert (ROOT / name).exists(), f"{page.name} names {name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_examples_import_exists(page):
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL):
        for line in re.findall(r"^from plaudit[\w.]* import .+$", block, flags=re.MULTILINE):
            exec(line, {})


@pytest.mark.parametrize("picture", sorted((ROOT / "docs/images").iterdir()), ids=lambda picture: picture.name)
def test_a_script_makes_every_picture(picture):
    if picture.name != "operator.svg":  # exported from the screen of a run
        makers = [*ROOT.glob("scripts/*.py"), *ROOT.glob("benchmarks/*.py")]
        assert any(picture.name in maker.read_text() for maker in makers)


RUNNABLE = [page for page in PAGES if page.name != "CHANGELOG.md"]


def shown_commands(page: Path) -> list[str]:
    """Every `plaudit ...` of a page, in a block or in the middle of a sentence."""
    text = page.read_text()
    fence = re.compile(r"^```\w*\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)
    blocks = "\n".join(fence.findall(text)).replace("\\\n", " ")
    lines = re.findall(r"^(?:\$ )?(?:\w+=\S+ )*(plaudit .*)$", blocks, flags=re.MULTILINE)
    return lines + [" ".join(span.split()) for span in re.findall(r"`(plaudit [^`]+)`", fence.sub("", text))]


@pytest.mark.parametrize("page", RUNNABLE, ids=lambda page: page.name)
def test_every_command_that_a_page_shows_is_one(page):
    for line in shown_commands(page):
        check_command(line)


def training_words(line: str) -> tuple[str, Path | None, list[str]] | None:
    """The command, file and keys of a line that trains; None for other lines and for those with a part left out."""
    name, *words = shlex.split(line, comments=True)[1:]
    if name not in ("train", "online") or "..." in words or not words:
        return None
    command: Any = COMMANDS.commands[name]  # type: ignore[attr-defined]
    given, _, _ = command.make_parser(typer.Context(command)).parse_args(words)
    if given.get("resume") or not (given.get("overrides") or given.get("config")):
        return None
    file = Path(given["config"]) if given.get("config") else None
    return (name, file, given.get("overrides") or []) if file is None or file.exists() else None


EXPECTED = (
    "there is no such file",  # that an earlier command makes
    "goes by another name here",  # of other stacks, which a page lists
    "a chunk would run out before the next is there",  # an error that a page shows
)


@pytest.mark.parametrize("page", RUNNABLE, ids=lambda page: page.name)
def test_the_keys_of_every_training_command_are_accepted(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(ROOT / "examples/plugins")
    for line in filter(None, map(training_words, shown_commands(page))):
        try:
            load_training_config(*line)
        except ConfigError as error:
            assert any(reason in str(error) for reason in EXPECTED), line


NOT_EXECUTED = {  # command -> why no test runs it
    "demo": "takes minutes, and `make demo` fails if its policy does; tests run its stages",
    "judge serve": "its app is tested in tests/web/test_judge_server.py; the command only starts uvicorn",
    "serve-policy": "its server is tested in tests/rollout/test_policy_server.py; the command only starts it",
    "cluster status": 'run as `nodes.cluster("status")` in tests/cluster/test_cluster_nodes.py',
    "cluster stop": 'run as `nodes.cluster("stop")` in tests/cluster/test_cluster_nodes.py',
}


def subcommand(line: str) -> str:
    """`plaudit data import X Y` -> "data import"."""
    words = shlex.split(line, comments=True)[1:]
    command: Any = COMMANDS
    path = []
    while hasattr(command, "commands") and words and words[0] in command.commands:
        path.append(words.pop(0))
        command = command.commands[path[-1]]
    return " ".join(path)


def test_every_command_that_a_page_shows_is_executed_by_a_test():
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__))
    shown = {subcommand(line) for page in RUNNABLE for line in shown_commands(page)} - {"", *NOT_EXECUTED}
    groups = {name for name, command in COMMANDS.commands.items() if hasattr(command, "commands")}  # type: ignore[attr-defined]
    for name in sorted(shown - groups):
        words = re.escape(name).replace(r"\ ", "[\"', ]+")
        assert re.search(rf"[\"'`(]{words}[\"' ]", tests), f"no test executes plaudit {name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_targets_of_make_and_the_scripts_that_a_page_shows_exist(page):
    code = re.compile(r"^```\w*\n(.*?)^```|(`[^`\n]+)", flags=re.DOTALL | re.MULTILINE)
    text = "\n".join(block + span for block, span in code.findall(page.read_text()))
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert set(re.findall(r"(?:^|`)make ([a-z-]+)", text, flags=re.MULTILINE)) <= targets
    for script in re.findall(r"(?:^|`|sudo )(?:python|bash) ([\w/]+\.(?:py|sh))", text, flags=re.MULTILINE):
        folders = (ROOT, ROOT / "examples/rlinf")
        assert any((folder / script).exists() for folder in folders), f"{page.name} runs {script}"


def test_commands_are_found_in_blocks_and_in_sentences():
    lines = shown_commands(ROOT / "README.md")
    assert any(line.startswith("plaudit train env=lift") and "policy.encoder=cloned" in line for line in lines)
    assert "plaudit config show learner.sac" in lines
    assert len([line for page in RUNNABLE for line in shown_commands(page)]) > 150


def test_the_annotated_tree_is_true():
    tree = (ROOT / "docs/architecture.md").read_text().split("```text\n")[1].split("```")[0]
    folders: dict[int, str] = {}
    named = set()
    for line in tree.splitlines():
        match = re.match(r"^( *)([\w./]+)", line)
        if not match:
            continue
        depth, name = len(match[1]), match[2]
        parent = "".join(folder for d, folder in sorted(folders.items()) if d < depth)
        folders = {d: f for d, f in folders.items() if d < depth}
        if name.endswith("/"):
            folders[depth] = name
        assert (ROOT / parent / name).exists(), f"the tree names {parent}{name}"
        named.add(parent + name)
    top = {p.name for p in (ROOT / "src/plaudit").iterdir() if p.suffix == ".py" and p.name != "__init__.py"}
    assert {f"src/plaudit/{name}" for name in top} <= named, f"the tree names {named}, and there is {top}"


def test_files_that_the_source_mentions_exist():
    """In docstrings and comments; a name in quotes is a file that the code writes."""
    files = [path.as_posix() for pattern in ("*.py", "src/**/*.py", "benchmarks/*.py") for path in ROOT.glob(pattern)]
    stale = [
        f"{path.relative_to(ROOT)} mentions {name}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        for name in re.findall(r"(?<![\w./\"-])((?:\w+/)*\w+\.py)\b", path.read_text())
        if not any(file.endswith(f"/{name}") for file in files)
    ]
    assert not stale


FLAG = re.compile(r"(?<![\w-])--[a-z][\w-]*(?![\w-])(?<!-)")
FOREIGN = {  # flags of other programs that a message or a page names
    *("--logdir", "--no-build-isolation", "--max-logprobs", "--limit-mm-per-prompt"),  # tensorboard, pip, vllm
    "--local-dir",  # hf download
    "--project",  # trackio show
    *("--config-path", "--config-name", "--positive-dir"),  # RLinf's scripts
    *("--block", "--disable-usage-stats", "--no-monitor", "--node-ip-address"),  # ray
    *("--watchdog_ms", "--figure"),  # the process of a twin, benchmarks/rtc.py
    *("--runs", "--replay"),  # benchmarks/simulate.py
    "--pretrained-path",  # the converter of lerobot
    *(
        "--robot",
        "--teleop",
        "--dataset",
        "--resume",
        "--play_sounds",
        "--display_data",
        "--teleop.X",
    ),  # lerobot-record
}


def options_of(command: Any) -> set[str]:
    params = command.get_params(typer.Context(command))
    own = {name for option in params for name in (*option.opts, *option.secondary_opts)}
    return own.union(*(options_of(inner) for inner in getattr(command, "commands", {}).values()))


def test_every_flag_that_a_message_or_a_page_names_exists():
    known = options_of(COMMANDS) | FOREIGN | {"--help"}
    pages = [page for page in PAGES if page.name not in ("results.md", "CHANGELOG.md")]  # flags of benchmarks; history
    for path in [*pages, *(ROOT / "src").rglob("*.py")]:
        assert set(FLAG.findall(path.read_text())) <= known, f"{path} names a flag that no command has"


def flat(tree: dict[str, Any], before: str = "") -> dict[str, Any]:
    """Dotted keys of a tree, blocks too."""
    inner = [flat(value, f"{before}{key}.") for key, value in tree.items() if isinstance(value, dict)]
    return {f"{before}{key}": value for key, value in tree.items()} | {k: v for one in inner for k, v in one.items()}


def tabled_keys() -> list[tuple[list[str], list[str]]]:
    """The rows of the tables of docs/train.md about keys: the keys, and what the other cells say."""
    rows = re.findall(r"^\| (`[a-z_]+\..*?) \|(.*)\|$", (ROOT / "docs/train.md").read_text(), flags=re.MULTILINE)
    found = [
        (re.findall(r"`([a-z_.]+)`", first), [cell.strip(" `") for cell in rest.split("|")]) for first, rest in rows
    ]
    return [
        ([key if key[0] != "." else keys[0].rpartition(".")[0] + key for key in keys], cells) for keys, cells in found
    ]


def test_every_key_in_the_tables_exists_and_has_the_default_that_is_told(tmp_path):
    known: dict[str, list[Any]] = {"policy.inference.type": [], "judge.retrain.*": []}
    for shown in ("", "collect", "learner.sac", "learner.qchunk", "learner.ppo", "judge.classifier", "env.lift"):
        (tmp_path / "shown.yaml").write_text(plaudit("config", "show", *filter(None, [shown]), cwd=tmp_path))
        for key, value in flat(read_yaml(tmp_path / "shown.yaml")).items():
            known.setdefault(key, []).append(value)
    assert len(tabled_keys()) > 90
    for keys, cells in tabled_keys():
        assert set(keys) <= set(known), f"docs/train.md names {keys}"
        for cell in cells[:-1] if len(keys) == 1 else []:
            if re.fullmatch(r"[\d.e-]+|true|false", cell):
                assert json.loads(cell) in known[keys[0]], f"docs/train.md: {keys[0]} is not {cell} by default"


KINDS = "audit|judge|person|loss|policy|eval|env|rollout|replay|learner|collect|time|critic"
OTHER_METRICS = {"loss/train", "eval/video"}  # of the page of a reward model; a video and no number
INTERVALS = ("corrected_success_rate", "false_successes", "missed_successes")


def documented() -> set[str]:
    lines = (ROOT / "docs/metrics.md").read_text().splitlines()
    cells = [line.split("|")[1] for line in lines if line.startswith("| `")]
    return {name for cell in cells for name in re.findall(r"`([a-z_]+/[a-z_]+)`", cell)}


def test_every_metric_in_the_code_is_defined_and_every_definition_has_code():
    files = [
        path
        for room in ("learners", "rollout", "training")
        for path in sorted((ROOT / "src/plaudit" / room).rglob("*.py"))
    ]
    text = "\n".join(path.read_text() for path in files)
    named = set(re.findall(rf'"((?:{KINDS})/[a-z_]+)"', text)) - OTHER_METRICS
    validated = {f"judge/val_{name}" for name in ("balanced_accuracy", "fpr", "fnr", "frame_fpr")}
    collected = {f"collect/{kind}" for kind in ("success", "failure")}
    bounds = {f"audit/{name}_{end}" for name in INTERVALS for end in ("low", "high")}
    assert 'f"judge/val_{name}"' in text and 'f"collect/{' in text and ".to_metrics(" in text
    assert named | validated | collected | bounds == documented()


@pytest.mark.parametrize("learner", ["sac", pytest.param("qchunk", marks=pytest.mark.slow)])
def test_every_metric_that_an_online_run_logs_is_defined(tmp_path, learner):
    glow.saved(glow.bright_model(0.8), tmp_path / "judge")
    words = (
        f"env=glow learner={learner} learner.hidden_dims=[8] learner.batch_size=8 "
        "judge=classifier judge.model=judge judge.rule.decode=per_frame policy.inference=sequential "
        "policy.inference.realtime=false policy.inference.max_episode_steps=12 "
        "policy.cameras=[] run.max_episodes=20 audit.fraction=1 evaluation.episodes=2 "
        "judge.retrain.min_episodes=1000 run.name=run"
    )
    plaudit("online", *words.split(), "--serial", cwd=tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "runs/run/metrics.jsonl").read_text().splitlines()]
    logged = {name for line in lines for name in line} - {"step"}
    assert logged <= documented()
    assert {
        "replay/unlabeled_episodes",
        "policy/staleness_s",
        "audit/episodes",
        "judge/version",
        "eval/success_once",
        "loss/critic",
    } <= logged
