"""What a secure round has to do at least: a program without a protocol that moves and computes the same.

A process for each client and a thread for each in one server, over blocking TLS sockets into buffers that are there
already. For each client: the model goes down, 4 bytes a parameter, and is hashed as it comes; one encode, the masks of
all peers and its own, in place; the words go up, and are hashed as they come; one fold. Then the clients' own masks
come off the sum, and one decode gives the new model, in memory. Nobody signs, waits for stages, writes to a disk or
runs an app, and every byte is hashed once, by whom it reaches.
"""

from __future__ import annotations

import hashlib
import itertools
import multiprocessing
import os
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import numpy as np
import psutil
from numpy.typing import NDArray

from fedcore.codec import CodecSettings, Encoding, decode, encode
from fedcore.errors import EnvironmentFailure
from fedcore.secagg import MaskTerm, Secret, apply_masks
from fedcore.state import ModelState

STEP: Final = np.float32(1e-3)
_CHUNK: Final = 1 << 20
_SCALE: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """Seconds of each turn, and the processor seconds of all processes in the same turns, server's and clients'."""

    parameters: int
    seconds: list[float]
    server_cpu: list[float]
    clients_cpu: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """What one client is told: where the server is, which client it is of how many, and how often."""

    port: int
    certificate: str
    index: int
    clients: int
    parameters: int
    turns: int


def measure_floor(folder: Path, parameters: int, *, clients: int, turns: int) -> Floor:
    """The floor for a model of that size; one turn more is made, and not counted.

    folder: of a federation's server, with its certificate. Raises EnvironmentFailure if a sum is wrong.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.crt", folder / "server.key")
    forkserver = multiprocessing.get_context("forkserver")
    with socket.create_server(("127.0.0.1", 0), backlog=clients) as listener:
        port = listener.getsockname()[1]
        processes, pipes = [], []
        for index in range(clients):
            ours, theirs = forkserver.Pipe()
            work = _Work(
                port=port,
                certificate=str(folder / "ca.crt"),
                index=index,
                clients=clients,
                parameters=parameters,
                turns=turns + 1,
            )
            process = forkserver.Process(target=_client, args=(work, theirs), daemon=True)
            process.start()
            theirs.close()
            processes.append(process)
            pipes.append(ours)
        try:
            sockets = [context.wrap_socket(listener.accept()[0], server_side=True) for _ in range(clients)]
            for pipe in pipes:
                pipe.recv()
            server = _Server(sockets, parameters)
            took = [server.turn(pipes) for _ in range(turns + 1)][1:]
            for connection in sockets:
                connection.close()
        finally:
            for process in processes:
                process.terminate()
                process.join()
    return Floor(
        parameters=parameters,
        seconds=[one[0] for one in took],
        server_cpu=[one[1] for one in took],
        clients_cpu=[one[2] for one in took],
    )


# --- the server -----------------------------------------------------------------------------------------------------


class _Server:
    def __init__(self, sockets: Sequence[ssl.SSLSocket], parameters: int) -> None:
        self._sockets = sockets
        self._encoding = _encoding(parameters, len(sockets))
        self._model = np.zeros(parameters, np.float32)
        self._buffers = [np.empty(self._encoding.words, np.uint64) for _ in sockets]
        self._total = np.zeros(self._encoding.words, np.uint64)
        self._folding = threading.Lock()

    def turn(self, pipes: Sequence[Connection]) -> tuple[float, float, float]:
        """Seconds, and processor seconds here and at all clients."""
        process = psutil.Process()
        self._total[:] = 0
        before, started = sum(process.cpu_times()[:2]), time.perf_counter()
        for pipe in pipes:
            pipe.send("go")
        with ThreadPoolExecutor(len(self._sockets)) as pool:
            list(pool.map(self._serve, self._sockets, self._buffers))
        own = [_own_mask(index).inverse() for index in range(len(self._sockets))]
        apply_masks(self._total, own, threads=2)
        base = ModelState.from_arrays({"weight": self._model})
        mean = decode(self._encoding, self._total, survivors=len(self._sockets), base=base, threads=2)
        seconds = time.perf_counter() - started
        server = sum(process.cpu_times()[:2]) - before
        if mean.state is None or not np.allclose(mean.state["weight"][:1000], STEP, atol=_SCALE / 2**10):
            raise EnvironmentFailure("the floor's sum is not that of its clients")
        return seconds, server, sum(pipe.recv() for pipe in pipes)

    def _serve(self, connection: ssl.SSLSocket, buffer: NDArray[np.uint64]) -> None:
        _send(connection, self._model.data.cast("B"))
        _receive(connection, buffer.data.cast("B"))
        with self._folding:
            np.add(self._total, buffer, out=self._total)


# --- a client -------------------------------------------------------------------------------------------------------


def _client(work: _Work, pipe: Connection) -> None:
    encoding = _encoding(work.parameters, work.clients)
    base, local = np.zeros(work.parameters, np.float32), np.full(work.parameters, STEP)
    model, words = base.data.cast("B"), np.empty(encoding.words, np.uint64)
    states = [ModelState.from_arrays({"weight": array}) for array in (base, local)]
    terms = [_own_mask(work.index), *_pair_masks(work.index, work.clients)]
    plain = socket.create_connection(("127.0.0.1", work.port))
    context = ssl.create_default_context(cafile=work.certificate)
    with context.wrap_socket(plain, server_hostname="localhost") as connection:
        pipe.send("here")
        for _ in range(work.turns):
            pipe.recv()
            before = time.process_time()
            _receive(connection, model)
            encode(encoding, base=states[0], local=states[1], examples=1, metrics={}, randomness=os.urandom, out=words)
            apply_masks(words, terms)
            _send(connection, words.data.cast("B"))
            pipe.send(time.process_time() - before)
        pipe.recv()  # until the server ends this process


# --- both -----------------------------------------------------------------------------------------------------------


def _encoding(parameters: int, clients: int) -> Encoding:
    layout = ModelState.from_arrays({"weight": np.zeros(parameters, np.float32)}).layout
    return Encoding(settings=CodecSettings(w_max=1), layout=layout, n_max=clients, field_bits=16, scales=(_SCALE,))


def _own_mask(index: int) -> MaskTerm:
    return MaskTerm(sign=1, seed=_seed(index, index))


def _pair_masks(index: int, clients: int) -> list[MaskTerm]:
    others = itertools.chain(range(index), range(index + 1, clients))
    return [MaskTerm(sign=1 if index < other else -1, seed=_seed(index, other)) for other in others]


def _seed(one: int, other: int) -> Secret:
    low, high = sorted((one, other))
    return Secret(hashlib.sha256(b"%d %d" % (low, high)).digest())


def _send(connection: ssl.SSLSocket, content: memoryview) -> None:
    for start in range(0, content.nbytes, _CHUNK):
        connection.sendall(content[start : start + _CHUNK])


def _receive(connection: ssl.SSLSocket, into: memoryview) -> None:
    digest, at = hashlib.sha256(), 0
    while at < into.nbytes:
        count = connection.recv_into(into[at : at + _CHUNK])
        if not count:
            raise EnvironmentFailure("the other side of the floor has ended")
        digest.update(into[at : at + count])
        at += count
    digest.digest()
