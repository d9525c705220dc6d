#!/usr/bin/env bash
# Builds the images and runs the cpu profile of docker-compose.yml for real, grafana excepted: a tool call through the
# engine must show up as a forecast in Prometheus, every query of the dashboard must have data while sessions run, and
# the engine must serve on while the predictor, and then the store, is killed and comes back. One command, about 6 minutes
# on two cores once the base images are there; needs root.
#
#   .venv/bin/python, made by `make setup`, makes the tiny model. From the environment:
#   COMPOSE            podman-compose 1.3 or newer (default podman-compose; `pip install podman-compose` has it)
#   DRILL_BUILD_ARGS   further options of `podman build`, such as mounts of this machine's certificates
#   CONTAINERS_CONF    podman's configuration, where the default does not fit
#   DRILL_SECONDS      how long the sessions run (default 90)
set -euo pipefail
cd "$(dirname "$0")/../.."

python=.venv/bin/python
compose=("${COMPOSE:-podman-compose}" -p cachewise-drill --profile cpu)
services=(redis predictor engine-cpu prometheus)
work=$(mktemp -d)
prober=

say() { printf '\n== %s\n' "$*"; }

free_port() { "$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# wait_for SECONDS COMMAND...: until it succeeds.
wait_for() {
  local end=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    if ((SECONDS > end)); then
      echo "gave up waiting for: $*" >&2
      return 1
    fi
    sleep 1
  done
}

# value EXPRESSION: its value in Prometheus now, or nothing.
value() {
  curl -sf "$prometheus/api/v1/query" --data-urlencode "query=$1" \
    | "$python" -c 'import json, sys; r = json.load(sys.stdin)["data"]["result"]; print(r[0]["value"][1] if r else "")'
}

# show METRIC...: their sums in Prometheus now.
show() {
  local metric
  for metric; do echo "  sum($metric) = $(value "sum($metric)")"; done
}

is_at_least() { "$python" -c 'import sys; sys.exit(not float(sys.argv[1] or "nan") >= float(sys.argv[2]))' "$(value "$1")" "$2"; }

# Podman leaves health checks to systemd timers; without systemd somebody must call them.
probe_health() {
  while sleep 2; do
    for container in $(podman ps -q --filter label=io.podman.compose.project=cachewise-drill); do
      podman healthcheck run "$container" >/dev/null 2>&1 || true
    done
  done
}

clean_up() {
  local status=$?
  if ((status)); then
    for service in "${services[@]}"; do
      say "last words of $service"
      "${compose[@]}" logs --tail 40 "$service" 2>&1 | grep -v "GET /" || true
    done
  fi
  [[ -z $prober ]] || kill "$prober" 2>/dev/null || true
  "${compose[@]}" down -v >/dev/null 2>&1 || true
  rm -rf "$work"
}
trap clean_up EXIT

ENGINE_PORT=$(free_port) PREDICTOR_PORT=$(free_port) PROMETHEUS_PORT=$(free_port)
engine=http://127.0.0.1:$ENGINE_PORT
prometheus=http://127.0.0.1:$PROMETHEUS_PORT
CACHEWISE_MODEL_DIR=$("$python" -c 'from pathlib import Path
from cachewise_bench.cpu import this_cpu
from cachewise_bench.tiny_model import ensure_model
print(ensure_model(Path(".cachewise/models"), this_cpu().layers))')
chmod -R a+rX "$CACHEWISE_MODEL_DIR"  # safetensors writes files for their owner only
# A pool of 3,072 tokens: eight sessions of up to 1,500 do not fit, so blocks are evicted and computed again.
CACHEWISE_ENGINE_CONFIG=$work/engine.yaml
{ cat deploy/engine/cpu.yaml; printf 'max-model-len: 2048\nnum-gpu-blocks-override: 96\n'; } >"$CACHEWISE_ENGINE_CONFIG"
chmod a+rx "$work"
export ENGINE_PORT PREDICTOR_PORT PROMETHEUS_PORT CACHEWISE_MODEL_DIR CACHEWISE_ENGINE_CONFIG

say "images"
tests/deploy/stand_ins.sh >"$work/stand_ins.log" 2>&1 || { tail -40 "$work/stand_ins.log"; exit 1; }
"${compose[@]}" --podman-build-args="${DRILL_BUILD_ARGS:-}" build predictor engine-cpu >"$work/build.log" 2>&1 \
  || { tail -40 "$work/build.log"; exit 1; }
podman images --format '{{.Repository}}:{{.Tag}} {{.Size}}' | grep -v '^<none>'

say "up"
probe_health &
prober=$!
"${compose[@]}" up -d "${services[@]}" >"$work/up.log" 2>&1 || { tail -40 "$work/up.log"; exit 1; }
wait_for 240 curl -sf "$engine/health"
wait_for 60 curl -sf "$prometheus/-/ready"
for name in vllm scheduler predictor; do wait_for 60 is_at_least "up{job=\"$name\"}" 1; done
wait_for 60 is_at_least 'cachewise_predictor_connected' 1

say "a chat request with a tool call, seen as a forecast in Prometheus"
"$python" tests/deploy/sessions.py "$engine"
wait_for 60 is_at_least 'cachewise_predictor_forecasts_sent_total' 1
# An idle engine takes its forecasts when the next request comes.
"$python" tests/deploy/sessions.py "$engine"
wait_for 60 is_at_least 'sum(cachewise_forecasts_received_total)' 1
show cachewise_predictor_forecasts_sent_total cachewise_forecasts_received_total

say "every query of the dashboard, while sessions run"
"$python" tests/deploy/sessions.py "$engine" --sessions 8 --seconds "${DRILL_SECONDS:-90}" >"$work/sessions.json" &
load=$!
sleep "$((${DRILL_SECONDS:-90} * 2 / 3))"
"$python" deploy/grafana/check_queries.py --prometheus "$prometheus" --minutes 2
wait "$load"
cat "$work/sessions.json"
wait_for 30 is_at_least 'sum(cachewise_predictor_tool_calls_total) == bool sum(cachewise_tool_calls_total)' 1
is_at_least 'sum(cachewise_evicted_blocks_total{order="forecast"})' 1
show cachewise_{,predictor_}tool_calls_total cachewise_turns_total cachewise_forecasts_received_total \
  cachewise_evicted_blocks_total cachewise_{prompt,hit,recomputed}_tokens_total

say "the predictor is killed: the engine serves on, and finds it again"
"${compose[@]}" stop -t 0 predictor >/dev/null 2>&1
"$python" tests/deploy/sessions.py "$engine" --sessions 4 --seconds 15
wait_for 30 is_at_least '1 - cachewise_predictor_connected' 1
echo "predictor connected: $(value cachewise_predictor_connected)"
"${compose[@]}" start predictor >/dev/null 2>&1
wait_for 60 is_at_least 'cachewise_predictor_connected' 1
echo "predictor connected again: $(value cachewise_predictor_connected)"

say "the store is killed: forecasts go on"
"${compose[@]}" stop -t 0 redis >/dev/null 2>&1
wait_for 60 is_at_least '1 - cachewise_predictor_store_up' 1
before=$(value 'sum(cachewise_forecasts_received_total)')
"$python" tests/deploy/sessions.py "$engine" --sessions 4 --seconds 15
wait_for 30 is_at_least "sum(cachewise_forecasts_received_total) - $before" 10
"${compose[@]}" start redis >/dev/null 2>&1
wait_for 60 is_at_least 'cachewise_predictor_store_up' 1
echo "store up again: $(value cachewise_predictor_store_up)"

say "health"
podman ps --filter label=io.podman.compose.project=cachewise-drill --format '{{.Names}} {{.Status}}'
say "ok"
