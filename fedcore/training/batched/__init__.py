"""Several clients of one model trained at once: their steps are one batched step.

A simulation trains hundreds of clients from one global model, each for a few steps on a few examples. For a small
model most of such a step is the call of one operation after another, and hardly any of it is arithmetic. So the
parameters of B clients are stacked, [B, ...], `torch.func.vmap` writes the forward pass of one client for all of them,
and the sum of their losses has the gradient of each client in its own slice, since no client's loss depends on
another's parameters. Optimizers that work element by element take the stacked parameters as they are.

What must hold: a client's result is the one that `fedcore.training.loop.train` gives, but for rounding. It sees the
same examples in the same batches (`rows`, which has the order from where the loop has it); a batch that is shorter than
that of another client is filled up with examples of weight 0; a client that has taken its last step is no part of the
later ones, and its parameters stay bit for bit (`stack`). What cannot be stacked is known by its name (`refusals`),
and what has no name is found by a few steps that are taken in both ways and compared (`checking`).

`together` is the loop. `rules` has the products that vmap itself does slowly.
"""

from __future__ import annotations

from fedcore.training.batched.checking import find_difference
from fedcore.training.batched.refusals import refusal_reason
from fedcore.training.batched.sizes import clients_that_pay
from fedcore.training.batched.together import TrainedClient, train_together

__all__ = ["TrainedClient", "clients_that_pay", "find_difference", "refusal_reason", "train_together"]
