#!/usr/bin/env bash
# Sets up what `make` needs: a Python 3.11+ environment with the package at the versions of the lock, and the system
# libraries that rendering and Qt link to. Usage: scripts/setup.sh VENV REQUIREMENT, where "uv" stands for the
# environment with nothing but what installs, and "torch" for one with PyTorch besides. Environment:
#   PYTHON   the Python to use
#   TORCH    the build of PyTorch to install where there is none yet (default torch==2.13.0)
#   LOCK     the constraints file; empty for the newest of everything
set -euo pipefail
venv=$1 requirement=$2
torch=${TORCH:-torch==2.13.0}
case $requirement in
  *simulators*) lock=${LOCK-requirements/lock-simulators.txt} ;;
  *tools*) lock=${LOCK-requirements/lock-tools.txt} ;;
  *docs*) lock=${LOCK-requirements/lock-docs.txt} ;;
  *) lock=${LOCK-requirements/lock.txt} ;;
esac

say() { if [ -t 2 ]; then printf '\033[1m%s\033[0m\n' "$*"; else printf '%s\n' "$*"; fi >&2; }

# apt-get, as root or through a sudo that asks no password; fails where neither is allowed.
apt_install() {
  command -v apt-get >/dev/null || return 1
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    sudo -n true 2>/dev/null || return 1
    as_root=(sudo -n)
  fi
  "${as_root[@]}" apt-get -qq update >/dev/null 2>&1 || true
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "$@" >/dev/null 2>&1
}

find_python() {
  local candidate
  for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  say "Plaudit needs Python 3.11 or newer, and ${PYTHON:-python3} is none; install it (apt-get install python3.11) or say which with PYTHON=..."
  exit 1
}

make_environment() {
  local python
  python=$(find_python) || exit 1
  say "$venv: making it with $("$python" --version)"
  if [ -n "$(find_uv)" ] && with_pip_settings "$(find_uv)" venv -q --seed --python "$python" "$venv" 2>/dev/null; then
    return
  fi
  rm -rf "$venv"
  if ! "$python" -m venv "$venv" >/dev/null 2>&1; then
    local package="python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv"
    rm -rf "$venv"
    apt_install "$package" && "$python" -m venv "$venv" || {
      say "$python cannot make a virtual environment; run: apt-get install $package"
      exit 1
    }
  fi
  # uv installs the same packages about five times as fast as pip.
  pip_install "uv${lock:+==0.13.7}" || say "$venv: there is no uv here; going on with pip"
}

# Names as the loader knows them, and the packages that bring them.
system_libraries() {
  local missing=() known
  known=$(/sbin/ldconfig -p 2>/dev/null || true)
  while read -r library package; do
    grep -q "$library" <<<"$known" || missing+=("$package")
  done <<'LIST'
libEGL.so.1 libegl1
libGL.so.1 libgl1
libxkbcommon.so.0 libxkbcommon0
libdbus-1.so.3 libdbus-1-3
libfontconfig.so.1 libfontconfig1
LIST
  [ ${#missing[@]} -eq 0 ] && return
  say "installing system libraries: ${missing[*]}"
  apt_install "${missing[@]}" ||
    say "could not install them; before using a window or a GL renderer, run: apt-get install ${missing[*]}"
}

# gym-hil brings evdev, which is compiled here: a compiler, and the headers of Python and Linux.
compiler() {
  local python header missing=()
  python=$("$venv/bin/python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
  header=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h
  command -v gcc >/dev/null || missing+=(gcc libc6-dev)
  [ -e /usr/include/linux/input.h ] || missing+=(linux-libc-dev)
  [ -e "$header" ] || missing+=("$python-dev")
  [ ${#missing[@]} -eq 0 ] && return
  say "installing what evdev is compiled with: ${missing[*]}"
  apt_install "${missing[@]}" || say "could not install them; if the next step fails, run: apt-get install ${missing[*]}"
}

# Quiet about all but errors: pip warns of every place it looked at in vain. Not compiled, by uv neither: most files of
# these packages are never imported, and those that are get compiled then. The variables also reach builds of packages.
pip_install() {
  local choice=(--upgrade --upgrade-strategy eager)
  if [ -n "$lock" ]; then
    export PIP_CONSTRAINT=$PWD/$lock PIP_BUILD_CONSTRAINT=$PWD/$lock
    choice=()
  fi
  "$venv/bin/python" -m pip install -qq --disable-pip-version-check --no-compile "${choice[@]}" "$@"
}

# The uv of this environment, of one beside it that was made earlier, or of the machine.
find_uv() { { ls "$venv/bin/uv" .venv*/bin/uv 2>/dev/null || command -v uv; } | head -n 1; }

# with_pip_settings UV WORD...: uv with the indexes that pip is set to; a shell of its own keeps the variables.
with_pip_settings() (
  for python in "$venv/bin/python" "$(dirname "$1")/python"; do
    [ -x "$python" ] || continue
    eval "$("$python" -m pip config list 2>/dev/null | "$python" scripts/uv_settings.py)"
    break
  done
  "$@"
)

uv_install() {
  local choice=(--upgrade)
  [ -z "$lock" ] || choice=(--constraints "$lock" --build-constraints "$lock")
  with_pip_settings "$(find_uv)" pip install -q --python "$venv/bin/python" "${choice[@]}" "$@"
}

install() {
  if [ -n "$(find_uv)" ]; then
    uv_install "$@" && return
    say "$venv: uv could not install it; trying pip"
  fi
  pip_install "$@"
}

[ -x "$venv/bin/python" ] || make_environment
if [ "$requirement" = uv ]; then
  if [ -n "$(find_uv)" ]; then say "$venv: installs with $("$(find_uv)" --version)"; else say "$venv: installs with pip"; fi
  exit 0
fi
case $requirement in *simulators*) compiler ;; esac
if ! "$venv/bin/python" -c 'import importlib.util, sys; sys.exit(not importlib.util.find_spec("torch"))'; then
  system_libraries
  say "$venv: installing $torch"
  install "$torch"
fi
[ "$requirement" != torch ] || exit 0
say "$venv: installing plaudit, $requirement at $([ -n "$lock" ] && echo "the versions of $lock" || echo "the newest versions")"
# Without a lock everything is upgraded; the chosen PyTorch stays what it is.
if [ -n "$lock" ]; then install -e "$requirement"; else install "$torch" -e "$requirement"; fi
# The reference of openpi's protocol for the tests. It asks for numpy 1 and works with 2, so its own wishes are passed over.
case $requirement in *dev*) install --no-deps "openpi-client${lock:+==0.1.2}" ;; esac
