"""The ClientApp: trains and evaluates on this node's part of Fashion-MNIST."""

from fashion_mnist_app.task import initial_model, local_data, optimizer
from fedcore.data import Split
from fedcore.flower.local import LocalJob, Metrics, local_app
from fedcore.training import Engine, derive_seed, evaluate, train


def fit(engine: Engine, job: LocalJob) -> Metrics:
    """Train the global model for one round."""
    examples, _ = _data(job)
    summary = train(
        engine,
        examples,
        batch_size=int(job.config["batch-size"]),
        epochs=int(job.config["local-epochs"]),
        seed=_round_seed(job),
        proximal=job.proximal,
    )
    return {"num-examples": summary.examples, "train_loss": summary.loss}


def test(engine: Engine, job: LocalJob) -> Metrics:
    """Test the model on this node's test part."""
    _, examples = _data(job)
    result = evaluate(engine, examples)
    return {"num-examples": result.examples, "eval_loss": result.loss, "eval_acc": result.accuracy}


def _data(job: LocalJob) -> tuple[Split, Split]:
    config, node = job.config, job.node
    return local_data(
        str(config["partition"]),
        int(node["partition-id"]),
        int(node["num-partitions"]),
        int(config["seed"]),
    )


def _round_seed(job: LocalJob) -> int:
    """The order of the examples: the same whenever, wherever and after whatever it runs."""
    return derive_seed("training order", int(job.config["seed"]), job.server_round, int(job.node["partition-id"]))


app = local_app(model=initial_model, optimizer=optimizer, train=fit, evaluate=test)
