"""The proximal pull against automatic differentiation of mu/2 ||w - w0||^2, on plain and on sharded tensors."""

import copy

import pytest
import torch
import torch.distributed as dist
from support.raising import raises
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from fedcore.errors import ConfigurationError, UsageError
from fedcore.training import proximal
from fedcore.training.proximal import add_proximal_gradient

MU = 0.3


def model_and_anchor(dtype=torch.float64):
    """A small network, and weights that it has left."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).to(dtype)
    anchor = [w.detach() + torch.randn_like(w) for w in model.parameters()]
    return model, anchor


def loss_of(model):
    torch.manual_seed(1)
    x = torch.randn(7, 5, dtype=next(model.parameters()).dtype)
    return model(x).square().mean()


def penalty_of(model, anchor):
    return MU / 2 * sum((w - w0).square().sum() for w, w0 in zip(model.parameters(), anchor, strict=True))


@pytest.mark.parametrize("chunk", [1 << 24, 7])
def test_the_gradient_is_that_of_the_penalty(monkeypatch, chunk):
    monkeypatch.setattr(proximal, "CHUNK_ELEMENTS", chunk)
    model, anchor = model_and_anchor()
    twin = copy.deepcopy(model)
    (loss_of(twin) + penalty_of(twin, anchor)).backward()
    loss_of(model).backward()
    add_proximal_gradient(list(model.parameters()), anchor, MU)
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sparse_gradients_stay_sparse_and_step_as_dense_ones_do(momentum):
    torch.manual_seed(0)
    sparse = nn.Embedding(6, 3, sparse=True, dtype=torch.float64)
    dense = nn.Embedding(6, 3, dtype=torch.float64)
    dense.load_state_dict(sparse.state_dict())
    anchor = [sparse.weight.detach().clone()]
    steps = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum) for model in (sparse, dense)]
    for rows in ([1, 2], [2, 5], [0]):
        loss = dense(torch.tensor(rows)).square().sum() + penalty_of(dense, anchor)
        steps[1].zero_grad()
        loss.backward()
        steps[0].zero_grad()
        sparse(torch.tensor(rows)).square().sum().backward()
        add_proximal_gradient(list(sparse.parameters()), anchor, MU)
        assert sparse.weight.grad.is_sparse
        for step in steps:
            step.step()
    torch.testing.assert_close(sparse.weight, dense.weight, rtol=1e-12, atol=1e-14)
    assert torch.equal(sparse.weight[3:5], anchor[0][3:5])


def test_at_the_anchor_there_is_no_pull():
    model, _ = model_and_anchor(torch.float32)
    loss_of(model).backward()
    parameters = list(model.parameters())
    before = [w.grad.clone() for w in parameters]
    add_proximal_gradient(parameters, [w.detach().clone() for w in parameters], 1e6)
    assert all(torch.equal(w.grad, grad) for w, grad in zip(parameters, before, strict=True))


def test_frozen_parameters_are_left_out_and_unreached_ones_are_pulled():
    frozen, reached, unreached = (nn.Parameter(torch.ones(2)) for _ in range(3))
    frozen.requires_grad_(False)
    (reached * 3).sum().backward()
    add_proximal_gradient([frozen, reached, unreached], [torch.zeros(2)] * 3, MU)
    assert frozen.grad is None
    torch.testing.assert_close(reached.grad, torch.full((2,), 3 + MU))
    torch.testing.assert_close(unreached.grad, torch.full((2,), MU))


def test_without_mu_nothing_happens():
    unreached = nn.Parameter(torch.ones(2))
    add_proximal_gradient([unreached], [torch.zeros(2)], 0.0)
    assert unreached.grad is None


@pytest.mark.parametrize("mu", [-0.1, float("nan"), float("inf")])
def test_a_mu_that_means_nothing_is_refused(mu):
    with raises(ConfigurationError, check="proximal-mu"):
        add_proximal_gradient([], [], mu)


def test_an_anchor_of_another_model_is_refused():
    weight = nn.Parameter(torch.ones(2, 3))
    with pytest.raises(UsageError, match=r"\b0\b.*\b1\b"):
        add_proximal_gradient([weight], [], MU)
    with raises(UsageError, check="anchor-shape", match="tensor 0"):
        add_proximal_gradient([weight], [torch.ones(3)], MU)
    assert weight.grad is None


def test_nothing_of_it_is_recorded_for_backward():
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.zeros(2)
    add_proximal_gradient([weight], [torch.zeros(2)], MU)
    assert not weight.grad.requires_grad


@pytest.fixture
def mesh():
    """A group of one rank: its shard is the whole tensor, behind the same type as any other shard."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield init_device_mesh("cpu", (1,))
    finally:
        dist.destroy_process_group()


def test_a_sharded_parameter_is_pulled_in_place(mesh):
    weight = nn.Parameter(distribute_tensor(torch.ones(4, 3), mesh, [Shard(0)]))
    anchor = distribute_tensor(torch.zeros(4, 3), mesh, [Shard(0)])
    weight.grad = distribute_tensor(torch.ones(4, 3), mesh, [Shard(0)])
    fresh = nn.Parameter(distribute_tensor(torch.ones(2, 2), mesh, [Shard(0)]))
    add_proximal_gradient([weight, fresh], [anchor, torch.zeros(2, 2)], MU)
    torch.testing.assert_close(weight.grad.full_tensor(), torch.full((4, 3), 1 + MU))
    torch.testing.assert_close(fresh.grad.full_tensor(), torch.full((2, 2), MU))
