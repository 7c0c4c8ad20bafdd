"""A pool of processes: the same bits as one process, states that follow their clients, and how it ends."""

from __future__ import annotations

import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from support.tiny import TINY

from fedcore.errors import AppError, RunFailed, WorkerDied
from fedcore.flower.app import FlowerApp
from fedcore.flower.apps.batched_clients import OnFailure, raise_failure
from fedcore.flower.apps.tensor_app import LocalResult
from fedcore.run.settings import JobSettings
from fedcore.simulation import Simulation
from fedcore.simulation.workers.executor import ClientExecutor, ExecutorWrapper, InlineExecutor
from fedcore.simulation.workers.pool import ProcessExecutor
from fedcore.state import ModelState
from fedcore.system.assignments import override
from fedcore.wire.events import ExchangeDone, RunEvent, Warned
from fedcore.wire.tasks import Task

# Processes may need long to import Flower.
pytestmark = pytest.mark.timeout(600)

COUNTING = Path(__file__).parents[2] / "apps" / "counting"
CLIENTS = 12


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def simulated(
    executor: ClientExecutor, folder: Path, aggregation: str, events: list[RunEvent] | None = None, **config: Any
) -> ModelState:
    app = FlowerApp.load(folder)
    random.seed(7)  # Flower draws the order of the nodes, and so that of the sum
    chosen = {name.replace("_", "-"): value for name, value in config.items()}
    simulation = Simulation(
        app=app,
        clients=CLIENTS,
        run_config=override(app.run_config, chosen, "test"),
        settings=JobSettings(aggregation=aggregation),  # type: ignore[arg-type]
        executor=executor,
        emit=(lambda event: None) if events is None else events.append,
    )
    state = simulation.run().state
    assert state is not None
    return state


def of(kind: Callable[..., ClientExecutor], folder: Path, **options: Any) -> ClientExecutor:
    return kind(app=FlowerApp.load(folder), clients=CLIENTS, **options)


