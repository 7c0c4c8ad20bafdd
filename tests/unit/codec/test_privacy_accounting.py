"""What a sum reveals, against the papers' statements and against exact trade-offs of small mechanisms."""

from __future__ import annotations

import dataclasses
import math

import dp_accounting
import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import TypeAdapter
from scipy.special import ive, ndtr, ndtri_exp
from support.privacy import encoding_for, plan
from support.raising import raises

from fedcore.codec import release_of
from fedcore.codec.privacy import Accountant, PrivacyBudget, Release, calibrated_multiplier, grid_scale
from fedcore.codec.privacy.accounting import (
    coarsest_release,
    rounded_norm_squared,
    sum_distance,
)
from fedcore.errors import BudgetSpent, ConfigurationError, EncodingError
from fedcore.run.encoding_plan import EncodingPlan
from fedcore.run.privacy_budget import privacy_plan
from fedcore.run.quorum import protection_for, quorum_for
from fedcore.run.settings import JobSettings
from fedcore.state import Layout, TensorSpec
from fedcore.system.plain_json import from_plain
from fedcore.wire.events import PrivacyTerms

RELEASE = Release(mechanism="skellam", variance=1e5, shares=10, scale=1024, dimension=1000)


def masses(mechanism: str, variance: float, shares: int = 1) -> NDArray[np.float64]:
    """The probabilities of 0, 1, 2, ... in the sum of so many shares, in float64."""
    reach = 60 + int(30 * math.sqrt(variance * shares))
    if mechanism == "skellam":
        return ive(np.arange(reach + 1), variance * shares)
    weights = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * variance))
    share = whole = weights / weights.sum()
    for _ in range(shares - 1):
        whole = np.convolve(whole, share, "same")
    return whole[reach:]


NOISE = [("skellam", 8.0, 1), ("skellam", 9.5, 3), ("skellam", 500.0, 2)]
NOISE += [("discrete-gaussian", 8.0, 1), ("discrete-gaussian", 1.0, 9), ("discrete-gaussian", 300.0, 4)]


@pytest.mark.parametrize(("mechanism", "variance", "shares"), NOISE)
def test_a_step_of_the_noise_is_no_longer_than_one_of_continuous_noise(
    mechanism: str, variance: float, shares: int
) -> None:
    """The lemma of docs/explanation/accounting.md, for each quantile up to a chance of 10^-60 of more."""
    probabilities = masses(mechanism, variance, shares)
    above = np.cumsum(probabilities[::-1])[::-1][1:]
    quantiles = -ndtri_exp(np.log(above[above > 1e-60]))
    longest = max(2 * quantiles[0], np.diff(quantiles).max())
    one_step = Release(mechanism=mechanism, variance=variance, shares=shares, scale=1, dimension=1)  # type: ignore[arg-type]
    allowed = one_step.mu_squared / one_step.norm_squared
    assert longest**2 <= allowed
    assert allowed <= 1 / (variance * shares - 2.5), "and hardly more than its variance says"


@pytest.mark.parametrize("variance", [8.0, 30.0, 1000.0])
def test_logarithms_of_skellam_bend_as_little_as_the_lemma_needs(variance: float) -> None:
    """1 - p(k - 1) p(k + 1) / p(k)^2 is at most 1 / V from k = 1 on (Baricz 2015), and 1 / (V - 1 / 2) at 0."""
    p = masses("skellam", variance)
    p = p[p > 1e-140]
    bend = 1 - p[:-2] * p[2:] / p[1:-1] ** 2
    assert (bend <= 1 / variance + 1e-12).all()
    assert 1 - (p[1] / p[0]) ** 2 <= 1 / (variance - 0.5)


