"""Updates that are too large for their scales: what the sum tells then, and that the next one holds them."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.privacy import seeded
from support.raising import raises

from fedcore.codec import CodecSettings, Encoded, Encoding, ScaleTrack, check_scales, decode, encode, encode_nothing
from fedcore.codec.encoding import scale_groups
from fedcore.codec.scaling.error_bound import error_bound_of
from fedcore.codec.scaling.scales import SMALL_HEADROOM, headroom
from fedcore.codec.scaling.statistics import read_rungs
from fedcore.errors import (
    EncodingError,
    PeerError,
    RoundFailed,
    RoundingTooCoarse,
    TooFewContributed,
    UpdateTooLarge,
)
from fedcore.run.encoding_plan import EncodingPlan
from fedcore.run.settings import JobSettings
from fedcore.state import ModelState

W_MAX = 100
SIZE = 3000
BASE = ModelState.from_arrays({"w": np.zeros(SIZE, np.float32), "n": np.zeros(2, np.int64)})
CODEC, WIDE = CodecSettings(w_max=W_MAX), CodecSettings(field_bits=32)
ENCODED = scale_groups(BASE.layout)[0]
TIGHT = Encoding(
    settings=CODEC, layout=BASE.layout, n_max=4, field_bits=16, scales=(1.0,), metrics=(("loss", None),), failures=1
)
WARNING = dataclasses.replace(TIGHT, settings=CodecSettings(w_max=W_MAX, clipping="warn"))


def update(largest: float, *, elements: int = 1) -> ModelState:
    values = np.full(SIZE, 0.25, np.float32)
    values[:elements] = largest
    return ModelState.from_arrays({"w": values, "n": np.full(2, 3)})


def send(encoding: Encoding, local: ModelState, seed: int = 0, examples: int = W_MAX) -> Encoded:
    names = {"loss": 0.5} if encoding.metrics else {}
    return encode(encoding, base=BASE, local=local, examples=examples, metrics=names, randomness=seeded(seed))


def sum_of(*sent: Encoded) -> NDArray[np.uint64]:
    return np.sum([one.words for one in sent], axis=0, dtype=np.uint64)


@pytest.mark.parametrize("bits", [16, 21, 32, 64])
@pytest.mark.parametrize("clipping", ["repeat", "fail"])
def test_one_element_beyond_its_scale_locks_the_sum(bits: int, clipping: Any) -> None:
    encoding = dataclasses.replace(TIGHT, field_bits=bits, settings=CodecSettings(w_max=W_MAX, clipping=clipping))
    fits, large = send(encoding, update(1.0)), send(encoding, update(-1.5))
    assert (fits.overflowed, large.overflowed, large.clipped) == (False, True, 1)
    with pytest.raises(UpdateTooLarge, match="1 of 2") as refused:
        decode(encoding, sum_of(fits, large), survivors=2, base=BASE)
    assert isinstance(refused.value, RoundFailed)
    assert refused.value.large == 1
    told = refused.value.statistics
    assert told.clipped == (1,)
    assert told.peaks == (2.0,), "how large the largest is, up to a power of two"


def test_a_locked_sum_tells_what_it_may_and_nothing_else() -> None:
    """The same update with other randomness: the told words say the same, all others are uniform."""
    sent = [send(TIGHT, update(7.0), seed).words for seed in range(40)]
    told, keys = TIGHT.unlocked, TIGHT.sections["keys"]
    hidden = np.concatenate([np.stack(sent)[:, : told.start], np.stack(sent)[:, told.stop : keys.start]], axis=1)
    assert {(int(words[told.start]), int(words[told.start + 1])) for words in sent} == {(0, 1)}
    peaks = [read_rungs(TIGHT, words[TIGHT.sections["peaks"]].tolist()) for words in sent]
    assert sorted(map(tuple, peaks))[len(peaks) // 2] == (TIGHT.ladders[0].rung_of(7.0),)
    assert not np.stack(sent)[:, keys].any()
    names = [name for name, part in TIGHT.sections.items() if told.start <= part.start < part.stop <= told.stop]
    assert names == ["failed", "large", "peaks"]
    bits = np.unpackbits(hidden.copy().view(np.uint8))
    assert abs(float(bits.mean()) - 0.5) < 5 * 0.5 / math.sqrt(bits.size)
    counts = np.bincount(hidden.copy().view(np.uint8).reshape(-1), minlength=256)
    expected = hidden.nbytes / 256
    assert float(((counts - expected) ** 2 / expected).sum()) < 255 + 6 * math.sqrt(2 * 255)
    assert len({row.tobytes() for row in hidden}) == len(sent)
    # What two updates have in common does not show either.
    for word in (TIGHT.sections["examples"].start, TIGHT.sections["integers"].start, TIGHT.sections["metrics"].start):
        assert len({int(words[word]) for words in sent}) == len(sent)


def test_words_of_an_overflow_have_the_shape_of_all_others() -> None:
    for encoding in (TIGHT, WARNING, dataclasses.replace(TIGHT, metrics=None)):
        sent = send(encoding, update(1.5)), send(encoding, update(0.5))
        assert {one.words.shape for one in sent} == {(encoding.words,)}
        assert {one.words.dtype for one in sent} == {np.dtype(np.uint64)}


def test_a_lock_of_a_failure_comes_off_first() -> None:
    fits, large = send(TIGHT, update(1.0)), send(TIGHT, update(1.5))
    failed = [encode_nothing(TIGHT, randomness=seeded(seed)) for seed in (7, 8)]
    with pytest.raises(UpdateTooLarge, match="1 of 3") as refused:
        decode(TIGHT, sum_of(fits, large, failed[0]), survivors=3, base=BASE)
    assert (refused.value.statistics.contributors, refused.value.statistics.failures) == (2, 1)
    with pytest.raises(TooFewContributed):
        decode(TIGHT, sum_of(fits, large, *failed), survivors=4, base=BASE)


def test_an_update_at_its_scale_fits() -> None:
    for bits in (16, 21, 32, 64):
        encoding = dataclasses.replace(TIGHT, field_bits=bits)
        for examples in (1, 3, 7, W_MAX):
            sent = send(encoding, update(W_MAX / examples), examples=examples)
            if not sent.overflowed:  # 100 / 7 in float32 is a little more
                decoded = decode(encoding, sent.words, survivors=1, base=BASE)
                assert decoded.statistics.peaks == (1.0,)


def hostile(encoding: Encoding, **changes: int) -> None:
    """Decode an honest sum of two in which words were changed."""
    words = sum_of(send(encoding, update(0.5), 1), send(encoding, update(0.5), 2))
    for section, value in changes.items():
        position = encoding.sections[section.rstrip("2")].start + section.endswith("2")
        words[position] = value % 2**64
    decode(encoding, words, survivors=2, base=BASE)


@pytest.mark.parametrize(
    "changes",
    [
        {"large": 3},
        {"large": 2**64 - 1},
        {"shrunk": 3},
        {"peaks": -1, "peaks2": -1},
        {"peaks2": 2**40},
    ],
)
def test_words_that_no_honest_clients_sum_up_to_are_refused(changes: dict[str, int]) -> None:
    with raises(PeerError, check="malformed-update"):
        hostile(TIGHT, **changes)


def test_nobody_locks_a_sum_that_clips() -> None:
    with raises(PeerError, check="malformed-update"):
        hostile(WARNING, large=1)
    with raises(PeerError, check="malformed-update"):
        hostile(WARNING, lost=(2 * W_MAX << WARNING.metric_fraction_bits) + 3)


def test_what_no_scale_holds_fails_its_client() -> None:
    with raises(EncodingError, check="update-beyond-scales", match=r"'w'.*3e\+19"):
        send(TIGHT, update(3e19))


def lost(largest: float, examples: int = W_MAX) -> tuple[int, float]:
    """What was cut off the norm of the update, and the examples."""
    values = update(largest)["w"].astype(np.float64) * examples / W_MAX
    beyond = np.maximum(np.abs(values) - 1.0, 0.0)
    return examples, float(np.linalg.norm(beyond) / np.linalg.norm(values))


@pytest.mark.parametrize("threads", [1, 3])
def test_who_clips_says_how_much_of_the_norm_was_lost(threads: int) -> None:
    sent = [
        encode(
            WARNING, base=BASE, local=update(largest), examples=examples, metrics={"loss": 0.5}, randomness=seeded(1),
            threads=threads,
        )
        for largest, examples in ((50.0, 100), (0.5, 100), (-20.0, 50))
    ]  # fmt: skip
    assert [one.clipped for one in sent] == [1, 0, 1]
    assert not any(one.overflowed for one in sent)
    decoded = decode(WARNING, sum_of(*sent), survivors=3, base=BASE)
    expected = np.average([lost(50.0)[1], 0.0, lost(-20.0, 50)[1]], weights=[100, 100, 50])
    assert decoded.lost_norm == pytest.approx(expected, abs=1e-5)
    assert decoded.statistics.clipped == (2,)


def test_nothing_is_lost_where_nothing_is_clipped() -> None:
    for encoding in (TIGHT, WARNING):
        assert decode(encoding, send(encoding, update(0.5)).words, survivors=1, base=BASE).lost_norm == 0


# --- the next scales ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [4, 8])
@pytest.mark.parametrize("growth", [1.01, 3.0, 1000.0, 1e7])
def test_after_an_overflow_the_scales_hold_everybody(n: int, growth: float) -> None:
    """At once where the statistics tell how much, and else after one exchange more."""
    track = ScaleTrack()

    def ask(largest: float) -> bool:
        encoding = track.encoding(CODEC, BASE.layout, n, metrics=None, failures=0)
        sent = [send(encoding, update(0.25 if number else largest), number) for number in range(n)]
        try:
            track.learn(decode(encoding, sum_of(*sent), survivors=n, base=BASE).statistics)
        except UpdateTooLarge as error:
            track.learn_overflow(encoding, error.statistics)
            return False
        return True

    assert all(ask(0.25) for _ in range(4))
    room = track.encoding(CODEC, BASE.layout, n, metrics=None, failures=0).scales[0]
    tries = 0
    while not ask(growth * room):
        tries += 1
    assert tries == (1 if growth <= 1000 else 2)
    assert all(ask(growth * room) for _ in range(3)), "and it stays"


def test_scales_only_rise_until_a_sum_opened() -> None:
    plan = EncodingPlan(JobSettings(w_max=W_MAX))
    first = plan.encoding("train", BASE.layout, 4)
    assert isinstance(first, Encoding)
    sent = send(first, update(5e5))
    with pytest.raises(UpdateTooLarge) as refused:
        decode(first, sent.words, survivors=1, base=BASE)
    plan.learn_overflow("train", first, refused.value.statistics)
    for _ in range(3):  # whatever else becomes of the attempts
        again = plan.encoding("train", BASE.layout, 4)
        assert isinstance(again, Encoding)
        assert again.scales == (2.0**20,)
        assert again.field_bits == 64, "narrower ones might be coarse for whom is usual"
    opened = decode(again, send(again, update(5e5)).words, survivors=1, base=BASE)
    plan.learn("train", again, opened)
    later = plan.encoding("train", BASE.layout, 4)
    assert isinstance(later, Encoding)
    assert later.scales == (2.0**22,), "three of four were not there"
    assert later.field_bits == 64, "nobody knows yet what is usual"


# --- sites that come and go -------------------------------------------------------------------------------------------


class Federation:
    """Sites of some sizes whose updates do not change, over the exchanges of one run; those of the last are larger."""

    def __init__(self, sizes: tuple[int, ...], *, largest: float = 0.01, **settings: Any) -> None:
        rng = np.random.default_rng(1)
        self.plan = EncodingPlan(JobSettings(**settings))
        self.sizes = sizes
        self.locals = [self._local(rng, largest) for _ in sizes[:-1]] + [self._local(rng, 3 * largest)]
        self.asked: list[Encoding] = []
        self.usual_error = 0.0

    def _local(self, rng: np.random.Generator, largest: float) -> ModelState:
        values = rng.uniform(-largest, largest, SIZE).astype(np.float32)
        return ModelState.from_arrays({"w": values, "n": np.zeros(2, np.int64)})

    def add(self, by: float) -> None:
        """Change the first element of the first site's update."""
        changed = self.locals[0]["w"].copy()
        changed[0] += np.float32(by)
        self.locals[0] = ModelState.from_arrays({"w": changed, "n": np.zeros(2, np.int64)})

    def exchange(self, present: tuple[int, ...]) -> int:
        """One exchange of the sites `present`: how often it was repeated, checked against the exact mean."""
        for repeats in range(4):
            encoding = self.plan.encoding("train", BASE.layout, len(present))
            assert isinstance(encoding, Encoding)
            self.asked.append(encoding)
            sent = [send(encoding, self.locals[site], site, self.sizes[site]) for site in present]
            try:
                decoded = decode(encoding, sum_of(*sent), survivors=len(present), base=BASE)
            except UpdateTooLarge as error:
                self.plan.learn_overflow("train", encoding, error.statistics)
                continue
            self.plan.learn("train", encoding, decoded)
            assert decoded.state is not None
            weights = [self.sizes[site] for site in present]
            exact = np.average([self.locals[site]["w"].astype(np.float64) for site in present], axis=0, weights=weights)
            bound = error_bound_of(encoding, decoded, BASE, [self.locals[site] for site in present], weights)
            error = np.abs(decoded.state["w"] - exact)
            assert error.max() <= bound["w"] < 0.01 + 2.0**-20 * np.abs(exact).max()
            self.usual_error = float(error[np.abs(exact) < 1].max())
            return repeats
        raise AssertionError("the scales do not become large enough")


