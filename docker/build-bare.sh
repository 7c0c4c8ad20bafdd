#!/usr/bin/env bash
# Both images without Docker and without its hub: buildah, on a base of Debian's own packages in place of python:3.11-slim.
#
#   docker/build-bare.sh
#
# Needs root and some minutes (eight on two cores, most of them torch): apt-get install buildah debootstrap
# DEBIAN                    Debian's mirror, if not deb.debian.org.
# CA_BUNDLE                 a file of the repository's folder, see the Dockerfiles.
# TORCH_INDEX, PIP_INDEX_URL  mirrors of PyTorch's and of Python's package index.
set -euo pipefail
cd "$(dirname "$0")/.."

for needed in buildah debootstrap; do
    if ! command -v "$needed" >/dev/null; then
        echo "error: there is no $needed: apt-get install buildah debootstrap" >&2
        exit 2
    fi
done

arguments=(--build-arg PYTHON_IMAGE=localhost/fedcore-base)
for name in CA_BUNDLE TORCH_INDEX PIP_INDEX_URL; do
    [[ -n "${!name:-}" ]] && arguments+=(--build-arg "$name=${!name}")
done

base="$(mktemp -d)"
trap 'rm -rf "$base"' EXIT
# Debian 12 has Python 3.11; the commands are called as in python:3.11-slim.
packages=python3,python3-venv,python-is-python3,ca-certificates
debootstrap --variant=minbase --include="$packages" bookworm "$base" "${DEBIAN:-http://deb.debian.org/debian}"
printf 'FROM scratch\nCOPY . /\n' >"$base.Dockerfile"
buildah bud --isolation chroot --tag localhost/fedcore-base --file "$base.Dockerfile" "$base"
rm "$base.Dockerfile"

for name in server client; do
    buildah bud --isolation chroot --format docker --layers "${arguments[@]}" \
        --tag "localhost/fedcore-$name" --file "docker/$name.Dockerfile" .
done
buildah images --filter reference='localhost/fedcore-*'
