"""Tables and numbers: regression, multi-task, survival, rankings, and optimizers of other kinds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, WeightedRandomSampler

from fedcore import OptimizerConfig, supervised_app
from fedcore.data import Split
from fedcore.training import seeded
from fedcore.training.losses import binary_cross_entropy, cox, multi_label, squared_error
from tests.integration.programs.program import Program, choices, drawn, loop
from tests.support.several_tensors import Listed

X, NUMBER, CLASS = drawn(1, 14, 5), drawn(2, 14), choices(3, 3, 14)
PAIRS = Listed(list(zip(X, NUMBER, strict=True)))


def made(build: Any) -> Any:
    def model(config: Any = None) -> Any:
        with seeded(7):
            return build()

    return model


def both(data: Any) -> Any:
    return lambda job: (data, data)


SGD = lambda config: OptimizerConfig(lr=0.1)  # noqa: E731
ADAM = lambda config: OptimizerConfig(name="adam", lr=0.01)  # noqa: E731


def mlp(out: int = 1) -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, out))


# --- dicts, dataclasses -----------------------------------------------------------------------------------------------


class Multi(nn.Module):
    """Two heads on one trunk."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.kind, self.days = nn.Linear(5, 6), nn.Linear(6, 3), nn.Linear(6, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        hidden = torch.relu(self.trunk(x))
        return {"kind": self.kind(hidden), "days": self.days(hidden).squeeze(1)}


def multi_task() -> Program:
    rows = [{"x": x, "labels": {"kind": k, "days": d}} for x, k, d in zip(X, CLASS, NUMBER, strict=True)]

    def loss(output: Any, labels: Any) -> Tensor:
        kinds = F.cross_entropy(output["kind"], labels["kind"], reduction="none")
        return kinds + (output["days"] - labels["days"]) ** 2

    data = DataLoader(Listed(rows), batch_size=4)
    model = made(Multi)

    def bare() -> nn.Module:
        own = model()
        each = lambda m, b: loss(m(b["x"]), b["labels"]).mean()  # noqa: E731
        return loop(own, data, each, torch.optim.SGD(own.parameters(), lr=0.1))

    app = lambda: supervised_app(model=model, optimizer=SGD, data=both(data), loss=loss)  # noqa: E731
    return Program(name="multi-task dicts", app=app, bare=bare)


@dataclass
class Visit:
    """A batch as a dataclass."""

    features: Tensor
    outcome: Tensor


def dataclasses() -> Program:
    def collate(rows: Any) -> Visit:
        return Visit(torch.stack([x for x, _ in rows]), torch.stack([y for _, y in rows]))

    def loss(model: Any, batch: Any) -> Tensor:
        return (model(batch.features).squeeze(1) - batch.outcome) ** 2

    data, model = DataLoader(PAIRS, batch_size=5, collate_fn=collate), made(mlp)

    def bare() -> nn.Module:
        own = model()
        return loop(own, data, lambda m, b: loss(m, b).mean(), torch.optim.Adam(own.parameters(), lr=0.01))

    app = lambda: supervised_app(model=model, optimizer=ADAM, data=both(data), loss=loss)  # noqa: E731
    return Program(name="dataclass batches", app=app, bare=bare)


# --- streams ----------------------------------------------------------------------------------------------------------


class Stream(IterableDataset[Any]):
    """Examples without a length."""

    def __iter__(self) -> Iterator[Any]:
        yield from zip(X, NUMBER, strict=True)


def iterable() -> Program:
    model = made(mlp)

    def bare() -> nn.Module:
        own, steps = model(), 0
        optimizer = torch.optim.SGD(own.parameters(), lr=0.1)
        while steps < 6:
            for x, y in DataLoader(Stream(), batch_size=4):
                optimizer.zero_grad()
                F.mse_loss(own(x).squeeze(1), y).backward()
                optimizer.step()
                steps += 1
                if steps == 6:
                    break
        return own

    app = lambda: supervised_app(model=model, optimizer=SGD, data=both(Stream()), loss=squared_error)  # noqa: E731
    return Program(
        name="iterable, by steps", app=app, bare=bare, config={"batch-size": 4, "local-epochs": 0, "local-steps": 6}
    )


