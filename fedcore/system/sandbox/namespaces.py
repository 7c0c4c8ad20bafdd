"""Namespaces: a process on Linux with its own view of files, processes, memory that is shared by name, and network.

Landlock says what may be opened; here nothing else is there. That closes what Landlock does not know: sockets with a
path (a container engine's, the one of a desktop), /dev/shm, watching a path, and who else is running (namespaces(7)).

Root has the right to it (CAP_SYS_ADMIN), unless a container took it away; another user gets it in a user namespace,
unless the machine forbids those. `Need.best` tries it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, NoReturn

from fedcore.system.sandbox.landlock import control, give_up_privileges

Kind = Literal["", "files", "all"]
"""None; a view of files of its own; besides it one of processes."""
_NEW_FILES, _NEW_IPC, _NEW_USER, _NEW_PROCESSES, _NEW_NETWORK = 0x20000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
_NO_SUID, _NO_DEV, _NO_EXEC, _BIND, _ALL_BELOW, _SLAVE = 2, 4, 8, 4096, 16384, 1 << 19
_DETACH: Final = 2
_PIVOT_ROOT: Final = {"x86_64": 155, "aarch64": 41}
_PR_SET_PDEATHSIG: Final = 1
_SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - POSIX says where it is
_OLD: Final = "/.old"
"""In the new root, until all is in its place: the machine's own."""
_DESCRIPTORS: Final = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}
_MOST_LINKS: Final = 40
_DESCRIPTORS_CLOSED: Final = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a process may have of its own.

    alone: whether processes, shared memory and network; ranks that find each other share them.
    mapped: whether a user namespace will do, in which there is no other user than this one.
    """

    alone: bool
    mapped: bool = True

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """What to try, the most first."""
        return ("all", "files") if self.alone else ("files",)

    def best(self) -> Kind:
        """What the machine allows; starts children that try, and so is to be called before there are threads."""
        return next((kind for kind in self.kinds if _works(kind, self)), "")


@cache
def kind_of(need: Need) -> Kind:
    """What this user gets on this machine; asks another process, since this one may have threads."""
    if sys.platform != "linux":
        return ""
    words = ("--try", str(int(need.alone)), str(int(need.mapped)))
    command = [sys.executable, "-P", "-s", "-B", "-m", "fedcore.system.sandbox.confined", *words]
    try:
        output = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=60).stdout  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return ""
    return next((kind for kind in need.kinds if kind == output.decode()), "")


def enter(paths: Iterable[Path], need: Need, *, shared_memory: Path | None) -> None:
    """Go on with these files and folders only, each where it was, as far as the machine allows it.

    With processes of its own the caller goes on as a new process, which ends with the old one, and all that it starts
    with it; the old one stays and ends as the new one does. To be called before there are threads. Raises OSError.

    Args:
        paths: files and folders, with all below them; what is not there is left out.
        need: what it may have of its own.
        shared_memory: the folder that is /dev/shm; None for an empty one.
    """
    kind = need.best()
    if not kind:
        return
    _separate(kind, need)
    status = _be_first() if kind == "all" else None
    chosen = [path for path in paths if path != _SHARED_MEMORY]
    _lay_out(chosen, own_processes=kind == "all", shared_memory=shared_memory)
    if status is not None:
        _be_second(status)


def _works(kind: Kind, need: Need) -> bool:
    """Whether the machine lets this user have it, as a child finds out."""
    if sys.platform != "linux" or os.uname().machine not in _PIVOT_ROOT:
        return False
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    try:
        _separate(kind, need)
        first = os.fork() if kind == "all" else 0  # /proc is of the processes of the one that mounts it
        if first:
            os._exit(os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]))
        _lay_out([Path("/usr"), Path("/dev/null")], own_processes=kind == "all", shared_memory=None)
        Path(os.devnull).write_bytes(b"")
        os._exit(0)
    except BaseException:
        os._exit(1)


def _separate(kind: Kind, need: Need) -> None:
    """Be in new namespaces; one of processes is for the children."""
    flags = _NEW_FILES | (_NEW_IPC | _NEW_NETWORK if need.alone else 0) | (_NEW_PROCESSES if kind == "all" else 0)
    user, group = os.geteuid(), os.getegid()
    try:
        _call("unshare", flags)
    except PermissionError:
        if not need.mapped:
            raise
        _call("unshare", flags | _NEW_USER)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def _be_first() -> int:
    """Return in the first process of the namespace, with a pipe for the status of the second; the old one waits."""
    reading, writing = os.pipe()
    first = os.fork()
    if first:
        _be_idle(keep=reading)
        _await(reading, first)
    os.close(reading)
    control(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if _is_broken(writing):
        os._exit(1)  # the old process ended before the kernel knew that this one is to end with it
    return writing


def _be_second(writing: int) -> None:
    """Return in a child of the first process, which waits.

    The first process of a namespace gets no signals that it does not handle, not even from itself, and inherits all
    orphans; so it does only that. All stay in one process group, which the starter can end.
    """
    child = os.fork()
    if child == 0:
        os.close(writing)
        return
    give_up_privileges()
    _be_idle(keep=writing)
    os.write(writing, _status_of(child).to_bytes(4, "little"))
    os._exit(0)


def _await(reading: int, first: int) -> NoReturn:
    """In the old process: end as the new one did."""
    give_up_privileges()
    message = os.read(reading, 4)
    os.waitpid(first, 0)
    status = int.from_bytes(message, "little") if message else signal.SIGKILL
    if not os.WIFSIGNALED(status):
        os._exit(os.waitstatus_to_exitcode(status))
    number = os.WTERMSIG(status)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)


def _status_of(child: int) -> int:
    """Its wait status; meanwhile orphans end here."""
    while True:
        ended, status = os.wait()
        if ended == child:
            return status


def _be_idle(*, keep: int) -> None:
    """Hold nothing open that somebody else waits for the end of; leave signals to the process that the app is in.

    Asks for no file, since the other process may be changing which ones there are.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.closerange(0, keep)
    os.closerange(keep + 1, _DESCRIPTORS_CLOSED)