@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.parametrize("away", range(2, 13))
def test_the_largest_site_finds_room_when_it_comes_back(away: int, bits: int) -> None:
    federation = Federation((1, 4, 16, 64), field_bits=bits)
    for number in range(1, 15):
        assert federation.exchange((0, 1, 2) if number == away else (0, 1, 2, 3)) == 0


def test_a_site_may_be_away_for_eight_rounds() -> None:
    federation = Federation((1, 4, 16, 64))
    for number in range(1, 25):
        assert federation.exchange((0, 1, 2) if 5 <= number < 13 else (0, 1, 2, 3)) == 0


@pytest.mark.parametrize("sizes", [(1, 2, 5, 1000), (1, 1, 1, 1, 1, 1, 1, 1, 1, 1000)])
def test_a_heavy_newcomer_is_asked_again_once(sizes: tuple[int, ...]) -> None:
    federation = Federation(sizes)
    everybody = tuple(range(len(sizes)))
    repeats = [federation.exchange(everybody[:-1] if number < 5 else everybody) for number in range(1, 9)]
    assert repeats == [0, 0, 0, 0, 1, 0, 0, 0]


@pytest.mark.parametrize(("when", "by"), [(1, 1e5), (2, 3.0), (2, 1e5), (5, 3.0), (5, 1e5)])
@pytest.mark.parametrize("bits", [16, 32])
def test_an_outlier_makes_no_other_element_coarse(when: int, bits: int, by: float) -> None:
    """Neither in its own exchange nor in those after it, which cost more only until the scale has come down.

    No step is ever more than 1/32 of the largest elements, which are of 0.03.
    """
    federation, everybody = Federation((100, 100, 100, 100), field_bits=bits), (0, 1, 2, 3)
    usual, widths = [], []
    for number in range(1, 60):
        federation.add(by if number == when else 0.0)
        federation.exchange(everybody)
        federation.add(-by if number == when else 0.0)
        usual.append(federation.usual_error)
        widths.append(federation.asked[-1].field_bits)
    assert max(usual) < 0.03 / 32
    assert set(widths[1 : when - 1]) <= {bits}
    assert set(widths[when + math.ceil(math.log2(by / 0.01)) :]) == {bits}
    assert sum(widths) < 60 * bits + 64 * 24


