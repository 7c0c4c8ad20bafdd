#!/usr/bin/env bash
# What a person types on the virtual machine of run.sh, as docs/howto/operating.md, joining.md and for-it.md say. Each start of
# the machine goes on where the one before ended: the first installs and reboots in the middle of a round; the second sees the
# units come back and the run end, upgrades, and loses its power in the middle of a round; the third sees that run end. The
# last line begins with PASSED or FAILED.
set -Eeuo pipefail
cd /root
export HOME=/root FLWR_TELEMETRY_ENABLED=0 FEDCORE_OPERATOR=/var/lib/fedcore/pilot/operator
export PATH=/opt/fedcore/bin:$PATH
app=/opt/fedcore-apps/plus-one
units=(fedcore-server@pilot fedcore-client@hospital-{1,2,3})
aim=1.5 # the most that systemd-analyze may say of a unit as it is shipped

say() { echo "[$(cut -d. -f1 /proc/uptime) s] $*"; }
fail() { journalctl --no-pager --output cat --unit 'fedcore-*' --lines 60; say "FAILED: $*"; exit 1; }
trap 'fail "line $LINENO of guest.sh: $BASH_COMMAND"' ERR
as_fedcore() { runuser -u fedcore -- "$@"; }
until_true() { for _ in $(seq 600); do "$@" > /dev/null 2>&1 && return; sleep 2; done; fail "waited for: $*"; }
active() { systemctl is-active --quiet "${units[@]}"; }
sandboxes() { journalctl --no-pager --output cat --boot --unit 'fedcore-*' | grep -o 'sandbox[^{}]*' | sort | uniq -c; }
# model NUMBER: the last run's model is that number everywhere, to the bit.
model() {
    fedcore runs model last --out model.safetensors --force
    python -c "
import sys
from safetensors.numpy import load_file
values = [number for tensor in load_file('model.safetensors').values() for number in tensor.tolist()]
print('the model:', values)
sys.exit(values != [$1] * 4)" || fail "the model is not $1 everywhere"
}

install_units() {
    install -m 644 deploy/systemd/fedcore-server@.service deploy/systemd/fedcore-client@.service /etc/systemd/system/
    systemctl daemon-reload
}

first() {
    say "$(fedcore --version)"
    useradd --system --home-dir /var/lib/fedcore --shell /usr/sbin/nologin fedcore
    install -d -o fedcore -g fedcore -m 700 /var/lib/fedcore
    as_fedcore fedcore federation create /var/lib/fedcore/pilot --host localhost
    as_fedcore fedcore server approve "$app" --federation /var/lib/fedcore/pilot
    (cd old && install_units)
    systemctl enable --now fedcore-server@pilot
    for site in hospital-{1,2,3}; do
        as_fedcore fedcore client enroll "/var/lib/fedcore/$site" --name "$site"
        as_fedcore fedcore federation approve "/var/lib/fedcore/$site/$site.request.json" --federation /var/lib/fedcore/pilot <<< y
    done
    until_true as_fedcore fedcore federation publish --federation /var/lib/fedcore/pilot --operator "$FEDCORE_OPERATOR"
    fingerprint=$(as_fedcore fedcore federation show --federation /var/lib/fedcore/pilot --json |
        python -c 'import json, sys; print(json.load(sys.stdin)["authority_fingerprint"])')
    mkdir -p /etc/fedcore
    for site in hospital-{1,2,3}; do
        as_fedcore fedcore client enroll "/var/lib/fedcore/$site" --accept "/var/lib/fedcore/$site/$site.admission.json" \
            --authority-fingerprint "$fingerprint"
        printf 'FEDCORE_APP=%s\nFEDCORE_CLIENT_OPTIONS=--node-config partition-id=%s\n' "$app" $((${site##*-} - 1)) > "/etc/fedcore/$site.env"
        systemctl enable --now "fedcore-client@$site"
    done
    say 'three sites enrolled'
}

upgrade() {
    say "the upgrade"
    systemctl stop "${units[@]}"
    /opt/fedcore/bin/pip install --quiet --no-index --find-links wheelhouse --upgrade fedcore
    as_fedcore fedcore server upgrade --federation /var/lib/fedcore/pilot
    (cd new && install_units)
    install -D -m 644 -t /etc/systemd/system/fedcore-client@hospital-2.service.d new/deploy/systemd/gpu.conf
    install -D -m 644 -t /etc/systemd/system/fedcore-client@hospital-3.service.d new/deploy/systemd/namespaces.conf
    systemctl daemon-reload
    systemctl start "${units[@]}"
    say "$(fedcore --version)"
    until_true fedcore runs list
    fedcore runs list
}

# into_round_2: submits a run of two rounds, and returns in the middle of the second.
into_round_2() {
    fedcore run "$app" --run-config num-server-rounds=2 --force --json > events &
    until_true grep '"kind":"exchange",.*"server_round":2' events
    sleep 20 # hospital-1 trains for 20 seconds, hospital-3 for 60
}

# ended_at NUMBER: the units came back by themselves, and the run ends with that model.
ended_at() {
    until_true active
    until_true fedcore runs list
    say "the units came back"
    fedcore runs attach last
    model "$1"
    fedcore runs list
}

scores() {
    sandboxes
    printf '| unit | systemd-analyze security |\n| --- | --- |\n'
    for unit in "${units[@]}"; do
        score=$(systemd-analyze security --no-pager "$unit" | grep -o 'Overall exposure level.*' | grep -oE '[0-9]+\.[0-9]+')
        echo "| $unit $(systemctl show --value --property DropInPaths "$unit" | xargs -r -n1 basename | paste -sd' ') | $score |"
        [[ -n $(systemctl show --value --property DropInPaths "$unit") ]] || awk "BEGIN { exit $score > $aim }" || fail "$unit is over $aim"
    done
}

if [[ ! -e rebooted ]]; then
    first
    into_round_2
    say "a reboot in the middle of round 2"
    touch rebooted
    systemctl reboot --no-block
elif [[ ! -e power-failed ]]; then
    ended_at 2.0
    upgrade
    into_round_2
    say "the power fails in the middle of round 2"
    touch power-failed
    sync .
    echo b > /proc/sysrq-trigger
else
    ended_at 2.0
    as_fedcore fedcore transcript verify --kit /var/lib/fedcore/hospital-1
    scores
    say PASSED
    systemctl poweroff --no-block
fi
