#!/usr/bin/env bash
# Sets up what `make` needs: a Python 3.11+ environment with the package, and the system libraries that rendering and Qt
# link to. Usage: scripts/setup.sh VENV REQUIREMENT. Set TORCH to choose another build of PyTorch, PYTHON another Python.
set -euo pipefail
venv=$1 requirement=$2
torch=${TORCH:-torch==2.13.0}

say() { printf '\033[1m%s\033[0m\n' "$*" >&2; }

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
  for candidate in ${PYTHON:-} python3 python3.13 python3.12 python3.11; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  say "Plaudit needs Python 3.11 or newer and found none; install it (apt-get install python3.11) or set PYTHON."
  exit 1
}

make_environment() {
  local python
  python=$(find_python)
  say "making $venv with $("$python" --version)"
  if ! "$python" -m venv "$venv" >/dev/null 2>&1; then
    local package="python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv"
    rm -rf "$venv"
    apt_install "$package" && "$python" -m venv "$venv" || {
      say "$python cannot make a virtual environment; run: apt-get install $package"
      exit 1
    }
  fi
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

[ -x "$venv/bin/python" ] || { make_environment && system_libraries; }
case $requirement in *simulators*) compiler ;; esac
wanted=(-e "$requirement")
"$venv/bin/python" -c 'import importlib.util, sys; sys.exit(not importlib.util.find_spec("torch"))' || wanted+=("$torch")
say "installing plaudit into $venv: ${wanted[*]:1}"
# Not compiled: most files of these packages are never imported, and those that are get compiled then.
"$venv/bin/pip" install --quiet --disable-pip-version-check --no-compile "${wanted[@]}"
# The reference of openpi's protocol for the tests. It asks for numpy 1 and works with 2, so its own wishes are passed over.
case $requirement in *dev*)
  "$venv/bin/pip" install --quiet --disable-pip-version-check --no-compile --no-deps openpi-client ;;
esac
