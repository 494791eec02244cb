#!/usr/bin/env bash
# Renews the locks in requirements/: exact versions of everything that `make demo`, `make test` and `make bench` install,
# for Python 3.11 to 3.13 on x86_64 and aarch64. They are constraints files: plain pip installs from them (-c).
# Usage: scripts/lock.sh, from the root of the repository; then run scripts/check_lock.py and `make test`.
set -euo pipefail
venv=.venv-lock
[ -x $venv/bin/uv ] || { "${PYTHON:-python3}" -m venv $venv && $venv/bin/pip -qq install uv; }

# lock FILE EXTRA...: one version for all Pythons where there is one, so that everybody is linted and tested alike.
lock() {
  local file=$1 extras=() left_out=() package
  shift
  for extra in "$@"; do extras+=(--extra "$extra"); done
  # PyTorch and its CUDA packages belong to the build that was chosen.
  for package in torch triton cuda-bindings cuda-pathfinder cuda-toolkit nvidia-{cublas,cuda-cupti,cuda-nvrtc} \
    nvidia-{cuda-runtime,cudnn-cu13,cufft,cufile,curand,cusolver,cusparse,cusparselt-cu13,nccl-cu13,nvjitlink} \
    nvidia-{nvshmem-cu13,nvtx}; do
    left_out+=(--no-emit-package "$package")
  done
  $venv/bin/uv pip compile --quiet --upgrade --universal --fork-strategy fewest --python-version 3.11 --no-annotate \
    --custom-compile-command "make lock" --constraint requirements/hold.txt "${extras[@]}" "${left_out[@]}" \
    pyproject.toml requirements/build.in --output-file "$file"
  echo "$file: $(grep -c == "$file") packages"
}

lock requirements/lock.txt dev sim types bench
lock requirements/lock-simulators.txt test simulators
lock requirements/lock-tools.txt test sim tools
lock requirements/lock-docs.txt docs
