"""Users' own loops: several models and optimizers, teachers, averages of weights, penalties on gradients."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from fedcore import LocalJob, OptimizerConfig, local_app, supervised_app
from fedcore.training import Engine
from tests.integration.programs.program import Program, choices, drawn, loop
from tests.integration.programs.tables import SGD, both, made, mlp
from tests.support.several_tensors import Listed

REAL, NOISE = drawn(11, 15, 4), drawn(12, 15, 4)
TABLE, CLASS = drawn(13, 15, 5), choices(14, 3, 15)
BCE = F.binary_cross_entropy_with_logits
NOTHING: Any = lambda engine, job: {"num-examples": 15}  # noqa: E731


def generator() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))


def discriminator() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))


def play(g: nn.Module, d: nn.Module, opt_g: Any, opt_d: Any, batches: Any) -> None:
    """As in PyTorch's tutorial on DCGAN; 15 examples make an uneven last batch."""
    for real, noise in batches:
        ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
        opt_d.zero_grad()
        (BCE(d(real), ones) + BCE(d(g(noise).detach()), zeros)).backward()
        opt_d.step()
        opt_g.zero_grad()
        BCE(d(g(noise)), ones).backward()
        opt_g.step()


def optimizers(g: nn.Module, d: nn.Module) -> tuple[Any, Any]:
    return torch.optim.Adam(g.parameters(), lr=0.01, betas=(0.5, 0.999)), torch.optim.SGD(d.parameters(), lr=0.1)


def pairs() -> DataLoader[Any]:
    return DataLoader(Listed(list(zip(REAL, NOISE, strict=True))), batch_size=4)


def gan() -> Program:
    """Two models in a dict, made ready as with Accelerate."""
    model = made(lambda: {"g": generator(), "d": discriminator()})

    def fit(engine: Engine, job: LocalJob) -> Any:
        g, d = engine.model["g"], engine.model["d"]
        g, d, opt_g, opt_d, loader = engine.prepare(g, d, *optimizers(g, d), pairs())
        for _ in range(2):
            play(g, d, opt_g, opt_d, loader)
        return {"num-examples": 15}

    def bare() -> nn.Module:
        both_models = nn.ModuleDict(model())
        steps = optimizers(both_models["g"], both_models["d"])
        for _ in range(2):
            play(both_models["g"], both_models["d"], *steps, pairs())
        return both_models

    app = lambda: local_app(model=model, optimizer=SGD, train=fit, evaluate=NOTHING)  # noqa: E731
    return Program(name="GAN, two models", app=app, bare=bare)


class Gan(nn.Module):
    """Both as parts of one module."""

    def __init__(self) -> None:
        super().__init__()
        self.g, self.d = generator(), discriminator()


def gan_in_parts() -> Program:
    """WGAN with a penalty on the critic's gradient, over batches of the engine; parts of `engine.model`."""
    model = made(Gan)

    def critic_loss(d: nn.Module, real: Tensor, fake: Tensor) -> Tensor:
        mixed = ((real + fake) / 2).requires_grad_()
        (slope,) = torch.autograd.grad(d(mixed).sum(), mixed, create_graph=True)
        return (d(fake) - d(real)).mean() + 10 * ((slope.norm(dim=1) - 1) ** 2).mean()

    def rounds(module: Any, opt_g: Any, opt_d: Any, batches: Any) -> None:
        for real, noise in batches:
            opt_d.zero_grad()
            critic_loss(module.d, real, module.g(noise).detach()).backward()
            nn.utils.clip_grad_norm_(module.d.parameters(), 0.5)
            opt_d.step()
            opt_g.zero_grad()
            (-module.d(module.g(noise))).mean().backward()
            opt_g.step()

    def fit(engine: Engine, job: LocalJob) -> Any:
        _, *steps = engine.prepare(engine.model, *optimizers(engine.model.g, engine.model.d))
        batches = engine.batches(pairs(), batch_size=4, epochs=2, seed=1)
        rounds(engine.model, *steps, ((batch.x, batch.y) for batch in batches))
        return {"num-examples": 15}

    def bare() -> nn.Module:
        own = model()
        steps = optimizers(own.g, own.d)
        for _ in range(2):
            rounds(own, *steps, pairs())
        return own

    app = lambda: local_app(model=model, optimizer=SGD, train=fit, evaluate=NOTHING)  # noqa: E731
    return Program(name="WGAN with penalty, parts", app=app, bare=bare)


