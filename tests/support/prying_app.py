"""A Flower app whose both halves try to get at what is not theirs, and say what they got and what failed."""

from __future__ import annotations

from pathlib import Path

PYPROJECT = """
[project]
name = "prying"
version = "1"
[tool.flwr.app.components]
serverapp = "prying:server"
clientapp = "prying:client"
[tool.flwr.app.config]
secrets = ""
port = 0
socket = ""
mark = ""
agent = 0
network = false
"""

PRYING = """
import ctypes, multiprocessing, os, resource, shutil, signal, socket, stat, subprocess, sys, tempfile, zipfile
from pathlib import Path
import numpy, psutil, torch
from torch.utils.data import DataLoader, Dataset
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client, server = ClientApp(), ServerApp()

class Prying(Dataset):
    def __init__(self, path):
        self.path = path
    def __len__(self):
        return 1
    def __getitem__(self, index):
        try:
            return len(Path(self.path).read_bytes())
        except OSError:
            return 0

def attempts(config):
    port, parent = config["port"], os.getppid()
    for secret in config["secrets"].split(os.pathsep):
        yield f"read {secret}", lambda: Path(secret).read_bytes()
        yield f"list {secret}", lambda: os.listdir(Path(secret).parent)
        yield f"cat {secret}", lambda: subprocess.check_output(["cat", secret], stderr=subprocess.DEVNULL)
        yield f"copy {secret}", lambda: os.link(secret, "stolen")
        yield f"write {secret}", lambda: Path(secret).write_text("")
        yield f"an attribute of {secret}", lambda: os.setxattr(secret, "user.fedcore", b"1")
        yield f"that there is {secret}", lambda: os.stat(secret)
        for place in (secret, str(Path(secret).parent)):
            yield f"watch {place}", lambda: watch(place)
    yield "watch its own files", lambda: watch(".")
    yield "memory of others by name", lambda: (Path("/dev/shm") / config["mark"]).read_bytes()
    yield "the end of others' memory", lambda: (Path("/dev/shm") / config["mark"]).unlink()
    yield "a socket with a path", lambda: connected(config["socket"])
    yield "a user namespace", lambda: called("unshare", 0x10000000)
    yield "a user namespace for a child", lambda: called("syscall", CLONE[os.uname().machine], 0x10000011, 0, 0, 0, 0)
    yield "a secret by a loader", lambda: list(DataLoader(Prying(secret), num_workers=1))[0].item() or 1 / 0
    yield "variables of this process", lambda: os.environ["FEDCORE_TEST_SECRET"]
    yield "variables of the parent", lambda: Path(f"/proc/{parent}/environ").read_bytes() or 1 / 0
    yield "memory of the parent", lambda: open(f"/proc/{parent}/mem", "rb")
    yield "root of the parent", lambda: os.listdir(f"/proc/{parent}/root/")
    yield "a signal to the parent", lambda: os.kill(parent, signal.SIGCONT)
    yield "limits of the parent", lambda: resource.prlimit(parent, resource.RLIMIT_CPU, (10**6, 10**6))
    yield "limits by psutil", lambda: psutil.Process(parent).rlimit(resource.RLIMIT_CORE, (0, 0))
    yield "limits by a program", lambda: subprocess.check_output(
        ["prlimit", f"--pid={parent}", "--core=0"], stderr=subprocess.DEVNULL)
    yield "processors of the parent", lambda: os.sched_setaffinity(parent, {0})
    yield "turns of the parent", lambda: os.sched_setscheduler(parent, os.SCHED_BATCH, os.sched_param(0))
    for kind, number in ((os.PRIO_PROCESS, parent), (os.PRIO_PGRP, 0), (os.PRIO_USER, 0)):
        yield f"priority {kind} {number}", lambda: os.setpriority(kind, number, 19)
    yield "the disk's turns of the parent", lambda: psutil.Process(parent).ionice(psutil.IOPRIO_CLASS_IDLE)
    yield "a set-user-id file", lambda: os.open("by-open", os.O_CREAT | os.O_WRONLY, 0o4755)
    yield "a set-group-id file", lambda: os.mknod("by-mknod", 0o2755 | stat.S_IFREG)
    yield "a set-user-id file without a name", lambda: os.open(".", os.O_TMPFILE | os.O_WRONLY, 0o4700)
    yield "a set-group-id folder", lambda: os.mkdir("by-mkdir", 0o2755)
    yield "a set-user-id program", lambda: 1 / (set_user_id("program") & (stat.S_ISUID | stat.S_ISGID))
    yield "io_uring", lambda: called("syscall", 425, 8, ctypes.create_string_buffer(120))
    yield "a key of the kernel", lambda: called("syscall", ADD_KEY[os.uname().machine], b"user", b"mine", b"x", 1, -3)
    yield "shared memory by number", lambda: called("shmget", 0, 4096, 0o1600)
    yield "a queue by number", lambda: called("msgget", 0, 0o1600)
    yield "semaphores by number", lambda: called("semget", 0, 1, 0o1600)
    yield "the parent's end for want of memory", lambda: 1 / (weight("self") <= min(weight(parent), 999))
    yield "a later end for want of memory", lambda: Path("/proc/self/oom_score_adj").write_text("0")
    yield "core dumps", lambda: 1 / resource.getrlimit(resource.RLIMIT_CORE)[1]
    yield "bytecode", lambda: 1 / (not sys.dont_write_bytecode)
    yield "a descriptor", lambda: [1 for name in os.listdir("/proc/self/fd") if "identity" in link(name)][0]
    yield "the app's own code", lambda: Path(__file__).write_text("")
    yield "a file beside the code", lambda: Path(__file__).with_name("more.py").write_text("")
    if config["network"]:
        return
    yield "an abstract socket", lambda: connected(chr(0) + config["mark"])
    yield "other programs", lambda: 1 / (len([name for name in os.listdir("/proc") if name.isdigit()]) > 3)
    yield "command lines", lambda: Path(f"/proc/{config['agent']}/cmdline").read_bytes()
    yield "connect", lambda: socket.create_connection(("127.0.0.1", port), timeout=5)
    yield "send a datagram", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", port))
    yield "listen", lambda: socket.create_server(("127.0.0.1", 0))

ADD_KEY = {"x86_64": 248, "aarch64": 217}
CLONE = {"x86_64": 56, "aarch64": 220}

def watch(path):
    called("inotify_add_watch", called("inotify_init1", 0), path.encode(), 0xFFF)

def connected(address):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)

def called(name, *arguments):
    libc = ctypes.CDLL(None, use_errno=True)
    result = getattr(libc, name)(*arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), name)
    return result

def set_user_id(path):
    shutil.copy("/bin/true", path)
    os.chmod(path, 0o6755)
    subprocess.run(["chmod", "6755", path])
    return os.stat(path).st_mode

def disturb(config):
    # Without an effect, and of what it sees without an error: the test looks at the files afterwards.
    Path("own").write_text("1")
    secrets = config["secrets"].split(os.pathsep)
    for path in (*secrets, *(str(Path(secret).parent) for secret in secrets), "own", __file__):
        if os.path.exists(path):
            before = os.stat(path)
            os.chmod(path, 0o777)
            os.chown(path, 65534, 65534)
            os.utime(path, (1, 1))
            subprocess.run(["chmod", "777", path], check=True)
            subprocess.run(["touch", "-d", "@1", path], check=True)
            called("syscall", 452, -100, path.encode(), 0o777, 0)  # fchmodat2
            if os.stat(path) != before:
                print("got another mode, owner or time of", path, flush=True)

class Numbers(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return torch.full((4,), float(index)), torch.tensor([1.0])

def training():
    module = torch.nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(module.parameters())
    for x, y in DataLoader(Numbers(), batch_size=4, num_workers=2):
        torch.nn.functional.mse_loss(module(x), y).backward()
        optimizer.step()
    torch.save(module.state_dict(), "module.pt")
    module.load_state_dict(torch.load("module.pt"))

def files():
    Path("one").write_text("1")
    for copy in (shutil.copy, shutil.copy2, shutil.copystat, shutil.move):
        copy("one", "two")
    with tempfile.TemporaryDirectory() as folder, tempfile.NamedTemporaryFile(dir=folder) as file:
        file.write(b"1")
    with zipfile.ZipFile("packed.zip", "w") as archive:
        archive.write("two")
    shutil.unpack_archive("packed.zip", "unpacked")
    shutil.make_archive("packed", "gztar", "unpacked")
    shutil.unpack_archive("packed.tar.gz", "unpacked")
    numpy.memmap("mapped", dtype="f4", mode="w+", shape=(10,)).flush()

def own_process():
    own = psutil.Process()
    own.nice(own.nice() + 1)
    own.cpu_affinity(own.cpu_affinity())
    own.rlimit(resource.RLIMIT_NOFILE, own.rlimit(resource.RLIMIT_NOFILE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.sched_setaffinity(0, os.sched_getaffinity(0))
    os.kill(subprocess.Popen(["sleep", "600"]).pid, signal.SIGKILL)

def processes():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(abs, (-3,)) == 3

def ranks():
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        tensor = torch.ones(1)
        torch.distributed.all_reduce(tensor)
        assert tensor.item() > 1

def weight(process):
    return int(Path(f"/proc/{process}/oom_score_adj").read_text())

def link(name):
    return os.readlink(f"/proc/self/fd/{name}")

def pry(config):
    os.chdir(tempfile.mkdtemp())
    for name, attempt in attempts(config):
        try:
            attempt()
        except (OSError, KeyError, ZeroDivisionError, IndexError, psutil.Error, subprocess.CalledProcessError):
            continue
        print("got", name, flush=True)
    disturb(config)
    os.chdir(tempfile.mkdtemp())
    for work in (training, files, own_process, processes, ranks):
        try:
            work()
        except Exception as error:
            print("lost", work.__name__, repr(error), flush=True)
    print("tried all", flush=True)

@client.train()
def train(message, context):
    pry(context.run_config)
    arrays = ArrayRecord({k: Array(v.numpy() + 1) for k, v in message.content["arrays"].items()})
    content = {"arrays": arrays, "metrics": MetricRecord({"num-examples": 7})}
    return Message(content=RecordDict(content), reply_to=message)

@server.main()
def main(grid, context):
    pry(context.run_config)
"""


def write_app(folder: Path) -> Path:
    """Put the app into `folder`."""
    folder.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (folder / "prying.py").write_text(PRYING)
    return folder