@pytest.mark.parametrize("mechanism", ["skellam", "discrete-gaussian"])
@pytest.mark.parametrize("shift", [(5,), (3, -4), (1, 2, 2)])
def test_no_vector_reveals_more_than_continuous_noise_would(mechanism: str, shift: tuple[int, ...]) -> None:
    """The exact delta of each epsilon, summed over all outcomes, against Balle and Wang 2018 with the stated mu."""
    variance, norm = 16.0, math.hypot(*shift)
    one_step = Release(mechanism=mechanism, variance=variance, shares=1, scale=1, dimension=1)  # type: ignore[arg-type]
    mu = norm * math.sqrt(one_step.mu_squared / one_step.norm_squared)
    p = masses(mechanism, variance)
    p = np.concatenate([p[30:0:-1], p[:31]])
    with_update, without = np.ones(1), np.ones(1)
    for step in shift:
        with_update = np.outer(with_update, np.roll(p, step)[6:-6]).ravel()
        without = np.outer(without, p[6:-6]).ravel()
    for epsilon in (0.0, 0.5, 1.0, 2.0, 4.0):
        exact = np.maximum(with_update - math.exp(epsilon) * without, 0).sum()
        assert exact <= gaussian_delta(mu, epsilon)
        if epsilon <= 1:  # Skellam's tails are heavier
            assert exact >= 0.8 * gaussian_delta(norm / math.sqrt(variance), epsilon), "the bound is sharp"


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Balle and Wang 2018, Theorem 8."""
    return float(ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu))


@pytest.mark.parametrize("variance", [0.3, 0.5, 1.0])
def test_theorem_1_of_kairouz_et_al_bounds_a_sum_of_discrete_gaussians(variance: float) -> None:
    """Kairouz, Liu, Steinke 2021, Theorem 1: tau bounds the log ratio of the sum to one discrete Gaussian."""
    with mpmath.workdps(50):

        def probabilities(sigma2: float) -> dict[int, mpmath.mpf]:
            weight = {k: mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * mpmath.mpf(sigma2))) for k in range(-30, 31)}
            total = sum(weight.values())
            return {k: value / total for k, value in weight.items()}

        share, whole = probabilities(variance), probabilities(2 * variance)
        ratios = [
            abs(mpmath.log(sum(share[j] * share[k - j] for j in range(-20, 21)) / whole[k])) for k in range(-6, 7)
        ]
    tau = sum_distance(variance, 2)
    assert max(ratios) <= tau
    assert max(ratios) >= tau / 20, "a bound that is this far off shows nothing"


def test_the_tail_of_tau_is_a_bound_too() -> None:
    terms = [10 * math.exp(-2 * math.pi**2 * 0.2 * k / (k + 1)) for k in range(1, 1000)]
    assert sum(terms) <= sum_distance(0.2, 1000) <= 1.05 * sum(terms)
    assert sum_distance(0.2, 1) == 0


def test_tau_makes_an_exchange_dearer() -> None:
    whole = Release(mechanism="discrete-gaussian", variance=9.0, shares=1, scale=1, dimension=1)
    shared = dataclasses.replace(whole, variance=0.5, shares=18)
    assert shared.mu_squared > 1.001 * whole.mu_squared
    assert dataclasses.replace(whole, variance=0.05, shares=180).mu_squared == math.inf, "ratios of e^37 prove nothing"


def test_noise_of_a_few_steps_promises_nothing() -> None:
    """The comparison with continuous noise is proved from a variance of eight squared steps on."""
    release = Release(mechanism="skellam", variance=3.9, shares=2, scale=1, dimension=4)
    assert Accountant((release,)).epsilon(1e-5) == math.inf
    assert Accountant((dataclasses.replace(release, variance=4.0),)).epsilon(1e-5) < math.inf


@pytest.mark.parametrize("beta", [0.5, 0.1])
def test_proposition_22_of_kairouz_et_al_bounds_the_norm_after_rounding(beta: float) -> None:
    """Kairouz, Liu, Steinke 2021, Proposition 22, for the worst vector: every coordinate half way between two steps."""
    rng = np.random.default_rng(5)
    dimension = 400
    vector = np.full(dimension, 1.5)
    scale = math.isqrt(int(vector @ vector))
    limit = rounded_norm_squared(scale, dimension, beta)
    rounded = np.floor(vector + rng.random((4000, dimension)))
    assert ((rounded**2).sum(axis=1) > limit).mean() <= beta
    assert limit < (scale + math.sqrt(dimension)) ** 2


@pytest.mark.parametrize("dimension", [1, 4, 650, 10**4, 10**6, 10**8])
def test_rounding_costs_at_most_one_percent(dimension: int) -> None:
    scale = grid_scale(dimension)
    assert scale >= 8 * math.sqrt(dimension)
    assert 1 < rounded_norm_squared(scale, dimension) / scale**2 < 1.011


@pytest.mark.parametrize("mechanism", ["skellam", "discrete-gaussian"])
@pytest.mark.parametrize(("multiplier", "exchanges", "delta"), [(1.0, 1, 1e-5), (3.0, 50, 1e-6), (20.0, 1000, 1e-5)])
def test_epsilon_is_that_of_the_gaussian_mechanism(
    mechanism: str, multiplier: float, exchanges: int, delta: float
) -> None:
    """Both papers' claim for fine grids: the same privacy as continuous noise of the same variance.

    The reference is dp-accounting's own Gaussian event, by its accountant of privacy loss distributions; from below,
    the exact trade-off of Balle and Wang 2018; from above, rho + 2 sqrt(rho log(1 / delta)) for rho-concentrated
    mechanisms (Bun and Steinke 2016, Proposition 1.3).
    """
    release = coarsest_release(mechanism, multiplier)  # type: ignore[arg-type]
    epsilon = Accountant().epsilon(delta, further=release, times=exchanges)
    reference = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-3)
    reference.compose(dp_accounting.GaussianDpEvent(multiplier), exchanges)
    assert epsilon == pytest.approx(reference.get_epsilon(delta), rel=0.001)
    assert epsilon >= dp_accounting.get_epsilon_gaussian(multiplier / math.sqrt(exchanges), delta)
    rho = exchanges / (2 * multiplier**2)
    assert epsilon <= (rho + 2 * math.sqrt(rho * math.log(1 / delta))) * 1.001


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-5), (2.0, 1e-5), (8.0, 1e-5), (2.0, 1e-6), (8.0, 1e-6)])
@pytest.mark.parametrize("exchanges", [15, 200])
def test_renyi_divergences_would_state_six_to_nine_percent_more(epsilon: float, delta: float, exchanges: int) -> None:
    """That is how earlier versions counted: the noise in their ledgers costs less by this account."""
    multiplier = calibrated_multiplier("skellam", epsilon=epsilon, delta=delta, exchanges=exchanges)
    renyi = dp_accounting.rdp.RdpAccountant()
    renyi.compose(dp_accounting.GaussianDpEvent(multiplier), exchanges)
    assert 1.06 < renyi.get_epsilon(delta) / epsilon < 1.11


def test_releases_add_up() -> None:
    twice = Accountant((RELEASE, RELEASE))
    assert twice.epsilon(1e-5) == Accountant().epsilon(1e-5, further=RELEASE, times=2)
    assert twice.epsilon(1e-5) == Accountant((RELEASE,)).epsilon(1e-5, further=RELEASE)
    assert twice.epsilon(1e-5) > Accountant((RELEASE,)).epsilon(1e-5) > 0
    assert Accountant().epsilon(1e-5) == 0


def test_asking_changes_nothing() -> None:
    accountant = Accountant((RELEASE,))
    before = accountant.epsilon(1e-5)
    accountant.epsilon(1e-5, further=RELEASE, times=100)
    assert accountant.epsilon(1e-5) == before


def test_noise_that_protects_nobody_is_called_so() -> None:
    """The distance of the sampler, 2^-100 or so, is not enough for e^60."""
    assert Accountant().epsilon(1e-5, further=coarsest_release("skellam", 0.05)) == math.inf


def test_the_distance_of_the_sampler_is_taken_off_delta() -> None:
    assert RELEASE.distance == pytest.approx(1000 * 10 * math.ldexp(_bound(RELEASE) + 2, -127))
    assert Accountant((RELEASE,)).epsilon(1e-5) > _ideal_epsilon(RELEASE, 1e-5)


def _bound(release: Release) -> int:
    from fedcore.codec.privacy import noise_bound

    return noise_bound(release.mechanism, release.variance)


def _ideal_epsilon(release: Release, delta: float) -> float:
    return float(dp_accounting.get_epsilon_gaussian(release.mu_squared**-0.5, delta))


@pytest.mark.parametrize(("epsilon", "exchanges"), [(8.0, 1), (8.0, 100), (0.5, 20)])
def test_a_calibrated_multiplier_is_the_least_that_keeps_the_budget(epsilon: float, exchanges: int) -> None:
    multiplier = calibrated_multiplier("skellam", epsilon=epsilon, delta=1e-5, exchanges=exchanges)
    spent = [
        Accountant().epsilon(1e-5, further=coarsest_release("skellam", z), times=exchanges)
        for z in (multiplier, multiplier * 0.998)
    ]
    assert spent[0] <= epsilon < spent[1]


@pytest.mark.parametrize("size", [1, 650, 10**5])
def test_real_models_cost_no_more_than_the_calibration(size: int) -> None:
    made = plan(dp_noise_multiplier=0.0, dp_epsilon=4.0, dp_rounds=20)
    release = encoding_for(size, dp_noise_multiplier=made.noise_multiplier).release
    assert 3.9 < Accountant().epsilon(1e-5, further=release, times=20) <= 4.0


class TestBudget:
    def test_an_exchange_too_many_is_refused_before_it_begins(self) -> None:
        account = PrivacyBudget(plan(dp_noise_multiplier=0.0, dp_epsilon=4.0, dp_rounds=3))
        assert account.plan is not None
        release = encoding_for(10, dp_noise_multiplier=account.plan.noise_multiplier).release
        for _ in range(3):
            account.admit(release)
            account.spend(release)
        spent = account.epsilon_spent
        with pytest.raises(BudgetSpent, match=r"epsilon 3\.9") as refused:
            account.admit(release)
        assert account.epsilon_spent == spent
        assert refused.value.exit_code == 6

    def test_without_a_plan_nothing_is_counted(self) -> None:
        account = PrivacyBudget(None)
        account.admit(None)
        account.spend(None)
        assert account.epsilon_spent is None
        assert not account.withholds(trains=False)

    def test_evaluations_without_a_bound_are_withheld(self) -> None:
        assert PrivacyBudget(plan()).withholds(trains=False)
        assert not PrivacyBudget(plan()).withholds(trains=True)
        assert not PrivacyBudget(plan(dp_metric_bound=1.0)).withholds(trains=False)

    def test_evaluations_that_are_noised_are_part_of_the_calibration(self) -> None:
        settings = {"dp_noise_multiplier": 0.0, "dp_epsilon": 4.0, "dp_rounds": 10}
        assert plan(**settings, dp_metric_bound=1.0).noise_multiplier == pytest.approx(
            plan(**{**settings, "dp_rounds": 20}).noise_multiplier
        )

    def test_a_budget_for_less_than_one_exchange(self) -> None:
        with raises(ConfigurationError, check="noise-costs-more", match=r"dp-noise-multiplier 1.*4"):
            privacy_plan(JobSettings(clip_norm=1.0, dp_noise_multiplier=1.0, dp_epsilon=2.0))

    def test_noise_that_protects_nobody_is_no_plan(self) -> None:
        with raises(ConfigurationError, check="noise-protects-nobody", match=r"dp-noise-multiplier 0\.05"):
            privacy_plan(JobSettings(clip_norm=1.0, dp_noise_multiplier=0.05))

    def test_a_run_without_a_budget_ends_where_no_epsilon_can_be_stated(self) -> None:
        account = PrivacyBudget(plan(dp_noise_multiplier=0.5))
        release = encoding_for(10, dp_noise_multiplier=0.5).release
        possible = 1
        while math.isfinite(Accountant().epsilon(1e-5, further=release, times=possible + 1)):
            possible += 1
        for _ in range(possible):
            account.admit(release)
            account.spend(release)
        assert 20 < account.epsilon_spent < math.inf
        with pytest.raises(BudgetSpent, match=r"\binf\b"):
            account.admit(release)

    def test_a_run_without_differential_privacy_has_no_plan(self) -> None:
        assert privacy_plan(JobSettings(clip_norm=1.0)) is None

    def test_the_record_can_be_json(self) -> None:
        assert PrivacyTerms.of(plan()).epsilon_budget is None
        assert PrivacyTerms.of(plan(dp_epsilon=9.0)).epsilon_budget == 9.0


def parsed(plain: object) -> Release:
    return from_plain(TypeAdapter(Release), plain, what="the noised sum")


class TestRelease:
    def test_json_and_back(self) -> None:
        assert parsed(dataclasses.asdict(RELEASE)) == RELEASE
        assert parsed({**dataclasses.asdict(RELEASE), "variance": 100000}) == RELEASE

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("mechanism", "laplace"), ("mechanism", None), ("variance", 0.0), ("variance", "1"), ("variance", math.nan),
            ("shares", 0), ("shares", 1.5), ("scale", 0), ("scale", 1 << 40), ("dimension", -1), ("dimension", True),
        ],
    )  # fmt: skip
    def test_nonsense_is_refused(self, key: str, value: object) -> None:
        with pytest.raises(EncodingError):
            parsed({**dataclasses.asdict(RELEASE), key: value})

    def test_keys(self) -> None:
        with pytest.raises(EncodingError, match="'varianc'"):
            parsed({**dataclasses.asdict(RELEASE), "varianc": 1.0})
        with pytest.raises(EncodingError, match="'shares'"):
            parsed({key: value for key, value in dataclasses.asdict(RELEASE).items() if key != "shares"})


@pytest.mark.parametrize("n", [3, 4, 10, 40, 64])
def test_epsilon_holds_although_as_many_collude_as_the_masks_withstand(n: int) -> None:
    """They know their own shares of the noise, so the smallest sum has those of the others alone."""
    settings = JobSettings(clip_norm=1.0, dp_noise_multiplier=3.0)
    layout = Layout(specs=(TensorSpec(name="w", dtype="F32", shape=(100,)),))
    encoding = EncodingPlan(settings, 3).encoding("train", layout, n)
    quorum, protection = quorum_for(settings, n, 3), protection_for(settings, n, 3)
    assert protection is not None
    colluding = 2 * protection.threshold - n - 1
    assert colluding >= protection.corrupt
    stated = release_of(encoding)
    assert stated is not None

    def epsilon(shares: int) -> float:
        """At which a sum with so many honest shares is private, each as large as it was announced."""
        return Accountant((dataclasses.replace(stated, shares=shares),)).epsilon(1e-5)

    assert epsilon(quorum - colluding) <= epsilon(stated.shares)
    assert epsilon(quorum - colluding - 1 or 1) >= epsilon(stated.shares), "nor does it count on fewer than there are"
