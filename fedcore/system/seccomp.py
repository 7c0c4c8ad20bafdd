"""A filter of system calls that leaves a process without the network (seccomp(2)): no socket but Unix-domain ones.

Landlock knows TCP only, and a name server or any other host would take data over UDP as well.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Sequence
from typing import Final

_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
"""Where the kernel puts them for the filter: struct seccomp_data."""
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_KNOWN: Final = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}
"""Machine -> its name for the kernel (linux/audit.h), and its number of socket(2)."""
_IO_URING: Final = 425
"""Sockets can be made through it too, past every filter."""
_OTHER_NUMBERS: Final = 0x40000000
"""From here on x86-64 has the same calls again, for programs with short pointers."""
_UNIX: Final = 1


def is_known() -> bool:
    """Whether there is a filter for this machine."""
    return sys.platform == "linux" and os.uname().machine in _KNOWN


def forbid_network() -> None:
    """From now on this thread, and what it starts, makes no socket but Unix-domain ones; raises OSError.

    Needs `no_new_privs`. Does nothing on a machine that is not known.
    """
    if not is_known():
        return
    architecture, socket = _KNOWN[os.uname().machine]
    program = _assemble(
        [
            (_LOAD, 0, 0, _ARCHITECTURE),
            (_EQUAL, 1, 0, architecture),
            (_RETURN, 0, 0, _FAIL | errno.EPERM),
            (_LOAD, 0, 0, _NUMBER),
            (_AT_LEAST, 1, 0, _OTHER_NUMBERS),
            (_EQUAL, 0, 1, _IO_URING),
            (_RETURN, 0, 0, _FAIL | errno.ENOSYS),
            (_EQUAL, 0, 3, socket),
            (_LOAD, 0, 0, _FIRST_ARGUMENT),
            (_EQUAL, 1, 0, _UNIX),
            (_RETURN, 0, 0, _FAIL | errno.EACCES),
            (_RETURN, 0, 0, _ALLOW),
        ]
    )
    filled = ctypes.create_string_buffer(program, len(program))
    described = struct.pack("@HP", len(program) // 8, ctypes.addressof(filled))
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_SECCOMP, _MODE_FILTER, described, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, f"seccomp: {os.strerror(number)}")


def _assemble(instructions: Sequence[tuple[int, int, int, int]]) -> bytes:
    """Code, how many to skip where it holds and where it does not, and an operand: struct sock_filter."""
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)
