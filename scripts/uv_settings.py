#!/usr/bin/env python3
"""Prints where pip is told to look for packages, as shell variables that uv reads: uv does not read pip's settings.

pip config list | scripts/uv_settings.py
"""

import ast
import shlex
import sys

VARIABLES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "no-index": "UV_NO_INDEX",
    "trusted-host": "UV_INSECURE_HOST",
    "proxy": "ALL_PROXY",
    "cert": "SSL_CERT_FILE",
}
SECTIONS = ("global", "install", ":env:")  # a later one overrides an earlier one


def uv_variables(listing: str) -> dict[str, str]:
    """The variables for what `pip config list` printed."""
    found: dict[str, tuple[int, str]] = {}
    for line in listing.splitlines():
        name, _, value = line.partition("=")
        section, _, option = name.rpartition(".")
        if option in VARIABLES and section in SECTIONS:
            found[option] = max(found.get(option, (-1, "")), (SECTIONS.index(section), ast.literal_eval(value)))
    # pip separates values by any white space; uv wants commas between places to find links and spaces elsewhere.
    separators = {"find-links": ","}
    variables = {VARIABLES[o]: separators.get(o, " ").join(value.split()) for o, (_, value) in found.items()}
    if "UV_INDEX" in variables:
        variables["UV_INDEX_STRATEGY"] = "unsafe-best-match"  # as pip does: the best version of all indexes
    return variables


if __name__ == "__main__":
    for name, value in uv_variables(sys.stdin.read()).items():
        print(f"export {name}={shlex.quote(value)}")
