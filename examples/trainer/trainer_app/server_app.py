"""The ServerApp: FedAvg."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from trainer_app.task import make_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    nodes = int(context.run_config["min-nodes"])
    strategy = FedAvg(min_train_nodes=nodes, min_evaluate_nodes=nodes, min_available_nodes=nodes)
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(make_model(context.run_config).state_dict()),
        num_rounds=int(context.run_config["num-server-rounds"]),
    )
