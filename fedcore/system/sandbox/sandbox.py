"""What a process with user code may see of the machine: its variables, files, network and resources.

The process that starts it says so in a `Sandbox`; `fedcore.system.sandbox.confined` takes it on before any user code
runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import sys
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Final, Self

from fedcore.errors import ConfigurationError
from fedcore.system.sandbox import landlock, namespaces, seccomp
from fedcore.system.sandbox.account import Account

# Of /etc only what libraries read, since a site may keep its keys there.
_SYSTEM_WORDS = """
/usr /bin /sbin /lib /lib32 /lib64 /libx32 /proc /sys /nix/store /gnu/store /opt/rocm /opt/nvidia /opt/cuda
/etc/ld.so.cache /etc/ld.so.conf /etc/ld.so.conf.d /etc/alternatives /etc/localtime /etc/timezone
/etc/passwd /etc/group /etc/nsswitch.conf /etc/machine-id /etc/os-release /etc/debian_version /etc/mime.types
/etc/hosts /etc/host.conf /etc/hostname /etc/resolv.conf /etc/gai.conf /etc/protocols /etc/services
/etc/ssl/certs /etc/ssl/openssl.cnf /etc/pki/tls/certs /etc/pki/ca-trust /etc/crypto-policies
/etc/fonts /etc/nccl.conf /etc/libibverbs.d /etc/OpenCL /etc/vulkan /run/systemd/resolve/resolv.conf
/run/systemd/resolve/stub-resolv.conf
"""
_DEVICE_WORDS = "null zero full random urandom shm nvidia* dri kfd infiniband"
"""Below /dev, to be written too: a GPU is used by writing to its device."""
_VARIABLE_WORDS = """
PATH LANG LANGUAGE TZ USER LOGNAME LD_LIBRARY_PATH CC CXX FEDCORE_DATA FEDCORE_TELL TOKENIZERS_PARALLELISM
HF_HOME HF_HUB_CACHE HF_DATASETS_CACHE HF_HUB_OFFLINE HF_DATASETS_OFFLINE TRANSFORMERS_OFFLINE
HF_HUB_DISABLE_TELEMETRY HF_HUB_DISABLE_PROGRESS_BARS
"""
_PREFIX_WORDS = """
LC_ OMP_ GOMP_ KMP_ MKL_ OPENBLAS_ MALLOC_ CUDA_ CUBLAS_ CUDNN_ NVIDIA_ NCCL_ GLOO_ TORCH PYTORCH_ HIP_ HSA_ ROCR_
"""
_SYSTEM: Final = tuple(Path(word) for word in _SYSTEM_WORDS.split())
_VARIABLES: Final = frozenset(_VARIABLE_WORDS.split())
_PREFIXES: Final = tuple(_PREFIX_WORDS.split())
_SECRET: Final = re.compile("TOKEN|SECRET|PASSW|CREDENTIAL|KEY")
"""In a name that merely begins as one above does, such as NVIDIA_API_KEY."""
_OWN_CACHES: Final = frozenset({"CUDA_CACHE_PATH", "TORCHINDUCTOR_CACHE_DIR"})
"""What user code compiles into these would later run elsewhere; it gets a folder of its own."""
_PINNING: Final = frozenset({"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY"})
"""libgomp pins threads by their numbers then, which the filter takes for other processes': it would end the rank."""
_NOT_READ: Final = frozenset({"PATH", "HOME", "TMPDIR"})

