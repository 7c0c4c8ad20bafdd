"""How an update is cut and named."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from fedcore.secagg.crypto.masking import CHUNK_BYTES
from fedcore.wire.chunks import PART_BYTES, file_digest, first_file_digest, part_count, part_size, update_digest
from server_app.exchanges.at_rest import reply_digest_of


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
    text = b"fedcore/update/v2\x00" + bytes([6, 0, 0, 0, 0, 0, 0, 0]) + parts[0] + parts[1]
    assert update_digest(6, parts) == hashlib.sha256(text).digest()


def test_the_digest_depends_on_size_content_and_order() -> None:
    one, two = (hashlib.sha256(text).digest() for text in (b"one", b"two"))
    all_of_them = {update_digest(*given) for given in ((6, [one, two]), (6, [two, one]), (7, [one, two]), (6, [one]))}
    assert len(all_of_them) == 4


def test_replies_of_the_first_version_are_still_known(tmp_path: Path) -> None:
    content = bytes(range(256)) * (9 << 12)  # 9 MiB: two parts of 8 MiB then, three of 4 MiB now
    (tmp_path / "reply").write_bytes(content)
    parts = b"".join(hashlib.sha256(content[start : start + (8 << 20)]).digest() for start in (0, 8 << 20))
    first = hashlib.sha256(b"fedcore/update/v1\x00" + len(content).to_bytes(8, "little") + parts)
    assert first_file_digest(tmp_path / "reply") == first.digest()
    now = file_digest(tmp_path / "reply").hex()
    assert reply_digest_of(tmp_path / "reply", first.hexdigest()) == first.hexdigest()
    assert reply_digest_of(tmp_path / "reply", now) == now == reply_digest_of(tmp_path / "reply", "another")
