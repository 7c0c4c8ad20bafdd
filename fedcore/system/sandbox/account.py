"""The user that user code runs as, for an agent or a server that root starts."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from fedcore.errors import ConfigurationError
from fedcore.system.sandbox import landlock

_PR_SET_DUMPABLE, _PR_SET_KEEPCAPS = 4, 8


@dataclass(frozen=True, slots=True)
class Account:
    """A user of this machine, by numbers, since a sandbox may not see who knows its name."""

    user: int
    group: int
    groups: tuple[int, ...]

    @classmethod
    def of(cls, name: str) -> Self:
        """The user of this name, other than root; raises ConfigurationError, also if this process is not root."""
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            raise ConfigurationError(
                f"user code is to run as {name}, whom this machine does not know; make that user, for example with "
                f"useradd --system {name}",
                check="unknown-user",
            ) from None
        if entry.pw_uid == 0:
            raise ConfigurationError("user code is to run as root; name another user", check="root-user")
        if os.geteuid() != 0:
            raise ConfigurationError(
                f"only root can run user code as another user, {name}; take the option away, or start fedcore as root",
                check="not-root",
            )
        members = [group.gr_gid for group in grp.getgrall() if name in group.gr_mem]
        return cls(entry.pw_uid, entry.pw_gid, tuple(sorted({entry.pw_gid, *members})))

    def take(self, folders: Iterable[Path]) -> None:
        """Make them this user's, with all that is in them; raises OSError."""
        for folder in folders:
            for _, below, files, descriptor in os.fwalk(folder, follow_symlinks=False):
                os.chown(descriptor, self.user, self.group)
                for name in (*below, *files):
                    os.chown(name, self.user, self.group, dir_fd=descriptor, follow_symlinks=False)

    def become(self) -> None:
        """Be this user from now on, in this process and all that it starts; raises OSError.

        Of root's rights it keeps that to read all files, and so the data that only root may read; a sandbox says which
        files there are.
        """
        landlock.control(_PR_SET_KEEPCAPS, 1)
        os.setgroups(self.groups)
        os.setresgid(self.group, self.group, self.group)
        os.setresuid(self.user, self.user, self.user)
        landlock.control(_PR_SET_DUMPABLE, 1)  # /proc/self would be root's
        landlock.keep_reading()
