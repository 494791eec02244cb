"""How large the program is and how its parts depend on each other.

    python benchmarks/structure.py [--base REV] [--quick]

The path of an episode is measured: a run is traced, and every file counts in which a function is called.

Cycles are counted between files, and every import counts: at the top of a file, inside a function, under
`TYPE_CHECKING`. A file that is part of a cycle cannot be read, tested or moved alone. `from plaudit.data import store`
is an import of plaudit/data/store.py, not of the package's `__init__.py`.
"""

import argparse
import ast
import contextlib
import functools
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bars import Bars

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src/plaudit"
MAX_LINES, MAX_FILES, MAX_TOP_LEVEL, MAX_PROTOCOLS = 50_000, 300, 10, 12
MAX_EPISODE_FILES, MAX_LABEL_FILES = 20, 12


class Size(NamedTuple):
    """A file or a function and its lines."""

    lines: int
    name: str


class Structure(NamedTuple):
    """The modules of a package and what is in them."""

    files: Mapping[str, Path]  # module -> its file
    imports: Mapping[str, set[str]]  # module -> modules of the package that it imports

    @classmethod
    def read(cls, source: Path = SOURCE) -> "Structure":
        """Parse every file of the package."""
        files = {_module_name(path, source): path for path in sorted(source.rglob("*.py"))}
        imports = {name: set(_imports(name, tree, files)) - {name} for name, tree in _trees(files)}
        return cls(files, imports)

    def cycles(self) -> list[list[str]]:
        """Groups of modules that import each other, largest first."""
        return sorted((group for group in _strong_components(self.imports) if len(group) > 1), key=len, reverse=True)

    def reachable(self, module: str) -> set[str]:
        """The modules that are imported with this one, however indirectly."""
        seen, todo = set(), [module]
        while todo:
            name = todo.pop()
            if name not in seen:
                seen.add(name)
                todo += self.imports[name]
        return seen

    def protocols(self) -> list[str]:
        """Public classes that derive from `typing.Protocol`."""
        return sorted(
            f"{module}.{node.name}"
            for module, tree in _trees(self.files)
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and _is_protocol(node)
        )

    def file_sizes(self) -> list[Size]:
        """Longest first."""
        return sorted(
            (Size(len(path.read_text().splitlines()), name) for name, path in self.files.items()), reverse=True
        )

    def function_sizes(self) -> list[Size]:
        """Longest first; a method counts as a function."""
        return sorted(
            (
                Size((node.end_lineno or 0) - node.lineno + 1, f"{module}.{node.name}")
                for module, tree in _trees(self.files)
                for node in ast.walk(tree)
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            ),
            reverse=True,
        )

    def docstring_coverage(self) -> float:
        """Fraction of the public modules, classes and functions that have a docstring."""
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        nodes = [node for _, tree in _trees(self.files) for node in ast.walk(tree) if isinstance(node, kinds)]
        public = [node for node in nodes if not getattr(node, "name", "").startswith("_")]
        return sum(ast.get_docstring(node) is not None for node in public) / len(public)


def _trees(files: Mapping[str, Path]) -> Iterator[tuple[str, ast.Module]]:
    """Each module and its syntax tree, one at a time: all together they keep the garbage collector busy for longer than
    it takes to parse them."""
    for name, path in files.items():
        yield name, ast.parse(path.read_text())


def _module_name(path: Path, source: Path) -> str:
    parts = path.relative_to(source.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    """All statements under a node. Expressions are passed over: they contain none, and are nine tenths of a tree."""
    for block in ("body", "orelse", "finalbody", "handlers", "cases"):
        for inner in getattr(node, block, ()):
            if isinstance(inner, ast.stmt):
                yield inner
            yield from _statements(inner)


def _imports(module: str, tree: ast.Module, files: Mapping[str, Path]) -> Iterator[str]:
    for node in _statements(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in files)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")[
                    : -node.level if files[module].stem != "__init__" else 1 - node.level or None
                ]
                base = ".".join([*parents, base]).rstrip(".")
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                if inner in files:
                    yield inner
                elif base in files:
                    yield base


def _is_protocol(node: ast.ClassDef) -> bool:
    bases = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
    names = {
        base.attr if isinstance(base, ast.Attribute) else base.id
        for base in bases
        if isinstance(base, ast.Attribute | ast.Name)
    }
    return "Protocol" in names


