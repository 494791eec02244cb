#!/usr/bin/env bash
# Runs a recipe of config/: bash examples/embodiment/run_embodiment.sh NAME [KEY=VALUE]...
set -euo pipefail
EMBODIED_PATH=${EMBODIED_PATH:-$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)}
export EMBODIED_PATH
[ $# -gt 0 ] || { echo "error: name a recipe: $(cd "$EMBODIED_PATH/config" && echo *.yaml | sed 's/\.yaml//g')" >&2; exit 2; }
name=$1
shift
exec "${PYTHON:-python}" "$EMBODIED_PATH/train_embodied_agent.py" --config-path "$EMBODIED_PATH/config/" --config-name "$name" "$@"
