#!/usr/bin/env bash
# Installs PyTorch, Ray and all else that a machine of the cluster needs into .venv (or VENV=...), with uv where it is
# there and with pip otherwise, at the versions of requirements/lock.txt.
#   bash env_setup.sh                 everything
#   bash env_setup.sh cluster,ros     some of the extras of pyproject.toml: the robot's machine needs no more
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
exec scripts/setup.sh "${VENV:-.venv}" ".[${1:-cluster,gui,openpi,ros,sim,vlm}]"
