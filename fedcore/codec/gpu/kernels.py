"""Triton kernels: mask streams, and updates to fields, as the processor makes them, bit for bit.

Triton compiles them for the device; with TRITON_INTERPRET=1, set before this module is imported, its interpreter runs
them on the processor, one NumPy operation at a time. They are started with `enable_fp_fusion=False`: a fused
multiply-add rounds once where NumPy rounds twice. Words are int64 here, since PyTorch adds no uint64; the bits are the
same.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _quarter_round(a, b, c, d):
    """RFC 8439, section 2.1. Four rotations by a call each would double the time that the interpreter takes."""
    a += b
    d ^= a
    d = (d << 16) | (d >> 16)
    c += d
    b ^= c
    b = (b << 12) | (b >> 20)
    a += b
    d ^= a
    d = (d << 8) | (d >> 24)
    c += d
    b ^= c
    b = (b << 7) | (b >> 25)
    return a, b, c, d


@triton.jit
def _pair(total, low, high, flip):
    """`total` plus a word of keystream, or, where `flip` has all bits set, its complement."""
    return total + ((low ^ flip).to(tl.uint64) | ((high ^ flip).to(tl.uint64) << 32)).to(tl.int64, bitcast=True)


@triton.jit(do_not_specialize=["count", "term_count", "first", "skip"])
def add_streams(
    words,
    count,
    terms,
    term_count,
    first,
    skip,
    chunk_blocks: tl.constexpr,
    LANES: tl.constexpr,
):
    """Add streams to `words` (int64 [count]), each cipher block by one lane, which makes it for all terms in turn.

    terms
        int32 [term_count, 9]: of each term the eight words of its seed, and 0, or -1 if it is subtracted.
    first, skip
        The first word's cipher block in the stream, and which of the block's words it is.
    chunk_blocks
        Cipher blocks under one nonce: block b has the counter b % chunk_blocks and the nonce b // chunk_blocks.
    """
    lane = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    start = lane * 8 - skip
    target = words + start
    # -k is ~k + 1: the ones of all that are subtracted are added here, the complements below.
    ones = tl.zeros((1,), tl.int64)
    for term in range(term_count):
        ones -= tl.load(terms + term * 9 + 8).to(tl.int64)
    t0 = tl.load(target, mask=(start >= 0) & (start < count), other=0) + ones
    t1 = tl.load(target + 1, mask=(start >= -1) & (start + 1 < count), other=0) + ones
    t2 = tl.load(target + 2, mask=(start >= -2) & (start + 2 < count), other=0) + ones
    t3 = tl.load(target + 3, mask=(start >= -3) & (start + 3 < count), other=0) + ones
    t4 = tl.load(target + 4, mask=(start >= -4) & (start + 4 < count), other=0) + ones
    t5 = tl.load(target + 5, mask=(start >= -5) & (start + 5 < count), other=0) + ones
    t6 = tl.load(target + 6, mask=(start >= -6) & (start + 6 < count), other=0) + ones
    t7 = tl.load(target + 7, mask=(start >= -7) & (start + 7 < count), other=0) + ones
    block = lane + first.to(tl.int64)
    chunk = block // chunk_blocks
    counter = (block - chunk * chunk_blocks).to(tl.uint32)
    nonce_low = (chunk & 0xFFFFFFFF).to(tl.uint32)
    nonce_high = (chunk >> 32).to(tl.uint32)
    none = tl.zeros((LANES,), tl.uint32)
    for term in range(term_count):
        seed = terms + term * 9
        k0 = tl.load(seed).to(tl.uint32, bitcast=True)
        k1 = tl.load(seed + 1).to(tl.uint32, bitcast=True)
        k2 = tl.load(seed + 2).to(tl.uint32, bitcast=True)
        k3 = tl.load(seed + 3).to(tl.uint32, bitcast=True)
        k4 = tl.load(seed + 4).to(tl.uint32, bitcast=True)
        k5 = tl.load(seed + 5).to(tl.uint32, bitcast=True)
        k6 = tl.load(seed + 6).to(tl.uint32, bitcast=True)
        k7 = tl.load(seed + 7).to(tl.uint32, bitcast=True)
        flip = tl.load(seed + 8).to(tl.uint32, bitcast=True)
        # "expand 32-byte k", the seed, the counter, the nonce.
        x0, x1, x2, x3 = none + 0x61707865, none + 0x3320646E, none + 0x79622D32, none + 0x6B206574
        x4, x5, x6, x7 = none + k0, none + k1, none + k2, none + k3
        x8, x9, x10, x11 = none + k4, none + k5, none + k6, none + k7
        x12, x13, x14, x15 = counter, nonce_low, nonce_high, none
        for _ in range(10):
            x0, x4, x8, x12 = _quarter_round(x0, x4, x8, x12)
            x1, x5, x9, x13 = _quarter_round(x1, x5, x9, x13)
            x2, x6, x10, x14 = _quarter_round(x2, x6, x10, x14)
            x3, x7, x11, x15 = _quarter_round(x3, x7, x11, x15)
            x0, x5, x10, x15 = _quarter_round(x0, x5, x10, x15)
            x1, x6, x11, x12 = _quarter_round(x1, x6, x11, x12)
            x2, x7, x8, x13 = _quarter_round(x2, x7, x8, x13)
            x3, x4, x9, x14 = _quarter_round(x3, x4, x9, x14)
        t0 = _pair(t0, x0 + 0x61707865, x1 + 0x3320646E, flip)
        t1 = _pair(t1, x2 + 0x79622D32, x3 + 0x6B206574, flip)
        t2 = _pair(t2, x4 + k0, x5 + k1, flip)
        t3 = _pair(t3, x6 + k2, x7 + k3, flip)
        t4 = _pair(t4, x8 + k4, x9 + k5, flip)
        t5 = _pair(t5, x10 + k6, x11 + k7, flip)
        t6 = _pair(t6, x12 + counter, x13 + nonce_low, flip)
        t7 = _pair(t7, x14 + nonce_high, x15, flip)
    tl.store(target, t0, mask=(start >= 0) & (start < count))
    tl.store(target + 1, t1, mask=(start >= -1) & (start + 1 < count))
    tl.store(target + 2, t2, mask=(start >= -2) & (start + 2 < count))
    tl.store(target + 3, t3, mask=(start >= -3) & (start + 3 < count))
    tl.store(target + 4, t4, mask=(start >= -4) & (start + 4 < count))
    tl.store(target + 5, t5, mask=(start >= -5) & (start + 5 < count))
    tl.store(target + 6, t6, mask=(start >= -6) & (start + 6 < count))
    tl.store(target + 7, t7, mask=(start >= -7) & (start + 7 < count))


@triton.jit
def _to_float32(stored, STORED: tl.constexpr):
    """Exact; bfloat16 comes as its bits, int16."""
    return (stored.to(tl.int32) << 16).to(tl.float32, bitcast=True) if STORED == "BF16" else stored.to(tl.float32)


@triton.jit
def _delta(local, base, STORED: tl.constexpr):
    """float32, as `fedcore.codec.update.write_delta` computes it; the difference of float64 in float64."""
    if STORED == "F64":
        difference = (local - base).to(tl.float32)
    else:
        difference = _to_float32(local, STORED) - _to_float32(base, STORED)
    return difference


@triton.jit(do_not_specialize=["count", "levels"])
def round_update(
    local,
    base,
    random,
    fields,
    factor,
    statistics,
    count,
    levels,
    STORED: tl.constexpr,
    BITS: tl.constexpr,
    SIZE: tl.constexpr,
):
    """Fields of (local - base) * factor, clipped to [-levels, levels], rounded stochastically and offset by `levels`.

    Step by step what `fedcore.codec.fields.StochasticRounder` does, of whose comments these are the reasons.

    local, base
        The tensor's elements [count]; STORED names their dtype, BF16 as int16.
    random
        int16 [count].
    fields
        [count]: int16, int32 or int64; int32 for BITS = 21.
    factor
        One number: float32, times 2^16, for BITS = 16; else float64.
    found
        int64 [2], which grow: the bits of the largest |local - base| as float32, and how many were clipped.
    """
    index = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    inside = index < count
    delta = _delta(tl.load(local + index, mask=inside, other=0), tl.load(base + index, mask=inside, other=0), STORED)
    # Bits of floating point numbers that are not negative are ordered as they are; infinity and NaN lie above.
    size = delta.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    tl.atomic_max(statistics, tl.max(size, 0).to(tl.int64))
    bits = tl.load(random + index, mask=inside, other=0).to(tl.int32) & 0xFFFF
    unit = tl.load(factor)
    levels = levels.to(tl.int64)
    if BITS == 16:
        scaled = delta * unit
        limit = (levels << 16).to(tl.float32)
    else:
        scaled = delta.to(tl.float64) * unit
        limit = levels.to(tl.float64)
    beyond = tl.abs(scaled) > limit
    tl.atomic_add(statistics + 1, tl.sum(beyond.to(tl.int32), 0).to(tl.int64))
    # What is not finite is refused by the reader of `found`; until then it is only to be no undefined conversion.
    scaled = tl.where(beyond, tl.where(scaled > 0, limit, -limit), scaled)
    scaled = tl.where(size < 0x7F800000, scaled, 0)
    if BITS == 16:
        # To the nearest whole number, ties to even: float32 has no bits after the point from 2^23 on.
        shift = tl.where(scaled < 0, -8388608.0, 8388608.0)
        nearest = tl.where(tl.abs(scaled) < 8388608.0, (scaled + shift) - shift, scaled)
        fixed = ((nearest.to(tl.int32) + bits) >> 16) + levels.to(tl.int32)
        tl.store(fields + index, fixed.to(tl.int16), mask=inside)
    elif BITS == 64:
        floor = tl.floor(scaled)
        # From 2^52 on the low bits of a float64 are a whole number.
        magic = tl.full((1,), 1 << 52, tl.int64).to(tl.float64)
        part = ((scaled - floor) * 65536 + magic).to(tl.int64, bitcast=True) & 0xFFFFFFFF
        tl.store(fields + index, floor.to(tl.int64) + ((part + bits) >> 16) + levels, mask=inside)
    else:
        # From 2^36 to its double, a float64 has 16 bits after the point.
        binade = (levels + (1 << 36)).to(tl.float64)
        fixed = ((scaled + binade).to(tl.int64, bitcast=True) + bits) >> 16
        tl.store(fields + index, fixed.to(tl.int32), mask=inside)


@triton.jit(do_not_specialize=["count"])
def pack_thirds(fields, words, count, SIZE: tl.constexpr):
    """Three 21-bit fields (int32 [count]) to each of the words, int64 [ceil(count / 3)]."""
    index = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    first = index * 3
    low = tl.load(fields + first, mask=first < count, other=0).to(tl.int64)
    middle = tl.load(fields + first + 1, mask=first + 1 < count, other=0).to(tl.int64)
    high = tl.load(fields + first + 2, mask=first + 2 < count, other=0).to(tl.int64)
    tl.store(words + index, low | (middle << 21) | (high << 42), mask=first < count)
