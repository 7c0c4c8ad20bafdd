"""What a sum reveals, against the papers' statements and against exact divergences."""

from __future__ import annotations

import dataclasses
import math

import dp_accounting
import mpmath
import numpy as np
import pytest
from pydantic import TypeAdapter
from scipy.special import ive
from support.privacy import encoding_for, plan
from support.raising import raises

from fedcore.codec import release_of
from fedcore.codec.privacy import Accountant, PrivacyBudget, Release, calibrated_multiplier, grid_scale
from fedcore.codec.privacy.accounting import (
    ORDERS,
    coarsest_release,
    gaussian_rdp,
    rounded_norm_squared,
    skellam_rdp,
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


def divergence(order: int, shift: int, variance: float) -> float:
    """The Renyi divergence of a Skellam variable from itself shifted, summed up in float64."""
    reach = order * shift + 40 + int(20 * math.sqrt(variance))
    values = np.arange(-reach, reach + 1)
    with np.errstate(divide="ignore"):
        log = np.log(ive(np.abs(values), variance))
        moved = np.log(ive(np.abs(values - shift), variance))
    known = np.isfinite(log) & np.isfinite(moved)  # the others underflow float64, far beyond the largest term
    terms = order * moved[known] + (1 - order) * log[known]
    top = terms.max()
    return float((top + np.log(np.exp(terms - top).sum())) / (order - 1))


@pytest.mark.parametrize("variance", [1.0, 4.0, 25.0, 400.0])
@pytest.mark.parametrize("shift", [1, 2, 5])
@pytest.mark.parametrize("order", [2, 3, 8, 24])
def test_theorem_3_5_of_agarwal_et_al_bounds_the_exact_divergence(order: int, shift: int, variance: float) -> None:
    """Agarwal, Kairouz, Liu 2021, Theorem 3.5: one dimension, integer sensitivity, integer order."""
    bound = skellam_rdp(order, l2_squared=shift**2, l1=shift, variance=variance)
    true = divergence(order, shift, variance)
    assert true <= bound * (1 + 1e-9)
    if variance >= 400:  # "sharp": (1 + O(1 / mu)) times that of the Gaussian, and so is the truth
        assert bound <= 1.03 * true


def test_corollary_3_6_of_agarwal_et_al_by_hand() -> None:
    """a D2^2 / 2 mu + min(((2a - 1) D2^2 + 6 D1) / 4 mu^2, 3 D1 / 2 mu): each branch once."""
    assert skellam_rdp(2, l2_squared=9, l1=5, variance=4.0) == 18 / 8 + (3 * 9 + 30) / 64
    assert skellam_rdp(64, l2_squared=9, l1=5, variance=4.0) == 64 * 9 / 8 + 15 / 8


@pytest.mark.parametrize("variance", [0.3, 0.5, 1.0])
def test_theorem_1_of_kairouz_et_al_bounds_a_sum_of_discrete_gaussians(variance: float) -> None:
    """Kairouz, Liu, Steinke 2021, Theorem 1: tau bounds the log ratio of the sum to one discrete Gaussian."""
    with mpmath.workdps(50):

        def masses(sigma2: float) -> dict[int, mpmath.mpf]:
            weight = {k: mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * mpmath.mpf(sigma2))) for k in range(-30, 31)}
            total = sum(weight.values())
            return {k: value / total for k, value in weight.items()}

        share, whole = masses(variance), masses(2 * variance)
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
    few = gaussian_rdp(4, l2_squared=4.0, variance=9.0, tau=0.0, dimension=100)
    assert few == pytest.approx(4 * 4 / 9 / 2)
    assert gaussian_rdp(4, l2_squared=4.0, variance=9.0, tau=0.01, dimension=100) == pytest.approx(
        2 * (2 / 3 + 0.1) ** 2
    )


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

    The reference is dp-accounting's own Gaussian event; from below, the exact trade-off of Balle and Wang 2018; from
    above, rho + 2 sqrt(rho log(1 / delta)) for rho-concentrated mechanisms (Bun and Steinke 2016, Proposition 1.3).
    """
    release = coarsest_release(mechanism, multiplier)  # type: ignore[arg-type]
    epsilon = Accountant().epsilon(delta, further=release, times=exchanges)
    reference = dp_accounting.rdp.RdpAccountant()
    reference.compose(dp_accounting.GaussianDpEvent(multiplier), exchanges)
    assert epsilon == pytest.approx(reference.get_epsilon(delta), rel=0.01)
    assert epsilon >= dp_accounting.get_epsilon_gaussian(multiplier / math.sqrt(exchanges), delta)
    rho = exchanges / (2 * multiplier**2)
    assert epsilon <= (rho + 2 * math.sqrt(rho * math.log(1 / delta))) * 1.001


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
    return float(dp_accounting.rdp.compute_epsilon(ORDERS, [release.rdp(order) for order in ORDERS], delta)[0])


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
