#!/usr/bin/env bash
# Sets up uv, which env_setup.sh installs with: one that is there already, or one in the environment that this makes
# (.venv, or VENV=...). The environment variables of scripts/setup.sh hold here too.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
exec scripts/setup.sh "${VENV:-.venv}" uv
