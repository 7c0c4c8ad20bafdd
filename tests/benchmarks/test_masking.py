"""The arithmetic of the masking benchmark, and that its jobs do what they say."""

import pytest

from benchmarks import masking
from benchmarks.masking import (
    CALLS,
    CIPHER_BYTES,
    MASKS,
    PARAMETERS,
    cipher_case,
    cipher_job,
    client_case,
    masking_job,
    report,
    server_case,
)

RATE = 4e9


def times():
    """Every case at the cipher's rate on one thread, masking in half of that time on two."""
    cases = [cipher_case(call, threads) for call in CALLS for threads in (1, 2)]
    cases += [client_case(width, threads) for width in (2, 4) for threads in (1, 2)]
    cases += [server_case(threads) for threads in (1, 2)]
    return {case: case.keystream / RATE / (1 if case.call else case.threads) for case in cases}


def figures(found):
    return {figure.name: figure for figure in report(found).figures}


def test_keystream_is_counted_in_bytes():
    assert client_case(2, 1).keystream == MASKS * 2 * PARAMETERS
    assert server_case(1).keystream == masking.MANY_MASKS * 8 * masking.MANY_WORDS
    assert cipher_case(CALLS[0], 2).keystream == 2 * CIPHER_BYTES


def test_the_cipher_itself_is_the_floor():
    found = figures(times())
    assert found["mask_over_floor_1thread_2bytes"].value == pytest.approx(1)
    assert found["mask_over_floor_1thread_4bytes"].value == pytest.approx(1)
    assert found["mask_two_threads_speedup"].value == pytest.approx(2)
    assert found["unmask_many_terms_over_floor_1thread"].value == pytest.approx(1)
    assert found["unmask_many_terms_speedup"].value == pytest.approx(2)


def test_the_floor_is_the_best_of_the_cipher_on_one_thread():
    slower = times()
    for call in CALLS[1:]:
        slower[cipher_case(call, 1)] *= 3
    slower[cipher_case(CALLS[0], 2)] /= 10
    slower[client_case(2, 1)] *= 1.25
    assert figures(slower)["mask_over_floor_1thread_2bytes"].value == pytest.approx(0.8)
    assert not figures(slower)["mask_over_floor_1thread_2bytes"].holds


def test_the_speedup_is_that_of_the_worse_width():
    slower = times()
    slower[client_case(4, 2)] *= 1.6
    assert figures(slower)["mask_two_threads_speedup"].value == pytest.approx(1.25)


def test_jobs(monkeypatch):
    monkeypatch.setattr(masking, "CIPHER_BYTES", 4096)
    cipher_job(1024, 1)()
    cipher_job(1024, 2)()
    masking_job(100, 3, 2)()