class Distilled(nn.Module):
    """A student, and a frozen teacher that no optimizer sees."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = mlp(3), mlp(3).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.student(x)


def distillation() -> Program:
    def loss(model: Any, batch: Any) -> Tensor:
        x, y = batch
        with torch.no_grad():
            soft = model.teacher(x).softmax(1)
        logits = model(x)
        return F.cross_entropy(logits, y, reduction="none") + F.cross_entropy(logits, soft, reduction="none")

    data, model = DataLoader(Listed(list(zip(TABLE, CLASS, strict=True))), batch_size=4), made(Distilled)

    def bare() -> nn.Module:
        own = model()
        return loop(own, data, lambda m, b: loss(m, b).mean(), torch.optim.SGD(own.student.parameters(), lr=0.1))

    app = lambda: supervised_app(model=model, optimizer=SGD, data=both(data), loss=loss)  # noqa: E731
    return Program(name="distillation, frozen teacher", app=app, bare=bare)


class Averaged(nn.Module):
    """A model with an exponential mean of its weights in buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(3)
        for name, parameter in self.net.named_parameters():
            self.register_buffer("mean_" + name.replace(".", "_"), parameter.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    @torch.no_grad()
    def follow(self) -> None:
        for name, parameter in self.net.named_parameters():
            self.get_buffer("mean_" + name.replace(".", "_")).lerp_(parameter, 0.1)


def moving_average() -> Program:
    model, data = made(Averaged), DataLoader(Listed(list(zip(TABLE, CLASS, strict=True))), batch_size=4)

    def fit(engine: Engine, job: LocalJob) -> Any:
        for batch in engine.batches(data, batch_size=4, epochs=2, seed=1):
            engine.step(batch)
            engine.module.follow()
        return {"num-examples": 15}

    def bare() -> nn.Module:
        own = model()
        optimizer = torch.optim.SGD(own.parameters(), lr=0.1)
        for x, y in [*data, *data]:
            optimizer.zero_grad()
            F.cross_entropy(own(x), y).backward()
            optimizer.step()
            own.follow()
        return own

    app = lambda: local_app(model=model, optimizer=SGD, train=fit, evaluate=NOTHING)  # noqa: E731
    return Program(name="moving average in buffers", app=app, bare=bare)


def accumulation() -> Program:
    """Two batches a step, with a scheduler and a momentum; the last step has one batch."""
    model, data = made(lambda: mlp(3)), DataLoader(Listed(list(zip(TABLE, CLASS, strict=True))), batch_size=3)

    def rounds(module: Any, optimizer: Any, scheduler: Any, batches: Any) -> None:
        for number, (x, y) in enumerate(batches, start=1):
            (F.cross_entropy(module(x), y) / 2).backward()
            if number % 2 == 0 or number == len(data):
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()

    def steps(module: nn.Module) -> Any:
        optimizer = torch.optim.SGD(module.parameters(), lr=0.2, momentum=0.9)
        return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)

    def fit(engine: Engine, job: LocalJob) -> Any:
        module, optimizer, scheduler, loader = engine.prepare(engine.model, *steps(engine.model), data)
        rounds(module, optimizer, scheduler, loader)
        return {"num-examples": 15}

    def bare() -> nn.Module:
        own = model()
        rounds(own, *steps(own), data)
        return own

    app = lambda: local_app(model=model, optimizer=SGD, train=fit, evaluate=NOTHING)  # noqa: E731
    return Program(name="accumulation in an own loop", app=app, bare=bare)


