"""Folders to and from the Hugging Face Hub. Only the commands `plaudit hub push` and `plaudit hub pull` call this.

A pulled folder is somebody else's: its size is limited before anything is downloaded, pickles are left out, paths that
lead outside are refused, every file is a regular one, and the folder gets its name when all files are complete.
"""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from plaudit.data.disk import WRITER_LOCK, Folder
from plaudit.data.transfer import check_new
from plaudit.errors import BadFile, DataError, PlauditError, TargetNotEmpty, import_extra
from plaudit.files import Root, brief, read_own

Kind = Literal["data set", "judge", "policy"]
RepoType = Literal["model", "dataset"]

PICKLES = ("*.pkl", "*.pickle", "*.pt", "*.pth", "*.ckpt", "*.joblib", "*.dill", "*pytorch_model*.bin")
NOT_SENT = (WRITER_LOCK, "quarantine", "drafts", "label_requests.json")  # of a store: for this machine only
CARD = "README.md"
OWN_CARD = "library_name: plaudit"  # in the card of what Plaudit has pushed
MAX_FILES = 20_000
MAX_CARD = 16 << 20  # bytes


@dataclass(frozen=True)
class Repository:
    """One version of a repository on the Hub."""

    name: str  # USER/NAME
    type: RepoType
    revision: str  # of the commit
    files: Mapping[str, int]  # path -> bytes
    left_out: tuple[str, ...]  # pickles


def files_to_push(folder: Path) -> tuple[dict[str, Path], list[str]]:
    """Path in the repository -> file, of a folder; and the pickles, which are left out."""
    Folder(folder).check_no_links()
    paths = {path.relative_to(folder): path for path in sorted(folder.rglob("*")) if path.is_file()}
    sent = {
        name.as_posix(): path
        for name, path in paths.items()
        if not any(part.startswith(".") or part in NOT_SENT for part in name.parts)
    }
    if not 0 < len(sent) <= MAX_FILES:
        raise DataError(f"{folder} has {len(sent):,} files to push; a repository takes 1 to {MAX_FILES:,}")
    return {n: path for n, path in sent.items() if not _is_pickle(n)}, [n for n in sent if _is_pickle(n)]


def push(files: Mapping[str, Path], card: str, repo: str, kind: Kind, *, private: bool) -> str:
    """Make one commit of these files; returns its address. A repository that holds something else is not changed."""
    hub, repo_type = import_extra("huggingface_hub", "hub"), "dataset" if kind == "data set" else "model"
    with hub_errors(repo):
        api = hub.HfApi()
        api.create_repo(repo, repo_type=repo_type, private=private or None, exist_ok=True)
        there = set(api.list_repo_files(repo, repo_type=repo_type)) - {".gitattributes"}
        card_there = api.hf_hub_download(repo, CARD, repo_type=repo_type) if CARD in there else None
        if there and (card_there is None or not _is_own_card(Path(card_there))):
            raise TargetNotEmpty(f"{repo} holds files that Plaudit did not push; name a new repository")
        if CARD in files and not _is_own_card(files[CARD]):
            card += f"\n{_card_text(files[CARD])}"
        contents = {**files, CARD: card.encode()}
        operations = [hub.CommitOperationAdd(name, content) for name, content in contents.items()]
        operations += [hub.CommitOperationDelete(name) for name in sorted(there - {*contents})]
        commit = api.create_commit(repo, operations, commit_message="Push by plaudit", repo_type=repo_type)
        return str(commit.commit_url)