def _strong_components(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Tarjan's algorithm, without recursion."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []
    for root in graph:
        work = [] if root in index else [(root, iter(sorted(graph[root])))]
        while work:
            node, others = work[-1]
            if node not in index:
                index[node] = low[node] = len(index)
                stack.append(node)
            for other in others:
                if other not in index:
                    work.append((other, iter(sorted(graph[other]))))
                    break
                if other in stack:
                    low[node] = min(low[node], index[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    place = stack.index(node)
                    found.append(sorted(stack[place:]))
                    del stack[place:]
    return found


def measure_path(source: Path) -> dict[str, list[str]]:
    """The files in which a function is called while an online episode is recorded and stored, and while it is labeled.

    Runs `plaudit online --serial` on `lift` with a small classifier, in a process of its own.
    """
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPATH": str(source.parent), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, __file__, "--trace", folder]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        path = Path(folder, "path.json")
        if not path.exists():
            sys.exit(f"the path could not be measured:\n{done.stdout}{done.stderr}")
        return json.loads(path.read_text())


def trace(folder: Path) -> None:
    """Write path.json: what `measure_path` returns."""
    import plaudit.cli
    from plaudit.training.workers.env import EnvWorker
    from plaudit.training.workers.labelers import JudgeWorker

    source, calls = f"{Path(plaudit.cli.__file__).parents[1]}/", {}

    def run(*words: str) -> None:
        sys.argv = ["plaudit", *words]
        with contextlib.suppress(SystemExit):
            plaudit.cli.main()

    def traced(cls: Any, name: str) -> None:
        real = getattr(cls, name)

        @functools.wraps(real)
        def call(*args: Any, **kwargs: Any) -> Any:
            files = set[str]()

            def note(frame: Any, event: str, _: Any) -> None:
                if event == "call" and frame.f_code.co_filename.startswith(source):
                    files.add(frame.f_code.co_filename.removeprefix(source))

            sys.setprofile(note)
            try:
                return real(*args, **kwargs)
            finally:
                sys.setprofile(None)
                calls.setdefault(name, []).append(files)

        setattr(cls, name, call)

    data, judge = str(folder / "data"), str(folder / "judge")
    run("collect", data, "--target-success", "6", "--target-failure", "6")
    run("train-reward", data, "-o", judge, "encoder=small", "epochs=1")
    traced(EnvWorker, "rollout")
    traced(JudgeWorker, "label_pending")
    config = (
        "env=lift env.obs=both env.image_size=[64,64] env.max_steps=10 learner=sac policy.cameras=[] audit.fraction=0"
    )
    run("online", *config.split(), f"judge={judge}", "judge.force=true", "run.max_episodes=6", "--serial",
        "--folder", str(folder / "runs"))  # fmt: skip
    episode = calls["rollout"][2]  # the first ones also start things
    label = max(calls["label_pending"][1:], key=len) - episode
    (folder / "path.json").write_text(json.dumps({"episode": sorted(episode), "label": sorted(label)}))


@contextlib.contextmanager
def source_at(revision: str) -> Iterator[Path]:
    """The package as of another revision, in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", revision, "src"], cwd=ROOT, capture_output=True, check=False)
        if archive.returncode:
            sys.exit(f"there is no revision '{revision}': {archive.stderr.decode().strip()}")
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        yield Path(folder, "src/plaudit")


def figures(source: Path, *, path: bool) -> dict[str, float]:
    """By name, in the order in which they are printed."""
    structure = Structure.read(source)
    files, functions = structure.file_sizes(), structure.function_sizes()
    lengths = [size.lines for size in functions]
    found: dict[str, float] = {
        "lines": sum(size.lines for size in files),
        "files": len(files),
        "top-level modules": sum(1 for file in source.glob("*.py") if not file.stem.startswith("__")),
        "import cycles": len(structure.cycles()),
        "public protocols": len(structure.protocols()),
        "functions": len(functions),
        **{f"function length p{p}": float(np.percentile(lengths, p)) for p in (50, 90, 99)},
        "longest function": functions[0].lines,
        "longest file": files[0].lines,
        "docstring coverage, %": 100 * structure.docstring_coverage(),
        "modules that training.config imports": len(structure.reachable("plaudit.training.config")) - 1,
    }
    for package in sorted(p for p in source.iterdir() if p.is_dir() and any(p.rglob("*.py"))):
        found[f"lines of {package.name}/"] = sum(len(f.read_text().splitlines()) for f in package.rglob("*.py"))
    if path:
        through = measure_path(source)
        found["files from the robot to the disk"] = len(through["episode"])
        found["more files to the label"] = len(through["label"])
        for name, names in through.items():
            print(f"{name}: {', '.join(names)}\n")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="without the path of an episode, which is measured")
    parser.add_argument("--base", metavar="REV", help="a revision to compare with")
    parser.add_argument("--trace", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.trace is not None:
        trace(options.trace)
        return
    now, before = figures(SOURCE, path=not options.quick), {}
    if options.base:
        with source_at(options.base) as source:
            before = figures(source, path=not options.quick)
    for name in dict.fromkeys([*now, *before]):
        print(f"{name:38} {before.get(name, math.nan):10,.0f} {now.get(name, math.nan):10,.0f}")
    bars = Bars()
    bars.at_most("structure_source_lines", now["lines"], MAX_LINES)
    bars.at_most("structure_files", now["files"], MAX_FILES)
    bars.at_most("structure_top_level_modules", now["top-level modules"], MAX_TOP_LEVEL)
    bars.at_most("structure_protocols", now["public protocols"], MAX_PROTOCOLS)
    bars.at_most("structure_cycles", now["import cycles"], 0)
    if options.quick:
        bars.left_out("the files that an online episode passes on its way to the disk and to its label")
    else:
        bars.at_most("structure_episode_files", now["files from the robot to the disk"], MAX_EPISODE_FILES)
        bars.at_most("structure_label_files", now["more files to the label"], MAX_LABEL_FILES)
    bars.report()


if __name__ == "__main__":
    main()