def same_bits(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return list(one) == list(other) and all(one[name].tobytes() == other[name].tobytes() for name in one)


@pytest.mark.parametrize("folder", [TINY, COUNTING], ids=["tiny", "counting"])
def test_a_plain_run_gives_the_same_bits_as_in_one_process(folder: Path):
    with of(InlineExecutor, folder) as executor:
        expected = simulated(executor, folder, "plain")
    with of(ProcessExecutor, folder, workers=3) as executor:
        assert same_bits(simulated(executor, folder, "plain"), expected)


def test_a_secure_run_gives_the_same_sums_but_for_rounding():
    with of(InlineExecutor, COUNTING) as executor:
        expected = simulated(executor, COUNTING, "secure")
    with of(ProcessExecutor, COUNTING, workers=2) as executor:
        found = simulated(executor, COUNTING, "secure")
    np.testing.assert_allclose(found["value"], expected["value"], rtol=1e-4)


def test_every_worker_has_clients_whose_contexts_follow_them(capfd: pytest.CaptureFixture[str]):
    with of(ProcessExecutor, COUNTING, workers=3) as executor:
        events: list[RunEvent] = []
        simulated(executor, COUNTING, "secure", events, num_server_rounds=6)
    printed = [line.split() for line in capfd.readouterr().out.splitlines() if line.startswith("process ")]
    assert len(printed) == 6 * CLIENTS
    assert len({words[1] for words in printed}) == 3
    done = [event for event in events if event.kind == "exchange-done"]
    means = [event.metrics["rounds"] for event in done]  # type: ignore[attr-defined]
    assert means == pytest.approx([1, 2, 3, 4, 5, 6], abs=1e-3)  # each client counts its own rounds


class Strict(ExecutorWrapper):
    """An executor whose caller does not ask for failures, so that they are raised."""

    def run(
        self, task: Task, model: ModelState | None, clients: Sequence[int], on_failure: OnFailure = raise_failure
    ) -> Iterator[tuple[int, LocalResult]]:
        del on_failure
        return self.executor.run(task, model, clients)


def test_what_an_app_raises_names_its_client_and_shows_its_lines(capfd: pytest.CaptureFixture[str]):
    events: list[RunEvent] = []
    with of(ProcessExecutor, TINY, workers=2) as executor:
        simulated(executor, TINY, "secure", events, faulty_partition=3, fault="raise", num_server_rounds=1)
        assert [event.failures for event in events if isinstance(event, ExchangeDone)] == [1, 0]
        lines = [event.line for event in events if isinstance(event, Warned)]
        assert any(re.search(r"client 4 .*ValueError", line) for line in lines)
        with pytest.raises(AppError, match=r"client 4 .*ValueError"):
            simulated(Strict(executor), TINY, "secure", faulty_partition=3, fault="raise")
    assert "in misbehave" in capfd.readouterr().err


def test_in_plain_mode_an_exception_is_the_reply_of_one_client(capfd: pytest.CaptureFixture[str]):
    events: list[list[Any]] = [[], []]
    for kind, found in zip((InlineExecutor, ProcessExecutor), events, strict=True):
        with of(kind, TINY) as executor:
            simulated(executor, TINY, "plain", found, faulty_partition=3, fault="raise", num_server_rounds=1)
    reasons = [[event.reason for event in found if event.kind == "dropped"] for found in events]
    assert reasons[0] == reasons[1]
    assert reasons[0][0] == "ValueError: patient 17 is in this message"
    assert capfd.readouterr().err.count("in misbehave") >= 2


@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_that_dies_is_an_error_with_its_client(workers: int):
    with of(ProcessExecutor, TINY, workers=workers) as executor, pytest.raises((WorkerDied, RunFailed)) as raised:
        simulated(executor, TINY, "secure", faulty_partition=6, fault="kill")
    assert re.search("SIGKILL.*client 7", str(raised.value))


def test_an_app_that_cannot_be_loaded_is_an_error_of_its_own(tmp_path: Path):
    package = tmp_path / "broken"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "client.py").write_text("raise OSError('no such disk')\n")
    text = (COUNTING / "pyproject.toml").read_text().replace("counting_app.apps:client", "broken.client:app")
    (tmp_path / "pyproject.toml").write_text(text)
    (tmp_path / "counting_app").symlink_to(COUNTING / "counting_app")
    with (
        ProcessExecutor(app=FlowerApp.load(tmp_path), clients=3, workers=2) as executor,
        pytest.raises(AppError, match="OSError"),
    ):
        simulated(executor, COUNTING, "secure")


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary files go; its name leaves room for those of sockets."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def test_nothing_is_left_of_a_pool(temporary: Path):
    others = psutil.Process().children()
    with of(ProcessExecutor, COUNTING, workers=2) as executor:
        [folder] = temporary.iterdir()
        simulated(executor, COUNTING, "secure", num_server_rounds=1)
        [leader] = [child for child in psutil.Process().children() if child not in others]
        assert len(processes_of(leader.pid)) == 3
        assert [path.name for path in folder.iterdir()] == ["states"]
    wait_for(lambda: not processes_of(leader.pid))
    assert not folder.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_pool_ends_with_its_simulation_even_in_the_middle_of_a_task(tmp_path: Path, number: signal.Signals):
    code = (
        "import sys; from pathlib import Path\n"
        "sys.path[:0] = sys.argv[1:3]\n"
        "from tests.processes.simulation.test_pool import ProcessExecutor, TINY, of, simulated\n"
        "with of(ProcessExecutor, TINY, workers=2) as executor:\n"
        "    print(executor._processes._process.pid, flush=True)\n"
        "    simulated(executor, TINY, 'secure', gate=sys.argv[3])\n"
    )
    root = Path(__file__).parents[3]
    arguments = [sys.executable, "-c", code, str(root), str(root / "tests"), str(tmp_path / "gate")]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as parent:
        assert parent.stdout is not None
        lines: Iterator[str] = iter(parent.stdout)
        group = int(next(lines))
        assert "at the gate" in next(lines)
        parent.send_signal(number)
        parent.wait()
    wait_for(lambda: not processes_of(group))


def processes_of(group: int) -> list[int]:
    """Ids of the living processes of a group."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] not in "ZX":
            found.append(int(entry.name))
    return found


def wait_for(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.02)
