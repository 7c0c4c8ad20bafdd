"""The filter of system calls as the kernel runs it, on both machines; that a kernel takes it is in tests/processes."""

from __future__ import annotations

import errno
import os
import re
import socket
import stat
from pathlib import Path

import pytest

from fedcore.system.sandbox.seccomp import MACHINES, Instruction, program

OWN = 4711
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
DONE, MADE = "done", "made"
"""Nothing happens and it says so; the kernel makes the call."""


def outcome(code: list[Instruction], architecture: int, number: int, *arguments: int) -> str | int:
    """What becomes of one call: classic BPF (linux/filter.h) over struct seccomp_data; an error by its number."""
    words = {0: number, 4: architecture}
    for place, value in enumerate((*arguments, *(0,) * (6 - len(arguments)))):
        words |= {16 + 8 * place: value & 0xFFFFFFFF, 20 + 8 * place: (value >> 32) & 0xFFFFFFFF}
    at, held = 0, 0
    while True:
        what, yes, no, operand = code[at]
        at += 1
        if what == 0x20:
            held = words[operand]
        elif what == 0x06:
            return MADE if operand == 0x7FFF0000 else operand & 0xFFFF or DONE
        else:
            held_is = {0x15: held == operand, 0x35: held >= operand, 0x45: bool(held & operand)}[what]
            at += yes if held_is else no


class Calls:
    """By name, under one filter; one that the machine does not have is as the test expects it."""

    def __init__(self, machine: str, *, network: bool = False) -> None:
        self._machine = MACHINES[machine]
        self._code = program(self._machine, process=OWN, network=network)

    def __call__(self, name: str, *arguments: int) -> str | int | None:
        number = self._machine.numbers.get(name)
        return None if number is None else outcome(self._code, self._machine.architecture, number, *arguments)


@pytest.fixture(params=sorted(MACHINES))
def machine(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.parametrize("network", [False, True])
def test_files_of_others_stay_as_they_are(machine: str, network: bool) -> None:
    call = Calls(machine, network=network)
    changes = "chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat utime utimes futimesat utimensat"
    assert {call(name, 1, 0o644) for name in changes.split()} - {None} == {DONE}
    refused = "setxattr fremovexattr keyctl add_key request_key shmget semget msgsnd open_by_handle_at inotify_init1"
    assert {call(name) for name in refused.split()} == {errno.EPERM}
    assert {call(name) for name in ("io_uring_setup", "openat2", "clone3")} == {errno.ENOSYS}


@pytest.mark.parametrize("bit", [stat.S_ISUID, stat.S_ISGID])
def test_no_new_file_has_a_set_id_bit(machine: str, bit: int) -> None:
    call = Calls(machine)
    for mode, expected in ((0o755, MADE), (stat.S_ISVTX | 0o777, MADE), (bit | 0o755, errno.EPERM)):
        made = [
            *(call("openat", -100, 1, flags, mode) for flags in (os.O_CREAT, os.O_TMPFILE | os.O_WRONLY)),
            *(call("open", 1, flags, mode) for flags in (os.O_CREAT | os.O_EXCL, os.O_TMPFILE)),
            *(call(name, 1, mode) for name in ("creat", "mkdir", "mknod")),
            *(call(name, -100, 1, mode) for name in ("mkdirat", "mknodat")),
        ]
        assert set(made) - {None} == {expected}
    # What stands in the mode's place counts for nothing where no file is made.
    assert {call("openat", -100, 1, os.O_RDONLY, bit), call("open", 1, os.O_DIRECTORY, bit)} - {None} == {MADE}


def test_a_process_changes_only_its_own_resources(machine: str) -> None:
    call = Calls(machine)
    for process, expected in ((0, MADE), (OWN, MADE), (1 << 32, MADE), (OWN + 1, errno.EPERM), (-1, errno.EPERM)):
        assert call("prlimit64", process, 7, 0xDEAD) == expected
        assert call("prlimit64", process, 7, 0xDEAD << 32) == expected
        assert call("prlimit64", process, 7, 0, 0xBEEF) == MADE, "limits may be read"
        assert {call(name, process) for name in ("sched_setaffinity", "sched_setattr")} == {expected}
        assert {call("setpriority", os.PRIO_PROCESS, process), call("ioprio_set", 1, process)} == {expected}
    for kind in (os.PRIO_PGRP, os.PRIO_USER):
        assert {call("setpriority", kind, 0), call("ioprio_set", kind + 1, 0)} == {errno.EPERM}


def test_no_process_gets_namespaces_of_its_own(machine: str) -> None:
    call = Calls(machine)
    assert {call("unshare", 0x20000), call("setns", 3)} == {errno.EPERM}
    threads, child = 0x3D0F00, 0x1200011  # as the C library makes them
    assert {call("clone", flags) for flags in (threads, child)} == {MADE}
    for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert call("clone", child | flag) == errno.EPERM


def test_sockets_are_those_of_the_machine_itself(machine: str) -> None:
    for family, alone in ((socket.AF_UNIX, MADE), (socket.AF_INET6, errno.EACCES), (socket.AF_NETLINK, errno.EACCES)):
        assert Calls(machine)("socket", family) == alone
        assert Calls(machine, network=True)("socket", family) == MADE


def test_calls_under_other_numbers_are_refused() -> None:
    code = program(MACHINES["x86_64"], process=OWN, network=False)
    x86_64, i386 = MACHINES["x86_64"].architecture, 0x40000003
    assert outcome(code, i386, 15) == errno.EPERM, "chmod of a program of 32 bits"
    assert outcome(code, x86_64, 0x40000000 + 90) == errno.ENOSYS, "chmod of one with short pointers"
    assert outcome(code, x86_64, 0) == MADE


def test_the_numbers_are_those_of_the_kernel(machine: str) -> None:
    if not HEADERS[machine].exists():
        pytest.skip("the kernel's headers are not installed")
    defined = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", HEADERS[machine].read_text())
    found = {name: int(number) for name, number in defined}
    ours = MACHINES[machine].numbers
    assert {name: found[name] for name in ours.keys() & found.keys()} == {
        name: number for name, number in ours.items() if name in found
    }
    assert len(ours.keys() & found.keys()) > 40
