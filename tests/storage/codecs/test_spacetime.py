"""The codec inside Zarr: any program that has headrace installed reads such arrays like others."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import zarr

from headrace.storage.codecs import groups
from headrace.storage.codecs.spacetime import SpaceTimeCodec
from headrace.storage.errors import ParameterError, StoreError


@pytest.fixture
def field() -> np.ndarray:
    return np.cumsum(np.random.default_rng(3).standard_normal((20, 30, 34)), axis=0).astype("f4")


@pytest.fixture
def array(tmp_path: Path, field: np.ndarray) -> zarr.Array:
    group = zarr.create_group(tmp_path / "store.zarr")
    made = group.create_array(
        "wind", shape=field.shape, chunks=(8, 16, 34), dtype="f4", serializer=SpaceTimeCodec("abs", 0.01),
        compressors=None, filters=None, fill_value=np.nan, dimension_names=("time", "y", "x"),
    )  # fmt: skip
    made[:] = field
    return made


def test_xarray_reads_it_without_any_import_of_ours(tmp_path: Path, array: zarr.Array, field: np.ndarray) -> None:
    np.save(tmp_path / "field.npy", field)
    code = (
        "import sys, numpy as np, xarray as xr\n"
        f"ds = xr.open_zarr({str(tmp_path / 'store.zarr')!r}, consolidated=False)\n"
        f"print(float(abs(ds.wind.values - np.load({str(tmp_path / 'field.npy')!r})).max()))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 0 < float(done.stdout) <= 0.01


def test_without_headrace_the_codec_is_named(tmp_path: Path, array: zarr.Array) -> None:
    code = (
        "import importlib.metadata as m\n"
        "every = m.entry_points()\n"
        "points = (e for group in every.groups for e in every.select(group=group))\n"
        "others = m.EntryPoints(e for e in points if not e.value.startswith('headrace'))\n"
        "m.entry_points = lambda: others\n"
        "import zarr\n"
        f"zarr.open_array({str(tmp_path / 'store.zarr' / 'wind')!r}, mode='r')[:]\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "headrace.spacetime" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    "key",
    [np.s_[3], np.s_[3:5, 10:20], np.s_[-1, :, 5], np.s_[::3], np.s_[5:19:2, 3], np.s_[0:0], np.s_[7, 15:17, ::2]],
    ids=str,
)
def test_parts_equal_parts_of_the_whole(array: zarr.Array, key: object) -> None:
    np.testing.assert_array_equal(array[key], array[:][key])  # type: ignore[index]


def test_fancy_selections(array: zarr.Array) -> None:
    whole = array[:]
    np.testing.assert_array_equal(array.oindex[[1, 5, 19], :, [3, 4]], whole[[1, 5, 19]][:, :, [3, 4]])
    np.testing.assert_array_equal(
        array.vindex[[1, 5, 8], [2, 20, 1], [3, 4, 5]], whole[[1, 5, 8], [2, 20, 1], [3, 4, 5]]
    )


def test_one_frame_decodes_one_group_and_not_beyond(array: zarr.Array, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[tuple[int, int]] = []
    real = groups._decode_numbers

    def spy(record: groups.Record, *rest: object) -> np.ndarray:
        decoded.append((record.first, record.count))
        return real(record, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(groups, "_decode_numbers", spy)
    array[1, :16]
    assert decoded
    assert all(first <= 1 for first, _ in decoded)


def test_lazy_computation_with_dask(tmp_path: Path, array: zarr.Array, field: np.ndarray) -> None:
    dataset = xr.open_zarr(tmp_path / "store.zarr", consolidated=False)
    assert float(dataset.wind.mean().compute()) == pytest.approx(float(field.mean()), abs=0.01)


@pytest.mark.parametrize("mode", ["abs", "rel", "l2"])
def test_configuration_survives_the_metadata(tmp_path: Path, mode: str) -> None:
    codec = SpaceTimeCodec(mode, 1e-3, ("sz3", "lorenzo"), 99)  # type: ignore[arg-type]
    assert SpaceTimeCodec.from_dict(codec.to_dict()) == codec


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mode": "huge"}, "bound mode 'huge' is unknown"),
        ({"bound": 0}, "must be > 0"),
        ({"codecs": ["gzip"]}, "codec 'gzip' is unknown"),
        ({"color": 1}, "does not fit this headrace"),
    ],
)
def test_bad_configuration_is_refused(change: dict[str, object], message: str) -> None:
    data = SpaceTimeCodec("abs", 1.0).to_dict()
    data["configuration"] = {**data["configuration"], **change}  # type: ignore[dict-item]
    with pytest.raises(ParameterError, match=message):
        SpaceTimeCodec.from_dict(data)


@pytest.mark.parametrize("dtype", ["datetime64[s]", "S4"])
def test_arrays_without_numbers_are_refused(tmp_path: Path, dtype: str) -> None:
    with pytest.raises(ParameterError, match="holds numbers with a time axis"):
        zarr.create_array(
            tmp_path / "a", shape=(4,), dtype=dtype, serializer=SpaceTimeCodec("abs", 1.0), compressors=None
        )


def test_integers_and_booleans_are_lossless(tmp_path: Path) -> None:
    for dtype in ("i2", "u8", "?"):
        values = np.random.default_rng(0).integers(0, 2, (9, 7, 5)).astype(dtype)
        made = zarr.create_array(
            tmp_path / dtype.replace("?", "bool"), shape=values.shape, chunks=(4, 7, 5), dtype=dtype,
            serializer=SpaceTimeCodec("abs", 100.0), compressors=None,
        )  # fmt: skip
        made[:] = values
        np.testing.assert_array_equal(made[:], values)


def test_missing_chunks_and_short_ends_are_fill_values(tmp_path: Path) -> None:
    made = zarr.create_array(
        tmp_path / "a", shape=(6, 5), chunks=(4, 5), dtype="f8", serializer=SpaceTimeCodec("abs", 0.1),
        compressors=None, fill_value=-1.0,
    )  # fmt: skip
    made[0:4] = np.arange(20.0).reshape(4, 5)
    np.testing.assert_array_equal(made[4:], -1.0)


def test_moved_and_swapped_chunks_are_refused(tmp_path: Path, array: zarr.Array, field: np.ndarray) -> None:
    from headrace.storage.arrays import write_chunk

    store = tmp_path / "store.zarr"
    for group in (0, 1):
        frames = np.ascontiguousarray(field[8 * group : 8 * group + 8, :16])
        write_chunk(store, "wind", (group, 0, 0), groups.encode_group(frames, [0.01] * 8, index=(group, 0, 0)).payload)
    assert np.abs(array[:16, :16] - field[:16, :16]).max() <= 0.01
    first, second = (store / "wind" / "c" / str(group) / "0" / "0" for group in (0, 1))
    second.write_bytes(first.read_bytes())
    with pytest.raises(StoreError, match=r"array 'wind', chunk 1/0/0: found the chunk that belongs at \(0, 0, 0\)"):
        array[8:16]


def test_chunk_of_another_array_is_refused(tmp_path: Path, array: zarr.Array, field: np.ndarray) -> None:
    from headrace.storage.arrays import write_chunk

    foreign = groups.encode_group(np.ascontiguousarray(field[:8, :16]), [0.01] * 8, stream=5)
    write_chunk(tmp_path / "store.zarr", "wind", (0, 0, 0), foreign.payload)
    with pytest.raises(StoreError, match="stream 5, the array is stream 0"):
        array[0]