def own_lbfgs() -> Program:
    """A closure in an own loop, on full batches."""
    model = made(lambda: nn.Linear(5, 3))

    def minimise(module: Any, optimizer: Any, batches: Any) -> None:
        for x, y in batches:

            def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
                optimizer.zero_grad()
                loss = F.cross_entropy(module(x), y)
                loss.backward()
                return loss

            optimizer.step(closure)

    def make(module: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(module.parameters(), max_iter=4, line_search_fn="strong_wolfe")

    data = DataLoader(Listed(list(zip(TABLE, CLASS, strict=True))), batch_size=15)

    def fit(engine: Engine, job: LocalJob) -> Any:
        minimise(*engine.prepare(engine.module, make(engine.module), data))
        return {"num-examples": 15}

    def bare() -> nn.Module:
        own = model()
        minimise(own, make(own), data)
        return own

    app = lambda: local_app(model=model, optimizer=SGD, train=fit, evaluate=NOTHING)  # noqa: E731
    return Program(name="LBFGS in an own loop", app=app, bare=bare)


class Experts(nn.Module):
    """Each example goes to one of three layers: some ranks see none for some of them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(5, 3) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        choice = (x[:, 0] > -0.5).long() + (x[:, 0] > 0.8).long()
        out = x.new_zeros(len(x), 3)
        for number, layer in enumerate(self.layers):
            rows = (choice == number).nonzero().flatten()
            if len(rows):
                out = out.index_copy(0, rows, layer(x[rows]))
        return out


def experts() -> Program:
    data, model = DataLoader(Listed(list(zip(TABLE, CLASS, strict=True))), batch_size=3), made(Experts)

    def bare() -> nn.Module:
        own = model()
        return loop(own, data, lambda m, b: F.cross_entropy(m(b[0]), b[1]), torch.optim.SGD(own.parameters(), lr=0.1))

    app = lambda: supervised_app(model=model, optimizer=SGD, data=both(data))  # noqa: E731
    return Program(name="experts, unused on some ranks", app=app, bare=bare)


def siamese() -> Program:
    """One network, two views of each example: two forward passes for one backward pass."""

    def loss(model: Any, batch: Any) -> Tensor:
        one, other = batch
        return 1 - F.cosine_similarity(model(one), model(other))

    rows = list(zip(TABLE, TABLE + drawn(21, 15, 5) / 10, strict=True))
    data, model = DataLoader(Listed(rows), batch_size=4), made(lambda: mlp(4))

    def bare() -> nn.Module:
        own = model()
        return loop(own, data, lambda m, b: loss(m, b).mean(), torch.optim.Adam(own.parameters(), lr=0.01))

    optimizer = lambda config: OptimizerConfig(name="adam", lr=0.01)  # noqa: E731
    app = lambda: supervised_app(model=model, optimizer=optimizer, data=both(data), loss=loss)  # noqa: E731
    return Program(name="siamese, two views", app=app, bare=bare)


class Vae(nn.Module):
    """The noise is part of the batch, so that all ranks draw the same."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(5, 4), nn.Linear(2, 5)

    def forward(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, spread = self.encoder(x).chunk(2, dim=1)
        return self.decoder(mean + noise * (spread / 2).exp()), mean, spread


def vae() -> Program:
    def loss(output: Any, x: Tensor) -> Tensor:
        again, mean, spread = output
        return ((again - x) ** 2).sum(1) - 0.5 * (1 + spread - mean**2 - spread.exp()).sum(1)

    rows = [((x, noise), x) for x, noise in zip(TABLE, drawn(22, 15, 2), strict=True)]
    data, model = DataLoader(Listed(rows), batch_size=4), made(Vae)

    def bare() -> nn.Module:
        own = model()
        each = lambda m, b: loss(m(*b[0]), b[1]).mean()  # noqa: E731
        return loop(own, data, each, torch.optim.SGD(own.parameters(), lr=0.05))

    optimizer = lambda config: OptimizerConfig(lr=0.05)  # noqa: E731
    app = lambda: supervised_app(model=model, optimizer=optimizer, data=both(data), loss=loss)  # noqa: E731
    return Program(name="VAE", app=app, bare=bare)


def autoencoder() -> Program:
    """Batches of one tensor, without targets."""

    def loss(model: Any, batch: Any) -> Tensor:
        return F.mse_loss(model(batch), batch, reduction="none").mean(1)

    data, model = DataLoader(Listed(list(TABLE)), batch_size=4), made(lambda: mlp(5))

    def bare() -> nn.Module:
        own = model()
        return loop(own, data, lambda m, b: loss(m, b).mean(), torch.optim.SGD(own.parameters(), lr=0.1))

    app = lambda: supervised_app(model=model, optimizer=SGD, data=both(data), loss=loss)  # noqa: E731
    return Program(name="autoencoder", app=app, bare=bare)


def separate_model() -> Program:
    """A probe that is no part of the model: trained next to it on each rank, and not handed over."""
    model, data = made(lambda: mlp(5)), DataLoader(Listed(list(zip(TABLE, CLASS, strict=True))), batch_size=4)
    start = made(lambda: nn.Linear(5, 3))()

    def rounds(module: Any, probe: Any, optimizer: Any, batches: Any) -> None:
        for x, y in batches:
            optimizer.zero_grad()
            F.cross_entropy(probe(module(x)), y).backward()
            optimizer.step()

    def step(module: nn.Module, probe: nn.Module) -> Any:
        return torch.optim.SGD([*module.parameters(), *probe.parameters()], lr=0.1)

    def fit(engine: Engine, job: LocalJob) -> Any:
        probe = copy.deepcopy(start)
        rounds(*engine.prepare(engine.model, probe, step(engine.model, probe), data))
        return {"num-examples": 15}

    def bare() -> nn.Module:
        own, probe = model(), copy.deepcopy(start)
        rounds(own, probe, step(own, probe), data)
        return own

    app = lambda: local_app(model=model, optimizer=SGD, train=fit, evaluate=NOTHING)  # noqa: E731
    return Program(name="a second, separate model", app=app, bare=bare)


def own_batch_norm() -> Program:
    """Batch normalisation over uneven parts of a batch, and in the end none at all on one of the ranks."""
    model = made(lambda: nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)))
    data = DataLoader(Listed(list(zip(TABLE[:13, None], CLASS[:13], strict=True))), batch_size=3)
    pooled = lambda module, x: module(x.expand(-1, 2, -1).flatten(0, 1))[::2]  # noqa: E731 - two rows of each

    def rounds(module: Any, optimizer: Any, batches: Any) -> None:
        module.train()
        for x, y in batches:
            optimizer.zero_grad()
            F.cross_entropy(pooled(module, x), y).backward()
            optimizer.step()

    def fit(engine: Engine, job: LocalJob) -> Any:
        rounds(*engine.prepare(engine.model, torch.optim.SGD(engine.model.parameters(), lr=0.1), data))
        return {"num-examples": 13}

    def bare() -> nn.Module:
        own = model()
        rounds(own, torch.optim.SGD(own.parameters(), lr=0.1), data)
        return own

    app = lambda: local_app(model=model, optimizer=SGD, train=fit, evaluate=NOTHING)  # noqa: E731
    return Program(name="own loop, batch norm", app=app, bare=bare, config={"sync-batch-norm": True}, bound=2e-5)


PROGRAMS = (
    gan, gan_in_parts, distillation, moving_average, accumulation, own_lbfgs, experts, siamese, vae, autoencoder,
    separate_model, own_batch_norm,
)  # fmt: skip
