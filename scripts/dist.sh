#!/usr/bin/env bash
# Build the wheel and the source archive into dist/, install the wheel into an empty environment and use it there.
#   scripts/dist.sh ENVIRONMENT       removed and made anew, with PyTorch from scripts/setup.sh
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$PWD/$1
rm -rf dist "$venv"
scripts/setup.sh "$1" torch
"$venv/bin/python" -m pip install --quiet build
"$venv/bin/python" -m build --outdir dist .
wheel=$(ls "$PWD"/dist/*.whl)
"$venv/bin/python" -m pip install --quiet --constraint requirements/lock.txt "plaudit[sim,web] @ file://$wheel"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"  # nothing of the source tree is on the path here
"$venv/bin/plaudit" doctor
"$venv/bin/plaudit" config copy pickcube_sac_cnn
"$venv/bin/plaudit" config copy my_judge
"$venv/bin/plaudit" config copy my_policy
"$venv/bin/plaudit" collect data --env lift --camera front --target-success 2 --target-failure 2
"$venv/bin/plaudit" data check data
"$venv/bin/python" -c "import plaudit, plaudit.web; from pathlib import Path
root = Path(plaudit.__file__).parent
assert root.is_relative_to('$venv'), root
missing = [name for name in ('py.typed', 'web/static', 'examples/configs', 'examples/plugins') if not (root / name).exists()]
assert not missing, missing"
# `build` makes the wheel from the archive, so the archive is complete for that; the tests and the documentation are in it too.
tar -tzf "$OLDPWD"/dist/*.tar.gz > files
for name in examples/configs docs/index.md tests/conftest.py requirements/lock.txt Makefile CITATION.cff; do
  grep -q "^[^/]*/$name" files || { echo "$name is missing in the archive" >&2; exit 1; }
done
echo "$(basename "$wheel") works in an empty environment"