FILE_BYTES: Final = 1 << 40
"""The largest file."""
PROCESSES: Final = 1 << 15
"""Threads and processes of this user, all of them together, as the kernel counts them."""
DESCRIPTORS: Final = 1 << 16
MEMORY_SHARE: Final = 300
"""Where memory is short the kernel ends the largest process: user code counts for so many thousandths of it more."""
_OUT_OF_MEMORY: Final = Path("/proc/self/oom_score_adj")
_NAMESPACES: Final[dict[namespaces.Kind, str]] = {
    "all": "files, processes and shared memory of its own (namespaces)",
    "files": "files and shared memory of its own (namespaces), but it sees which programs run",
    "": "no namespaces: it has the same sockets, /dev/shm and list of programs as fedcore itself",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the person who starts the agent or the server adds.

    variables: by name.
    read: files and folders.
    confined: False takes the limits on files and network away, to look for a fault.
    user: the name of the user that user code runs as, if root starts it; "" for the same user.
    """

    variables: tuple[str, ...] = ()
    read: tuple[Path, ...] = ()
    confined: bool = True
    user: str = ""

    def __post_init__(self) -> None:
        for name in self.variables:
            if "=" in name or not name:
                raise ConfigurationError(f"{name!r} is not the name of an environment variable", check="variable-name")
        for path in self.read:
            if not path.exists():
                raise ConfigurationError(f"user code is to read {path}, which is not there", check="not-there")
        if self.user:
            Account.of(self.user)

    @property
    def account(self) -> Account | None:
        """That user; None for the same one."""
        return Account.of(self.user) if self.user else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """Files and folders that a process may `read`, and may `write` too; nothing else of the machine's.

    network: whether it may use that, which ranks that find each other need.
    confined: False for no such limits.
    shared_memory: the folder that is /dev/shm for processes that find each other; None for one of its own.
    account: the user that it becomes.
    """

    read: tuple[Path, ...]
    write: tuple[Path, ...]
    network: bool = False
    confined: bool = True
    shared_memory: Path | None = None
    account: Account | None = None

    def command(self, module: str) -> list[str]:
        """Python as `module` in this sandbox; the module's own arguments follow.

        No bytecode is written, no user's or working folder is on the path.
        """
        return [sys.executable, "-P", "-s", "-B", *self.arguments(module)]

    def arguments(self, module: str) -> list[str]:
        """What `command` has after the interpreter and its flags."""
        package = sys.modules[module.partition(".")[0]].__file__
        read = (*python_paths(), Path(package).parent) if package else python_paths()
        values = {
            "read": [str(path) for path in (*read, *self.read)],
            "write": [str(path) for path in self.write],
            "network": self.network,
            "confined": self.confined,
            "shared_memory": str(self.shared_memory) if self.shared_memory else None,
            "account": astuple(self.account) if self.account else None,
        }
        return ["-m", "fedcore.system.sandbox.confined", json.dumps(values), module]

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The sandbox that `command` put into words."""
        words = json.loads(text)
        paths = {key: tuple(map(Path, words[key])) for key in ("read", "write")}
        shared = Path(words["shared_memory"]) if words["shared_memory"] else None
        user, group, groups = words["account"] or (0, 0, ())
        return cls(
            **paths,
            network=words["network"],
            confined=words["confined"],
            shared_memory=shared,
            account=Account(user, group, tuple(groups)) if user else None,
        )

    def separate(self) -> None:
        """Go on in namespaces of its own, as far as this machine allows them; maybe as another process.

        For a process that starts and has no threads yet; before `enter`. Raises OSError.
        """
        if self.account is not None:
            self.account.take((*self.write, *filter(None, [self.shared_memory])))
        if self.confined:
            paths = (*_SYSTEM, *_devices(), *self.read, *self.write)
            need = namespaces.Need(alone=not self.network, mapped=self.account is None)
            namespaces.enter(paths, need, shared_memory=self.shared_memory)

    def enter(self) -> None:
        """Take it on, for this process and all that it starts; raises OSError."""
        _limit(resource.RLIMIT_CORE, 0)
        _limit(resource.RLIMIT_NOFILE, DESCRIPTORS)
        _limit(resource.RLIMIT_NPROC, PROCESSES)
        _limit(resource.RLIMIT_FSIZE, FILE_BYTES)
        _go_first_without_memory()
        if self.account is not None:
            self.account.become()
        landlock.give_up_privileges()
        if self.confined:
            seccomp.restrict(network=self.network)
        if self.confined and landlock.abi():
            devices = _devices()
            cuda = any(path.name.startswith("nvidia") for path in devices)
            read, write = (*_SYSTEM, *self.read), (*devices, *self.write)
            landlock.restrict(read=read, write=write, tcp=self.network, threads=cuda)


def refuse_to_show(readable: Iterable[Path], secrets: Iterable[Path], rules: Rules) -> None:
    """Raise ConfigurationError if one of the secrets lies in what user code may read."""
    for path in (*_SYSTEM, *python_paths(), *readable) if rules.confined else ():
        for secret in secrets:
            if secret.resolve().is_relative_to(path.resolve()):
                raise ConfigurationError(
                    f"user code could read {secret}, since it may read {path}: name a folder that holds only what the "
                    "app needs, or move one of the two elsewhere",
                    check="secret-readable",
                )


def describe(rules: Rules, *, network: bool) -> tuple[str, bool]:
    """What holds for user code on this machine, as a line for the log, and whether somebody should be warned."""
    version = landlock.abi()
    if not rules.confined:
        return "switched off: user code can read and send whatever this user can", True
    kind = namespaces.kind_of(namespaces.Need(alone=not network, mapped=not rules.user))
    files = f"files restricted (Landlock {version})" if version else "the kernel has no Landlock"
    files += "" if version or kind else ": user code can read and change whatever this user can"
    files += f"; {_NAMESPACES[kind]}"
    filtered = seccomp.is_known()
    if not filtered:
        files += "; modes of files and limits of processes that are this user's can be changed"
    if rules.user:
        files += f"; it runs as {rules.user}"
    elif os.geteuid() == 0:
        files += "; it runs as root with few of its rights"
    bad = not (version and filtered and kind)
    if network:
        return f"{files}; it has the network, over which the ranks find each other", bad
    if filtered or kind:
        return f"{files}; no network", bad
    if version >= landlock.TCP_ABI:
        return f"{files}; no TCP, but other protocols, which nobody can filter on this machine", True
    return f"{files}; it has the network, which nobody can filter on this machine", True


def clean_environment(rules: Rules, home: Path) -> dict[str, str]:
    """The variables of this process that user code gets: those that a computation needs, and the named ones.

    Raises ConfigurationError for a name that is not set.

    Args:
        home: a private folder, which it gets as HOME and for temporary files.
    """
    if absent := [name for name in rules.variables if name not in os.environ]:
        raise ConfigurationError(
            f"user code is to have the variable {absent[0]}, which is not set", check="variable-not-set"
        )
    chosen = {name: value for name, value in os.environ.items() if _harmless(name) or name in rules.variables}
    if rules.confined:
        chosen = {name: value for name, value in chosen.items() if name not in _PINNING}
    return {
        **chosen,
        **({"USER": rules.user, "LOGNAME": rules.user} if rules.user else {}),
        "HOME": str(home),
        "TMPDIR": str(home),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONNOUSERSITE": "1",
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
    }


def named_paths(environment: Mapping[str, str]) -> list[Path]:
    """Folders and files that variables name, such as a cache of models."""
    values = (value for name, value in environment.items() if name not in _NOT_READ)
    words = (word for value in values for word in value.split(os.pathsep))
    return [Path(word) for word in words if os.path.isabs(word) and os.path.exists(word)]


def python_paths() -> tuple[Path, ...]:
    """Where the interpreter, its packages and fedcore lie."""
    packages = [Path(path) for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    own = Path(__file__).parents[2]
    places = [*map(Path, (sys.prefix, sys.base_prefix, sys.exec_prefix)), *packages, own]
    return tuple(dict.fromkeys(places))


def _devices() -> list[Path]:
    return [path for name in _DEVICE_WORDS.split() for path in Path("/dev").glob(name)]


def _harmless(name: str) -> bool:
    if name in _OWN_CACHES:
        return False
    return name in _VARIABLES or (name.startswith(_PREFIXES) and not _SECRET.search(name))


def _limit(kind: int, most: int) -> None:
    """Lower a limit to `most`; one that is lower already stays."""
    lower = [min(most, value) if value != resource.RLIM_INFINITY else most for value in resource.getrlimit(kind)]
    resource.setrlimit(kind, (lower[0], lower[1]))


def _go_first_without_memory() -> None:
    """Before the agent or the server, which may be the larger one and would take the run with it."""
    with contextlib.suppress(OSError):  # not on Linux, or nobody may say so here
        now = max(0, int(_OUT_OF_MEMORY.read_text()))
        _OUT_OF_MEMORY.write_text(str(min(now + MEMORY_SHARE, 1000)))