def find_repository(repo: str, revision: str | None = None) -> Repository:
    """Look a repository up. Nothing is downloaded.

    repo: USER/NAME, or datasets/USER/NAME where a model has the same name
    """
    hub, name = import_extra("huggingface_hub", "hub"), repo.removeprefix("datasets/")
    with hub_errors(repo):
        api, infos = hub.HfApi(), dict[RepoType, Any]()
        types: tuple[RepoType, ...] = ("dataset",) if name != repo else ("model", "dataset")
        for repo_type in types:
            try:
                infos[repo_type] = api.repo_info(name, repo_type=repo_type, revision=revision)
            except import_module("huggingface_hub.errors").RepositoryNotFoundError:
                if repo_type == types[-1] and not infos:
                    raise
        if len(infos) > 1:
            raise DataError(f"{name} is a model and a data set; write datasets/{name} for the data set")
        (repo_type, info), sizes = infos.popitem(), dict[str, int]()
        for entry in api.list_repo_tree(name, repo_type=repo_type, revision=info.sha, recursive=True):
            if isinstance(entry, hub.hf_api.RepoFile):
                sizes[entry.path] = entry.size
            if len(sizes) > MAX_FILES:
                raise DataError(f"{repo} has more than {MAX_FILES:,} files; no data set, judge or policy has so many")
    for path in sizes:
        Root(Path(repo)).inside(path)
        if not path.isprintable():
            raise BadFile(repo, f"it has a file named {brief(path)}; nothing was downloaded")
    shown = {path: size for path, size in sizes.items() if not any(part.startswith(".") for part in path.split("/"))}
    files = {path: size for path, size in shown.items() if not _is_pickle(path)}
    return Repository(name, repo_type, info.sha, files, tuple({*shown} - {*files}))


def pull(repository: Repository, target: Path, max_bytes: int) -> None:
    """Download a repository into a new folder. The same call resumes an interrupted download."""
    hub, nbytes = import_extra("huggingface_hub", "hub"), sum(repository.files.values())
    check_new(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(target.parent).free
    for limit, what in ((max_bytes, "the limit (--max-gb)"), (free, "free on the disk")):
        if nbytes > limit:
            sizes = f"has {nbytes / 1e9:,.1f} GB, and {limit / 1e9:,.1f} GB is {what}"
            raise DataError(f"{repository.name} {sizes}; nothing was downloaded")
    partial = target.with_name(f".{target.name}.download")
    with hub_errors(repository.name):
        hub.HfApi().snapshot_download(
            repository.name,
            repo_type=repository.type,
            revision=repository.revision,
            local_dir=partial,
            ignore_patterns=[*PICKLES, ".*", "*/.*"],
        )
    shutil.rmtree(partial / ".cache", ignore_errors=True)
    Folder(partial).check_no_links()
    for path in [path for path in partial.rglob("*") if path.is_file()]:
        if path.relative_to(partial).as_posix() not in repository.files:
            path.unlink()  # of another version, whose download was interrupted
    for name, listed in repository.files.items():
        size = (partial / name).stat().st_size if (partial / name).exists() else 0
        if size != listed:
            shutil.rmtree(partial)
            raise BadFile(repository.name, f"{brief(name)} has {size:,} bytes, and the Hub lists {listed:,}")
    if target.exists():
        target.rmdir()  # fails when something came into it meanwhile
    partial.rename(target)


def _is_own_card(path: Path) -> bool:
    return OWN_CARD in _card_text(path)


def _card_text(path: Path) -> str:
    return read_own(path, MAX_CARD).decode(errors="replace")


def _is_pickle(path: str) -> bool:
    return any(fnmatch(path.lower(), pattern) for pattern in PICKLES)


@contextmanager
def hub_errors(repo: str) -> Iterator[None]:
    """Raise what the client of the Hub raises as a DataError that says what to do."""
    errors = import_module("huggingface_hub.errors")  # no attribute of the package
    try:
        yield
    except PlauditError:
        raise
    except errors.RepositoryNotFoundError as error:
        problem = "it does not exist, or you may not see it; check the name, or log in with 'hf auth login'"
        raise DataError(f"{repo}: {problem}") from error
    except errors.RevisionNotFoundError as error:
        raise DataError(f"{repo}: it has no such revision; name a branch, a tag or a commit") from error
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise DataError(f"{repo}: the Hub cannot do this: {lines[0]}") from error