def test_updates_that_have_grown_get_narrow_fields_again() -> None:
    federation = Federation((100, 100, 100, 100), largest=1e-5)
    for number in range(1, 30):
        federation.exchange((0, 1, 2, 3))
        if number == 5:
            federation.locals = [
                ModelState.from_arrays({"w": 1e3 * local["w"], "n": local["n"]}) for local in federation.locals
            ]
    assert {encoding.field_bits for encoding in federation.asked[16:]} == {16}


@pytest.mark.parametrize(("bits", "n"), [(16, 2), (16, 3), (16, 20), (21, 8)])
def test_a_first_exchange_has_32_bits_and_keeps_digits_of_small_updates(n: int, bits: int) -> None:
    federation = Federation((1000,) * n, largest=1e-3, field_bits=bits)
    federation.exchange(tuple(range(n)))
    first = federation.asked[0]
    assert (first.field_bits, first.scales) == (32, (1.0,))
    assert first.step(0) < 1e-3 * 1000 / first.settings.w_max / 200


@pytest.mark.parametrize(
    ("settings", "n", "form"),
    [
        ({}, 256, (32, 1.0)),
        ({"field_bits": 8}, 16, (32, 1.0)),
        ({}, 257, (64, 16.0)),
        ({"clipping": "warn"}, 4, (64, 16.0)),
        ({"clipping": "fail"}, 4, (64, 16.0)),
        ({"field_bits": 32}, 4, (64, 16.0)),
    ],
)
def test_a_first_exchange_is_wider_if_nothing_would_mend_it(
    settings: dict[str, Any], n: int, form: tuple[int, float]
) -> None:
    first = EncodingPlan(JobSettings(**settings)).encoding("train", BASE.layout, n, model="0" * 64)
    assert isinstance(first, Encoding)
    assert (first.field_bits, *first.scales) == form
    assert check_scales(first, None, exchange=1).falls == 0


