"""Every parser of a peer's bytes stands mutations of real messages; `benchmarks/fuzz.py` has them by the million."""

from __future__ import annotations

import pytest
from support.fuzz_parsers import parsers
from support.fuzz_seeds import record
from support.fuzzing import Parser, feed, run_block

INPUTS = 200


@pytest.fixture(scope="module")
def every_parser(tmp_path_factory: pytest.TempPathFactory) -> list[Parser]:
    folder = tmp_path_factory.mktemp("fuzzing")
    (folder / "scratch").mkdir()
    return parsers(record(folder), folder / "scratch")


def test_no_parser_crashes(every_parser: list[Parser]) -> None:
    found = [finding for parser in every_parser for finding in run_block(parser, seed=7, block=0, inputs=INPUTS)]
    assert found == [], "\n".join(f"{one.parser}: {one.what}\n{one.content[:500]!r}\n{one.trace}" for one in found)


def test_most_parsers_take_what_is_real(every_parser: list[Parser]) -> None:
    """Mutations of what is refused at once would reach nothing."""

    def takes(parser: Parser) -> bool:
        try:
            parser.feed(parser.seeds[0])
        except parser.documented:
            return False
        return True

    # Sums with a failed client, a client's complaint about what is not signed: refused at the very end.
    assert {parser.name for parser in every_parser if not takes(parser)} <= {
        "round: complaint at the server", "round: dealing at a client",
    }  # fmt: skip


def test_a_crash_is_found() -> None:
    def broken(content: bytes) -> None:
        content.decode("ascii")

    parser = Parser(name="broken", seeds=(b'{"a": 1}',), feed=broken, documented=())
    (finding, *_) = run_block(parser, seed=1, block=0, inputs=200)
    assert finding.what.startswith("UnicodeDecodeError at ")
    assert feed(parser, finding.content) is not None
