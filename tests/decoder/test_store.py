"""A decoder's folder: written whole, read back the same, and believed only where every byte is as it was written."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from layer_oracle import bfloat16_bits, random_layer, random_states

from decoder import DecoderOptions, OutputLayer, build_decoder, open_decoder, store
from decoder.errors import CorruptDecoderError, DecoderError, StaleDecoderError, UnknownDecoderError
from decoder.store import ARRAYS, REPORT, TIMINGS, read_decoder, require_same_weights
from index import build, open_index
from index.check import check_folder
from index.errors import UnknownIndexError, UnsupportedFormatError

OPTIONS = DecoderOptions(threads=1, degree=16, room=2, clusters=4)
STATES = random_states(40, 12, seed=3)


def layer_of(dtype: str = "float16", **options) -> OutputLayer:
    return random_layer(203, 12, dtype, **options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A decoder with every kind of file."""
    out = tmp_path_factory.mktemp("whole") / "d"
    build_decoder(layer_of(scale=0.5, softcap=20.0), out, calibration=random_states(300, 12, seed=2), options=OPTIONS)
    with open_decoder(out):
        pass
    return out


@pytest.fixture
def copy(whole, tmp_path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def files_of(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def answers(folder: Path) -> list[bytes]:
    with open_decoder(folder) as head:
        found = [head.topk(STATES, mode=mode) for mode in ("walk", "screen", "exact")]
    return [array.tobytes() for top in found for array in (top.token_ids, top.logits, top.logprobs)]


def test_the_manifest_covers_every_file_but_the_times_of_this_machine(whole):
    _, manifest = read_decoder(whole)
    assert set(manifest.files) == {f"{name}.npy" for name in ARRAYS} | {REPORT}
    assert set(files_of(whole)) == {*manifest.files, "manifest.json", TIMINGS}
    assert check_folder(whole) == []


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("options", [{}, {"scale": 0.25, "softcap": 7.0}, {"vocab_size": 200}])
def test_everything_comes_back_as_it_was(tmp_path, dtype, options):
    layer = layer_of(dtype, **options)
    build_decoder(layer, tmp_path / "d", options=OPTIONS)
    parts, _ = read_decoder(tmp_path / "d")
    same, _ = read_decoder(tmp_path / "d", layer=layer)
    assert same.layer is layer and parts.layer.dtype == dtype
    assert (parts.layer.scale, parts.layer.softcap) == (layer.scale, layer.softcap)
    assert parts.layer.weight.tobytes() == layer.weight[: layer.vocab_size].tobytes()
    assert parts.weights_hash == parts.layer.weights_hash() == layer.weights_hash()
    assert parts.layer.vocab_size == layer.vocab_size == len(parts.links) == len(parts.preview.codes)
    with open_decoder(tmp_path / "d") as head:
        head.check_weights()
        assert (head.topk(STATES, mode="walk").token_ids < layer.vocab_size).all()
    assert answers(tmp_path / "d") == answers(tmp_path / "d")


# --- damage -----------------------------------------------------------------------------------------------------


def places(size: int) -> list[int]:
    return sorted({0, 7, 40, 90, size // 3, size // 2, size - 1} & set(range(size)))


def test_a_flipped_byte_in_any_file_is_refused_or_harmless(whole, copy):
    expected = answers(whole)
    for name in files_of(whole):
        raw = (whole / name).read_bytes()
        for at in places(len(raw)) if name != "manifest.json" else range(0, len(raw), 3):
            (copy / name).write_bytes(raw[:at] + bytes([raw[at] ^ 0x11]) + raw[at + 1 :])
            if name in (REPORT, TIMINGS):
                assert answers(copy) == expected  # nothing that an answer depends on
                continue
            with pytest.raises((DecoderError, UnsupportedFormatError)) as caught:
                read_decoder(copy)
            assert str(copy) in str(caught.value), (name, at)
            if name != "manifest.json":
                assert isinstance(caught.value, CorruptDecoderError) and caught.value.path == copy / name
                assert caught.value.expected in str(caught.value) and caught.value.found in str(caught.value)
        (copy / name).write_bytes(raw)
    assert answers(copy) == expected


@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "longer", "a folder"])
def test_files_that_are_not_what_they_were(whole, tmp_path, damage):
    for name in files_of(whole):
        copy = tmp_path / f"{name} {damage}"
        shutil.copytree(whole, copy)
        raw = (copy / name).read_bytes()
        (copy / name).unlink()
        if damage == "a folder":
            (copy / name).mkdir()
        elif damage != "missing":
            (copy / name).write_bytes({"empty": b"", "cut": raw[:-1], "longer": raw + b"\n"}[damage])
        if name == TIMINGS or (name, damage) in {("manifest.json", "cut"), ("manifest.json", "longer")}:
            answers(copy)  # of the manifest only a line feed is missing, or one too many
            continue
        with pytest.raises(DecoderError) as caught:
            open_decoder(copy)
        assert isinstance(caught.value, UnknownDecoderError if name == "manifest.json" and damage == "missing" else
                          CorruptDecoderError)  # fmt: skip


def test_a_newer_format_is_refused_and_left_alone(copy):
    path = copy / "manifest.json"
    raw = path.read_bytes()
    newer = raw.replace(b'"format_version":1', b'"format_version":2', 1)
    assert newer != raw
    path.write_bytes(newer)
    before = {name: (copy / name).read_bytes() for name in files_of(copy)}
    with pytest.raises(UnsupportedFormatError, match="version 2"):
        open_decoder(copy)
    with pytest.raises(UnsupportedFormatError):
        build_decoder(layer_of(), copy, options=OPTIONS, replace=True)
    assert before == {name: (copy / name).read_bytes() for name in files_of(copy)}


def test_layer_given_the_folders_weights_are_not_read(copy):
    layer = layer_of(scale=0.5, softcap=20.0)
    raw = bytearray((copy / "weights.npy").read_bytes())
    raw[-1] ^= 1
    (copy / "weights.npy").write_bytes(raw)
    with open_decoder(copy, layer=layer) as head:
        assert head.layer is layer
    with pytest.raises(CorruptDecoderError, match=r"weights\.npy"):
        open_decoder(copy)


# --- what is no decoder -----------------------------------------------------------------------------------------


def swapped_while_read(monkeypatch, place: Path, other: Path, times: int) -> None:
    """Each time that codes are read, the decoder in `place` and the one in `other` change places first."""
    left = [times]

    def load(path, **options):
        if path.name == "codes.npy" and left[0]:
            left[0] -= 1
            between = place.with_name("between")
            place.rename(between)
            other.rename(place)
            between.rename(other)
        return real(path, **options)

    real = store.load_resident
    monkeypatch.setattr(store, "load_resident", load)


@pytest.mark.parametrize("size", [203, 150])
@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_decoder_replaced_while_it_is_opened_is_one_or_the_other(copy, tmp_path, monkeypatch, size, times):
    layer = random_layer(size, 12, "float16", seed=9)
    build_decoder(layer, tmp_path / "other", calibration=random_states(300, 12, seed=4), options=OPTIONS)
    swapped_while_read(monkeypatch, copy, tmp_path / "other", times)
    with open_decoder(copy) as head:
        assert head.stats()["weights_hash"] == head.layer.weights_hash()
        assert len(head.parts.links) == head.vocab_size == len(head.parts.preview.codes)
        assert head.vocab_size == (size if times % 2 else 203)


def test_a_decoder_replaced_without_end_is_told_so(copy, tmp_path, monkeypatch):
    shutil.copytree(copy, tmp_path / "other")
    swapped_while_read(monkeypatch, copy, tmp_path / "other", 10**6)
    with pytest.raises(CorruptDecoderError, match="stays there while it is read"):
        open_decoder(copy)


def test_nothing_there(tmp_path):
    for path in (tmp_path / "missing", tmp_path, tmp_path / "file"):
        (tmp_path / "file").write_text("x")
        with pytest.raises(UnknownDecoderError, match="no decoder is there") as caught:
            open_decoder(path)
        assert isinstance(caught.value, FileNotFoundError) and caught.value.path == path


def test_an_index_is_no_decoder_and_a_decoder_no_index(whole, tmp_path):
    build(random_states(100, 8), tmp_path / "index")
    with pytest.raises(UnknownDecoderError):
        open_decoder(tmp_path / "index")
    with pytest.raises(UnknownIndexError, match="not an index but a decoder"):
        open_index(whole)
    with open_index(tmp_path / "index") as index:
        assert index.search(random_states(1, 8), k=3).counts[0] == 3
    assert answers(whole)


# --- a folder that cannot be written to --------------------------------------------------------------------------


def test_a_read_only_folder_is_opened(copy, monkeypatch):
    expected = answers(copy)
    (copy / TIMINGS).unlink()
    for name in files_of(copy):
        (copy / name).chmod(0o444)
    copy.chmod(0o555)
    refused = []

    def refuse(path, *arguments, **options):
        refused.append(path)
        raise OSError(30, "Read-only file system", str(path))

    if os.access(copy, os.W_OK):  # a user whom no mode keeps from writing
        monkeypatch.setattr(Path, "write_text", refuse)
        monkeypatch.setattr(Path, "write_bytes", refuse)
    try:
        assert answers(copy) == expected
        assert TIMINGS not in files_of(copy)
    finally:
        copy.chmod(0o755)


# --- weights that changed (S71) -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change", ["one row", "scale", "soft-cap", "bias", "dtype", "another model", "resized", "cast"]
)
def test_s71_changed_weights_are_refused_naming_both_hashes(whole, change):
    layer = layer_of(scale=0.5, softcap=20.0)
    built, weight = layer.weights_hash(), layer.weight.copy()
    options = {"scale": 0.5, "softcap": 20.0}
    if change == "one row":
        weight[7] *= 3
    changed = {
        "scale": lambda: OutputLayer(weight, layer.bias, scale=0.25, softcap=20.0),
        "soft-cap": lambda: OutputLayer(weight, layer.bias, scale=0.5),
        "bias": lambda: OutputLayer(weight, layer.bias + 1, **options),
        "dtype": lambda: OutputLayer(weight.astype(np.float32), layer.bias, **options),
        "another model": lambda: random_layer(203, 16),
        "resized": lambda: OutputLayer(
            np.concatenate([weight, weight[:3]]), np.append(layer.bias, [0, 0, 0]), **options
        ),
        "cast": lambda: OutputLayer(bfloat16_bits(weight), layer.bias, dtype="bfloat16", **options),
    }.get(change, lambda: OutputLayer(weight, layer.bias, **options))()
    with pytest.raises(StaleDecoderError, match="stale index") as caught:
        open_decoder(whole, layer=changed)
    assert (caught.value.expected, caught.value.found) == (built, changed.weights_hash())
    assert built in str(caught.value) and changed.weights_hash() in str(caught.value)
    said = {
        "scale": ["scale: 0.5 in the decoder, 0.25 in the model"],
        "soft-cap": ["soft-cap: 20.0 in the decoder, None in the model"],
        "bias": ["bias: not the same numbers in the decoder and in the model"],
        "dtype": ["dtype: float16 in the decoder, float32 in the model"],
        "cast": ["dtype: float16 in the decoder, bfloat16 in the model"],
        "resized": ["tokens: 203 in the decoder, 206 in the model"],
        "one row": [],
    }
    assert change not in said or caught.value.differences == said[change]
    assert all(line in str(caught.value) for line in caught.value.differences)


def test_s71_an_edit_in_place_while_the_decoder_is_open(whole):
    layer = layer_of(scale=0.5, softcap=20.0)
    with open_decoder(whole, layer=layer) as head:
        head.check_weights()
        row = layer.weight[7].copy()
        layer.weight[7] *= 3
        with pytest.raises(StaleDecoderError, match="stale index"):
            head.check_weights()
        layer.weight[7] = row
        head.check_weights()


def test_padding_decides_nothing(tmp_path):
    """A decoder's folder does not keep padding rows, so what they hold cannot make it stale."""
    layer = layer_of(vocab_size=200)
    build_decoder(layer, tmp_path / "d", options=OPTIONS)
    layer.weight[200:] = 5
    require_same_weights(layer, read_decoder(tmp_path / "d")[0].weights_hash)
    bare = OutputLayer(layer.weight[:200].copy(), layer.bias)
    with open_decoder(tmp_path / "d", layer=bare) as head:
        head.check_weights()


def test_the_report_is_what_the_build_returned(whole):
    written = json.loads((whole / REPORT).read_text())
    parts, manifest = read_decoder(whole)
    assert parts.report == written and written["vocab_size"] == manifest.n == 203 and written["dim"] == 12
    assert written["promise"] == manifest.promise
