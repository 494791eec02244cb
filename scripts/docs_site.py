# pyright: reportMissingImports=false
"""What `make docs` adds to mkdocs: generated pages, links to files outside docs/, and a check that nothing is loaded.

The pages of docs/ are written for GitHub as well, so they link to `../src/...` and to the files at the top of the
repository. Here these links lead to pages too: each file that a page names becomes a page with its text.
"""

import json
import re
from pathlib import Path
from typing import Any

import docs_reference
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
TOP = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")  # pages at the top of the repository
LINK = re.compile(r"(\[[^\]]*\]\()([^)#\s]+)((?:#[^)]*)?\))")
FENCE = re.compile(r"(^```.*?^```$)", flags=re.DOTALL | re.MULTILINE)
# What a browser would fetch while it shows a page; links that a reader may click are not among them.
LOADED = re.compile(
    r"""(?:<(?:script|img|iframe|source|video)[^>]*\ssrc|<link[^>]*\shref|@import|url\()\s*=?\s*["'(]?(?:https?:)?//[^"')\s>]+"""
)
LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".sh": "bash", ".toml": "toml", ".json": "json"}

API = {  # page -> its title, and what it shows
    "functions": ("Functions", ["plaudit.training.api"]),
    "data": ("Episodes and stores", ["plaudit.types", "plaudit.data.store.Store", "plaudit.data.ledger.Ledger"]),
    "replay": ("Replay", ["plaudit.data.replay.ReplaySampler", "plaudit.data.batch"]),
    "protocols": ("Protocols", ["plaudit.protocols"]),
    "plugins": ("Plugins", ["plaudit.registry.Registry", "plaudit.config.Config", "plaudit.contracts"]),
    "errors": ("Errors", ["plaudit.errors"]),
}


def on_config(config: Any) -> Any:
    """Add the generated pages to the navigation."""
    nav = {name: pages for section in config.nav for name, pages in section.items()}
    keys = [{title: path} for path, title, _ in docs_reference.choices()]
    commands = [{title: path} for path, title, _ in docs_reference.commands()]
    nav["Reference"][:0] = [{"Commands": commands}, {"Config keys": keys}]
    nav["Python API"] += [{title: f"api/{name}.md"} for name, (title, _) in API.items()]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the reference, the API, the notebooks, the top of the repository and the files they link to."""
    pages = {path: text for path, _, text in (*docs_reference.choices(), *docs_reference.commands())}
    for name, (title, members) in API.items():
        pages[f"api/{name}.md"] = "\n\n".join([f"# {title}", *(f"::: {member}" for member in members)])
    for notebook in sorted((ROOT / "docs/notebooks").glob("*.ipynb")):
        pages[f"notebooks/{notebook.stem}.md"] = notebook_page(notebook)
    for name in TOP:
        pages[name] = (ROOT / name).read_text()
    shown = [file.src_uri for file in files.documentation_pages()]
    texts = [*pages.items(), *((uri, (ROOT / "docs" / uri).read_text()) for uri in shown)]
    for uri, text in texts:
        for target in LINK.findall(FENCE.sub("", text)):
            path = outside(uri, target[1])
            if path is not None and path.name not in (*TOP, "README.md"):
                pages[file_page(path)] = file_text(path)
    for uri, text in pages.items():
        files.append(File.generated(config, uri, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Lead the links to files outside docs/ to their pages."""
    uri = page.file.src_uri

    def lead(match: re.Match[str]) -> str:
        if match[2].endswith(".ipynb"):
            return f"{match[1]}{match[2].removesuffix('.ipynb')}.md{match[3]}"
        path = outside(uri, match[2])
        if path is None:
            return match[0]
        inside = path.is_relative_to(ROOT / "docs")
        target = path.relative_to(ROOT / "docs").as_posix() if inside else file_page(path)
        return f"{match[1]}{'../' * uri.count('/')}{target}{match[3]}"

    parts = FENCE.split(markdown)
    return "".join(part if part.startswith("```") else LINK.sub(lead, part) for part in parts)


def outside(uri: str, target: str) -> Path | None:
    """The file of the repository that a link means, if the page of docs/ does not name it as mkdocs does."""
    if "://" in target or target.startswith("mailto:"):
        return None
    folder = ROOT if uri in TOP else (ROOT / "docs" / uri).parent
    path = (folder / target).resolve()
    if path.is_relative_to(ROOT / "docs") and uri not in TOP:
        return None
    return path if path.exists() and path.is_relative_to(ROOT) else None


def file_page(path: Path) -> str:
    """The page of a file outside docs/."""
    name = path.relative_to(ROOT).as_posix()
    return {"README.md": "index.md"}.get(name, name if name in TOP else f"files/{name}.md")


def file_text(path: Path) -> str:
    """A page with the text of a file, or of all files of a folder."""
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.suffix in LANGUAGES)
    parts = [f"# {path.relative_to(ROOT).as_posix()}"]
    for file in files:
        parts += [f"## {file.relative_to(path).as_posix()}"] if file != path else []
        parts += [f"````{LANGUAGES.get(file.suffix, 'text')}\n{file.read_text()}\n````"]
    return "\n\n".join(parts)


def notebook_page(path: Path) -> str:
    """A notebook as Markdown: text, code, and printed output."""
    parts = []
    for cell in json.loads(path.read_text())["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        printed = "".join(line for output in cell.get("outputs", ()) for line in output.get("text", ()))
        parts += [f"```text\n{printed}\n```"] if printed else []
    return "\n\n".join(parts)


def on_post_build(config: Any) -> None:
    """Refuse a site that loads anything from another place: it must work without a network."""
    site = Path(config.site_dir)
    for file in sorted([*site.rglob("*.html"), *site.rglob("*.css")]):
        loads = LOADED.search(file.read_text())
        if loads:
            raise PluginError(f"{file.relative_to(site)} loads something from the network: {loads[0]}")
