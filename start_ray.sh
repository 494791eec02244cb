#!/usr/bin/env bash
# Makes this machine a node of the cluster (docs/cluster.md).
#   bash start_ray.sh                              what ray_hosts.txt, beside this script, says of this machine's hostname
#   bash start_ray.sh training --address 10.0.0.1  a role and options of 'plaudit cluster start'
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
table=${RAY_HOSTS:-$here/ray_hosts.txt}
plaudit=$here/.venv/bin/plaudit
[ -x "$plaudit" ] || plaudit=plaudit

fail() { echo "error: $*" >&2; exit 1; }

# address_of HOSTNAME ADDRESS: the second, or else what Tailscale knows of the first.
address_of() {
  local peer=() found
  if [ -n "$2" ]; then echo "$2"; return; fi
  command -v tailscale >/dev/null ||
    fail "$table has no address for $1 and Tailscale is not installed here; write the address at which the other machines reach it as the third column"
  [ "$1" = "$me" ] || peer=("$1")
  found=$(tailscale ip -4 "${peer[@]}" 2>&1) ||
    fail "$table has no address for $1, and Tailscale knows none (${found%%$'\n'*}); run 'tailscale up' on both machines, or write it as the third column"
  echo "${found%%$'\n'*}"
}

if [ $# -gt 0 ]; then
  role=$1
  shift
  exec "$plaudit" cluster start --role "$role" "$@"
fi

[ -f "$table" ] ||
  fail "$table is missing; copy examples/ray_hosts.txt there and write your machines into it, or give a role: bash start_ray.sh inference --head ADDRESS"

# Columns: hostname, role or roles joined by commas, address (left out: Tailscale's). The first with training is the head.
name=$(hostname)
read -r me roles address < <(awk -v me="$name" -v short="${name%%.*}" '$1 == me || $1 == short { print; exit }' "$table") || true
read -r head _ head_address < <(awk '$1 !~ /^#/ && $2 ~ /training/ { print; exit }' "$table") || true
[ -n "${me:-}" ] || fail "$table has no line for this machine, $name"
[ -n "$roles" ] || fail "$table does not say the role of $me: training, inference or labeling, as the second column"
[ -n "${head:-}" ] || fail "$table has no machine for training, which is the head"
address=$(address_of "$me" "$address")
options=(--address "$address")
for role in ${roles//,/ }; do options+=(--role "$role"); done
if [ "$me" != "$head" ]; then
  head_address=$(address_of "$head" "$head_address")
  options+=(--head "$head_address")
fi
exec "$plaudit" cluster start "${options[@]}"
