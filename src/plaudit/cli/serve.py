"""`plaudit serve`: episodes, labeling, runs and judges in a browser. `plaudit serve-policy`: a policy for robots."""

import os
import secrets
import socket
import sys
import webbrowser
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plaudit.cli import main
from plaudit.cli.common import out, stop, tell
from plaudit.cli.options import Option, Overrides, app, command
from plaudit.errors import DataError
from plaudit.processes import exit_with_parent

if TYPE_CHECKING:
    from plaudit.web.guard import Access

TOKEN_VARIABLE = "PLAUDIT_TOKEN"
MIN_TOKEN = 12  # characters
GRACE_S = 2.0  # for the files of a command that a page started, when the server ends


@command(app, "serve")
def serve(
    folders: Annotated[
        list[Path] | None,
        Option(
            metavar="STORE|RUN|FOLDER",
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
    from plaudit.web.guard import make_server
    from plaudit.web.server import make_app

    roots = [folder.resolve() for folder in folders or [Path()]]
    for folder, root in zip(folders or [Path()], roots, strict=True):
        if not root.is_dir():
            raise DataError(f"{folder} is not a folder; name a store, a run, or a folder that contains them")
    listening, access, address = open_port(host, port, token)
    token = access.token
    out.print(f"serving {', '.join(map(str, roots))}", highlight=False)
    address += f"{f'?token={token}' if token else ''}{page}"
    typer.echo(f"open {address}   (Ctrl-C stops the server)")  # unlike `out`, with the token
    if browse:
        webbrowser.open(address)
    warn_if_reachable(host)
    web = make_app(roots, access, "plaudit.cli.serve:run_command")
    make_server(web).run(sockets=[listening])


def open_port(host: str, port: int, token: str | None) -> tuple[socket.socket, "Access", str]:
    """A socket that listens, who may use it, and its address. A token is required where other machines reach it."""
    from plaudit.web.guard import LOCAL, Access
    from plaudit.web.pages import listen

    if token is not None and len(token) < MIN_TOKEN:
        raise DataError(f"a token needs at least {MIN_TOKEN} characters; leave out --token to get a random one")
    listening = listen(host, port)
    port = listening.getsockname()[1]
    if host not in LOCAL and not token:
        token = secrets.token_urlsafe(24)
    names = {*LOCAL, host} if host in LOCAL else {host, *_names_of_this_machine(host)}
    access = Access(frozenset(name.lower() for name in names), token or "")
    address = f"http://{'[' + host + ']' if ':' in host else host}:{port}/"
    if host in ("0.0.0.0", "::"):
        address = f"http://{socket.gethostname()}:{port}/"
    return listening, access, address


def warn_if_reachable(host: str) -> None:
    """Warn where other machines can reach a server."""
    from plaudit.web.guard import LOCAL

    if host not in LOCAL:
        tell(
            "warning",
            "other machines can reach this server; traffic is not encrypted, so use a tunnel outside your lab",
        )


@command(app, "serve-policy", reads_config=True)
def serve_policy(
    policy: Annotated[Path, Option(metavar="POLICY")],  # A policy's file or folder; also a policy folder of LeRobot.
    overrides: Overrides = None,  # Keys of the policy, like policy.num_inference_steps=10.
    *,
    host: str = "127.0.0.1",  # Address to listen on; any other than this machine's requires a token.
    port: Annotated[int, Option(min=0, max=65535)] = 8000,  # The port; 0: any free one.
    # Clients send it as their API key. Random by default if other machines can reach the address.
    token: Annotated[str | None, Option(envvar=TOKEN_VARIABLE)] = None,
    state_key: str = "observation/state",  # The key of the state in a request.
    # CAMERA=KEY, the key of a camera's image; repeatable. observation/CAMERA when not given.
    image_key: Annotated[list[str] | None, Option(metavar="CAMERA=KEY")] = None,
    allow_untrained: Annotated[bool, Option("--allow-untrained")] = False,  # Serve a policy without weights.
) -> None:
    """Serve a policy to robots over openpi's websocket protocol.

    Clients of openpi work unchanged. A request may also have num_samples and noise. Traffic is not encrypted.
    """
    from plaudit.policies.loader import load_policy
    from plaudit.rollout.policy_server import PolicyServer
    from plaudit.trust import is_local

    if token is not None and len(token) < MIN_TOKEN:
        raise DataError(f"a token needs at least {MIN_TOKEN} characters; leave out --token to get a random one")
    keys: dict[str, str] = {}
    for word in image_key or ():
        camera, _, keys[camera] = word.partition("=")
        if not keys[camera]:
            raise DataError(f"--image-key {camera} has no key; write CAMERA=KEY, like front=observation/image")
    spec = load_policy(policy, overrides or [])
    if not allow_untrained:
        spec.check_trained("a robot", scaled=True)
    token = token or (None if is_local(host) else secrets.token_urlsafe(24))
    server = PolicyServer(spec, image_keys=keys, state_key=state_key, token=token or "")
    metadata, sampling = server.metadata, server.sampling
    with server.listen(host, port) as listening:
        address = f"{host}:{listening.socket.getsockname()[1]}"
        seen = [
            f"{key} ({'x'.join(map(str, metadata['image_sizes'][c]))}x3)" for c, key in metadata["image_keys"].items()
        ]
        seen += [f"{state_key} ({server.inputs.state_dim})"] if server.inputs.state_dim else []
        out.print(f"serving {metadata['policy']} {policy}: {', '.join(seen)} -> {server.inputs.action_dim} joints")
        samples = f"1 to {sampling.max_samples} chunks a request" if sampling.max_samples > 1 else "one chunk a request"
        noise = f"noise {list(sampling.noise_shape)}" if sampling.noise_shape else "no noise input"
        out.print(f"{samples}, {noise}")
        typer.echo(f"listening on ws://{address}   (Ctrl-C stops the server)")
        if token:
            typer.echo(f"clients need the token: export OPENPI_API_KEY={token}")
        try:
            listening.serve_forever()
        except KeyboardInterrupt:
            listening.shutdown()
            stop("stopped")


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
