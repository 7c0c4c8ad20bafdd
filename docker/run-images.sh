#!/usr/bin/env bash
# The images as a hospital would start them, without root and without Docker: podman and podman-compose, read-only, with
# health checks. First compose.yaml with a run, then compose-replicas.yaml (PostgreSQL, two servers, nginx) with a run
# whose leading server is killed. Prints sizes and the seconds until each container is healthy.
#
#   docker/build-bare.sh everything        (once)
#   docker/run-images.sh [plain] [replicas]
#
# Started as root it goes on as a user that it makes and removes, which gets the images of root.
# Needs: apt-get install podman podman-compose netavark aardvark-dns slirp4netns uidmap
# KEEP=yes  leaves user and images where they are, for the next time.
set -euo pipefail
root="$(cd "$(dirname "$0")/.." && pwd)"
user=fedcore-images
images=(fedcore-server fedcore-client fedcore-postgres fedcore-nginx)

for name in "$@"; do
    if [[ "$name" != plain && "$name" != replicas ]]; then
        echo "error: there is no federation $name: plain (the default), replicas, or both" >&2
        exit 2
    fi
done
for needed in podman podman-compose slirp4netns newuidmap; do
    if ! command -v "$needed" >/dev/null; then
        echo "error: there is no $needed: apt-get install podman podman-compose netavark aardvark-dns slirp4netns uidmap" >&2
        exit 2
    fi
done

