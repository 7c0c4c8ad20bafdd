"""How an update is cut and named."""

from __future__ import annotations

import hashlib

import pytest

from fedcore.secagg.crypto.masking import CHUNK_BYTES
from fedcore.wire.chunks import PART_BYTES, part_count, part_size, update_digest


@pytest.mark.parametrize(
    ("size", "sizes"),
    [
        (0, []),
        (1, [1]),
        (PART_BYTES, [PART_BYTES]),
        (PART_BYTES + 1, [PART_BYTES, 1]),
        (3 * PART_BYTES - 8, [PART_BYTES, PART_BYTES, PART_BYTES - 8]),
    ],
)
def test_parts_cover_the_update(size: int, sizes: list[int]) -> None:
    assert part_count(size) == len(sizes)
    assert [part_size(size, index) for index in range(len(sizes))] == sizes
    assert part_size(size, len(sizes)) == part_size(size, -1) == 0


def test_a_part_never_straddles_two_nonces_of_a_mask() -> None:
    assert CHUNK_BYTES % PART_BYTES == 0


def test_the_digest_is_what_it_is_documented_to_be() -> None:
    parts = [hashlib.sha256(text).digest() for text in (b"one", b"two")]
    text = b"fedcore/update/v1\x00" + bytes([6, 0, 0, 0, 0, 0, 0, 0]) + parts[0] + parts[1]
    assert update_digest(6, parts) == hashlib.sha256(text).digest()


def test_the_digest_depends_on_size_content_and_order() -> None:
    one, two = (hashlib.sha256(text).digest() for text in (b"one", b"two"))
    all_of_them = {update_digest(*given) for given in ((6, [one, two]), (6, [two, one]), (7, [one, two]), (6, [one]))}
    assert len(all_of_them) == 4
