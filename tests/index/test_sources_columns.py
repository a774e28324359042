"""Id and payload columns: which are found, what their values become as JSON, and what is refused by name."""

from __future__ import annotations

import datetime
import json
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from index.errors import SourceError
from index.sources import VectorSource, open_source

VECTORS = pa.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], pa.list_(pa.float32()))


def write(path: Path, **columns: Any) -> Path:
    table = pa.table({"vector": VECTORS, **columns})
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=2)
    else:
        pyarrow.feather.write_feather(table, str(path), chunksize=2)
    return path


def payloads(source: VectorSource, max_rows: int | None = None) -> list[dict[str, Any]]:
    found = [row for block in source.blocks(max_rows) for row in block.payload or []]
    json.dumps(found, allow_nan=False)
    return found


def column(path: Path, values: Any) -> list[Any]:
    """The JSON values that a payload column of three entries becomes."""
    return [row["x"] for row in payloads(open_source(write(path, x=values), vector="vector", payload=["x"]))]


def refusal(source: Path, **names: Any) -> str:
    with pytest.raises(SourceError) as caught:
        list(open_source(source, **names).blocks())
    return str(caught.value)


@pytest.fixture(params=[".parquet", ".arrow"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / f"x{request.param}"


MOMENT = datetime.datetime(2024, 5, 1, 12, 30, 0, 250_000)
JSON_VALUES = {
    "int64": (pa.array([2**63 - 1, None, -5]), [2**63 - 1, None, -5]),
    "uint64": (pa.array([2**64 - 1, 0, 2**53 + 1], pa.uint64()), [2**64 - 1, 0, 2**53 + 1]),
    "bool": (pa.array([True, None, False]), [True, None, False]),
    "double": (pa.array([1.5, float("nan"), float("-inf")]), [1.5, None, None]),
    "half": (pa.array([1.5, 2.0, None], pa.float16()), [1.5, 2.0, None]),
    "string": (pa.array(["a", "", None]), ["a", "", None]),
    "large string": (pa.array(["a", "ü", None], pa.large_string()), ["a", "ü", None]),
    "dictionary": (pa.array(["a", "b", "a"]).dictionary_encode(), ["a", "b", "a"]),
    "timestamp": (pa.array([MOMENT, None, MOMENT], pa.timestamp("us")), ["2024-05-01T12:30:00.25Z", None] * 2),
    "timestamp ns": (pa.array([1, -1, 0], pa.timestamp("ns")), ["1970-01-01T00:00:00.000000001Z"]),
    "timestamp zone": (
        pa.array([MOMENT.replace(tzinfo=datetime.UTC)] * 3, pa.timestamp("ms", "Europe/Paris")),
        ["2024-05-01T12:30:00.25Z"] * 3,
    ),
    "date": (pa.array([MOMENT.date(), None, datetime.date(1, 1, 1)]), ["2024-05-01", None, "0001-01-01"]),
    "date64": (pa.array([MOMENT.date(), None, None], pa.date64()), ["2024-05-01", None, None]),
    "time": (pa.array([MOMENT.time(), None, datetime.time(1)]), ["12:30:00.25", None, "01:00:00"]),
    "decimal": (pa.array([Decimal("1.25"), None, Decimal("-3.50")]), [1.25, None, -3.5]),
    "long decimal": (pa.array([Decimal("1.25"), None, None], pa.decimal128(30, 2)), ["1.25", None, None]),
    "list": (pa.array([[1, 2], None, []]), [[1, 2], None, []]),
    "list of timestamps": (
        pa.array([[MOMENT, None], None, []], pa.list_(pa.timestamp("us"))),
        [["2024-05-01T12:30:00.25Z", None], None, []],
    ),
    "struct": (
        pa.array([{"a": float("nan"), "b": {"c": MOMENT}}, None, {"a": 1.0, "b": None}]),
        [{"a": None, "b": {"c": "2024-05-01T12:30:00.25Z"}}, None, {"a": 1.0, "b": None}],
    ),
    "map": (pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())), [{"k": 1}, None, {}]),
    "null": (pa.nulls(3), [None, None, None]),
}


@pytest.mark.parametrize("name", sorted(JSON_VALUES))
def test_payload_values(path: Path, name: str) -> None:
    values, expected = JSON_VALUES[name]
    assert column(path, values)[: len(expected)] == expected[:3]


def test_payload_uuid(path: Path) -> None:
    value = uuid.UUID("0F0E0D0C-0B0A-0908-0706-050403020100")
    values = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([value.bytes, None, value.bytes], pa.binary(16)))
    assert column(path, values) == [str(value), None, str(value)]


