"""The GGUF header: read as the gguf package reads it; forged files are refused at once."""

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from tiny import make_tiny_gguf, tiny_words

from paged_jax.config import ModelError
from paged_jax.gguf_header import GGML_TYPES, read_header

HUGE = 0x7FFF_FFFF_FFFF_FFFF


def make_raw(
    *,
    version: int = 3,
    tensors: int = 0,
    entries: list[bytes] | None = None,
    num_entries: int | None = None,
    rest: bytes = b"",
) -> bytes:
    """A file from its parts, which need not fit each other."""
    parts = entries or []
    count = len(parts) if num_entries is None else num_entries
    return b"GGUF" + struct.pack("<IQQ", version, tensors, count) + b"".join(parts) + rest


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def make_tensor(*shape: int, name: str = "t", kind: int = 0, offset: int = 0) -> bytes:
    axes = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + axes + struct.pack("<IQ", kind, offset)


def refused(tmp_path: Path, raw: bytes, message: str) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(raw)
    with pytest.raises(ModelError, match=message) as caught:
        read_header(file)
    assert "m.gguf" in str(caught.value)


def test_the_header_equals_what_the_gguf_package_reads(tmp_path):
    file = make_tiny_gguf(tmp_path / "m.gguf", quant="Q8_0")
    ours, theirs = read_header(file), gguf.GGUFReader(file)
    fields = {k: f.contents() for k, f in theirs.fields.items() if not k.startswith("GGUF.")}
    assert ours.metadata == fields
    places = {t.name: (t.data_offset, t.n_bytes, t.tensor_type.name) for t in theirs.tensors}
    infos = ours.tensors.values()
    assert {i.name: (i.offset, i.num_bytes, i.type.name) for i in infos} == places
    assert ours.tensors["token_embd.weight"].shape == (320, 64)
    assert ours.metadata["tokenizer.ggml.tokens"][:3] == tiny_words()[:3]


def test_sizes_of_types_are_those_of_the_gguf_package():
    for number, kind in GGML_TYPES.items():
        theirs = gguf.GGMLQuantizationType(number)
        assert kind.name == theirs.name
        assert (kind.block_len, kind.block_bytes) == gguf.GGML_QUANT_SIZES[theirs]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "cannot be read as a GGUF file"),
        (b"GARB" + bytes(40), "not a GGUF file"),
        (b"GGUF", "truncated"),
        (make_raw(version=1), "version 1 is not supported"),
        (make_raw(version=4), "version 4 is not supported"),
        (make_raw(version=3 << 24), "big-endian"),
        (make_raw(tensors=HUGE), f"{HUGE} tensors do not fit"),
        (make_raw(num_entries=HUGE), f"{HUGE} metadata entries do not fit"),
        (make_raw(num_entries=1, rest=struct.pack("<Q", HUGE) + bytes(20)), "truncated"),
        (make_raw(entries=[text("k") + struct.pack("<I", 13) + bytes(8)]), "value type 13"),
        (make_raw(entries=[text("k") + struct.pack("<IIQ", 9, 4, HUGE)]), "values of k do not fit"),
        (make_raw(entries=[text("k") + struct.pack("<IIQ", 9, 8, HUGE)]), "strings of k do not"),
        (make_raw(entries=[text("k") + struct.pack("<IIQ", 9, 9, 1)]), "unsupported value type 9"),
        (make_raw(entries=[text("k") + struct.pack("<IB", 0, 1)] * 2), "metadata key occurs twice"),
        (make_raw(num_entries=1, rest=struct.pack("<Q", 1) + b"\xff" * 20), "cannot be read"),
        (make_raw(tensors=1, rest=make_tensor(8, kind=99) + bytes(64)), "tensor t has type 99"),
        (make_raw(tensors=1, rest=make_tensor(*[1] * 5) + bytes(64)), "tensor t has 5 axes"),
        (make_raw(tensors=1, rest=make_tensor(HUGE, HUGE) + bytes(64)), "truncated: tensor t ends"),
        (make_raw(tensors=1, rest=make_tensor(8, offset=HUGE) + bytes(64)), "truncated: tensor t"),
        (make_raw(tensors=1, rest=make_tensor(8, 0) + bytes(64)), "cannot have the shape"),
        (make_raw(tensors=1, rest=make_tensor(33, kind=8) + bytes(99)), "cannot have the shape"),
        (make_raw(tensors=2, rest=make_tensor(1) * 2 + bytes(64)), "tensor occurs twice"),
        (
            make_raw(entries=[text("general.alignment") + struct.pack("<II", 4, 3)]),
            "general.alignment must be a power of two",
        ),
    ],
)
def test_a_forged_file_is_refused(tmp_path, raw, message):
    refused(tmp_path, raw, message)


@pytest.mark.parametrize("share", [0.01, 0.3, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused_wherever_it_ends(tmp_path, share):
    raw = make_tiny_gguf(tmp_path / "whole.gguf").read_bytes()
    refused(tmp_path, raw[: int(len(raw) * share)], "truncated|do not fit")


def test_another_alignment_is_obeyed(tmp_path):
    entry = text("general.alignment") + struct.pack("<II", 4, 128)
    raw = make_raw(tensors=1, entries=[entry], rest=make_tensor(4))
    start = -(-len(raw) // 128) * 128
    values = np.arange(4, dtype="<f4").tobytes()
    file = tmp_path / "m.gguf"
    file.write_bytes(raw.ljust(start, b"\0") + values)
    assert read_header(file).tensors["t"].offset == start


def test_a_file_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(ModelError, match="cannot be read as a GGUF file"):
        read_header(tmp_path / "none.gguf")
