"""Mutations of real inputs, and parsers that are fed with them.

A parser may raise what it is documented to raise and nothing else, and takes neither seconds nor much memory, whatever
comes. Inputs follow from the seed, the parser's name and the number of a block, given the same real inputs.
"""

from __future__ import annotations

import json
import random
import resource
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import process_time
from typing import Any, Final

SLOW_SECONDS: Final = 5.0
"""Of the processor; a parse takes microseconds."""
GROWTH_KIB: Final = 256 << 10
"""How much more memory than ever before one input of some kilobytes may take."""
MOST_BYTES: Final = 1 << 17
"""No mutated input is longer."""
_NUMBERS: Final = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 2**63 - 1, 2**63, 2**64 - 1)
_TOKENS: Final = (
    b'"', b"{", b"}", b"[", b"]", b":", b",", b"null", b"NaN", b"-Infinity", b"1e999", b"\\ud800", b"\x00", b"\xff\xfe",
    b"\r\n", b"\n", b"=", b";", b"%00", b"../", b"'", b"\xe2\x80\xa8", b"Content-Length: 5\r\n", b"[[a]]\n",
    b"1979-05-27",
)  # fmt: skip
_VALUES: Final[tuple[Any, ...]] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**63) - 1, 10**400, 0.5, -0.0, 1e308, float("nan"),
    float("inf"), "", "a", "\x00", "\ud800", "é" * 300, "A" * 5000, "AAAA", "==", "0" * 64, [], {}, [[]], [None],
    {"": None}, {"a": {"a": {}}}, [0] * 300, {"bytes": [0, -1]}, "__proto__", "NaN",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Parser:
    """What reads a peer's bytes.

    seeds: real inputs. feed: parses one. documented: what it may raise. share: how many inputs of all it gets, beside
    the others' shares.
    """

    name: str
    seeds: tuple[bytes, ...]
    feed: Callable[[bytes], object]
    documented: tuple[type[BaseException], ...]
    share: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """An input that a parser does not stand. what: the exception, its place, or what it took."""

    parser: str
    what: str
    content: bytes
    trace: str = ""


def feed(parser: Parser, content: bytes) -> Finding | None:
    """Give one input to a parser."""
    highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = process_time()
    try:
        parser.feed(content)
    except parser.documented:
        pass
    except Exception as error:  # whatever it is: that is what is looked for
        last = traceback.extract_tb(error.__traceback__)[-1]
        what = f"{type(error).__name__} at {last.filename.rpartition('/')[2]}:{last.lineno}"
        return Finding(parser=parser.name, what=what, content=content, trace=traceback.format_exc(limit=-6))
    if (seconds := process_time() - began) > SLOW_SECONDS:
        return Finding(parser=parser.name, what="takes long", content=content, trace=f"{seconds:.1f} s")
    if (grown := resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - highest) > GROWTH_KIB:
        return Finding(parser=parser.name, what="takes much memory", content=content, trace=f"{grown >> 10} MiB")
    return None


def run_block(parser: Parser, *, seed: int, block: int, inputs: int) -> list[Finding]:
    """Feed a parser with `inputs` mutated inputs; of each kind of finding the first."""
    rng = random.Random(f"{seed}/{parser.name}/{block}")
    found: dict[str, Finding] = {}
    for _ in range(inputs):
        finding = feed(parser, mutated(rng, parser.seeds))
        if finding is not None:
            found.setdefault(finding.what, finding)
    return list(found.values())


