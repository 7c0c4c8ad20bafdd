#!/usr/bin/env bash
# The steps of compose.yaml on the bare machine, without a container engine: provision, a server, four clients, a run.
#
#   docker/run-bare.sh [APP_DIR] [WORK_DIR]
#
# APP_DIR   a Flower app; examples/digits by default.
# WORK_DIR  federation, logs and the model; a temporary folder, removed at the end, by default.
# FEDCORE   the command, if it is not .venv/bin/fedcore; PORT, the server's, if not 8443; CLIENTS, if not 4.
set -euo pipefail

root="$(cd "$(dirname "$0")/.." && pwd)"
app="${1:-$root/examples/digits}"
fedcore="${FEDCORE:-$root/.venv/bin/fedcore}"
port="${PORT:-8443}"
clients="${CLIENTS:-4}"
export FLWR_TELEMETRY_ENABLED=0
# All clients share this machine: as many threads in each of them as there are cores would make every one slower.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

if ! command -v "$fedcore" >/dev/null; then
    echo "error: there is no $fedcore; run \`make install\` first, or set FEDCORE" >&2
    exit 2
fi

if [[ $# -ge 2 ]]; then
    work="$2"
    mkdir -p "$work"
else
    work="$(mktemp -d)"
    temporary="$work"
fi
federation="$work/federation"
logs="$work/logs"
mkdir -p "$logs"

children=()
finish() {
    status=$?
    trap - EXIT INT TERM
    if [[ ${#children[@]} -gt 0 ]]; then
        kill -TERM "${children[@]}" 2>/dev/null || true
        wait "${children[@]}" 2>/dev/null || true
    fi
    if [[ $status -ne 0 ]]; then
        for log in "$logs"/*.log; do
            [[ -s "$log" ]] && { echo "--- $log"; tail -n 20 "$log"; } >&2
        done
    fi
    [[ -n "${temporary:-}" ]] && rm -rf "$temporary"
    exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

if [[ ! -e "$federation/server/server.toml" ]]; then
    "$fedcore" provision "$federation" --clients "$clients" --port "$port"
fi

"$fedcore" server --federation "$federation" >"$logs/server.log" 2>&1 &
children+=($!)
for ((i = 1; i <= clients; i++)); do
    "$fedcore" client --kit "$federation/clients/client-$i" --app "$app" >"$logs/client-$i.log" 2>&1 &
    children+=($!)
done

"$fedcore" run "$app" --operator "$federation/operator" --set "min-clients=$clients" --out "$work/model.safetensors"
