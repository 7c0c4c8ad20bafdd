"""What a leader decides about the exchanges of a run, on a server and in a simulation alike."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from support.leaders import ALL, Begin, NoReply, OverBudget
from support.members import Local

from fedcore.codec import release_of
from fedcore.codec.privacy import Accountant
from fedcore.codec.scaling.widths import FIRST_SCALE
from fedcore.run.exchange import ExchangeReply
from fedcore.state import ModelState, rounded

SIZE = 2100
MODEL = ModelState.from_arrays({"weight": np.zeros(SIZE, np.float32)})
LARGE = 320 * FIRST_SCALE
"""With 10 examples of 64 it is 50 times the first scale: it fits the next one even if the sum reads a rung too low."""
GROUPED = {"groups": 2, "max_corrupt": 0.0, "key_agreement": "x25519", "min_clients": 6}
PRIVATE = {"clip_norm": 1.0, "dp_noise_multiplier": 2.0}


def model_of(number: float) -> ModelState:
    return ModelState.from_arrays({"weight": np.full(SIZE, number, np.float32)})


def step(reply: ExchangeReply, model: ModelState = MODEL) -> float:
    """By how much a reply differs from the model, in the mean of its weights."""
    state = reply.model()
    assert state is not None
    return float(np.mean(state["weight"] - model["weight"]))


class TestRepeats:
    async def test_the_same_clients_are_asked_again_with_wider_scales(self, leader: Begin) -> None:
        """However few attempts a run has."""
        async with leader(max_attempts=1) as run:
            run.locals[2] = Local(by=LARGE)
            (reply,) = await run.exchange(MODEL)
            events = await run.finish()
        assert step(reply) == pytest.approx((LARGE + 5) / 6, rel=1e-6)
        (repeat,), (done,) = events["exchange-repeated"], events["exchange-done"]
        assert (repeat["exchange"], repeat["large"], repeat["survivors"]) == (1, 1, 6)
        assert (done["exchange"], done["clipped"], done["lost_norm"]) == (2, 0, 0.0)
        assert "exchange-failed" not in events

    async def test_fail_ends_at_once_and_says_what_to_set(self, leader: Begin) -> None:
        async with leader(clipping="fail") as run:
            run.locals.update({1: Local(by=LARGE), 2: Local(by=LARGE)})
            with pytest.raises(NoReply, match=r'2 of 6.*clipping = "repeat"'):
                await run.exchange(MODEL)
            (failed,) = (await run.finish())["exchange-failed"]
        assert not failed["retry"]

    @pytest.mark.parametrize("clipping", ["repeat", "fail", "warn"])
    async def test_a_sum_that_is_mostly_rounding_is_asked_for_again_in_wider_fields(
        self, leader: Begin, clipping: str
    ) -> None:
        """A step of a thousandth of the one before, at its scale; the model that the app gets is the exact one."""
        async with leader(max_attempts=1, clipping=clipping) as run:
            for by in (1.0, 1e-4):
                run.locals.update({client: Local(by=by) for client in ALL})
                (reply,) = await run.exchange(model_of(by))
                assert step(reply, model_of(by)) == pytest.approx(by, rel=1e-3)
            (repeat,) = (await run.finish())["exchange-repeated"]
        assert (repeat["coarse"], repeat["large"], repeat["survivors"]) == ("weight", 0, 6)


class TestIntegers:
    async def test_means_that_are_rounded_are_said_once(self, leader: Begin) -> None:
        """Not of a count that is the same everywhere."""
        model = ModelState.from_arrays({"batches": np.array(3), "weight": np.zeros(3, np.float32)})
        async with leader() as run:
            for counts in ((2,) * 6, (1, 2, 3, 4, 5, 7), (1, 1, 1, 1, 1, 5)):
                run.locals.update({client: Local(counted=n) for client, n in zip(ALL, counts, strict=True)})
                (reply,) = await run.exchange(model)
                model = reply.model()
                assert model is not None
            events = await run.finish()
        assert model["batches"] == 3 + 2 + 4 + 2
        (line,) = (one["line"] for one in events["warning"] if "batches" in one["line"])
        assert "weight" not in line


class TestRequirements:
    async def test_a_sum_of_too_few_is_refused_before_anybody_is_asked(self, leader: Begin) -> None:
        async with leader() as run:
            with pytest.raises(NoReply, match="cohort-below-minimum"):
                await run.exchange(MODEL, nodes=(1, 2))
            assert run.tasks == [], "nobody is asked before that"


class TestPrivacy:
    async def test_epsilon_grows_with_every_exchange_and_the_budget_ends_the_run(self, leader: Begin) -> None:
        async with leader(clip_norm=1.0, dp_epsilon=8.0, dp_rounds=2) as run:
            run.locals.update({client: Local(by=0.0, metrics={}) for client in ALL})
            for number in range(2):
                (reply,) = await run.exchange(model_of(number))
                assert (reply.examples, reply.metrics) == (6, {}), "every client weighs the same, and sends no metrics"
            with pytest.raises(OverBudget, match=r"privacy-budget.* 7\.99"):
                await run.exchange(model_of(3))
            done = (await run.finish())["exchange-done"]
        spent = [one["epsilon_spent"] for one in done]
        assert spent == sorted(spent)
        assert 0 < spent[0] < spent[1] <= 8.0
        assert len(done) == len(run.tasks) == 2, "no client was asked for the third"

    async def test_clients_are_asked_for_no_evaluation_without_a_bound(self, leader: Begin) -> None:
        async with leader(**PRIVATE) as run:
            assert await run.exchange(MODEL, message_type="evaluate") == []
            assert run.tasks == []
            assert "exchange-done" not in await run.finish()

    @pytest.mark.parametrize(("step", "counts"), [("input", 0), ("consistency", 0), ("unmask", 1)])
    async def test_an_attempt_that_fails_counts_if_shares_were_asked_for(
        self, leader: Begin, step: str, counts: int
    ) -> None:
        """Before that nobody can have seen the sum."""
        async with leader(**PRIVATE, dp_delta=1e-5, max_attempts=1) as run:
            run.locals.update({client: Local(by=0.0, metrics={}) for client in ALL})
            run.leaving.update(dict.fromkeys(ALL[2:], step))
            with pytest.raises(NoReply):
                await run.exchange(MODEL)
            await run.exchange(model_of(1))
            release = release_of(run.tasks[-1].encoding)
            (done,) = (await run.finish())["exchange-done"]
        assert release is not None
        assert done["epsilon_spent"] == pytest.approx(Accountant((release,) * (counts + 1)).epsilon(1e-5))


class TestBestModel:
    async def test_the_one_that_was_evaluated_best(self, leader: Begin) -> None:
        async with leader(best_model="acc:max") as run:
            assert await run.best() is None
            for number, acc in ((1, 0.5), (2, 0.75), (3, 0.625)):
                run.locals.update({client: Local(metrics={"acc": acc}) for client in ALL})
                await run.exchange(model_of(number), message_type="evaluate")
            assert await run.best() == 2.0
            assert not [one for one in (await run.finish()).get("warning", []) if "best-model" in one["line"]]

    async def test_what_the_strategy_made_of_sums_may_tell_the_best(self, leader: Begin) -> None:
        """Of the last evaluation alone: later figures of a training, or of an earlier round, are about no model."""
        async with leader(best_model="auc:max") as run:
            for number, auc in ((1, 0.625), (2, 0.75), (3, 0.6875)):
                run.locals.update({client: Local(metrics={"auc/sums": 0.5}) for client in ALL})
                await run.exchange(model_of(number), message_type="evaluate")
                await run.figures(number, "evaluate", auc=auc)
            await run.figures(3, "train", auc=0.99)
            await run.figures(2, "evaluate", auc=0.98)
            assert await run.best() == 2.0
            assert not [one for one in (await run.finish()).get("warning", []) if "best-model" in one["line"]]

    async def test_a_metric_that_is_not_reported_is_said_once(self, leader: Begin) -> None:
        async with leader(best_model="auc:max") as run:
            for number in range(1, 4):
                await run.exchange(model_of(number), message_type="evaluate")
            (warning,) = [one for one in (await run.finish())["warning"] if "best-model" in one["line"]]
        assert "no number 'auc'" in warning["line"]
        assert "loss" in warning["line"]


class TestGroups:
    async def test_the_strategy_gets_the_mean_of_each_group(self, leader: Begin) -> None:
        async with leader(**GROUPED) as run:
            run.locals.update({client: Local(by=10.0**client / 1e5) for client in ALL})
            replies = await run.exchange(MODEL)
            (done,) = (await run.finish())["exchange-done"]
        digits = [round(3 * step(reply) * 1e5) for reply in replies]
        assert [reply.examples for reply in replies] == [30, 30]
        assert sum(digits) == pytest.approx(1_111_110, abs=20), "everybody is in one group"
        assert (done["groups"], done["examples"], len(done["survivors"])) == (2, 60, 6)

    async def test_too_few_groups_are_a_failure_that_names_them(self, leader: Begin) -> None:
        async with leader(**GROUPED, min_groups=2, max_attempts=1, clipping="fail") as run:
            run.locals[1] = Local(by=LARGE)
            with pytest.raises(NoReply, match=r"\b1 of 2\b.*\b2\b.*min-groups.*group [12]: "):
                await run.exchange(MODEL)
            events = await run.finish()
        (group,) = [one for one in events["group-ended"] if one["reason"]]
        (failed,) = events["exchange-failed"]
        assert (group["retry"], failed["retry"]) == (False, False)
        assert failed["exchange"] == group["drawn"], "the exchange is that of the draw"
        assert max(failed["bytes_down"].values()) >= MODEL.layout.nbytes, "with what the group that has a sum cost"

    async def test_a_group_that_fails_gives_no_mean_and_the_others_go_on(self, leader: Begin) -> None:
        async with leader(**GROUPED, min_groups=1, max_attempts=1, clipping="fail") as run:
            run.locals[1] = Local(by=LARGE)
            (reply,) = await run.exchange(MODEL)
            (done,) = (await run.finish())["exchange-done"]
        assert step(reply) == pytest.approx(1.0, abs=0.01)
        assert done["groups"] == 1
        assert "client-1" not in done["survivors"]


@dataclass
class Given(Local):
    """Remembers the model that it trains from."""

    models: list[ModelState] = field(default_factory=list)

    def train(self, model: ModelState) -> ModelState:
        self.models.append(ModelState.from_arrays({name: np.array(array) for name, array in model.items()}))
        return super().train(model)


class TestDownloads:
    @pytest.mark.parametrize("bits", [16, 32])
    async def test_clients_train_from_a_difference_and_the_mean_is_added_to_the_strategys_own_model(
        self, leader: Begin, bits: int
    ) -> None:
        """Added to what clients get, the rounding of every model would stay in all after it."""
        rng, given = np.random.default_rng(1), Given()
        first, second = (
            ModelState.from_arrays({"weight": rng.standard_normal(SIZE).astype(np.float32)}) for _ in range(2)
        )
        async with leader(download_bits=bits, field_bits=32) as run:
            run.locals[1] = given
            replies = [(await run.exchange(model))[0] for model in (first, second, second)]
        between = rounded(first, second)
        assert between.sha256() != second.sha256()
        expected = [first, between, between] if bits == 16 else [first, second, second]
        assert [model.sha256() for model in given.models] == [model.sha256() for model in expected]
        for reply, model in zip(replies, (first, second, second), strict=True):
            state = reply.model()
            assert state is not None
            np.testing.assert_allclose(state["weight"], model["weight"] + 1.0, atol=1e-4)
