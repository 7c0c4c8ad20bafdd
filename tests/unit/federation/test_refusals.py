"""What an operator reads of owners' refusals: who has to agree to what, and only what can be done."""

from __future__ import annotations

from fedcore.federation.admission.refusals import refused_by_all, refused_by_some
from fedcore.wire.uploads import WithdrawalReason, WithdrawIn

DIFFERS = WithdrawIn(reason=WithdrawalReason.POLICY, check="differencing", asked=1, allowed=3)


def test_all_owners_whose_word_is_needed_are_named() -> None:
    other = WithdrawIn(reason=WithdrawalReason.POLICY, check="plain-not-allowed")
    told = refused_by_some({"north": DIFFERS, "south": other, "east": DIFFERS})
    assert "2 refused (east, north): differencing: " in told
    assert "1 refused (south): plain-not-allowed: " in told


def test_of_statistics_no_other_model_is_advised() -> None:
    for told in (refused_by_all([DIFFERS], queries=True), refused_by_some({"north": DIFFERS}, queries=True)):
        assert "allow-differencing = true" in told
        assert "another model" not in told


def test_of_a_model_another_one_comes_first() -> None:
    told = refused_by_all([DIFFERS])
    assert told.index("another model") < told.index("allow-differencing = true")


def test_a_refusal_that_no_sentence_is_about_is_not_told() -> None:
    assert refused_by_some({"north": WithdrawIn(reason=WithdrawalReason.STOPPED, check="internal")}) == ""


def test_a_refusal_for_differencing_names_the_key_that_its_owner_has() -> None:
    """The line of a client in the list of sites, which has no room for the whole sentence."""
    refusal = WithdrawIn(reason=WithdrawalReason.POLICY, check="differencing", asked=1, allowed=3)
    assert "allow-differencing" in refusal.why
    assert "asked 1" not in refusal.why