@pytest.mark.parametrize(
    "values, word",
    [
        (pa.array([b"a", b"b", b"c"]), "binary"),
        (pa.array([[b"a"], [], []]), "binary"),
        (pa.array([{"a": b"a"}] * 3), "'a'"),
        (pa.array([datetime.timedelta(1)] * 3), "duration"),
    ],
)
def test_payload_without_json_form(path: Path, values: pa.Array, word: str) -> None:
    write(path, x=values)
    for payload in (["x"], "*"):
        said = refusal(path, payload=payload)
        assert word in said
        assert "'x'" in said
        assert path.name in said


def test_time_outside_rfc_3339(path: Path) -> None:
    write(path, x=pa.array([2**52] * 3, pa.timestamp("s")))
    assert "years 1 to 9999" in refusal(path, payload="*")


def test_ids_and_payload_follow_their_rows(path: Path) -> None:
    write(path, id=pa.array([7, 2**64 - 1, 9], pa.uint64()), title=["a", "b", "c"], year=[1, 2, 3])
    for max_rows in (None, 1, 2):
        source = open_source(path, ids="id", payload=["title"])
        blocks = list(source.blocks(max_rows))
        assert np.concatenate([np.asarray(block.ids) for block in blocks]).tolist() == [7, 2**64 - 1, 9]
        assert payloads(source, max_rows) == [{"title": "a"}, {"title": "b"}, {"title": "c"}]
    assert payloads(open_source(path, ids="id", payload="*"))[0] == {"title": "a", "year": 1}
    assert payloads(open_source(path, payload="year"))[2] == {"year": 3}
    empty = next(open_source(path, payload=[]).blocks())
    assert empty.payload == [{}] * len(empty)
    assert next(open_source(path).blocks()).payload is None
    late = next(open_source(path, ids="id", payload=["title"]).blocks(start=1))
    assert (late.ids[0], late.payload[0]) == (2**64 - 1, {"title": "b"})  # type: ignore[index]


@pytest.mark.parametrize(
    "values",
    [
        pa.array(["a", "b", "c"]),
        pa.array(["a", "b", "c"], pa.large_string()),
        pa.array(["a", "b", "c"]).dictionary_encode(),
    ],
)
def test_string_ids(path: Path, values: pa.Array) -> None:
    source = open_source(write(path, id=values), ids="id")
    assert [each for block in source.blocks() for each in block.ids or []] == ["a", "b", "c"]


def test_uuid_ids(path: Path) -> None:
    value = uuid.UUID("0F0E0D0C-0B0A-0908-0706-050403020100")
    values = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([value.bytes] * 3, pa.binary(16)))
    assert next(open_source(write(path, id=values), ids="id").blocks()).ids[0] == str(value)  # type: ignore[index]


def test_ids_that_are_refused(path: Path) -> None:
    for values, word in [(pa.array([1.0, 2.0, 3.0]), "double"), (pa.array([True] * 3), "bool")]:
        assert word in refusal(write(path, id=values), ids="id")
    for values in (pa.array([1, 2, None]), pa.array(["a", "b", None])):
        said = refusal(write(path, id=values), ids="id")
        assert "row 2 is null" in said
        assert "'id'" in said


def test_columns_that_do_not_exist(path: Path) -> None:
    write(path, title=["a", "b", "c"])
    for names in ({"vector": "embedding"}, {"ids": "embedding"}, {"payload": ["title", "embedding"]}):
        said = refusal(path, **names)
        for word in ("'embedding'", "'vector'", "'title'", path.name):
            assert word in said


def test_which_column_is_the_vector(path: Path) -> None:
    write(path, other=pa.array([[1, 2, 3]] * 3), words=pa.array([["a"]] * 3))
    said = refusal(path)
    assert "'vector', 'other'" in said
    assert "words" not in said
    assert open_source(path, vector="other").dim == 3
    assert "string" in refusal(path, vector="words")
    pq.write_table(pa.table({"a": [1]}), path.with_suffix(".pq"))
    assert "'a' (int64)" in refusal(path.with_suffix(".pq"))
    assert "needed a list" in refusal(path.with_suffix(".pq"), vector="a")
    pq.write_table(pa.Table.from_arrays([VECTORS, VECTORS], ["v", "v"]), path.with_suffix(".pq"))
    assert "2 columns are named 'v'" in refusal(path.with_suffix(".pq"), vector="v")


@pytest.mark.parametrize("values", [pa.array([[True]] * 3), pa.array([[Decimal("1.5")]] * 3)])
def test_lists_that_are_no_numbers(path: Path, values: pa.Array) -> None:
    write(path, v=values)
    assert str(values.type.value_type) in refusal(path, vector="v")


def test_feather_v1_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.feather").write_bytes(b"FEA1" + bytes(60) + b"FEA1")
    assert "Feather V1" in refusal(tmp_path / "x.feather")


