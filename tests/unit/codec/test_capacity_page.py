"""The capacity that docs/howto/limits.md promises is what the code does."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedcore.codec import CodecSettings, Encoding, first_encoding, rotation_seed
from fedcore.codec.encoding import scale_groups
from fedcore.codec.scaling.widths import LEAST_LEVELS, levels_of_bits
from fedcore.codec.settings import FIELD_BITS
from fedcore.errors import EncodingError
from fedcore.run.encoding_plan import EncodingPlan
from fedcore.run.settings import JobSettings
from fedcore.state import Layout, TensorSpec

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "limits.md"
FOR_IT = PAGE.parent / "for-it.md"
PARAMETERS = 10**7
LAYOUT = Layout(specs=(TensorSpec(name="weight", dtype="F32", shape=(PARAMETERS,)),))
SEED = rotation_seed("0" * 64)
CLIENTS = 10


def rows() -> dict[int, list[str]]:
    """The table's rows, by `field-bits`."""
    header = "| `field-bits` | upload | of float32 | first exchange | most clients in a sum |"
    lines = PAGE.read_text(encoding="utf-8").partition(header)[2].strip().splitlines()[1:]
    found = {}
    for line in lines:
        if not line.startswith("|"):
            break
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        found[int(cells[0])] = cells[1:]
    return found


def test_the_page_for_it_departments_says_what_a_round_takes() -> None:
    """With the settings that an app has which says nothing of them."""
    text = " ".join(FOR_IT.read_text(encoding="utf-8").split())
    plan = EncodingPlan(JobSettings())
    (down,) = {spec.nbytes // spec.size for spec in LAYOUT.specs}
    beginning = plan.encoding("train", LAYOUT, CLIENTS)
    scales = (1.0,) * len(scale_groups(LAYOUT))
    later = Encoding(
        settings=beginning.settings, layout=LAYOUT, n_max=CLIENTS, field_bits=JobSettings().field_bits, scales=scales,
        metrics=(),
    )  # fmt: skip
    first, up = (round(8 * one.words / PARAMETERS, 1) for one in (beginning, later))
    assert f"{down:g} bytes down in every round, and {up:g} bytes up, but {first:g} in the first round" in text
    megabytes = [one * PARAMETERS // 10**6 for one in (down, up, first)]
    assert "{:g} MB down and {:g} MB up a round, and {:g} MB up in the first".format(*megabytes) in text


def test_every_width_is_in_the_table() -> None:
    assert tuple(rows()) == FIELD_BITS


@pytest.mark.parametrize("bits", FIELD_BITS)
def test_a_row_says_what_an_upload_takes(bits: int) -> None:
    upload, fraction, first, most = rows()[bits]
    settings = CodecSettings(field_bits=bits)
    seed = SEED if settings.compresses else ""
    scales = (1.0,) * len(scale_groups(LAYOUT))
    each = Encoding(
        settings=settings, layout=LAYOUT, n_max=CLIENTS, field_bits=bits, scales=scales, metrics=(), rotation=seed
    )
    beginning = first_encoding(settings, LAYOUT, CLIENTS, metrics=(), rotation=seed)
    # Rotated updates are padded by about one part in a hundred.
    close = 0.02 if settings.compresses else 0.006
    assert 8 * each.words / PARAMETERS == pytest.approx(float(upload), rel=close)
    assert 2 * each.words / PARAMETERS == pytest.approx(float(fraction), rel=close)
    assert 8 * beginning.words / PARAMETERS == pytest.approx(float(first), rel=close)
    clients = int(most.replace(",", ""))
    assert levels_of_bits(bits, clients) >= LEAST_LEVELS
    with pytest.raises(EncodingError):
        Encoding(
            settings=settings, layout=LAYOUT, n_max=clients + 1, field_bits=bits, scales=scales, metrics=(),
            rotation=seed,
        )  # fmt: skip


@pytest.mark.parametrize("fraction", [0.25, 0.05])
def test_a_fraction_holds_in_the_first_exchange_too(fraction: float) -> None:
    settings = CodecSettings(upload_fraction=fraction)
    words = first_encoding(settings, LAYOUT, CLIENTS, metrics=(), rotation=SEED).words
    assert 8 * words / PARAMETERS == pytest.approx(4 * fraction, rel=0.03)
