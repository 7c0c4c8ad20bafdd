"""How many processes a client has, and on which machines: what the command line says, checked."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass

import psutil

from fedcore.errors import ConfigurationError
from fedcore.system.workers.cores import granted_cores
from fedcore.wire.base import Scalar


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSize:
    """The group of ranks, in torchrun's words.

    nproc_per_node: ranks on this machine.
    nnodes: machines.
    node_rank: which of them this is; only the agent on machine 0 talks to the server.
    rdzv_endpoint: HOST:PORT on machine 0, where all of them meet; empty for one machine.
    """

    nproc_per_node: int = 1
    nnodes: int = 1
    node_rank: int = 0
    rdzv_endpoint: str = ""

    def __post_init__(self) -> None:
        for name, value in (("--nproc-per-node", self.nproc_per_node), ("--nnodes", self.nnodes)):
            if value < 1:
                raise ConfigurationError(f"{name} must be at least 1, not {value}")
        if not 0 <= self.node_rank < self.nnodes:
            raise ConfigurationError(
                f"--node-rank must be 0 to {self.nnodes - 1} for --nnodes {self.nnodes}, not {self.node_rank}"
            )
        if self.nnodes > 1 and not self.rdzv_endpoint:
            raise ConfigurationError(
                "--nnodes needs --rdzv-endpoint HOST:PORT, an address of machine 0 and a free port on it, the same on "
                "every machine"
            )
        if self.nnodes == 1 and self.rdzv_endpoint:
            raise ConfigurationError("--rdzv-endpoint is for several machines; say how many with --nnodes")
        if self.rdzv_endpoint:
            _split(self.rdzv_endpoint)

    @property
    def endpoint(self) -> tuple[str, int]:
        """Host and port of the rendezvous."""
        return _split(self.rdzv_endpoint)

    def warning(self) -> str:
        """What is odd about so many ranks on this machine; empty if nothing is. Imports torch."""
        if self.nproc_per_node == 1:
            return ""
        import torch

        devices, cores = torch.cuda.device_count(), granted_cores()
        if 0 < devices < self.nproc_per_node:
            return (
                f"{self.nproc_per_node} ranks for {devices} CUDA devices: they share them over gloo, which is slower "
                "than one rank for each device"
            )
        if not devices and self.nproc_per_node > cores:
            return f"{self.nproc_per_node} ranks for {cores} cores: they will wait for each other"
        return ""


def needs_group(engine: Mapping[str, Scalar]) -> bool:
    """Whether an engine has to find the other ranks even if there is only one, over a socket of its own."""
    return engine.get("engine", "single") != "single"


def own_address(endpoint: tuple[str, int], *, is_host: bool) -> str:
    """The address under which this machine is reached by those that reach `endpoint`; raises ConfigurationError.

    The name of a machine often means nothing to the others, so it is the address that packets to the endpoint leave
    from. No packet is sent.
    """
    host, port = endpoint
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        if is_host:
            return str(address[0])
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise ConfigurationError(f"--rdzv-endpoint: {host} cannot be reached ({error.strerror or error})") from None


def interface_of(address: str) -> str | None:
    """Name of the network interface whose network holds `address`; None if there is no such interface."""
    target = ipaddress.ip_address(address)
    for name, addresses in psutil.net_if_addrs().items():
        for known in addresses:
            if known.family not in (socket.AF_INET, socket.AF_INET6) or not known.netmask:
                continue
            own = known.address.split("%")[0]
            if target == ipaddress.ip_address(own):
                return name
            if known.family == socket.AF_INET and target in ipaddress.ip_network(f"{own}/{known.netmask}", False):
                return name
    return None


def _split(endpoint: str) -> tuple[str, int]:
    host, separator, port = endpoint.rpartition(":")
    if not separator or not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ConfigurationError(f"--rdzv-endpoint must be HOST:PORT, not {endpoint!r}")
    return host.strip("[]"), int(port)
