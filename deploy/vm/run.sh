#!/usr/bin/env bash
# One virtual machine with Debian 12, its kernel and systemd, and in it a federation of three sites as the documents install it:
# version 0.2.0, a reboot in the middle of a round, an upgrade to this tree, a power failure in the middle of a round, runs that
# end with the right sum, and what systemd-analyze says of the units. guest.sh is what is typed there; FOLDER/console.log and
# journal.log are what the machine said. Status 0 if all held, 2 if this machine cannot do it.
#
#   deploy/vm/run.sh FOLDER
#
# Needs root, 12 GB in FOLDER, 4 GB of memory, and minutes with KVM. Without, or with one that emulates the kernel's instructions
# one by one, qemu translates them all, which takes a quarter of an hour on two free cores.
#   apt-get install --no-install-recommends qemu-system-x86 debootstrap linux-image-cloud-amd64
# DEBIAN       Debian's mirror, if not deb.debian.org.
# TORCH_INDEX  an index with torch for processors, if not PyTorch's; - for pip's own.
# FROM         the commit to upgrade from, if not that of 0.2.0.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
tree=$(cd "$here/../.." && pwd)
folder=$(mkdir -p "$1" && cd "$1" && pwd)
root=$folder/root
from=${FROM:-ff22b535}

kernel=$(find /boot -name 'vmlinuz-*-cloud-amd64' | sort --version-sort | tail -1)
for needed in qemu-system-x86_64 debootstrap mkfs.ext4 git "${kernel:-linux-image-cloud-amd64}"; do
    if ! command -v "$needed" > /dev/null && [[ ! -e $needed ]]; then
        echo "skipped: there is no $needed; the first lines of $0 say what to install" >&2
        exit 2
    fi
done
[[ $EUID -eq 0 ]] || { echo "skipped: only root can make the machine's disk" >&2; exit 2; }

# The wheels, as docs/howto/for-it.md makes them.
rm -rf "$folder"/{old,new,wheel-new}
mkdir "$folder"/{old,new}
git -C "$tree" archive "$from" | tar --extract --directory "$folder/old"
git -C "$tree" archive HEAD | tar --extract --directory "$folder/new"
if [[ ! -e $folder/wheelhouse/complete ]]; then
    python3 -m venv "$folder/pack"
    index=${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}
    torch=$(grep -o 'torch==[0-9.]*' "$tree/docs/howto/for-it.md" | head -1)
    [[ $index == - ]] && indexes=() || indexes=(--index-url "$index")
    "$folder/pack/bin/pip" download --quiet --dest "$folder/wheelhouse" "${indexes[@]}" "$torch"
    "$folder/pack/bin/pip" wheel --quiet --no-deps --wheel-dir "$folder/wheel-old" "$folder/old"
    for source in old new; do
        "$folder/pack/bin/pip" download --quiet --dest "$folder/wheelhouse" --no-deps --require-hashes -r "$folder/$source/requirements.lock"
    done
    touch "$folder/wheelhouse/complete"
fi
"$folder/pack/bin/pip" wheel --quiet --no-deps --wheel-dir "$folder/wheel-new" "$folder/new"

# The machine: Debian, the package as for-it.md installs it, and what guest.sh needs.
if [[ ! -e $root/complete ]]; then
    rm -rf "$root"
    debootstrap --variant=minbase --include=systemd,systemd-sysv,dbus,udev,procps,python3,python3-venv,ca-certificates \
        bookworm "$root" "${DEBIAN:-http://deb.debian.org/debian}"
    mkdir -p "$root/root/wheelhouse" "$root/opt/fedcore-apps"
    cp "$folder"/wheelhouse/*.whl "$folder"/wheel-old/*.whl "$root/root/wheelhouse"
    chroot "$root" python3 -m venv /opt/fedcore
    env -u PIP_FIND_LINKS chroot "$root" /opt/fedcore/bin/pip install --quiet --no-index --find-links /root/wheelhouse fedcore
    chroot "$root" /opt/fedcore/bin/pip check
    touch "$root/complete"
fi
rm -rf "$root"/root/wheelhouse "$root"/root/{old,new} "$root"/opt/fedcore-apps/plus-one
mkdir -p "$root"/root/{wheelhouse,old,new}
cp "$folder"/wheel-new/*.whl "$root/root/wheelhouse"
cp -r "$folder/old/deploy" "$root/root/old"
cp -r "$here/.." "$root/root/new/deploy"
cp -r "$tree/tests/compatibility/app" "$root/opt/fedcore-apps/plus-one"
sed -i 's/^pause = .*/pause = 20/' "$root/opt/fedcore-apps/plus-one/pyproject.toml"
install -m 755 "$here/guest.sh" "$root/root/guest.sh"
cat > "$root/etc/systemd/system/guest.service" << 'END'
[Unit]
Wants=network-online.target
After=multi-user.target
FailureAction=poweroff-immediate
[Service]
Type=oneshot
ExecStart=/root/guest.sh
StandardOutput=tty
StandardError=tty
TTYPath=/dev/console
[Install]
WantedBy=graphical.target
END
# The machine's second serial line carries its journal to FOLDER/journal.log.
mkdir -p "$root"/var/log/journal "$root"/etc/systemd/journald.conf.d
printf '[Journal]\nForwardToConsole=yes\nTTYPath=/dev/ttyS1\nMaxLevelConsole=info\n' > "$root/etc/systemd/journald.conf.d/serial.conf"
chroot "$root" systemctl --quiet enable guest.service
chroot "$root" systemctl --quiet set-default graphical.target
echo vm > "$root/etc/hostname"
echo '127.0.0.1 localhost vm' > "$root/etc/hosts"
echo '/dev/vda / ext4 defaults 0 1' > "$root/etc/fstab"
rm -f "$folder/disk"
truncate --size 8G "$folder/disk"
mkfs.ext4 -q -F -d "$root" "$folder/disk"

# machine ACCELERATOR CPU SECONDS KERNEL'S WORDS [OPTION...]: runs it until it switches itself off.
machine() {
    timeout "$3" qemu-system-x86_64 -machine q35 -accel "$1" -cpu "$2" -smp 2 -m 4096 -nographic -nodefaults -nic none \
        -serial stdio -serial "file:$folder/journal.log" \
        -drive "file=$folder/disk,format=raw,if=virtio,cache=writeback" -kernel "$kernel" -initrd "${kernel/vmlinuz/initrd.img}" \
        -append "root=/dev/vda rw console=ttyS0 quiet systemd.show_status=no sysrq_always_enabled=1 $4" "${@:5}" < /dev/null 2>&1
}

# A nested KVM may need hours for the kernel's start: so a start that only looks for a root that is not there.
accelerator=tcg,thread=multi,tb-size=512
cpu=max
if [[ -w /dev/kvm && $(machine kvm host,-arch-capabilities 30 'root= panic=-1' -no-reboot || true) == *'No root device'* ]]; then
    accelerator=kvm
    cpu=host,-arch-capabilities
fi
echo "qemu with ${accelerator%%,*}, $(basename "$kernel")"
machine "$accelerator" "$cpu" 7200 'mitigations=off no_timer_check' | tee "$folder/console.log"
grep -q '\] PASSED' "$folder/console.log"
