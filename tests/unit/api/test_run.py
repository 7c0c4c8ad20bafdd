"""`fedcore.simulate` and the run that it returns."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import threading
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from support.raising import raises
from support.tiny import TINY
from torch import nn

import fedcore
from fedcore.data import Split
from fedcore.errors import AppError, ConfigurationError, RunFailed, UnknownKey
from fedcore.monitoring.run_record import RunRecord
from fedcore.state import ModelState, read_facts
from fedcore.system.files import make_private_folder
from fedcore.training import OptimizerConfig
from fedcore.wire.events import Aggregation, ExchangeDone, RunEnded, RunEvent, RunStarted
from fedcore.wire.operator import RunStatus

matplotlib.use("Agg")


def tiny(**options: Any) -> fedcore.Run:
    return fedcore.simulate(TINY, **{"clients": 3, "progress": False, **options})


def exchange(server_round: int, message_type: str, metrics: dict[str, Any], **more: Any) -> ExchangeDone:
    aggregation: Aggregation = "secure"
    return ExchangeDone(
        exchange=2 * server_round + (message_type == "evaluate"),
        server_round=server_round,
        message_type=message_type,
        aggregation=aggregation,
        survivors=["client-1", "client-2"],
        examples=10,
        metrics=metrics,
        seconds=1.5,
        bytes_up={"client-1": 3, "client-2": 4},
        **more,
    )


def run_of(*events: RunEvent, results: dict[str, Any] | None = None, app: str = "app") -> fedcore.Run:
    record = RunRecord()
    for event in (RunStarted(app=app, aggregation="secure"), *events, RunEnded(status=RunStatus.FINISHED)):
        record.add(event, 0.0)
    return fedcore.Run(app=app, clients=2, record=record, model=None, results=results or {})


def test_a_folder_is_run_and_its_history_has_a_row_for_each_round():
    run = tiny(rounds=2)
    assert list(run.history.index) == [1, 2]
    assert run.history.index.name == "round"
    assert list(run.history.columns) == [
        "pair", "train_loss", "eval_loss", "clients", "dropped", "seconds", "bytes_up", "bytes_down",
    ]  # fmt: skip
    assert run.history.clients.tolist() == [3, 3]
    assert run.metrics == {"eval_loss": run.history.eval_loss[2]}
    assert run.model is not None
    assert list(run.model) == ["weight", "counter", "half"]
    assert run.run_config["num-server-rounds"] == 2
    assert repr(run).startswith("<fedcore.Run: tiny finished: 2 rounds over 3 clients, secure: eval_loss ")


def test_events_go_to_a_function():
    seen: list[RunEvent] = []
    tiny(progress=seen.append)
    assert seen[0].kind == "started"
    assert seen[-1].kind == "ended"


def test_plain_aggregation_and_settings_are_taken():
    assert tiny(aggregation="plain").record.aggregation == "plain"
    assert tiny(settings={"field-bits": 16}).settings["field-bits"] == 16
    with pytest.raises(ConfigurationError, match=r"aggregation='plain'.*settings\['aggregation'\]"):
        tiny(aggregation="plain", settings={"aggregation": "secure"})
    with pytest.raises(UnknownKey, match="'field-bits'"):
        tiny(settings={"field_bits": 16})


def test_rounds_and_seed_need_their_key():
    with raises(ConfigurationError, check="key-needed", match=r"seed=1.*'seed'.*tiny"):
        tiny(seed=1)
    with raises(ConfigurationError, check="contradiction", match=r"rounds=3.*\['num-server-rounds'\]=4"):
        tiny(rounds=3, run_config={"num-server-rounds": 4})


def test_a_policy_is_asked_for_by_name():
    with pytest.raises(RunFailed, match="config-not-allowed"):
        tiny(policy="stock", run_config={"lr": 0.25})
    assert tiny(policy="own", run_config={"lr": 0.25}).record.status == "finished"


def test_an_edited_app_is_the_one_that_runs(tmp_path: Path):
    """Modules that were imported before would otherwise go on running, silently."""
    folder = shutil.copytree(TINY, tmp_path / "tiny", ignore=shutil.ignore_patterns("__pycache__"))
    before = fedcore.simulate(folder, clients=2, progress=False)
    client = folder / "tiny_app" / "client_app.py"
    client.write_text(client.read_text().replace('"eval_loss"', '"eval_lose"'))
    after = fedcore.simulate(folder, clients=2, progress=False)
    assert (list(before.metrics), list(after.metrics)) == (["eval_loss"], ["eval_lose"])


def test_the_modules_of_an_app_do_not_stay():
    path, modules = list(sys.path), {name for name in sys.modules if name.startswith("tiny_app")}
    tiny()
    assert sys.path == path
    assert {name for name in sys.modules if name.startswith("tiny_app")} == modules


def split(job: fedcore.LocalJob) -> tuple[Split, Split]:
    rng = np.random.default_rng(int(job.node["partition-id"]))
    x = rng.normal(size=(12, 3)).astype(np.float32)
    part = Split(x=x, y=(x.sum(axis=1) > 0).astype(np.int64))
    return part, part


def supervised() -> Any:
    return fedcore.supervised_app(
        model=lambda config: nn.Linear(3, 2), optimizer=lambda config: OptimizerConfig(lr=0.5), data=split
    )


def test_what_supervised_app_returns_is_an_app():
    run = fedcore.simulate(supervised(), clients=2, rounds=2, progress=False)
    assert list(run.history.index) == [1, 2]
    assert "eval_acc" in run.metrics
    assert run.facts is None, "its hash would say nothing of its code"


def test_a_function_that_makes_an_app_names_it():
    def my_app() -> Any:
        return supervised()

    assert fedcore.simulate(my_app, clients=2, rounds=1, progress=False).app == "my_app"


def test_a_pair_of_flower_apps_is_an_app():
    client, server = ClientApp(), ServerApp()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        arrays = message.content["arrays"]
        metrics = MetricRecord({"num-examples": 2, "half": float(context.run_config["half"])})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        arrays = ArrayRecord({"w": Array(np.ones(3, np.float32))})
        FedAvg(fraction_evaluate=0.0).start(grid=grid, initial_arrays=arrays, num_rounds=1)

    run = fedcore.simulate((client, server), clients=2, run_config={"half": 0.5}, progress=False)
    assert run.metrics == {"half": 0.5}
    with raises(ConfigurationError, check="key-needed", match=r"rounds=2.*'num-server-rounds'"):
        fedcore.simulate((client, server), clients=2, rounds=2, progress=False)


def test_a_key_with_underscores_is_refused_where_nothing_would_read_it():
    with pytest.raises(UnknownKey, match="'local-epochs'"):
        fedcore.simulate(supervised(), run_config={"local_epochs": 2}, progress=False)


@pytest.mark.parametrize(
    ("app", "words"),
    [
        (ClientApp(), {"check": "server-app-needed", "match": r"client_app.*server_app"}),
        (3, {"check": "not-an-app", "match": r"\bint\b"}),
        (lambda: 3, {"check": "not-an-app", "match": r"\bint\b"}),
    ],
)
def test_what_is_no_app_is_refused(app: Any, words: dict[str, str]):
    with raises(AppError, **words):
        fedcore.simulate(app, progress=False)


async def test_it_runs_where_an_event_loop_runs():
    """As in every cell of a notebook."""
    assert asyncio.get_running_loop()
    assert tiny().record.status == "finished"


def test_threads_wait_for_each_other():
    runs: list[fedcore.Run] = []
    threads = [threading.Thread(target=lambda: runs.append(tiny())) for _ in range(2)]
    here = Path.cwd()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [run.record.status for run in runs] == ["finished", "finished"]
    assert Path.cwd() == here


def test_ctrl_c_leaves_nothing(monkeypatch: pytest.MonkeyPatch):
    made: list[Path] = []
    make = make_private_folder
    monkeypatch.setattr("fedcore.api.result.make_private_folder", lambda: made.append(make()) or made[-1])
    here, path = Path.cwd(), list(sys.path)

    def interrupt(event: RunEvent) -> None:
        if event.kind == "exchange-done":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tiny(progress=interrupt)
    assert (Path.cwd(), sys.path) == (here, path)
    assert [folder.exists() for folder in made] == [False]


def test_a_name_of_both_kinds_of_exchange_says_which():
    run = run_of(
        exchange(1, "train", {"loss": 2.0, "c/sums": [1.0]}),
        exchange(1, "evaluate", {"loss": 1.0, "acc": 0.5}),
        results={"server": {"0": {"acc": 0.1}, "1": {"acc": 0.6}}},
    )
    metrics = ["train/loss", "evaluate/loss", "acc", "server/acc"]
    assert sorted(set(run.history.columns) & set(metrics)) == sorted(metrics)
    assert "c/sums" not in run.history
    assert run.history["server/acc"].tolist() == [0.1, 0.6]
    assert run.metrics == {"loss": 1.0, "acc": 0.5}


def test_what_a_strategy_made_of_metrics_takes_the_place_of_their_means():
    run = run_of(exchange(1, "evaluate", {"auc": 0.2}), results={"evaluate": {"1": {"auc": 0.7, "num-examples": 4}}})
    assert run.history.auc.tolist() == [0.7]
    assert run.metrics == {"auc": 0.7}


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_html_is_escaped_and_asks_nobody_for_anything():
    run = run_of(exchange(1, "evaluate", {"<img src=x>": 1.0}), app="<script>alert(1)</script>")
    found = _Tags()
    found.feed(run._repr_html_())
    assert {tag for tag, _ in found.tags} == {"div", "strong", "table", "thead", "tbody", "tr", "th", "td"}
    assert {name for _, attrs in found.tags for name in attrs} == {"class", "style", "scope"}
    assert "http" not in run._repr_html_()


def test_a_long_history_shows_its_end():
    run = run_of(*(exchange(number, "evaluate", {"acc": 0.5}) for number in range(1, 31)))
    assert run._repr_html_().count("<tr>") == 13
    assert "the last 12 of 30 rows" in run._repr_html_()


def test_plot_draws_what_was_tested():
    run = run_of(exchange(1, "train", {"train_acc": 1.0}), exchange(1, "evaluate", {"eval_acc": 0.5, "eval_loss": 2.0}))
    assert [line.get_label() for line in run.plot().lines] == ["eval_acc"]
    axes = run.plot("eval_loss", "seconds")
    assert [line.get_label() for line in axes.lines] == ["eval_loss", "seconds"]
    assert run.plot("train_acc", ax=axes) is axes
    with pytest.raises(UnknownKey, match="'eval_acc'"):
        run.plot("eval_ac")
    matplotlib.pyplot.close("all")


def test_a_run_without_numbers_has_nothing_to_plot():
    with raises(ConfigurationError, check="nothing-to-plot"):
        run_of(exchange(1, "train", {})).plot()


def test_save_writes_all_of_it(tmp_path: Path):
    run = tiny(rounds=2)
    folder = run.save(tmp_path / "kept")
    assert sorted(path.name for path in folder.iterdir()) == ["history.csv", "model.safetensors", "run.json"]
    assert json.loads((folder / "run.json").read_text())["metrics"].keys() == {"eval_loss"}
    assert len((folder / "history.csv").read_text().splitlines()) == 3
    assert run.model is not None
    assert (ModelState.open(folder / "model.safetensors")["weight"] == run.model["weight"]).all()
    facts = read_facts(folder / "model.safetensors")
    assert facts is not None
    assert (facts.app, facts.rounds) == ("tiny", 2)
    with raises(ConfigurationError, check="exists"):
        run.save(folder)
    run.save(folder, force=True)
    (folder / "notes.md").write_text("a person's own")
    with raises(ConfigurationError, check="not-own-folder"):
        run.save(folder, force=True)
    assert (folder / "notes.md").is_file()


def test_files_that_the_server_app_wrote_are_saved(tmp_path: Path):
    client, server = ClientApp(), ServerApp()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({"arrays": message.content["arrays"], "metrics": metrics}), reply_to=message)

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        Path("note.txt").write_text("kept")
        arrays = ArrayRecord({"w": Array(np.ones(3, np.float32))})
        FedAvg(fraction_evaluate=0.0).start(grid=grid, initial_arrays=arrays, num_rounds=1)

    run = fedcore.simulate((client, server), clients=2, progress=False)
    assert (run.save(tmp_path / "kept") / "files" / "note.txt").read_text() == "kept"


def test_a_model_starts_another_run():
    first = tiny(rounds=1)
    again = tiny(rounds=1, initial_model=first.model)
    assert again.history.train_loss[1] == pytest.approx(first.metrics["eval_loss"], rel=1e-3)
