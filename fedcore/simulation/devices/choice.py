"""Simulated devices as a person names them: a trace, distributions, or none."""

from __future__ import annotations

from pathlib import Path

from fedcore.simulation.devices.device_file import TracedDevices
from fedcore.simulation.devices.devices import NO_NETWORK, Devices, Profiles
from fedcore.simulation.devices.distributions import DrawnDevices
from fedcore.simulation.devices.network import Network


def parse_devices(text: str, network: Network | None, *, clients: int, seed: int) -> Devices | None:
    """The devices of a simulation; None if neither devices nor a network is given.

    Args:
        text: path of a trace (`.csv`), distributions as in `distributions`, or "".
        network: the network between the devices and the server.
        clients: how many clients need a device.
        seed: of everything that is drawn.

    Raises:
        ConfigurationError: the text or the file cannot be read, or there are too few devices.
    """
    if not text and network is None:
        return None
    profiles: Profiles = DrawnDevices()
    if text.endswith(".csv"):
        profiles = TracedDevices.read(Path(text))
    elif text:
        profiles = DrawnDevices.parse(text)
    profiles.check(clients)
    return Devices(profiles, network=network or NO_NETWORK, seed=seed)
