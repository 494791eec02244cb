"""How large the program is and how it hangs together, read from the source without importing it.

    python benchmarks/structure.py [--quick]

Cycles are counted between files, and every import counts: at the top of a file, inside a function, under
`TYPE_CHECKING`. A file that is part of a cycle cannot be read, tested or moved alone. `from plaudit.data import store`
is an import of plaudit/data/store.py, not of the package's `__init__.py`.
"""

import argparse
import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from bars import Bars

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src/plaudit"
ONLINE_LOOPS = ("plaudit.training.online", "plaudit.online.conductor")  # the module of the loop, by its newest name
MAX_LINES, MAX_PROTOCOLS, MAX_FILE, MAX_FUNCTION = 30_000, 12, 400, 60
SHOWN = 5


class Size(NamedTuple):
    """A file or a function and its lines."""

    lines: int
    name: str


class Structure(NamedTuple):
    """The modules of a package and what is in them."""

    trees: Mapping[str, ast.Module]  # module -> its syntax tree
    files: Mapping[str, Path]  # module -> its file
    imports: Mapping[str, set[str]]  # module -> modules of the package that it imports

    @classmethod
    def read(cls, source: Path = SOURCE) -> "Structure":
        """Parse every file of the package."""
        files = {_module_name(path, source): path for path in sorted(source.rglob("*.py"))}
        trees = {name: ast.parse(path.read_text()) for name, path in files.items()}
        imports = {name: set(_imports(name, tree, files)) - {name} for name, tree in trees.items()}
        return cls(trees, files, imports)

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
            for module, tree in self.trees.items()
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
                for module, tree in self.trees.items()
                for node in ast.walk(tree)
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            ),
            reverse=True,
        )


def _module_name(path: Path, source: Path) -> str:
    parts = path.relative_to(source.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(module: str, tree: ast.Module, files: Mapping[str, Path]) -> Iterator[str]:
    for node in ast.walk(tree):
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the same: it takes a few seconds")
    parser.parse_args()
    structure = Structure.read()
    files, functions, protocols, cycles = (
        structure.file_sizes(),
        structure.function_sizes(),
        structure.protocols(),
        structure.cycles(),
    )
    lines = sum(size.lines for size in files)
    loop = next(module for module in ONLINE_LOOPS if module in structure.files)
    print(f"{lines:,} lines in {len(files)} files, {len(functions):,} functions")
    print(f"{loop} imports {len(structure.reachable(loop)) - 1} modules of plaudit")
    print(f"{len(protocols)} public Protocols: {', '.join(name.rpartition('.')[2] for name in protocols)}")
    for group in cycles:
        print(f"cycle of {len(group)} files: {', '.join(group)}")
    for what, sizes, limit in (("files", files, MAX_FILE), ("functions", functions, MAX_FUNCTION)):
        print(f"{sum(size.lines > limit for size in sizes)} {what} of more than {limit} lines; the longest:")
        for size in sizes[:SHOWN]:
            print(f"  {size.lines:5} {size.name}")
    bars = Bars()
    bars.at_most("structure_source_lines", lines, MAX_LINES)
    bars.at_most("structure_protocols", len(protocols), MAX_PROTOCOLS)
    bars.at_most("structure_cycles", len(cycles), 0)
    bars.at_most("structure_longest_file", files[0].lines, MAX_FILE)
    bars.at_most("structure_longest_function", functions[0].lines, MAX_FUNCTION)
    bars.report()


if __name__ == "__main__":
    main()