def sampler() -> Program:
    """The order that a sampler draws is that of its own generator."""
    model = made(mlp)

    def loader() -> DataLoader[Any]:
        own = WeightedRandomSampler(NUMBER.abs().tolist(), 12, generator=torch.Generator().manual_seed(3))
        return DataLoader(PAIRS, batch_size=6, sampler=own)

    def bare() -> nn.Module:
        own = model()
        each = lambda m, b: F.mse_loss(m(b[0]).squeeze(1), b[1])  # noqa: E731
        return loop(own, loader(), each, torch.optim.SGD(own.parameters(), lr=0.1))

    def app() -> Any:
        data = loader()
        return supervised_app(model=model, optimizer=SGD, data=both(data), loss=squared_error)

    return Program(name="weighted sampler", app=app, bare=bare, config={"batch-size": 6})


# --- losses -----------------------------------------------------------------------------------------------------------


def full_batches(name: str, build: Any, y: Tensor, loss: Any, bare_loss: Any, **settings: Any) -> Program:
    """A model of the table, on full batches of arrays."""
    data, model = Split(x=X.numpy(), y=y.numpy()), made(build)

    def bare() -> nn.Module:
        own = model()
        each = lambda m, b: bare_loss(m(b[0]), b[1])  # noqa: E731
        return loop(own, [(X, y)], each, torch.optim.SGD(own.parameters(), lr=0.1), epochs=4)

    app = lambda: supervised_app(model=model, optimizer=SGD, data=both(data), loss=loss)  # noqa: E731
    return Program(name=name, app=app, bare=bare, config={"local-epochs": 4}, **settings)


def quantile() -> Program:
    def pinball(output: Tensor, y: Tensor) -> Tensor:
        error = y[:, None] - output
        return torch.maximum(torch.tensor([0.1, 0.5, 0.9]) * error, torch.tensor([-0.9, -0.5, -0.1]) * error).mean(1)

    return full_batches("quantile loss", lambda: mlp(3), NUMBER, pinball, lambda o, y: pinball(o, y).mean())


def labels() -> Program:
    y = choices(5, 2, 14, 4).float()
    return full_batches("multi-label", lambda: mlp(4), y, multi_label, F.binary_cross_entropy_with_logits)


def logistic() -> Program:
    y = choices(6, 2, 14).float()
    bare = lambda o, y: F.binary_cross_entropy_with_logits(o.squeeze(1), y)  # noqa: E731
    return full_batches("logistic regression", lambda: nn.Linear(5, 1), y, binary_cross_entropy, bare)


def survival() -> Program:
    """Efron's ties do not occur: all times differ. Over the whole batch, and so on one rank."""
    y = torch.stack([NUMBER.exp(), choices(8, 2, 14).float()], dim=1)

    def partial(risk: Tensor, y: Tensor) -> Tensor:
        terms = [torch.logsumexp(risk[y[:, 0] >= y[i, 0], 0], 0) - risk[i, 0] for i in range(14) if y[i, 1]]
        return torch.stack(terms).mean()

    return full_batches("Cox regression, one rank", lambda: nn.Linear(5, 1), y, cox, partial)


def double_precision() -> Program:
    data, model = Split(x=X.double().numpy(), y=NUMBER.double().numpy()), made(lambda: mlp().double())

    def bare() -> nn.Module:
        own = model()
        each = lambda m, b: F.mse_loss(m(b[0]).squeeze(1), b[1])  # noqa: E731
        batch = [(X.double(), NUMBER.double())]
        return loop(own, batch, each, torch.optim.SGD(own.parameters(), lr=0.1), epochs=4)

    app = lambda: supervised_app(model=model, optimizer=SGD, data=both(data), loss=squared_error)  # noqa: E731
    return Program(name="float64", app=app, bare=bare, config={"local-epochs": 4}, bound=1e-13)