def test_a_first_sum_that_is_mostly_rounding_repeats_in_64_bits() -> None:
    federation = Federation((1, 1, 1), largest=1e-6)
    with pytest.raises(RoundingTooCoarse) as coarse:
        federation.exchange((0, 1, 2))
    assert coarse.value.helps
    federation.plan.learn_coarse("train", federation.asked[0], coarse.value.statistics)
    assert federation.exchange((0, 1, 2)) == 0
    assert federation.asked[-1].field_bits == 64


@pytest.mark.parametrize("size", [1, 10, 100, 1000])
@pytest.mark.parametrize("n", [2, 3, 8, 20])
def test_with_32_bits_the_first_exchange_is_no_coarser_than_the_second(n: int, size: int) -> None:
    federation = Federation((size,) * n, largest=1e-4, field_bits=32)
    federation.exchange(tuple(range(n)))
    federation.exchange(tuple(range(n)))
    first, second = federation.asked
    assert (first.field_bits, first.scales) == (64, (16.0,))
    assert second.field_bits == 32
    assert first.step(0) <= second.step(0)


@pytest.mark.parametrize(("bits", "n", "room"), [(16, 4, 4), (32, 4, 64), (32, 512, 64), (32, 1024, 32), (21, 4, 4)])
def test_wide_fields_leave_more_room(bits: int, n: int, room: int) -> None:
    codec = CodecSettings(field_bits=bits)
    assert headroom(codec, ENCODED, n) == room
    assert headroom(codec, dataclasses.replace(ENCODED, small=True), n) == SMALL_HEADROOM


def test_a_tensor_that_pauses_keeps_its_scale() -> None:
    layout = ModelState.from_arrays({"a": np.zeros(SIZE, np.float32), "b": np.zeros(SIZE, np.float32)}).layout
    base = ModelState.from_arrays({"a": np.zeros(SIZE, np.float32), "b": np.zeros(SIZE, np.float32)})
    track = ScaleTrack()
    for number in range(20):
        encoding = track.encoding(CODEC, layout, 1, metrics=(), failures=0)
        small = np.float32(1e-6 if number < 3 or number == 19 else 0.0)
        local = ModelState.from_arrays({"a": np.full(SIZE, 1.0, np.float32), "b": np.full(SIZE, small)})
        sent = encode(encoding, base=base, local=local, examples=W_MAX, metrics={}, randomness=seeded(number))
        assert not sent.overflowed
        track.learn(decode(encoding, sent.words, survivors=1, base=base).statistics)
        if number >= 3:
            assert encoding.scales[1] < 1e-5, "not that of the other tensor"
