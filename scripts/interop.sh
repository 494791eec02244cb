#!/usr/bin/env bash
# Sets up the environment of `make interop`: Python 3.12, lerobot and plaudit in one, which takes several GB of disk.
# Usage: scripts/interop.sh VENV. Environment:
#   PYTHON312   the Python 3.12 to use; otherwise the one on the PATH, or one that uv knows
#   TORCH       the build of PyTorch to install (default torch==2.11.0, which is what lerobot 0.6.1 takes)
set -euo pipefail
venv=$1
find_uv() { { ls "$venv/bin/uv" .venv*/bin/uv 2>/dev/null; command -v uv; } | head -n 1 || true; }

find_python() {
  local candidate uv
  uv=$(find_uv)
  for candidate in "${PYTHON312:-}" python3.12 "$([ -z "$uv" ] || "$uv" python find 3.12 2>/dev/null || true)"; do
    if [ -n "$candidate" ] && "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
    [ -z "${PYTHON312:-}" ] || break
  done
  echo "lerobot 0.6.1 needs Python 3.12, and there is none${PYTHON312:+ at $PYTHON312}; install it (apt-get install" \
    "python3.12-venv, or uv python install 3.12) or say which with PYTHON312=..." >&2
  exit 1
}

if [ ! -x "$venv/bin/python" ]; then
  python=$(find_python)
  rm -rf "$venv"
  "$python" -m venv "$venv"
fi
wanted=("${TORCH:-torch==2.11.0}" -r requirements/interop.txt -e ".[test]")
uv=$(find_uv)
if [ -n "$uv" ]; then
  eval "$("$venv/bin/python" -m pip config list 2>/dev/null | "$venv/bin/python" scripts/uv_settings.py)"
  "$uv" pip install -q --python "$venv/bin/python" "${wanted[@]}" && exit 0
  echo "$venv: uv could not install it; trying pip" >&2
fi
"$venv/bin/python" -m pip install -q --disable-pip-version-check "${wanted[@]}"
