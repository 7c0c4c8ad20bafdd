"""examples/digits, unchanged, in Flower's own simulation: Ray actors, real Messages."""

import dataclasses
import sys

import pytest

pytest.importorskip("ray", reason='needs Flower\'s simulation: pip install "flwr[simulation]"')

from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation

from tests.unit.examples.flower_messages import EXAMPLES, app_modules, pooled, run_app, run_config

CLIENTS = 2
CHANGES = {"num_server_rounds": 2, "local_epochs": 1}


def with_config(app, config):
    """The same ClientApp with its run config filled in, which run_simulation leaves empty."""
    wrapped = ClientApp()

    def call(message, context):
        # Flower refuses a changed run config in the context that it handed out, not in a copy.
        return app(message, dataclasses.replace(context, run_config=config))

    wrapped.train()(call)
    wrapped.evaluate()(call)
    return wrapped


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_digits_app_gives_the_same_figures_in_flowers_simulation(monkeypatch):
    folder = str(EXAMPLES / "digits")
    # Ray's actors are processes of their own and import the app by its name.
    monkeypatch.setenv("PYTHONPATH", folder)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    config = run_config("digits", **CHANGES)
    seen = []

    class Watch:
        """Passes everything on, and keeps the metrics of the evaluation replies."""

        def __init__(self, grid):
            self.grid = grid

        def __getattr__(self, name):
            return getattr(self.grid, name)

        def send_and_receive(self, messages, *, timeout=None):
            replies = list(self.grid.send_and_receive(messages, timeout=timeout))
            assert [r.error.reason for r in replies if r.has_error()] == []
            if replies[0].metadata.message_type == "evaluate":
                seen.append(pooled([r.content for r in replies], "eval_acc"))
            return replies

    with app_modules("digits") as (_, client, server):
        main = ServerApp()

        @main.main()
        def run(grid, context):
            context.run_config = config
            server.app(Watch(grid), context)

        run_simulation(
            server_app=main,
            client_app=with_config(client.app, config),
            num_supernodes=CLIENTS,
            backend_config={
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
                "init_args": {"num_cpus": CLIENTS, "include_dashboard": False},
            },
        )
    assert folder not in sys.path
    expected = run_app("digits", clients=CLIENTS, **CHANGES).rounds("evaluate")
    assert seen == pytest.approx([pooled(replies, "eval_acc") for replies in expected], abs=0.006)
    assert len(seen) == 2
