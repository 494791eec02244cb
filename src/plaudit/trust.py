"""Whose word counts: what a file may make this process do, and what only its user may.

A config, a model's description, a policy's or a judge's file may come from somebody else, with data or with weights. So
whatever in it would import code, read an environment variable or call another machine is looked at where it is
understood as such, and refused unless the user said so: by typing the very same on the command line, with
`--allow-code PACKAGE` and `--allow-host HOST`, or in Python with `allow_code` and `allow_host`.

    with from_file("model.json"):
        check_code("my_package.nets:Net")     # raises; "... if you trust it, add --allow-code my_package"

What is not read from a file is the word of whoever calls, and is remembered: a run that was asked for as `robot=my:Arm`
is gone on with from its folder by the same command. What is allowed stands in the environment, so that processes which
this one starts know it too. (Rejected: a list of allowed packages in a config file, since that is a file.)
"""

import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator

from plaudit.errors import NotAllowed

CODE, HOSTS = "PLAUDIT_ALLOW_CODE", "PLAUDIT_ALLOW_HOST"  # environment variables: names, with commas between them
HUB = "huggingface.co"  # whoever may call it may download models
# Variables that hold keys of servers. A file may name one of these and no other.
KEYS = ("PLAUDIT_API_KEY", "OPENAI_API_KEY", "NVIDIA_API_KEY", "OPENPI_API_KEY")
# Variables that a file may have in its text, `${oc.env:EMBODIED_PATH}`: folders, and nothing that is secret.
PLACES = ("EMBODIED_PATH",)

_PACKAGE = re.compile(r"[^\W\d]\w*")
_HOST = re.compile(r"[\w.:%\[\]-]{1,253}")


@dataclass(frozen=True)
class _Source:
    path: Path
    typed: frozenset[str]  # values that the user wrote beside it, which are their own word


_source: ContextVar[_Source | None] = ContextVar("plaudit_source", default=None)


@contextmanager
def from_file(path: str | Path | None, typed: Any = ()) -> Iterator[None]:
    """What is understood meanwhile stood in this file; None: as it was, so that a file's own words stay its own.

    typed: overrides and flags as plain values, nested or not: what is equal to one of these is the user's word
    """
    if path is None:
        yield
        return
    token = _source.set(_Source(Path(path), frozenset(_strings(typed))))
    try:
        yield
    finally:
        _source.reset(token)


def allow_code(*packages: str) -> None:
    """Let files name code of these packages, in this process and in those that it starts."""
    for package in packages:
        if not _PACKAGE.fullmatch(package):
            raise NotAllowed(f"'{package}' is no package; name it as it is imported, like --allow-code my_package")
    _remember(CODE, packages)


def allow_host(*hosts: str) -> None:
    """Let files name servers on these machines, and let models be fetched if one is the hub."""
    for host in hosts:
        if not _HOST.fullmatch(host):
            raise NotAllowed(f"'{host}' is no name of a machine; write it like --allow-host gpu.lab or 10.0.0.2")
    _remember(HOSTS, [host.lower() for host in hosts])


def check_code(name: str, known: Collection[str] = ()) -> str:
    """`module:Name`, or a module alone, that is about to be imported; returns it.

    known: what the registry has by itself, ours and that of installed packages
    """
    package = name.partition(":")[0].partition(".")[0]
    source = _source.get()
    if source is None or name in source.typed:
        if _PACKAGE.fullmatch(package):
            _remember(CODE, [package])
    elif name not in known and package not in _allowed(CODE):
        raise NotAllowed(
            f"{source.path.name} asks for {name}, code of somebody else; nothing was imported. If you trust it, add "
            f"--allow-code {package}"
        )
    return name


def check_host(address: str) -> str:
    """A URL, or a machine's name, that would be called; returns it."""
    host = host_of(address)
    source = _source.get()
    if source is None or address in source.typed:
        _remember(HOSTS, [host] if _HOST.fullmatch(host) else [])
    elif not _is_here(host) and host not in _allowed(HOSTS):
        raise NotAllowed(
            f"{source.path.name} names the server {host or 'without a name'}, which would be sent what the cameras "
            f"saw; nothing was sent. If it is yours, add --allow-host {host or 'HOST'}"
        )
    return address