if [[ $EUID -eq 0 ]]; then
    id "$user" >/dev/null 2>&1 || useradd --create-home --shell /bin/bash "$user"
    home="$(getent passwd "$user" | cut -d: -f6)"
    install -d -o "$user" -m 700 "/run/user/$(id -u "$user")"
    install -d -o "$user" "$home/fedcore"
    cp -r "$root/docker" "$root/deploy" "$home/fedcore/"
    # Without systemd there is nobody who would give a user cgroups, and no journal.
    mkdir -p "$home/.config/containers"
    printf '[storage]\ndriver = "overlay"\n' >"$home/.config/containers/storage.conf"
    if [[ ! -d /run/systemd/system ]]; then
        printf '[containers]\ncgroups = "disabled"\n[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n' \
            >"$home/.config/containers/containers.conf"
    fi
    chown -R "$user" "$home/.config" "$home/fedcore"
    # A mount namespace of its own, with one tree of control groups: crun refuses two, as an older init leaves them.
    as_user() {
        unshare --mount --propagation private bash -c '
            if [[ "$(stat -f -c %T /sys/fs/cgroup)" != cgroup2fs ]]; then
                umount -R /sys/fs/cgroup
                mount -t cgroup2 none /sys/fs/cgroup
            fi
            mount --make-rshared /
            user=$1; shift
            cd "$(getent passwd "$user" | cut -d: -f6)/fedcore"
            exec setpriv --reuid "$user" --regid "$user" --clear-groups env -i HOME="${PWD%/*}" USER="$user" \
                PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin XDG_RUNTIME_DIR="/run/user/$(id -u "$user")" "$@"
        ' as-user "$user" "$@"
    }
    finish() {
        status=$?
        [[ "${KEEP:-}" == yes ]] && exit "$status"
        as_user podman system reset --force >/dev/null 2>&1 || true
        pkill -KILL -U "$user" || true
        userdel --remove "$user" 2>/dev/null || true
        exit "$status"
    }
    trap finish EXIT
    # In one archive, which has the layers that images share once.
    missing=()
    for image in "${images[@]}"; do
        [[ "$(as_user podman images --quiet --no-trunc "localhost/$image")" == "$(podman images --quiet --no-trunc "localhost/$image")" ]] ||
            missing+=("localhost/$image")
    done
    [[ ${#missing[@]} -eq 0 ]] || podman save --quiet --multi-image-archive "${missing[@]}" | as_user podman load --quiet
    as_user docker/run-images.sh "$@"
    exit
fi

cd "$root"
export SERVER_IMAGE=localhost/fedcore-server CLIENT_IMAGE=localhost/fedcore-client
export POSTGRES_IMAGE=localhost/fedcore-postgres NGINX_IMAGE=localhost/fedcore-nginx

# compose FILE WORDS...: podman-compose of Debian 12 knows no conditions of services, so the order is written out here.
compose() {
    podman-compose --project-name fedcore -f "docker/$1" "${@:2}"
}

# healthy CONTAINER...: waits until their own checks succeed, for some minutes at most.
healthy() {
    local container tries began
    for container in "$@"; do
        tries=0
        until podman healthcheck run "$container" >/dev/null 2>&1; do
            # One that was never started, because its port is taken, stays `created`.
            if ((++tries > 600)) || [[ "$(podman inspect --format '{{.State.Status}}' "$container")" == created ]]; then
                echo "error: $container does not get healthy" >&2
                podman logs "$container" >&2 || true
                exit 1
            fi
            sleep 0.2
        done
        began="$(podman inspect --format '{{.State.StartedAt.UnixMilli}}' "$container")"
        echo "$container: healthy $(($(date +%s%3N) - began)) ms after its start"
    done
}

ours() {
    podman ps --all --quiet --filter label=io.podman.compose.project=fedcore
}

# clear: only what this script started and made.
clear_away() {
    ours | xargs --no-run-if-empty podman rm --force --volumes --time 2 >/dev/null
    podman volume ls --quiet --filter name='^fedcore_' | xargs --no-run-if-empty podman volume rm >/dev/null
}

finish() {
    status=$?
    trap - EXIT
    if [[ $status -ne 0 ]]; then
        for container in $(ours); do
            echo "--- $(podman inspect --format '{{.Name}} {{.State.Status}}' "$container")" >&2
            podman logs --tail 20 "$container" >&2 || true
        done
    fi
    clear_away
    exit "$status"
}
trap finish EXIT

clients=(client-1 client-2 client-3 client-4)

plain() {
    compose compose.yaml up provision
    compose compose.yaml up --detach --no-deps server
    healthy fedcore_server_1
    compose compose.yaml up --detach --no-deps "${clients[@]}"
    healthy fedcore_client-{1,2,3,4}_1
    compose compose.yaml up --detach --no-deps operator
    podman logs --follow fedcore_operator_1
    ended_well
}

# ended_well: whether the operator's run did. podman-compose does not say, and in the foreground would wait for the server too.
ended_well() {
    [[ "$(podman wait fedcore_operator_1)" == 0 ]]
}

# leads SERVER: whether it is the one that leads, by its own answer.
leads() {
    podman exec "fedcore_$1_1" python -c '
import ssl, urllib.request
context = ssl.create_default_context(cafile="/federation/pilot/server/ca.crt")
urllib.request.urlopen("https://localhost:8443/readyz", timeout=4, context=context)' 2>/dev/null
}

replicas() {
    local file=compose-replicas.yaml log tries=0 leader=server-1
    compose "$file" up --detach --no-deps database
    healthy fedcore_database_1
    compose "$file" up provision
    compose "$file" up --detach --no-deps server-1 server-2
    healthy fedcore_server-1_1 fedcore_server-2_1
    compose "$file" up --detach --no-deps nginx
    compose "$file" up --detach --no-deps "${clients[@]}"
    compose "$file" up --detach --no-deps operator
    log="$(mktemp)"
    podman logs --follow fedcore_operator_1 > >(tee "$log") 2>&1 &
    until grep -q "4 of 4 clients joined" "$log"; do
        if ((++tries > 600)) || ! kill -0 $! 2>/dev/null; then
            echo "error: not every client joined within two minutes" >&2
            exit 1
        fi
        sleep 0.2
    done
    leads "$leader" || leader=server-2
    echo "killing $leader, which leads"
    podman kill "fedcore_${leader}_1" >/dev/null
    wait $!
    rm "$log"
    ended_well
}

podman images --filter reference='localhost/fedcore-*' --format '{{.Repository}} {{.Size}}'
for name in "${@:-plain}"; do
    "$name"
    clear_away
done
