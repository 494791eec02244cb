"""`plaudit serve`: episodes, labeling, runs and judges in a browser."""

import os
import secrets
import socket
import sys
import webbrowser
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated

import typer

from plaudit.cli import main
from plaudit.cli.common import out, tell
from plaudit.cli.options import Option, app, command
from plaudit.errors import DataError, import_extra
from plaudit.processes import exit_with_parent

TOKEN_VARIABLE = "PLAUDIT_TOKEN"
MIN_TOKEN = 12  # characters
GRACE_S = 2  # for open pages, when the server ends


@command(app, "serve")
def serve(
    folders: Annotated[
        list[Path] | None,
        Option(
            metavar="[STORE|RUN|FOLDER]...",
            help="Stores, runs, judges or folders that contain them; by default the current folder.",
        ),
    ] = None,
    *,
    host: str = "127.0.0.1",  # Address to listen on; any other than this machine's requires a token.
    port: Annotated[int, Option(min=0, max=65535)] = 8420,  # The port; 0: any free one.
    # Access token for the pages. Random by default if other machines can reach the address.
    token: Annotated[str | None, Option(envvar=TOKEN_VARIABLE)] = None,
    page: Annotated[str, Option(hidden=True)] = "",  # The page that the printed address opens, like #/label/data.
    browse: Annotated[bool, Option(hidden=True)] = False,  # Open it in a browser.
) -> None:
    """Show and label episodes in a browser, monitor runs, import data sets and train judges.

    Only the given folders are served, and only to this machine unless --host allows others. Pages have no emergency
    stop: keep it at the robot.
    """
    uvicorn = import_extra("uvicorn", "web")
    import_extra("websockets", "web")
    from plaudit.web.guard import LOCAL, Access
    from plaudit.web.pages import listen
    from plaudit.web.server import make_app

    if token is not None and len(token) < MIN_TOKEN:
        raise DataError(f"a token needs at least {MIN_TOKEN} characters; leave out --token to get a random one")

    roots = [folder.resolve() for folder in folders or [Path()]]
    for folder, root in zip(folders or [Path()], roots, strict=True):
        if not root.is_dir():
            raise DataError(f"{folder} is not a folder; name a store, a run, or a folder that contains them")
    listening = listen(host, port)
    port = listening.getsockname()[1]
    if host not in LOCAL and not token:
        token = secrets.token_urlsafe(24)
    names = {*LOCAL, host} if host in LOCAL else {host, *_names_of_this_machine(host)}
    access = Access(frozenset(name.lower() for name in names), token or "")
    address = f"http://{'[' + host + ']' if ':' in host else host}:{port}/"
    if host in ("0.0.0.0", "::"):
        address = f"http://{socket.gethostname()}:{port}/"
    out.print(f"serving {', '.join(map(str, roots))}", highlight=False)
    address += f"{f'?token={token}' if token else ''}{page}"
    typer.echo(f"open {address}   (Ctrl-C stops the server)")  # unlike `out`, with the token
    if browse:
        webbrowser.open(address)
    if host not in LOCAL:
        tell(
            "warning",
            "other machines can reach this server; traffic is not encrypted, so use a tunnel outside your lab",
        )
    web = make_app(roots, access, "plaudit.cli.serve:run_command")
    options = {"log_level": "warning", "lifespan": "on", "timeout_graceful_shutdown": GRACE_S, "server_header": False}
    config = uvicorn.Config(web, ws="websockets-sansio", ws_max_size=1 << 16, **options)
    uvicorn.Server(config).run(sockets=[listening])


def run_command(connection: Connection, words: list[str], log: Path) -> None:
    """A command line in a child process of the server, which it does not outlive. Its output goes to a file."""
    exit_with_parent(connection, GRACE_S)
    with log.open("ab") as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
    sys.argv = ["plaudit", *words]
    main()


def _names_of_this_machine(host: str) -> set[str]:
    """What a browser elsewhere may call this machine, if it listens on all of its addresses."""
    import psutil

    from plaudit.web.guard import LOCAL

    addresses = {address.address.partition("%")[0] for nic in psutil.net_if_addrs().values() for address in nic}
    return {socket.gethostname(), socket.getfqdn(), *LOCAL, *addresses} if host in ("0.0.0.0", "::") else set()
