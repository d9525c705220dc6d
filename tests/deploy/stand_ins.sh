#!/usr/bin/env bash
# Makes the public images that the drill needs from Debian's packages, under the names that the Dockerfiles and the
# compose file use, where podman does not have them: for machines that reach no image registry. Needs root.
# DRILL_BUILD_ARGS: further options of `podman build`.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
base=docker.io/library/python:3.11-slim-bookworm
read -ra build_args <<<"${DRILL_BUILD_ARGS:-}"

if ! podman image exists "$base"; then
  debootstrap --variant=minbase --include=ca-certificates,python3,python3-pip,python3-venv bookworm "$work/root"
  rm -f "$work"/root/usr/lib/python3*/EXTERNALLY-MANAGED
  ln -s python3 "$work/root/usr/bin/python"
  tar -C "$work/root" -c . | podman import -c 'CMD ["python3"]' - "$base"
fi

# from_debian IMAGE PACKAGE LINES: a stand-in with one more package.
from_debian() {
  podman image exists "$1" && return
  printf 'FROM %s\nRUN apt-get update && apt-get install -y --no-install-recommends %s\n%b' "$base" "$2" "$3" \
    | podman build "${build_args[@]}" -t "$1" -f - "$work"
}

from_debian docker.io/library/redis:7.2-bookworm redis-server 'WORKDIR /data\n'
from_debian docker.io/prom/prometheus:v3.5.0 'prometheus wget' \
  'RUN install -d -o nobody /prometheus\nUSER nobody\nWORKDIR /prometheus\nENTRYPOINT ["/usr/bin/prometheus"]\n'
