"""Derive a first model: start the process, wait for what it says, and leave nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from fedcore.errors import FedcoreError
from fedcore.flower.first_model.messages import FROM_PROCESS, Derivation, FirstModelStart, NotDerived
from fedcore.system.concurrency import end
from fedcore.system.files import make_private_folder
from fedcore.system.json_lines import printed_lines
from fedcore.system.left_files import remove_left
from fedcore.system.sandbox.sandbox import Rules, Sandbox, clean_environment, named_paths
from fedcore.system.workers.failures import exit_description
from fedcore.system.workers.starting import kill_group, start_process

DERIVE_SECONDS: Final = 120.0
"""How long the ServerApp may take to its first model."""
_PRINTING_SECONDS: Final = 1.0
_DATA: Final = "FEDCORE_DATA"
_LONGEST_REASON: Final = 500
"""Characters of a reason."""


async def derive(start: FirstModelStart, rules: Rules | None = None, *, seconds: float = DERIVE_SECONDS) -> Derivation:
    """The first model of a ServerApp, or why there is none.

    Its process may read the app and what `rules` add, and no data; it has no network. It may write into the folder of
    `start.file`; what it leaves there is the app's word.

    Args:
        rules: what the owner adds to what user code may see.
        seconds: how long it may take.
    """
    rules = rules or Rules()
    private = await asyncio.to_thread(make_private_folder)
    try:
        return await _derive(start, rules, private, seconds)
    except (FedcoreError, OSError) as error:
        return _not_derived(str(error))
    finally:
        await asyncio.to_thread(remove_left, private)


async def _derive(start: FirstModelStart, rules: Rules, private: Path, seconds: float) -> Derivation:
    # Without this seed, the order of a set of texts is another in every process.
    environment = {**clean_environment(rules, private), "PYTHONHASHSEED": "0"}
    environment.pop(_DATA, None)
    target = (Path(start.file).parent,) if start.file else ()
    process, connection = await start_process(
        "fedcore.flower.first_model.process",
        expected=FROM_PROCESS,
        environment=environment,
        sandbox=Sandbox(
            read=(Path(start.app), *rules.read, *named_paths(environment)),
            write=(private, *target),
            confined=rules.confined,
        ),
        folder=private,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None  # noqa: S101 - it was started with a pipe
    last: deque[str] = deque(maxlen=1)
    printing = asyncio.create_task(_read(process.stdout, last))
    try:
        async with asyncio.timeout(seconds):
            with contextlib.suppress(ConnectionError):
                await connection.send(start)
                if (message := await connection.receive()) is not None:
                    if isinstance(message, NotDerived) and not message.needless:
                        return _not_derived(message.reason)
                    return message
            return _not_derived(
                f"the process {exit_description(await process.wait())}, without an answer {_quoted(last)}".strip()
            )
    except TimeoutError:
        return _not_derived(f"the ServerApp had no model within {seconds:g} s")
    except ValueError:
        return _not_derived("the process sent something that it never should")
    finally:
        kill_group(process.pid)
        await process.wait()
        await connection.close()
        await end(printing, within=_PRINTING_SECONDS)


async def _read(stream: asyncio.StreamReader, last: deque[str]) -> None:
    async for line in printed_lines(stream):
        if line:
            last.append(line)


def _quoted(lines: Iterable[str]) -> str:
    return "".join(f"({line})" for line in lines)


def _not_derived(reason: str) -> NotDerived:
    return NotDerived(reason=reason if len(reason) <= _LONGEST_REASON else f"{reason[: _LONGEST_REASON - 3]}...")
