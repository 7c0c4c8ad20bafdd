#!/usr/bin/env bash
# The steps of compose-replicas.yaml on the bare machine, without a container engine: PostgreSQL, two servers over it and
# one folder of objects, nginx in front of them, four clients, a run whose leading server is killed in its first round.
#
#   docker/run-replicas.sh [APP_DIR] [WORK_DIR]
#
# APP_DIR   a Flower app; examples/digits by default.
# WORK_DIR  federation, database, logs and the model, not there yet; a temporary folder, removed at the end, by default.
# FEDCORE   the command, if it is not .venv/bin/fedcore; PORT, nginx's, if not 8443 (the servers have the two after it).
# CLIENTS   if not 4. KILL=no leaves the leading server alone.
# Needs PostgreSQL and nginx: apt-get install postgresql nginx-light
set -euo pipefail

root="$(cd "$(dirname "$0")/.." && pwd)"
app="${1:-$root/examples/digits}"
fedcore="${FEDCORE:-$root/.venv/bin/fedcore}"
port="${PORT:-8443}"
clients="${CLIENTS:-4}"
export FLWR_TELEMETRY_ENABLED=0
# All clients share this machine: as many threads in each of them as there are cores would make every one slower.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
export PATH="$PATH:/usr/sbin:$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -n 1)"

for needed in "$fedcore" initdb postgres pg_isready nginx curl; do
    if ! command -v "$needed" >/dev/null; then
        echo "error: there is no $needed; run \`make install\`, or apt-get install postgresql nginx-light curl" >&2
        exit 2
    fi
done

if [[ $# -ge 2 ]]; then
    work="$2"
    mkdir "$work"
    work="$(cd "$work" && pwd)"
else
    work="$(mktemp -d)"
    temporary="$work"
fi
federation="$work/federation"
logs="$work/logs"
# A socket's path has to be short, and PostgreSQL's user has to get there.
database="$(mktemp -d /tmp/fedcore-pg-XXXXXX)"
mkdir "$logs" "$work/objects"

children=()
finish() {
    status=$?
    trap - EXIT INT TERM
    # The last ones first: clients, nginx, servers, and then their database.
    for ((i = ${#children[@]} - 1; i >= 0; i--)); do
        kill -TERM "${children[i]}" 2>/dev/null || true
        wait "${children[i]}" 2>/dev/null || true
    done
    if [[ $status -ne 0 ]]; then
        for log in "$logs"/*.log; do
            [[ -s "$log" ]] && { echo "--- $log"; tail -n 20 "$log"; } >&2
        done
    fi
    rm -rf "$database"
    [[ -n "${temporary:-}" ]] && rm -rf "$temporary"
    exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# until_true WHAT COMMAND...: waits for half a minute at most.
until_true() {
    local what="$1" tries=0
    shift
    until "$@" >/dev/null 2>&1; do
        if ((++tries > 150)); then
            echo "error: $what: not within 30 s" >&2
            exit 1
        fi
        sleep 0.2
    done
}

# PostgreSQL refuses to run as root.
as=()
if [[ $EUID -eq 0 ]]; then
    chown postgres "$database"
    as=(setpriv --reuid postgres --regid postgres --clear-groups)
fi
(cd / && "${as[@]}" "$(command -v initdb)" -D "$database/data" -U fedcore -A trust -E UTF8 --no-locale >"$logs/initdb.log")
(cd / && exec "${as[@]}" "$(command -v postgres)" -D "$database/data" -c listen_addresses= -c "unix_socket_directories=$database") \
    >"$logs/postgres.log" 2>&1 &
children+=($!)
until_true "PostgreSQL to answer" pg_isready -h "$database" -U fedcore -d postgres
export FEDCORE_DATABASE="postgresql+psycopg://fedcore@/postgres?host=$database"

"$fedcore" provision "$federation" --clients "$clients" --port "$port"
sed -i "s#^objects = .*#objects = \"$work/objects\"#" "$federation/server/server.toml"
echo 'trust-proxy = ["127.0.0.1"]' >>"$federation/server/server.toml"
cp -a "$federation/server" "$federation/server-2"

servers=()
for number in 1 2; do
    folder="$federation/server"
    [[ $number -eq 2 ]] && folder="$federation/server-2"
    "$fedcore" server --federation "$folder" --port $((port + number)) >"$logs/server-$number.log" 2>&1 &
    children+=($!)
    servers+=($!)
done

sed -e "s#10\.0\.0\.1:8443#127.0.0.1:$((port + 1))#" -e "s#10\.0\.0\.2:8443#127.0.0.1:$((port + 2))#" \
    -e "s#listen 8443#listen 127.0.0.1:$port#" -e "s#/etc/fedcore/server#$federation/server#" \
    -e "s#/run/fedcore-nginx.pid#$work/nginx.pid#" "$root/deploy/nginx/fedcore-http.conf" >"$work/nginx.conf"
nginx -c "$work/nginx.conf" -p "$work" -g "daemon off;$([[ $EUID -eq 0 ]] && echo ' user root;')" >"$logs/nginx.log" 2>&1 &
children+=($!)
ready() { curl --silent --fail --cacert "$federation/server/ca.crt" "https://localhost:$1/readyz"; }
until_true "a server to lead, through nginx" ready "$port"

for ((i = 1; i <= clients; i++)); do
    "$fedcore" client --kit "$federation/clients/client-$i" --app "$app" >"$logs/client-$i.log" 2>&1 &
    children+=($!)
done

"$fedcore" run "$app" --operator "$federation/operator" --set "min-clients=$clients" --out "$work/model.safetensors" \
    > >(tee "$logs/run.log") 2>&1 &
run=$!
children+=("$run")
if [[ "${KILL:-yes}" == yes ]]; then
    leader=1
    ready $((port + 1)) >/dev/null || leader=2
    until grep -q "$clients of $clients clients joined" "$logs/run.log" || ! kill -0 "$run" 2>/dev/null; do
        sleep 0.2
    done
    echo "killing server-$leader, which leads"
    kill -KILL "${servers[leader - 1]}"
fi
wait "$run"