def _is_broken(pipe: int) -> bool:
    poll = select.poll()
    poll.register(pipe, 0)
    return bool(poll.poll(0))


def _lay_out(paths: Iterable[Path], *, own_processes: bool, shared_memory: Path | None) -> None:
    """Make a root folder with these paths, and no other."""
    base = next(folder for folder in ("/tmp", "/run", "/usr") if os.path.isdir(folder))  # noqa: S108 - covered here only
    _mount(None, "/", flags=_SLAVE | _ALL_BELOW)
    _mount("tmpfs", base, "tmpfs", _NO_SUID | _NO_DEV, "mode=0755")
    os.mkdir(base + _OLD)
    here = os.getcwd()
    _call("syscall", _PIVOT_ROOT[os.uname().machine], base.encode(), (base + _OLD).encode())
    os.chdir("/")
    if own_processes:
        os.mkdir("/proc")
        _mount("proc", "/proc", "proc", _NO_SUID | _NO_DEV | _NO_EXEC)
    bound = {Path("/proc")} if own_processes else set()
    for path in paths:
        _bind_path(path, bound)
    _bind_shared_memory(shared_memory)
    for name, target in _DESCRIPTORS.items():
        os.symlink(target, f"/dev/{name}")
    _call("umount2", _OLD.encode(), _DETACH)
    os.rmdir(_OLD)
    with contextlib.suppress(OSError):  # relative paths lead nowhere then
        os.chdir(here)


def _bind_path(path: Path, bound: set[Path]) -> None:
    """Have `path` lead to what it leads to in the old root, by the same links; nothing for one that leads nowhere."""
    rest, target, links = list(path.parts[1:]), Path("/"), 0
    while rest:
        part = rest.pop(0)
        if part == "..":
            target = target.parent
            continue
        target /= part
        old = f"{_OLD}{target}"
        if os.path.islink(old):
            links += 1
            link = os.readlink(old)
            if links > _MOST_LINKS or link.startswith("/proc/"):
                return
            if not os.path.lexists(target):
                os.symlink(link, target)
            rest = [*(part for part in Path(link).parts if part != "/"), *rest]
            target = Path("/") if os.path.isabs(link) else target.parent
        elif not os.path.lexists(old):
            return
        elif rest and not os.path.lexists(target):
            os.mkdir(target)
    if bound.isdisjoint((target, *target.parents)):
        bound.add(target)
        _bind(f"{_OLD}{target}", target)


def _bind_shared_memory(folder: Path | None) -> None:
    _SHARED_MEMORY.mkdir(parents=True, exist_ok=True)
    if folder is None:
        _mount("tmpfs", str(_SHARED_MEMORY), "tmpfs", _NO_SUID | _NO_DEV, "mode=1777")
    else:
        _bind(f"{_OLD}{folder}", _SHARED_MEMORY)


def _bind(source: str, target: Path) -> None:
    if os.path.isdir(source):
        target.mkdir(exist_ok=True)
    else:
        target.touch()
    _mount(source, str(target), flags=_BIND | _ALL_BELOW)


def _mount(source: str | None, target: str, kind: str | None = None, flags: int = 0, options: str = "") -> None:
    words = [text.encode() if text else None for text in (source, target, kind, options)]
    _call("mount", *words[:3], ctypes.c_ulong(flags), words[3], what=f"mount of {target}")


def _call(name: str, *arguments: Any, what: str = "") -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what or name}: {os.strerror(number)}")
