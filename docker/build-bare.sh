#!/usr/bin/env bash
# Both images without Docker and without its hub: buildah, on a base of Debian's own packages in place of python:3.11-slim.
# With `everything` also what compose-replicas.yaml takes from the hub, PostgreSQL and nginx, of Debian's packages.
#
#   docker/build-bare.sh [everything]
#
# Needs root and some minutes: apt-get install buildah debootstrap
# The base stays as it is once it is there; for one of today: buildah rmi localhost/fedcore-base
# DEBIAN                    Debian's mirror, if not deb.debian.org.
# CA_BUNDLE                 a file of the repository's folder, see the Dockerfile.
# TORCH_INDEX, PIP_INDEX_URL  mirrors of PyTorch's and of Python's package index.
# LOCK                      requirements.lock for images without the extras, see the Dockerfile.
# WHEELS                    a folder of wheels that counts as one more index.
set -euo pipefail
cd "$(dirname "$0")/.."

for needed in buildah debootstrap; do
    if ! command -v "$needed" >/dev/null; then
        echo "error: there is no $needed: apt-get install buildah debootstrap" >&2
        exit 2
    fi
done

arguments=(--build-arg PYTHON_IMAGE=localhost/fedcore-base)
for name in CA_BUNDLE TORCH_INDEX PIP_INDEX_URL LOCK; do
    [[ -n "${!name:-}" ]] && arguments+=(--build-arg "$name=${!name}")
done
[[ -n "${WHEELS:-}" ]] && arguments+=(--volume "$WHEELS:/wheels:ro" --build-arg PIP_FIND_LINKS=/wheels)

if [[ -z "$(buildah images --quiet localhost/fedcore-base 2>/dev/null)" ]]; then
    base="$(mktemp -d)"
    trap 'rm -rf "$base"' EXIT
    # Debian 12 has Python 3.11; the commands are called as in python:3.11-slim.
    packages=python3,python3-venv,python-is-python3,ca-certificates
    debootstrap --variant=minbase --include="$packages" bookworm "$base" "${DEBIAN:-http://deb.debian.org/debian}"
    rm -rf "$base"/var/cache/apt/*.bin "$base"/var/cache/apt/archives/*.deb "$base"/var/lib/apt/lists/* \
        "$base"/usr/share/{doc,info,locale,man}/* "$base"/var/log/*
    buildah bud --isolation chroot --quiet --tag localhost/fedcore-base --file - "$base" <<<$'FROM scratch\nCOPY . /'
fi

for target in server client; do
    buildah bud --isolation chroot --format docker --layers "${arguments[@]}" \
        --target "$target" --tag "localhost/fedcore-$target" --file docker/Dockerfile .
done

if [[ "${1:-}" == everything ]]; then
    for target in postgres nginx; do
        buildah bud --isolation chroot --format docker --layers --target "$target" \
            --tag "localhost/fedcore-$target" --file docker/stand-ins.Dockerfile docker
    done
fi
buildah images --filter reference='localhost/fedcore-*'
