"""Permissions: what a file may make this process do, and how text from others is shown.

A file from somebody else may not import code, read an environment variable or call another machine unless the user
allows it: by typing the same value on the command line, with `--allow-code PACKAGE` and `--allow-host HOST`, or in
Python with `allow_code` and `allow_host`.

    with from_file("model.json"):
        check_code("my_package.nets:Net")     # raises; "... if you trust it, add --allow-code my_package"

A value that does not come from a file is the caller's own. It is allowed and remembered in the environment, so that
child processes inherit it. `plain` escapes characters that control a terminal, and hides passwords in URLs, wherever
Plaudit writes to a terminal, a page or a log.
"""

import os
import re
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import urlsplit

from plaudit.errors import NotAllowed

CODE, HOSTS = "PLAUDIT_ALLOW_CODE", "PLAUDIT_ALLOW_HOST"  # environment variables with comma-separated names
HUB = "huggingface.co"  # allowing it allows downloads of models
# The only variables that a file may name as the key of a server.
KEYS = ("PLAUDIT_API_KEY", "OPENAI_API_KEY", "NVIDIA_API_KEY", "OPENPI_API_KEY")
# The only variables that a file may have in its text, as `${oc.env:EMBODIED_PATH}`: folders, no secrets.
PLACES = ("EMBODIED_PATH",)

_PACKAGE = re.compile(r"[^\W\d]\w*")
_HOST = re.compile(r"[\w.:%\[\]-]{1,253}")


@dataclass(frozen=True)
class _Source:
    path: Path
    typed: frozenset[str]  # values that the user typed on the command line


_source: ContextVar[_Source | None] = ContextVar("plaudit_source", default=None)


@contextmanager
def from_file(path: str | Path | None, typed: Any = ()) -> Iterator[None]:
    """Values that are checked inside this block come from this file; None changes nothing.

    typed: overrides and flags as plain values, nested or not; a value equal to one of these is the user's own
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
    """Let files name code of these packages, in this process and its children."""
    for package in packages:
        if not _PACKAGE.fullmatch(package):
            raise NotAllowed(
                f"'{package}' is not a package name; write it as it is imported, like --allow-code my_package"
            )
    _remember(CODE, packages)


def allow_host(*hosts: str) -> None:
    """Let files name servers on these hosts; with the hub among them, models may be downloaded."""
    for host in hosts:
        if not _HOST.fullmatch(host):
            raise NotAllowed(f"'{host}' is not a host name; write it like --allow-host gpu.lab or 10.0.0.2")
    _remember(HOSTS, [host.lower() for host in hosts])


def check_code(name: str, known: Collection[str] = ()) -> str:
    """Check `module:Name`, or a module, before it is imported; returns it.

    known: names that the registry has: built in, or of installed packages
    """
    package = name.partition(":")[0].partition(".")[0]
    source = _source.get()
    if source is None or name in source.typed:
        if _PACKAGE.fullmatch(package):
            _remember(CODE, [package])
    elif name not in known and package not in _allowed(CODE):
        raise NotAllowed(
            f"{source.path.name} asks for {name}, third-party code; nothing was imported. If you trust it, add "
            f"--allow-code {package}"
        )
    return name


def check_host(address: str) -> str:
    """Check a URL or a host name before it is called; returns it."""
    host = host_of(address)
    source = _source.get()
    if source is None or address in source.typed:
        _remember(HOSTS, [host] if _HOST.fullmatch(host) else [])
    elif not is_local(host) and host not in _allowed(HOSTS):
        raise NotAllowed(
            f"{source.path.name} names the server {host or 'without a name'}, which would be sent what the cameras "
            f"saw; nothing was sent. If it is yours, add --allow-host {host or 'HOST'}"
        )
    return address


def allow_host_if_typed(host: str, value: str) -> None:
    """Allow a server if the user typed the value that stands for it; a file alone does not allow it."""
    source = _source.get()
    if source is None or value in source.typed:
        _remember(HOSTS, [host])


def is_allowed_host(host: str) -> bool:
    """Whether the user has allowed this host."""
    return host in _allowed(HOSTS)


def check_local_files_only(local: bool) -> bool:
    """Check that the hub is allowed, unless only local files are used."""
    if not local:
        check_host(HUB)
    return local


def check_key_variable(name: str) -> str:
    """Check an environment variable whose value will be sent to a server."""
    source = _source.get()
    if source is not None and name not in source.typed and name not in KEYS:
        raise NotAllowed(
            f"{source.path.name} asks for the environment variable {hide_secrets(name)}; a file may name "
            f"{', '.join(KEYS)} and no other: use one of these, or write this key on the command line"
        )
    return name


def check_no_secret(url: str) -> str:
    """Refuse a URL with a password or a key: URLs are shown and stored with labels."""
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
    """Replace what looks like a password or a key by ***, for messages that quote settings.

    name: the setting whose value this is, "judge.api_key"

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
    """Replace passwords and keys in URLs by ***.

    >>> shown_url("http://me:word@here/v1?api_key=abc&n=1")
    'http://***@here/v1?api_key=***&n=1'
    """
    return _KEY.sub(r"\1=***", _USER.sub("***@", text))


_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and newline, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # direction of text
    "\u2028\u2029\ufff9-\ufffb"  # line and annotation separators
    "\U000e0000-\U000e007f"  # invisible tags
    "\ud800-\udfff]"  # bytes of arguments and file names that are not UTF-8
)


def plain(text: str) -> str:
    """The text with unsafe characters escaped and passwords in URLs hidden.

    >>> plain("up\\x1b[1A and back")
    'up\\\\x1b[1A and back'
    """
    return shown_url(_UNSAFE.sub(_escape, text))


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if 0xDC80 <= code <= 0xDCFF:  # how Python represents a byte that it could not decode
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def print_plain(text: str, file: TextIO | None = None) -> None:
    """Print escaped text. This is the only `print` in the package; commands use the consoles of `plaudit.cli`.

    file: standard error by default
    """
    print(plain(text), file=file or sys.stderr, flush=True)


def allowances() -> dict[str, str]:
    """The permissions so far, as environment variables for a process on another machine."""
    return {name: os.environ[name] for name in (CODE, HOSTS) if os.environ.get(name)}


def _allowed(variable: str) -> set[str]:
    return {name.strip() for name in os.environ.get(variable, "").split(",")} - {""}


def _remember(variable: str, names: Collection[str]) -> None:
    if not _allowed(variable) >= {*names}:
        os.environ[variable] = ",".join(sorted(_allowed(variable) | {*names}))


def is_local(host: str) -> bool:
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
