"""Model states: files that are deterministic, atomic and readable by others; casts that are exact."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fedcore.errors import EncodingError, PeerError, StorageFull, UsageError
from fedcore.state import FileSink, Layout, MemorySink, ModelState, TensorSpec, from_float, sha256_file
from tests.support.raising import raises


def spec(name: str = "w", dtype: str = "F32", shape: tuple[int, ...] = (2, 3)) -> TensorSpec:
    return TensorSpec(name=name, dtype=dtype, shape=shape)


def mixed_state() -> ModelState:
    """Dtypes whose item sizes would leave each other misaligned in the order given."""
    arrays = {
        "z.mask": np.array([True, False, True]),
        "half": np.arange(3, dtype=np.float16),
        "brain": np.array([0x3F80, 0xC000], np.uint16),
        "empty": np.zeros((0, 4), np.float32),
        "a.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
        "counter": np.array(7, np.int64),
        "double": np.array([0.1, 0.2]),
        "bytes": np.arange(5, dtype=np.uint8),
    }
    return ModelState.from_arrays(arrays, dtypes={"brain": "BF16"})


def assert_same(one: ModelState, other: ModelState) -> None:
    assert one.layout == other.layout
    assert list(one) == list(other)
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])


def raw_file(path: Path, header: object, data: bytes) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def test_saved_state_opens_equal_with_its_order(tmp_path: Path) -> None:
    state = mixed_state()
    state.save(tmp_path / "m.safetensors")
    assert_same(ModelState.open(tmp_path / "m.safetensors"), state)


def test_same_state_gives_the_same_bytes_and_saving_again_keeps_them(tmp_path: Path) -> None:
    mixed_state().save(tmp_path / "one")
    mixed_state().save(tmp_path / "two")
    ModelState.open(tmp_path / "one").save(tmp_path / "three")
    assert sha256_file(tmp_path / "one") == hashlib.sha256((tmp_path / "two").read_bytes()).hexdigest()
    assert sha256_file(tmp_path / "one") == sha256_file(tmp_path / "three") == mixed_state().sha256()


def test_every_tensor_of_a_saved_file_is_aligned(tmp_path: Path) -> None:
    mixed_state().save(tmp_path / "m")
    assert all(array.flags.aligned for array in ModelState.open(tmp_path / "m").values())


@pytest.mark.parametrize("length", range(1, 9))
def test_data_is_aligned_whatever_the_length_of_the_header(tmp_path: Path, length: int) -> None:
    ModelState.from_arrays({"n" * length: np.zeros(3)}).save(tmp_path / "m")
    assert ModelState.open(tmp_path / "m")["n" * length].flags.aligned


def test_torch_reads_our_files_and_we_read_torchs(tmp_path: Path) -> None:
    tensors = {
        "w": torch.randn(4, 5),
        "b": torch.randn(3).to(torch.bfloat16),
        "n": torch.tensor(3),
        "h": torch.randn(2).half(),
        "m": torch.tensor([True, False]),
    }
    save_file(tensors, tmp_path / "theirs")
    state = ModelState.open(tmp_path / "theirs")
    assert {spec.name: spec.dtype for spec in state.layout.specs} == {
        "w": "F32",
        "b": "BF16",
        "n": "I64",
        "h": "F16",
        "m": "BOOL",
    }
    state.save(tmp_path / "ours")
    back = load_file(tmp_path / "ours")
    for name, tensor in tensors.items():
        assert torch.equal(back[name], tensor), name
        assert back[name].dtype == tensor.dtype


def test_open_maps_the_file_and_forbids_writing(tmp_path: Path) -> None:
    mixed_state().save(tmp_path / "m")
    state = ModelState.open(tmp_path / "m")
    weight = state["a.weight"]
    assert isinstance(weight.base.base, mmap.mmap)
    with pytest.raises(ValueError, match="read-only"):
        weight[0, 0] = 1
    assert state.path == tmp_path / "m"


def test_from_arrays_does_not_copy_and_does_not_lock_the_callers_array() -> None:
    array = np.zeros(4, np.float32)
    state = ModelState.from_arrays({"w": array})
    array[0] = 5
    assert state["w"][0] == 5
    with pytest.raises(ValueError, match="read-only"):
        state["w"][0] = 6


def test_from_arrays_makes_transposed_and_big_endian_arrays_canonical() -> None:
    transposed = np.arange(6, dtype=np.float32).reshape(2, 3).T
    swapped = np.arange(3, dtype=">f4")
    state = ModelState.from_arrays({"t": transposed, "s": swapped})
    np.testing.assert_array_equal(state["t"], transposed)
    np.testing.assert_array_equal(state["s"], [0, 1, 2])
    assert state["s"].dtype == np.dtype("<f4")


def test_repr_shows_no_values() -> None:
    state = ModelState.from_arrays({"w": np.array([12345.0], np.float32)})
    assert repr(state) == "ModelState(1 tensors, 4 bytes)"


BROKEN = {
    "empty file": (None, b""),
    "truncated data": ({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, b"1234"),
    "trailing data": ({"w": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}}, b"123"),
    "overlap": (
        {
            "a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]},
            "b": {"dtype": "U8", "shape": [2], "data_offsets": [1, 3]},
        },
        b"123",
    ),
    "shape and size disagree": ({"w": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}, b"12345678"),
    "no JSON": (b"no JSON at all", b""),
    "unknown dtype": ({"w": {"dtype": "no JSON at all", "shape": [1], "data_offsets": [0, 1]}}, b"1"),
    "a name twice": (
        b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
        b"1",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_open_refuses_a_broken_file_without_quoting_it(tmp_path: Path, case: str) -> None:
    header, data = BROKEN[case]
    path = tmp_path / "m.safetensors"
    if header is None:
        path.write_bytes(data)
    else:
        raw_file(path, header, data)
    with pytest.raises(PeerError) as caught:
        ModelState.open(path)
    assert "safetensors" in str(caught.value)
    assert "no JSON at all" not in str(caught.value)


def test_open_refuses_every_truncation_of_a_good_file(tmp_path: Path) -> None:
    mixed_state().save(tmp_path / "m")
    whole = (tmp_path / "m").read_bytes()
    for length in range(0, len(whole), 7):
        (tmp_path / "cut").write_bytes(whole[:length])
        with pytest.raises(PeerError):
            ModelState.open(tmp_path / "cut")


def test_open_names_a_dtype_that_cannot_be_averaged(tmp_path: Path) -> None:
    path = raw_file(tmp_path / "m", {"w": {"dtype": "F8_E4M3", "shape": [1], "data_offsets": [0, 1]}}, b"1")
    with raises(EncodingError, check="tensor-dtype", match=r"'w'.*'F8_E4M3'"):
        ModelState.open(path)
    with pytest.raises(EncodingError, match="complex64"):
        ModelState.from_arrays({"w": np.zeros(1, np.complex64)})


def test_open_of_an_absent_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ModelState.open(tmp_path / "nothing")


def test_a_failed_write_leaves_the_old_file_and_no_debris(tmp_path: Path) -> None:
    path = tmp_path / "m"
    mixed_state().save(path)
    before = path.read_bytes()
    layout = Layout(specs=(spec(shape=(4,)),))

    def half_written() -> None:
        with FileSink(path, layout) as sink:
            sink.write(layout.specs[0], 0, np.zeros(2, np.float32))

    with raises(UsageError, numbers=(8,)):
        half_written()
    with pytest.raises(KeyboardInterrupt), FileSink(path, layout):
        raise KeyboardInterrupt
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_sink_refuses_a_block_of_another_dtype(tmp_path: Path) -> None:
    layout = Layout(specs=(spec(shape=(4,)),))
    with raises(UsageError, check="block-dtype", match="'w'"), FileSink(tmp_path / "m", layout) as sink:
        sink.write(layout.specs[0], 0, np.zeros(4, np.float64))


def test_a_full_disk_is_reported_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # /dev/full is a real device that answers every write with ENOSPC.
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    real = os.open
    monkeypatch.setattr(os, "open", lambda path, flags, mode: real("/dev/full", os.O_WRONLY))
    with pytest.raises(StorageFull, match=r"/m\b"):
        mixed_state().save(tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_float32_converts_ranges_of_every_dtype() -> None:
    values = torch.tensor([1.0, -2.5, 3.1415927, 1e-3, 65504.0])
    arrays = {
        "F32": values.numpy(),
        "F64": values.double().numpy(),
        "F16": values.half().numpy(),
        "BF16": values.bfloat16().view(torch.uint16).numpy(),
    }
    state = ModelState.from_arrays(arrays, dtypes={"BF16": "BF16"})
    expected = {"F32": values, "F64": values, "F16": values.half().float(), "BF16": values.bfloat16().float()}
    for name, wanted in expected.items():
        np.testing.assert_array_equal(state.float32(name), wanted.numpy())
        out = np.full(9, 7, np.float32)
        block = state.float32(name, 1, 4, out=out)
        np.testing.assert_array_equal(block, wanted.numpy()[1:4])
        assert np.shares_memory(block, out)
        assert out[3] == 7


def test_bfloat16_rounding_is_torchs() -> None:
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 1 << 32, 200_000, dtype=np.uint32)
    ties = (np.arange(1 << 12, dtype=np.uint32) << 16) | np.uint32(0x8000)
    values = np.concatenate([bits, ties]).view(np.float32)
    largest_bfloat16 = np.float32(3.3895314e38)
    values = values[np.isnan(values) | np.isinf(values) | (np.abs(values) <= largest_bfloat16)]
    ours = from_float(spec(dtype="BF16"), values)
    theirs = torch.from_numpy(values).bfloat16()
    nan = np.isnan(values)
    np.testing.assert_array_equal(ours[~nan], theirs.view(torch.uint16).numpy()[~nan])
    assert torch.from_numpy(ours[nan]).view(torch.bfloat16).isnan().all()


@pytest.mark.parametrize(("dtype", "value"), [("F16", 65520.0), ("BF16", 3.4e38), ("F32", 1e39)])
def test_a_cast_that_overflows_names_the_tensor(dtype: str, value: float) -> None:
    with raises(EncodingError, check="dtype-overflow", match=rf"'layer'.*{dtype}"):
        from_float(spec("layer", dtype), np.array([0.0, -value]))


def test_a_cast_keeps_what_fits_and_what_was_infinite() -> None:
    np.testing.assert_array_equal(from_float(spec(dtype="F16"), np.array([65504.0, np.inf])), [65504.0, np.inf])
    np.testing.assert_array_equal(from_float(spec(dtype="F64"), np.array([0.1])), [0.1])
    with pytest.raises(UsageError, match="'w'"):
        from_float(spec(dtype="I64"), np.array([0.1]))


@pytest.mark.parametrize("name", ["", "__metadata__"])
def test_names_that_a_file_cannot_hold_are_refused(name: str) -> None:
    with raises(EncodingError, check="tensor-name"):
        spec(name)


@pytest.mark.parametrize("shape", [(-1,), (1.0,), (True,), (1 << 40, 1 << 40)])
def test_impossible_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(EncodingError, match="'w'"):
        spec(shape=shape)


def test_one_name_twice_is_refused() -> None:
    with raises(EncodingError, check="tensor-twice", match="'w'"):
        Layout(specs=(spec(), spec()))


def test_layout_digest_changes_with_everything_it_covers() -> None:
    layouts = [
        (spec(),),
        (spec("v"),),
        (spec(dtype="F64"),),
        (spec(shape=(3, 2)),),
        (spec(shape=(6,)),),
        (spec(), spec("v")),
        (spec("v"), spec()),
        (),
    ]
    digests = {Layout(specs=specs).digest() for specs in layouts}
    assert len(digests) == len(layouts)
    assert all(len(digest) == 32 for digest in digests)


def test_check_same_names_the_difference() -> None:
    layout = Layout(specs=(spec("a"), spec("b")))
    layout.check_same(Layout(specs=(spec("a"), spec("b"))), what="the model")
    with raises(EncodingError, check="tensor-form", match=r"'b'.*F16\[2, 3\].*F32\[2, 3\]"):
        layout.check_same(Layout(specs=(spec("a"), spec("b", "F16"))), what="the model")
    with raises(EncodingError, check="tensor-names", match="'b'"):
        layout.check_same(Layout(specs=(spec("a"),)), what="the model")
    with raises(EncodingError, check="tensor-names", match=r"'a'.*'b'"):
        layout.check_same(Layout(specs=(spec("b"), spec("a"))), what="the model")


def test_a_state_must_match_its_layout() -> None:
    layout = Layout(specs=(spec(),))
    for wrong in (np.zeros((3, 2), np.float32), np.zeros((2, 3)), np.zeros((3, 2), np.float32).T):
        with pytest.raises(UsageError, match="'w'"):
            ModelState(layout, {"w": wrong})


def resident_file_bytes():
    """Pages of mapped files that this process holds (proc(5), RssFile)."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssFile"))
    return int(line.split()[1]) * 1024


def test_released_pages_leave_memory_and_can_be_read_again(tmp_path):
    size = 32 << 20
    values = np.arange(size // 4, dtype=np.float32)
    ModelState.from_arrays({"w": values}).save(tmp_path / "m.safetensors")
    state = ModelState.open(tmp_path / "m.safetensors")
    before = resident_file_bytes()
    assert float(state["w"].sum(dtype=np.float64)) > 0
    assert resident_file_bytes() - before > size // 2
    state.release()
    assert resident_file_bytes() - before < size // 4
    np.testing.assert_array_equal(state["w"], values)
    state.write_to(MemorySink(state.layout))  # as it goes along
    assert resident_file_bytes() - before < size // 4
    ModelState.from_arrays({"w": values}).release()
