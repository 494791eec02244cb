#!/usr/bin/env bash
# Makes this machine a node of the cluster (docs/cluster.md).
#   bash start_ray.sh                              what ray_hosts.txt, beside this script, says of this machine's hostname
#   bash start_ray.sh training --address 10.0.0.1  a role and options of 'plaudit cluster start'
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
table=${RAY_HOSTS:-$here/ray_hosts.txt}
plaudit=$here/.venv/bin/plaudit
[ -x "$plaudit" ] || plaudit=plaudit

if [ $# -gt 0 ]; then
  role=$1
  shift
  exec "$plaudit" cluster start --role "$role" "$@"
fi

if [ ! -f "$table" ]; then
  echo "error: $table is missing; copy examples/ray_hosts.txt there and write your machines into it, or give a role: bash start_ray.sh inference --head ADDRESS" >&2
  exit 1
fi

# Columns: hostname, role or roles joined by commas, address. The first with training is the head.
read -r roles address < <(awk -v me="$(hostname)" '$1 == me { print $2, $3 }' "$table") || true
read -r head < <(awk '$1 !~ /^#/ && $2 ~ /training/ { print $3; exit }' "$table") || true
if [ -z "${roles:-}" ]; then
  echo "error: $table has no line for this machine, $(hostname)" >&2
  exit 1
fi
options=(--address "$address")
for role in ${roles//,/ }; do options+=(--role "$role"); done
if [ "$address" != "$head" ]; then options+=(--head "$head"); fi
exec "$plaudit" cluster start "${options[@]}"
