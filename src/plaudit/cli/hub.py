"""`plaudit hub`: data sets, judges and policies to and from the Hugging Face Hub."""

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

from plaudit.cli.common import out, stop, tell
from plaudit.cli.options import Option, command, group
from plaudit.errors import DataError, format_count

hub = group("hub", "Push data sets, judges and policies to the Hugging Face Hub, and pull them.")
LEFT_OUT = "{} is left out: a pickle can run code when it is loaded"


@command(hub, "push")
def push(
    path: Path,  # The folder of a store, a LeRobot data set, a judge or a policy.
    repo: Annotated[str, Option(metavar="USER/NAME", help="The repository; created if it does not exist.")],
    *,
    private: bool = False,  # Create a private repository.
) -> None:
    """Push a folder to the Hugging Face Hub, with a card.

    The card of a judge has the verdict of its exam. Pickles are left out. Log in first with 'hf auth login'.
    """
    from plaudit.data import hub
    from plaudit.data.disk import Folder, lock
    from plaudit.data.formats.base import size_text
    from plaudit.data.store import is_store
    from plaudit.report.card import kind_of, make_card
    from plaudit.report.verdict import Verdict, quoted

    kind = kind_of(path)
    with lock(Folder(path)) if is_store(path) else nullcontext():  # no other process writes to a store meanwhile
        files, left_out = hub.files_to_push(path)
        card, size = make_card(path, kind, repo), sum(file.stat().st_size for file in files.values())
        tell("note", f"{path}: a {kind}, {format_count(len(files), 'file')}, {size_text(size)}")
        tell("note", *map(LEFT_OUT.format, left_out))
        address = hub.push(files, card, repo, kind, private=private)
    name = f"datasets/{repo}" if kind == "data set" else repo
    following = "Use it on another machine", f"plaudit hub pull {quoted(name)} {quoted(path.name)}"
    why = f"It has {format_count(len(files), 'file')} of {path}."
    out.print(Verdict(f"Pushed: {address}", why, *following, tone="good"))


@command(hub, "pull")
def pull(
    repo: Annotated[str, Option(metavar="USER/NAME", help="The repository; or datasets/USER/NAME.")],
    path: Path,  # The folder to create.
    *,
    revision: str | None = None,  # A branch, a tag or a commit.
    max_gb: Annotated[float, Option(min=0.001, max=1e6)] = 50.0,  # Refuse a repository that is larger.
) -> None:
    """Pull a repository of the Hugging Face Hub into a new folder.

    Nothing is overwritten, and no code is run. Pickles are left out. The same command resumes an interrupted download.
    """
    from plaudit.data import hub
    from plaudit.data.formats.base import size_text
    from plaudit.data.transfer import check_new
    from plaudit.report.verdict import Verdict

    check_new(path)
    version = hub.find_repository(repo, revision)
    size = size_text(sum(version.files.values()))
    what = f"{version.name} at {version.revision[:12]}: {format_count(len(version.files), 'file')}, {size}"
    tell("note", what)
    tell("note", *map(LEFT_OUT.format, version.left_out))
    try:
        hub.pull(version, path, int(max_gb * 1e9))
    except KeyboardInterrupt:
        stop("interrupted; the same command resumes the download")
    out.print(Verdict(f"It was pulled into {path}.", f"{what}.", *_use(path), tone="good"))


def _use(path: Path) -> tuple[str, str]:
    """What to do with a folder from the Hub, and the command."""
    from plaudit.report.card import kind_of
    from plaudit.report.verdict import quoted

    try:
        kind = kind_of(path)
    except DataError:  # of another program
        return "Read its card, README.md", ""
    return {
        "data set": ("Show its contents", f"plaudit data info {quoted(path)}"),
        "judge": ("Examine it on your episodes", f"plaudit judge exam {quoted(path)} STORE"),
        "policy": ("Evaluate it", f"plaudit eval {quoted(path)} --env TASK"),
    }[kind]