def narrow(name: str, dtype: torch.dtype, **settings: Any) -> Program:
    """Parameters of few bits, so that sums in another order differ in the last of them."""
    x, y = X.to(dtype), CLASS
    data, model = Listed(list(zip(x, y, strict=True))), made(lambda: mlp(3).to(dtype))

    def bare() -> nn.Module:
        own = model()
        each = lambda m, b: F.cross_entropy(m(b[0]).float(), b[1])  # noqa: E731
        return loop(own, [(x, y)], each, torch.optim.SGD(own.parameters(), lr=0.1), epochs=4)

    app = lambda: supervised_app(model=model, optimizer=SGD, data=both(data))  # noqa: E731
    return Program(name=name, app=app, bare=bare, config={"local-epochs": 4}, **settings)


def brain_precision() -> Program:
    return narrow("bfloat16 parameters", torch.bfloat16, bound=2**-7)


def half_precision() -> Program:
    return narrow("float16 parameters", torch.float16, bound=2**-9)


# --- optimizers -------------------------------------------------------------------------------------------------------


def lbfgs() -> Program:
    def make(module: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(module.parameters(), lr=0.5, max_iter=5, line_search_fn="strong_wolfe")

    data, model = Split(x=X.numpy(), y=NUMBER.numpy()), made(lambda: nn.Linear(5, 1))

    def bare() -> nn.Module:
        own = model()
        optimizer = make(own)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = F.mse_loss(own(X).squeeze(1), NUMBER)
            loss.backward()
            return loss

        for _ in range(2):
            optimizer.step(closure)
        return own

    app = lambda: supervised_app(model=model, optimizer=lambda c: make, data=both(data), loss=squared_error)  # noqa: E731
    return Program(name="LBFGS", app=app, bare=bare)


def clipped_and_scheduled() -> Program:
    data, model = DataLoader(PAIRS, batch_size=4), made(mlp)

    def bare() -> nn.Module:
        own = model()
        optimizer = torch.optim.AdamW(own.parameters(), lr=0.05)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=8)
        each = lambda m, b: F.mse_loss(m(b[0]).squeeze(1), b[1])  # noqa: E731
        return loop(own, data, each, optimizer, clip=0.3, scheduler=scheduler)

    optimizer = lambda config: OptimizerConfig(name="adamw", lr=0.05, weight_decay=0.01)  # noqa: E731
    app = lambda: supervised_app(model=model, optimizer=optimizer, data=both(data), loss=squared_error)  # noqa: E731
    keys = {"max-grad-norm": 0.3, "lr-over-steps": "cosine"}
    return Program(name="clipping and a cosine schedule", app=app, bare=bare, config=keys)


def lazy() -> Program:
    def build() -> nn.Module:
        module = nn.Sequential(nn.LazyLinear(6), nn.ReLU(), nn.LazyLinear(3))
        with torch.no_grad():
            module(torch.zeros(1, 5))
        return module

    return full_batches("lazy layers", build, CLASS, None, F.cross_entropy)


class Factors(nn.Module):
    """Users and items."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(6, 3, sparse=True), nn.Embedding(9, 3, sparse=True)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        return (self.users(user) * self.items(item)).sum(1)


def factorisation() -> Program:
    rows = [((u, i), r) for u, i, r in zip(choices(1, 6, 14), choices(2, 9, 14), NUMBER, strict=True)]
    data, model = DataLoader(Listed(rows), batch_size=5), made(Factors)
    make = lambda module: torch.optim.SparseAdam(list(module.parameters()), lr=0.05)  # noqa: E731

    def bare() -> nn.Module:
        own = model()
        return loop(own, data, lambda m, b: F.mse_loss(m(*b[0]), b[1]), make(own), clip=0.0)

    app = lambda: supervised_app(model=model, optimizer=lambda c: make, data=both(data), loss=squared_error)  # noqa: E731
    return Program(name="matrix factorisation, sparse", app=app, bare=bare)


PROGRAMS = (
    multi_task, dataclasses, iterable, sampler, quantile, labels, logistic, survival, double_precision,
    brain_precision, half_precision, lbfgs, clipped_and_scheduled, lazy, factorisation,
)  # fmt: skip