def check_local_files_only(local: bool) -> bool:
    """Where it is not set, a model may be fetched from the hub."""
    if not local:
        check_host(HUB)
    return local


def check_key_variable(name: str) -> str:
    """An environment variable whose value is about to be sent to a server."""
    source = _source.get()
    if source is not None and name not in source.typed and name not in KEYS:
        raise NotAllowed(
            f"{source.path.name} asks for the environment variable {hide_secrets(name)}; a file may name "
            f"{', '.join(KEYS)} and no other: use one of these, or write this key on the command line"
        )
    return name


def check_no_secret(url: str) -> str:
    """A URL without a password or a key in it: it is shown, and kept with every label."""
    if shown_url(url) != url:
        raise ValueError(f"{shown_url(url)} has a password or a key in it; put that in a variable and name it instead")
    return url


def host_of(address: str) -> str:
    """
    >>> host_of("https://user:word@Example.org:8000/v1"), host_of("10.0.0.2:8000"), host_of("[::1]:80")
    ('example.org', '10.0.0.2', '::1')
    """
    try:
        return urlsplit(address if "://" in address else f"//{address}").hostname or ""
    except ValueError:  # brackets that do not close
        return ""


_USER = re.compile(r"(?<=://)[^/?#\s@]*@")
_KEY = re.compile(
    r"(?i)(?<=[?&;])([\w.~-]*(?:key|token|secret|passw\w*|pwd|auth\w*|sig|signature|credential)s?)=[^&;#\s'\"]+"
)


# Names of settings that hold a secret, and what the keys of well-known services look like.
_SECRET_NAME = re.compile(
    r"(?i)api_?key|access_?key|private_?key|secret|passw|passphrase|credential|(^|_)(auth_)?token$"
)
_SECRET = re.compile(r"(?<![\w-])(?:sk-|hf_|nvapi-|gh[opsu]_|github_pat_|glpat-|xox[abp]-|AKIA|eyJ)[\w.~+/-]{12,}=*")
_NAMED = re.compile(r"""(["']?)([\w.-]+)\1(\s*[:=]\s*)("(?:[^"\\]|\\.)*"|'[^']*'|[^\s,;&}\])]+)""")


def hide_secrets(text: str, name: str = "") -> str:
    """The same without what looks like a password or a key, for messages that repeat somebody's settings.

    name: of the setting whose value this is, "judge.api_key"

    >>> hide_secrets('"abc"', "judge.api_key"), hide_secrets('{"password": "abc", "n": 1}')
    ('***', '{"password": ***, "n": 1}')
    >>> hide_secrets("sk-abcdefghijklmnop is no number")
    '*** is no number'
    """
    if _SECRET_NAME.search(name.rpartition(".")[2]):
        return "***"
    text = _NAMED.sub(lambda m: f"{m[1]}{m[2]}{m[1]}{m[3]}***" if _SECRET_NAME.search(m[2]) else m[0], text)
    return shown_url(_SECRET.sub("***", text))


def shown_url(text: str) -> str:
    """The same without passwords and keys in the URLs of it.

    >>> shown_url("http://me:word@here/v1?api_key=abc&n=1")
    'http://***@here/v1?api_key=***&n=1'
    """
    return _KEY.sub(r"\1=***", _USER.sub("***@", text))


def allowances() -> dict[str, str]:
    """What was allowed so far, as environment variables for a process on another machine."""
    return {name: os.environ[name] for name in (CODE, HOSTS) if os.environ.get(name)}


def _allowed(variable: str) -> set[str]:
    return {name.strip() for name in os.environ.get(variable, "").split(",")} - {""}


def _remember(variable: str, names: Collection[str]) -> None:
    if not _allowed(variable) >= {*names}:
        os.environ[variable] = ",".join(sorted(_allowed(variable) | {*names}))


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _strings(tree: Any) -> Iterator[str]:
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, dict):
        for value in tree.values():
            yield from _strings(value)
    elif isinstance(tree, list | tuple | set | frozenset):
        for value in tree:
            yield from _strings(value)


# For fields of configs.
CodeName = Annotated[str, AfterValidator(check_code)]
ServerUrl = Annotated[str, AfterValidator(check_no_secret), AfterValidator(check_host)]
KeyVariable = Annotated[str, AfterValidator(check_key_variable)]
LocalFilesOnly = Annotated[bool, AfterValidator(check_local_files_only)]
