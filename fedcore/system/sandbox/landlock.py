"""Landlock: how a process on Linux gives up files and TCP for good, and all that it starts with it (landlock(7)).

It needs no privileges. A kernel knows one of several versions of it ("ABI"): 1 restricts files, 4 adds TCP, 5 the
control of devices, 6 signals to processes outside. There is no library of it that is kept up, so these are its three
system calls.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

TCP_ABI: Final = 4
"""From this version on TCP can be given up."""

# The same numbers on every architecture that Python runs on but Alpha.
_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446
_VERSION_FLAG: Final = 1
_PATH_RULE: Final = 1
_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_CAP_AMBIENT, _RAISE = 47, 2
_CAPABILITY_VERSION: Final = 0x20080522
_CAPABILITIES: Final = sum(1 << number for number in (0, 1, 2, 3, 14, 23))
"""To read and own files of others (chown, dac_override, dac_read_search, fowner), to pin memory (ipc_lock), and to
place threads (sys_nice)."""
_READING: Final = (2, 14)
"""Of these, what another user may keep that root becomes: to read files of others, and to pin memory."""

# Rights to files (linux/landlock.h).
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_MAKE_CHAR, _MAKE_BLOCK = 1 << 6, 1 << 11
_TRUNCATE, _IOCTL = 1 << 14, 1 << 15
_RIGHTS_OF_ABI: Final = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""How many of the rights a version knows."""
_OF_FILES: Final = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL
"""Those that a rule for something else than a folder may name."""
_READ: Final = _EXECUTE | _READ_FILE | _READ_DIR
_THREADS: Final = "/proc/self/task"
_BIND_TCP, _CONNECT_TCP = 1 << 0, 1 << 1
_ABSTRACT_SOCKETS, _SIGNALS = 1 << 0, 1 << 1


def abi() -> int:
    """The version that the kernel offers, 0 for none."""
    if sys.platform != "linux":
        return 0
    version = _libc().syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_FLAG))
    return max(0, int(version))


def give_up_privileges() -> None:
    """Root, and what it starts, keeps only the capabilities to read its owner's data and to use devices.

    Others would see past Landlock: CAP_PERFMON shows the environment of every process. Other users lose
    nothing. No program that is started gets more rights by its set-user-id bit. Raises OSError.
    """
    if sys.platform != "linux":
        return
    control(_PR_SET_NO_NEW_PRIVS, 1)
    _set_capabilities(*(bits & _CAPABILITIES for bits in _capabilities()))


def keep_reading() -> None:
    """For a process that was root and kept its capabilities: all that is left of them, also to programs it starts, is
    to read files of others, and to pin memory. Raises OSError.
    """
    _, permitted, _ = _capabilities()
    numbers = [number for number in _READING if permitted >> number & 1]
    reading = sum(1 << number for number in numbers)
    _set_capabilities(reading, reading, reading)
    for number in numbers:
        control(_PR_CAP_AMBIENT, _RAISE, number)


def control(option: int, *values: int) -> None:
    """prctl(2); raises OSError."""
    _checked(_libc().prctl(option, *map(ctypes.c_ulong, (*values, 0, 0, 0, 0)[:4])), "prctl")


def _capabilities() -> tuple[int, int, int]:
    """Those of numbers below 32: effective, permitted, inheritable."""
    header, sets = struct.pack("=Ii", _CAPABILITY_VERSION, 0), ctypes.create_string_buffer(24)
    _checked(_libc().capget(header, sets), "capget")
    effective, permitted, inheritable = struct.unpack("=6I", sets.raw)[:3]
    return effective, permitted, inheritable


def _set_capabilities(effective: int, permitted: int, inheritable: int) -> None:
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    _checked(_libc().capset(header, struct.pack("=6I", effective, permitted, inheritable, 0, 0, 0)), "capset")


def restrict(*, read: Iterable[Path], write: Iterable[Path], tcp: bool, threads: bool = False) -> None:
    """From now on this thread, and what it starts, has only these files and folders, with all below them.

    Signals reach what it starts itself. What is not there is left out. To be called before the process has a second
    thread, which would keep all rights. Raises OSError.

    Args:
        read: may be read and executed.
        write: may be changed too.
        tcp: whether it keeps TCP and abstract sockets, which ranks need to find each other.
        threads: whether this process may write what /proc has of its own threads. CUDA names its threads there when it
            is initialised, and calls a refusal an error of the operating system (304).
    """
    version = abi()
    rights = (1 << _RIGHTS_OF_ABI.get(version, 16)) - 1
    ruleset = _ruleset(version, rights, tcp)
    try:
        for path in read:
            _allow(ruleset, path, rights & _READ)
        for path in write:
            _allow(ruleset, path, rights & ~(_MAKE_CHAR | _MAKE_BLOCK))
        if threads:
            # Stays open: the folder would get another inode, without the rule, once nobody used it.
            _add_rule(
                ruleset, os.open(_THREADS, os.O_PATH | os.O_CLOEXEC), _THREADS, rights & (_WRITE_FILE | _TRUNCATE)
            )
        give_up_privileges()
        _checked(_libc().syscall(_RESTRICT, ctypes.c_int(ruleset), ctypes.c_uint32(0)), "landlock_restrict_self")
    finally:
        os.close(ruleset)


def _ruleset(version: int, rights: int, tcp: bool) -> int:
    network = 0 if tcp else _BIND_TCP | _CONNECT_TCP
    scopes = _SIGNALS if tcp else _ABSTRACT_SOCKETS | _SIGNALS
    # The kernel takes the fields that its version knows.
    attributes = struct.pack("=QQQ", rights, network, scopes)[: 8 if version < TCP_ABI else 16 if version < 6 else 24]
    made = _libc().syscall(_CREATE, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0))
    return _checked(made, "landlock_create_ruleset")


def _allow(ruleset: int, path: Path, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return  # nobody could open it anyway
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= _OF_FILES
        _add_rule(ruleset, descriptor, str(path), rights)
    finally:
        os.close(descriptor)


def _add_rule(ruleset: int, descriptor: int, path: str, rights: int) -> None:
    rule = struct.pack("=Qi", rights, descriptor)
    added = _libc().syscall(_ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(_PATH_RULE), rule, ctypes.c_uint32(0))
    _checked(added, f"landlock_add_rule for {path}")


def _checked(result: int, call: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
    return result


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
