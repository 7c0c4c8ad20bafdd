"""Finding, verifying and fetching files, with a real HTTP server on loopback."""

import gzip
import hashlib
import http.server
import struct
import threading

import numpy as np
import pytest
from support.raising import raises

from fedcore.data import files
from fedcore.data.files import data_folder, download, read_verified
from fedcore.data.images import parse_idx
from fedcore.errors import DataError

CONTENT = b"public data\n" * 1000
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture(scope="module")
def mirror(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mirror")
    (folder / "data.bin").write_bytes(CONTENT)

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=str(folder))

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_the_folder_comes_from_argument_then_variable_then_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDCORE_DATA", str(tmp_path / "variable"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_folder(tmp_path / "argument") == tmp_path / "argument"
    assert data_folder() == tmp_path / "variable"
    monkeypatch.delenv("FEDCORE_DATA")
    assert data_folder() == tmp_path / "cache" / "fedcore" / "data"


def test_a_download_appears_whole(mirror, tmp_path):
    target = tmp_path / "new" / "data.bin"
    download(f"{mirror}/data.bin", target, DIGEST)
    assert target.read_bytes() == CONTENT
    assert [p.name for p in target.parent.iterdir()] == ["data.bin"]


@pytest.mark.parametrize(
    ("page", "digest", "message"),
    [
        ("data.bin", "0" * 64, {"check": "wrong-hash"}),
        ("absent.bin", DIGEST, {"check": "not-fetched", "match": "FEDCORE_DATA"}),
    ],
)
def test_a_failed_download_leaves_nothing(mirror, tmp_path, page, digest, message):
    with raises(DataError, **message):
        download(f"{mirror}/{page}", tmp_path / "new" / "data.bin", digest)
    assert list((tmp_path / "new").iterdir()) == []


def test_without_a_network_the_error_says_what_to_set(tmp_path):
    # Port 9 of loopback: nothing listens there.
    with raises(DataError, check="not-fetched", match=r"FEDCORE_DATA.*new/data\.bin"):
        download("http://127.0.0.1:9/data.bin", tmp_path / "new" / "data.bin", DIGEST)


def test_an_absent_file_is_fetched_once_and_then_read(mirror, tmp_path, monkeypatch):
    known = files.KnownFile(sha256=DIGEST, url=f"{mirror}/data.bin")
    monkeypatch.setitem(files.KNOWN_FILES, "some/data.bin", known)
    assert read_verified("some/data.bin", tmp_path) == CONTENT
    gone = files.KnownFile(sha256=DIGEST, url="http://127.0.0.1:9/data.bin")
    monkeypatch.setitem(files.KNOWN_FILES, "some/data.bin", gone)
    assert read_verified("some/data.bin", tmp_path) == CONTENT


def test_a_file_without_an_address_is_asked_for(tmp_path):
    with raises(DataError, check="no-address", match=r"flamby_split\.csv"):
        read_verified(files.HEART_SPLIT, tmp_path)


def test_a_folder_that_cannot_be_written_is_a_clear_error(mirror, tmp_path):
    (tmp_path / "taken").write_text("a file where a folder should be")
    with raises(DataError, check="not-written"):
        download(f"{mirror}/data.bin", tmp_path / "taken" / "data.bin", DIGEST)


def idx(shape, values, kind=8):
    return bytes([0, 0, kind, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + values


def test_idx_is_read_in_c_order():
    array = parse_idx(gzip.compress(idx((2, 3), bytes(range(6)))), "a file")
    np.testing.assert_array_equal(array, np.arange(6, dtype=np.uint8).reshape(2, 3))


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (idx((2, 3), bytes(5)), {"check": "idx-length", "match": r"5\D+6"}),
        (idx((2, 3), bytes(7)), {"check": "idx-length", "match": r"7\D+6"}),
        (idx((2**31, 2**31), bytes(4)), {"check": "idx-length", "match": r"\b4\b"}),
        (idx((2, 3), bytes(6), kind=13), {"check": "not-idx"}),
        (idx((), b""), {"check": "idx-header"}),
        (idx((2, 3), b"")[:9], {"check": "idx-header"}),
        (b"\x00\x00", {"check": "not-idx"}),
        (b"", {"check": "not-idx"}),
    ],
)
def test_a_foreign_or_short_idx_file_is_refused(raw, message):
    with raises(DataError, **message):
        parse_idx(gzip.compress(raw), "a file")


def test_a_broken_gzip_file_is_refused():
    whole = gzip.compress(idx((2, 3), bytes(6)))
    damaged = whole[:-8] + bytes(4) + whole[-4:]
    for compressed in (whole[:-3], whole[:12], b"not gzip", damaged, b""):
        with raises(DataError, check="not-gzip" if compressed else "not-idx"):
            parse_idx(compressed, "a file")