def mutated(rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    """One of the real inputs, changed in one or several places: its JSON where it is such, or its bytes."""
    content = rng.choice(seeds)
    if content[:1] in (b"{", b"[") and rng.random() < 0.6:
        content = _mutated_json(rng, content)
        if rng.random() < 0.8:
            return content[:MOST_BYTES]
    edited = bytearray(content)
    for _ in range(1 << rng.randrange(4)):
        rng.choice(_EDITS)(rng, edited, seeds)
    return bytes(edited[:MOST_BYTES])


# --- JSON -----------------------------------------------------------------------------------------------------------


def _mutated_json(rng: random.Random, content: bytes) -> bytes:
    try:
        document = json.loads(content)
    except ValueError:
        return content
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        document = _changed(rng, document)
    if rng.random() < 0.002:
        depth = rng.choice((200, 2000, 30_000))
        return b"[" * depth + b"]" * depth
    return json.dumps(document, ensure_ascii=rng.random() < 0.9).encode("utf-8", "surrogatepass")


def _changed(rng: random.Random, document: Any) -> Any:
    """The document with one value or key changed, at a place that is found by going down at random."""
    if isinstance(document, dict) and document and rng.random() < 0.9:
        key = rng.choice(list(document))
        match rng.randrange(8):
            case 0:
                return {name: value for name, value in document.items() if name != key}
            case 1:
                return {**document, rng.choice(("", "a", key + "x", "\ud800", "op", "event", "1")): document[key]}
            case 2:
                return {**document, key: document[rng.choice(list(document))]}
            case _:
                return {**document, key: _changed(rng, document[key])}
    if isinstance(document, list) and document and rng.random() < 0.9:
        index = rng.randrange(len(document))
        match rng.randrange(6):
            case 0:
                return document[:index] + document[index + 1 :]
            case 1:
                return document + document[index:]
            case _:
                return [*document[:index], _changed(rng, document[index]), *document[index + 1 :]]
    return _other_value(rng, document)


def _other_value(rng: random.Random, value: Any) -> Any:
    """Something else in the place of one value; often of its own kind, which gets further."""
    if isinstance(value, bool) or rng.random() < 0.4:
        return rng.choice(_VALUES)
    if isinstance(value, int):
        return value + rng.choice((-1, 1, 256, -value, 2**31, 2**63))
    if isinstance(value, float):
        return value * rng.choice((-1.0, 1e300, 1e-300, 0.0))
    if isinstance(value, str) and value:
        place = rng.randrange(len(value))
        return rng.choice(
            (
                value[:place],
                value + value,
                value[:place] + rng.choice("A=/\x00é\ud8000") + value[place + 1 :],
                value[::-1],
            )
        )
    return rng.choice(_VALUES)


# --- bytes ----------------------------------------------------------------------------------------------------------


def _flip(rng: random.Random, content: bytearray, _: Sequence[bytes]) -> None:
    if content:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)


def _number(rng: random.Random, content: bytearray, _: Sequence[bytes]) -> None:
    """An interesting number over 1, 2, 4 or 8 bytes: lengths and offsets are such."""
    width = rng.choice((1, 2, 4, 8))
    if len(content) >= width:
        place = rng.choice((0, rng.randrange(len(content) - width + 1)))
        number = rng.choice(_NUMBERS) & ((1 << 8 * width) - 1)
        content[place : place + width] = number.to_bytes(width, rng.choice(("little", "big")))


def _cut(rng: random.Random, content: bytearray, _: Sequence[bytes]) -> None:
    place = rng.randrange(len(content) + 1)
    del content[place : place + rng.choice((1, 2, 8, 64, 1 << 20))]


def _double(rng: random.Random, content: bytearray, _: Sequence[bytes]) -> None:
    place = rng.randrange(len(content) + 1)
    content[place:place] = content[place : place + rng.choice((1, 8, 64, 512))] * rng.choice((1, 1, 3))


def _token(rng: random.Random, content: bytearray, _: Sequence[bytes]) -> None:
    place = rng.randrange(len(content) + 1)
    content[place:place] = rng.choice(_TOKENS)


def _noise(rng: random.Random, content: bytearray, _: Sequence[bytes]) -> None:
    place = rng.randrange(len(content) + 1)
    content[place : place + rng.choice((0, 1, 4))] = rng.randbytes(rng.choice((1, 4, 32)))


def _splice(rng: random.Random, content: bytearray, seeds: Sequence[bytes]) -> None:
    other = rng.choice(seeds)
    start = rng.randrange(len(other) + 1)
    place = rng.randrange(len(content) + 1)
    content[place:] = other[start:]


_EDITS: Final = (_flip, _flip, _number, _cut, _double, _token, _noise, _splice)