# --- npz and HDF5 ------------------------------------------------------------

ARRAYS: dict[str, Any] = {
    "vectors": np.arange(12, dtype=np.float32).reshape(4, 3),
    "id": np.array([5, 6, 7, 8]),
    "name": np.array([b"a", b"b", b"c", b"\xc3\xbc"]),
    "score": np.array([1.5, np.nan, np.inf, 0], np.float32),
    "flag": np.array([True, False, True, False]),
    "box": np.array([[1.0, 2.0]] * 4),
}


@pytest.fixture(params=[".npz", "packed.npz", ".hdf5"])
def container(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / f"x{request.param}"
    if path.suffix == ".npz":
        (np.savez if request.param == ".npz" else np.savez_compressed)(path, **ARRAYS)
    else:
        with h5py.File(path, "w") as file:
            for name, array in ARRAYS.items():
                file.create_dataset(name, data=array)
    return path


@pytest.mark.parametrize("max_rows", [None, 1, 3])
def test_members_beside_the_vectors(container: Path, max_rows: int | None) -> None:
    source = open_source(container, ids="id", payload="*")
    blocks = list(source.blocks(max_rows, start=1))
    assert np.concatenate([block.vectors for block in blocks]).tolist() == ARRAYS["vectors"][1:].tolist()
    assert np.concatenate([np.asarray(block.ids) for block in blocks]).tolist() == [6, 7, 8]
    found = payloads(source, max_rows)
    assert found[1] == {"name": "b", "score": None, "flag": False, "box": [1.0, 2.0]}
    assert found[3]["name"] == "ü"
    assert [i for b in open_source(container, ids="name").blocks(max_rows) for i in b.ids or []] == ["a", "b", "c", "ü"]


def test_members_that_are_refused(container: Path) -> None:
    for names in ({"vector": "nope"}, {"ids": "nope"}, {"payload": ["nope"]}):
        said = refusal(container, **names)
        for word in ("'nope'", "'vectors'", "'score'"):
            assert word in said
    assert "one integer or string a row" in refusal(container, ids="score")
    assert "one integer or string a row" in refusal(container, ids="box")
    assert "two dimensions" in refusal(container, vector="id")


def test_npz_dates_and_objects(tmp_path: Path) -> None:
    dates = np.array(["2024-05-01T12:30", "NaT"], "M8[m]")
    np.savez(tmp_path / "x.npz", np.zeros((2, 3)), when=dates, o=np.array([{}, {}], object), extra=np.zeros(5))
    found = payloads(open_source(tmp_path / "x.npz", payload=["when"]))
    assert [row["when"] for row in found] == ["2024-05-01T12:30:00Z", None]
    assert "object" in refusal(tmp_path / "x.npz", payload=["o"])
    assert "5" in refusal(tmp_path / "x.npz", payload=["extra"])
    np.savez(tmp_path / "y.npz", a=np.zeros((2, 3)), b=np.zeros((2, 3)))
    assert "'a', 'b'" in refusal(tmp_path / "y.npz")
    assert open_source(tmp_path / "y.npz", vector="b").n == 2


def test_hdf5_default_data_set(tmp_path: Path) -> None:
    path = tmp_path / "x.hdf5"
    with h5py.File(path, "w") as file:
        file["train"], file["test"], file["group/deep"] = np.ones((9, 4)), np.ones((2, 4)), np.ones((3, 4))
    assert open_source(path).n == 9
    assert open_source(path, vector="group/deep").n == 3
    with h5py.File(path, "w") as file:
        file["a"], file["b"], file["words"] = np.ones((9, 4)), np.ones((2, 4)), ["x", "y"]
    assert "'a', 'b'" in refusal(path)
    assert "string" in refusal(path, vector="words")


def test_hdf5_never_reads_another_file(tmp_path: Path) -> None:
    secret = tmp_path / "secret.h5"
    with h5py.File(secret, "w") as file:
        file["train"] = np.ones((5, 4), np.float32)
    (tmp_path / "raw").write_bytes(bytes(80))
    path = tmp_path / "x.hdf5"
    with h5py.File(path, "w") as file:
        file["train"] = h5py.ExternalLink(str(secret), "train")
    assert "no arrays" in refusal(path)
    assert "'train'" in refusal(path, vector="train")
    with h5py.File(path, "w") as file:
        file.create_dataset("train", (5, 4), "f4", external=[(str(tmp_path / "raw"), 0, 80)])
    assert "other files" in refusal(path)
    layout = h5py.VirtualLayout((5, 4), "f4")
    layout[:] = h5py.VirtualSource(str(secret), "train", (5, 4))
    with h5py.File(path, "w") as file:
        file.create_virtual_dataset("train", layout)
    assert "other files" in refusal(path)
