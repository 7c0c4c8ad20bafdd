"""A Flower app whose both halves try to get at what is not theirs, and print what they got."""

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
"""

PRYING = """
import os, signal, socket, subprocess, sys
from pathlib import Path
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
        yield f"load {secret}", lambda: list(DataLoader(Prying(secret), num_workers=1))[0].item() or 1 / 0
    yield "variables of this process", lambda: os.environ["FEDCORE_TEST_SECRET"]
    yield "variables of the parent", lambda: Path(f"/proc/{parent}/environ").read_bytes() or 1 / 0
    yield "memory of the parent", lambda: open(f"/proc/{parent}/mem", "rb")
    yield "root of the parent", lambda: os.listdir(f"/proc/{parent}/root/")
    yield "a signal to the parent", lambda: os.kill(parent, signal.SIGCONT)
    yield "the app's own code", lambda: Path(__file__).write_text("")
    yield "a file beside the code", lambda: Path(__file__).with_name("more.py").write_text("")
    yield "connect", lambda: socket.create_connection(("127.0.0.1", port), timeout=5)
    yield "send a datagram", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", port))
    yield "listen", lambda: socket.create_server(("127.0.0.1", 0))
    yield "core dumps", lambda: 1 / __import__("resource").getrlimit(4)[1]
    yield "bytecode", lambda: 1 / (not sys.dont_write_bytecode)
    yield "a descriptor", lambda: [1 for name in os.listdir("/proc/self/fd") if "identity" in link(name)][0]

def link(name):
    return os.readlink(f"/proc/self/fd/{name}")

def pry(config):
    for name, attempt in attempts(config):
        try:
            attempt()
        except (OSError, KeyError, ZeroDivisionError, IndexError, subprocess.CalledProcessError):
            continue
        print("got", name, flush=True)
    (Path(os.environ["TMPDIR"]) / "mine").write_text("may be written")
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
