"""A run of a federation in a network namespace of its own, whose loopback counts what an outsider sees.

    unshare --user --map-root-user --net python -m tests.support.counted_run FOLDER

prints one JSON object: what the device carried while the run lasted, and what `fedcore run` said of it.
"""

from __future__ import annotations

import fcntl
import json
import socket
import struct
import subprocess
import sys
from pathlib import Path

from fedcore.comparison.local_federation import LocalFederation, run_command
from fedcore.system.workers.child_processes import ChildProcesses

APP = Path(__file__).parents[2] / "benchmarks" / "apps" / "noop"
CONFIG = {"num-server-rounds": 4, "parameters": 100_000}
CLIENTS = 3
_SET_FLAGS, _UP = 0x8914, 0x1
ETHERNET_BYTES = 14
"""Of each packet on the loopback, which counts a frame's head without sending one."""


def main() -> None:
    """Start the federation, count, run, count."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sH14x", b"lo", _UP))
    folder = Path(sys.argv[1])
    local = LocalFederation.create(folder / "kits", clients=CLIENTS)
    with ChildProcesses(folder / "logs", {"FLWR_TELEMETRY_ENABLED": "0"}) as group:
        local.start_server(group)
        local.start_clients(group, APP)
        local.wait_connected(group)
        command = run_command(
            APP, local.operator, out=folder / "model.safetensors", run_config=CONFIG, settings={"join-seconds": 600}
        )
        before = carried()
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        after = carried()
    sys.stdout.write(json.dumps({"carried": after - before, **json.loads(done.stdout.splitlines()[-1])}) + "\n")


def carried() -> int:
    """Bytes of IP that the loopback has carried."""
    (line,) = (line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:"))
    count, packets = (int(word) for word in line.split(":")[1].split()[:2])
    return count - ETHERNET_BYTES * packets


if __name__ == "__main__":
    main()
