"""A filter of system calls (seccomp(2)) for what Landlock does not know, for a process and all that it starts.

Landlock knows the contents of files, not their modes, owners and times, nor the resources of other processes; and of
the network TCP alone, while a name server or any other host would take data over UDP as well. The filter sees numbers
and no texts, so it cannot tell one file from another, nor a process's children from others.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import sys
from dataclasses import dataclass
from typing import Final

_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000
_SUCCEED: Final = _FAIL
"""The call is not made, and its caller reads that it was."""
_REFUSE, _LACK = _FAIL | errno.EPERM, _FAIL | errno.ENOSYS

_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
"""Where the kernel puts them for the filter: struct seccomp_data, of a machine whose low bytes come first."""
_LOAD, _EQUAL, _AT_LEAST, _HAS_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_OTHER_NUMBERS: Final = 0x40000000
"""From here on x86-64 has the same calls again, for programs with short pointers."""
_UNIX: Final = 1
_MAKES_FILE: Final = os.O_CREAT | 0o20000000
"""Flags of open(2) whose mode counts: O_CREAT and O_TMPFILE without its O_DIRECTORY."""

_PRETENDED: Final = """
chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat utime utimes futimesat utimensat
"""
"""shutil.copy, archives and caches call these for files of their own, where it does not matter."""
_REFUSED: Final = """
setxattr lsetxattr fsetxattr setxattrat removexattr lremovexattr fremovexattr removexattrat file_setattr
add_key request_key keyctl open_by_handle_at mq_open mq_unlink
shmget shmat shmctl shmdt semget semctl semop semtimedop msgget msgsnd msgrcv msgctl
inotify_init inotify_init1 inotify_add_watch fanotify_init unshare setns
"""
_LACKED: Final = "io_uring_setup openat2 clone3"
"""Through the first, files and sockets are opened past every filter; filters do not see what the others point to."""
_NAMESPACES: Final = 0x7E020000
"""Flags of clone(2): in a namespace of its own a process has rights that more of the kernel can be attacked with."""
_MODES: Final = {"open": (2, 1), "openat": (3, 2), "creat": (1, None), "mkdir": (1, None), "mkdirat": (2, None)} | {
    "mknod": (1, None),
    "mknodat": (2, None),
}
"""Which argument is the mode of a new file, and which the flags that say whether there is one."""
_KINDS: Final = {"setpriority": 0, "ioprio_set": 1}
"""The first argument of those that know groups and users too, where the second is a process."""
_PROCESS_FIRST: Final = "sched_setaffinity sched_setscheduler sched_setparam sched_setattr"

# From linux/audit.h, and from asm/unistd_64.h and asm-generic/unistd.h.
_X86_64: Final = """
open=2 shmget=29 shmat=30 shmctl=31 socket=41 clone=56 semget=64 semop=65 semctl=66 shmdt=67 msgget=68 msgsnd=69
msgrcv=70 msgctl=71 mkdir=83 creat=85 chmod=90 fchmod=91 chown=92 fchown=93 lchown=94 utime=132 mknod=133
setpriority=141 sched_setparam=142 sched_setscheduler=144 setxattr=188 lsetxattr=189 fsetxattr=190 removexattr=197
lremovexattr=198 fremovexattr=199 sched_setaffinity=203 semtimedop=220 utimes=235 mq_open=240 mq_unlink=241
add_key=248 request_key=249 keyctl=250 ioprio_set=251 inotify_init=253 inotify_add_watch=254 openat=257 mkdirat=258
mknodat=259 fchownat=260 futimesat=261 fchmodat=268 unshare=272 utimensat=280 inotify_init1=294 fanotify_init=300
prlimit64=302 open_by_handle_at=304 setns=308 sched_setattr=314
"""
_AARCH64: Final = """
setxattr=5 lsetxattr=6 fsetxattr=7 removexattr=14 lremovexattr=15 fremovexattr=16 inotify_init1=26
inotify_add_watch=27 ioprio_set=30 mknodat=33 mkdirat=34 fchmod=52 fchmodat=53 fchownat=54 fchown=55 openat=56
utimensat=88 unshare=97 sched_setparam=118 sched_setscheduler=119 sched_setaffinity=122 setpriority=140 mq_open=180
mq_unlink=181 msgget=186 msgctl=187 msgrcv=188 msgsnd=189 semget=190 semctl=191 semtimedop=192 semop=193 shmget=194
shmctl=195 shmat=196 shmdt=197 socket=198 add_key=217 request_key=218 keyctl=219 clone=220 prlimit64=261
fanotify_init=262 open_by_handle_at=265 setns=268 sched_setattr=274
"""
_NEWER: Final = """
io_uring_setup=425 clone3=435 openat2=437 fchmodat2=452 setxattrat=463 removexattrat=466 file_setattr=469
"""
"""The same on every machine, as all since Linux 5.1."""

Instruction = tuple[int, int, int, int]
"""Code, how many to skip where it holds and where it does not, and an operand: struct sock_filter."""
_Body = tuple[Instruction, ...]


@dataclass(frozen=True, slots=True)
class Machine:
    """What the kernel calls it, and its system calls by name; one that it never had is missing."""

    architecture: int
    numbers: dict[str, int]


def _machine(architecture: int, words: str) -> Machine:
    pairs = (word.split("=") for word in (words + _NEWER).split())
    return Machine(architecture, {name: int(number) for name, number in pairs})


MACHINES: Final = {"x86_64": _machine(0xC000003E, _X86_64), "aarch64": _machine(0xC00000B7, _AARCH64)}


def is_known() -> bool:
    """Whether there is a filter for this machine."""
    return sys.platform == "linux" and os.uname().machine in MACHINES


def restrict(*, network: bool) -> None:
    """From now on this thread, and what it starts, lives under the filter of `program`; raises OSError.

    Needs `no_new_privs`. Does nothing on a machine that is not known.
    """
    if not is_known():
        return
    code = b"".join(
        struct.pack("=HBBI", *instruction)
        for instruction in program(MACHINES[os.uname().machine], process=os.getpid(), network=network)
    )
    filled = ctypes.create_string_buffer(code, len(code))
    described = struct.pack("@HP", len(code) // 8, ctypes.addressof(filled))
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_SECCOMP, _MODE_FILTER, described, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, f"seccomp: {os.strerror(number)}")


def program(machine: Machine, *, process: int, network: bool) -> list[Instruction]:
    """The filter as instructions of classic BPF.

    Modes, owners and times of files stay as they are, without an error; attributes, keys of the kernel, and the memory
    and queues that processes share by number are refused. Of resources a process changes its own, which it calls 0, or
    `process` where it is that one. Without `network` there is no socket but Unix-domain ones.
    """
    rules = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, machine.architecture),
        _return(_REFUSE),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _OTHER_NUMBERS),
        _return(_LACK),
    ]
    for name, body in _rules(process, network=network).items():
        if name in machine.numbers:
            rules += [(_EQUAL, 0, len(body), machine.numbers[name]), *body]
    return [*rules, _return(_ALLOW)]


def _rules(process: int, *, network: bool) -> dict[str, _Body]:
    """System call -> what is done about it."""
    own = _own(0, process)
    unix = (_load(0), (_EQUAL, 1, 0, _UNIX), _return(_FAIL | errno.EACCES), _return(_ALLOW))
    return {
        **dict.fromkeys(_PRETENDED.split(), (_return(_SUCCEED),)),
        **dict.fromkeys(_REFUSED.split(), (_return(_REFUSE),)),
        **dict.fromkeys(_LACKED.split(), (_return(_LACK),)),
        **{name: _without_set_id(*where) for name, where in _MODES.items()},
        **{name: (*_only(0, kind), *_own(1, process)) for name, kind in _KINDS.items()},
        **dict.fromkeys(_PROCESS_FIRST.split(), own),
        "clone": (_load(0), (_HAS_BIT, 0, 1, _NAMESPACES), _return(_REFUSE), _return(_ALLOW)),
        "prlimit64": (*_reading(2), *own),
        **({} if network else {"socket": unix}),
    }


def _without_set_id(mode: int, flags: int | None) -> _Body:
    made = () if flags is None else (_load(flags), (_HAS_BIT, 1, 0, _MAKES_FILE), _return(_ALLOW))
    return (*made, _load(mode), (_HAS_BIT, 0, 1, stat.S_ISUID | stat.S_ISGID), _return(_REFUSE), _return(_ALLOW))


def _only(argument: int, value: int) -> _Body:
    return (_load(argument), (_EQUAL, 1, 0, value), _return(_REFUSE))


def _own(argument: int, process: int) -> _Body:
    return (_load(argument), (_EQUAL, 2, 0, 0), (_EQUAL, 1, 0, process), _return(_REFUSE), _return(_ALLOW))


def _reading(argument: int) -> _Body:
    """Let it pass where the pointer to what is to be set is null."""
    return (_load(argument), (_EQUAL, 0, 3, 0), _load(argument, high=True), (_EQUAL, 0, 1, 0), _return(_ALLOW))


def _load(argument: int, *, high: bool = False) -> Instruction:
    return (_LOAD, 0, 0, _FIRST_ARGUMENT + 8 * argument + 4 * high)


def _return(action: int) -> Instruction:
    return (_RETURN, 0, 0, action)
