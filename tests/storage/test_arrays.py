"""Stores: created from templates, filled chunk by chunk, grown without a trace."""

import warnings
from pathlib import Path

import cftime
import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.storage.arrays import (
    consolidate,
    create_store,
    grow_time,
    read_chunk,
    store_digest,
    write_chunk,
    write_region,
)
from headrace.storage.errors import ParameterError, RunExistsError, ShapeError, SourceError, StoreError
from headrace.storage.layout import CHUNK_VALUES
from headrace.storage.readers import open_dataset, select

iris = pytest.importorskip("iris_sample_data")
FILES = sorted(Path(iris.path).rglob("*.nc"))


def line(kind, count):
    """A time-dependent coordinate of one kind."""
    numbers = np.arange(count)
    return {
        "float": lambda: numbers * 0.1,
        "integer": lambda: numbers.astype("i4"),
        "single": lambda: numbers.astype("f4"),
        "date": lambda: np.datetime64("2001-01-01", "ns") + numbers * np.timedelta64(3, "h"),
        "model date": lambda: np.array([cftime.Datetime360Day(2001, 1, 1) + 3600 * d for d in _hours(count)], object),
        "text": lambda: np.array([f"é{n}" for n in numbers], dtype=object),
        "bytes": lambda: np.array([b"%d" % n for n in numbers], dtype="S8"),
        "flag": lambda: numbers % 3 == 0,
        "complex": lambda: numbers + 1j,
    }[kind]()


def _hours(count):
    from datetime import timedelta

    return [timedelta(seconds=int(n)) for n in range(count)]


KINDS = ("float", "integer", "single", "date", "model date", "text", "bytes", "flag", "complex")


def template(kinds, count, frames=None):
    """A dataset with coordinates of the given kinds along time."""
    coords = {f"c{k}": ("time", line(kind, count)) for k, kind in enumerate(kinds)}
    ds = xr.Dataset(
        {"v": (("time", "y", "x"), np.broadcast_to(np.float32(0), (count if frames is None else frames, 3, 4)))},
        coords={"time": np.arange(count) * 0.5, "y": [1.0, 2.0, 4.0], **coords},
        attrs={"title": "a"},
    )
    ds["edges"] = (("time", "side"), np.arange(2 * count).reshape(count, 2) * 0.25)
    for k, kind in enumerate(kinds):
        if kind == "model date":
            ds[f"c{k}"].encoding = {"units": "seconds since 2000-01-01", "calendar": "360_day", "dtype": "int64"}
        if kind == "text" and not count:
            ds[f"c{k}"] = ds[f"c{k}"].astype(np.dtypes.StringDType())
    return ds


def values_along_time(ds, count):
    return {str(n): v.values[:count] for n, v in ds.variables.items() if "time" in v.dims and n != "v"}


@settings(max_examples=25)
@given(st.lists(st.sampled_from(KINDS), max_size=3), st.lists(st.integers(0, 12), min_size=1, max_size=5))
def test_how_often_a_store_grew_cannot_be_seen(tmp_path_factory, kinds, lengths):
    folder = tmp_path_factory.mktemp("grow")
    last = max(lengths)
    whole = template(kinds, last)
    encodings = {"v": {"chunks": (2, 3, 4), "compressors": None}}
    create_store(folder / "once.zarr", whole, encodings, {})
    create_store(folder / "grown.zarr", template(kinds, 0), encodings, {})
    for count in lengths:
        grow_time(folder / "grown.zarr", {"v": count}, values_along_time(whole, count))
    assert store_digest(folder / "grown.zarr") == store_digest(folder / "once.zarr")


def test_growth_across_chunks_of_coordinates_leaves_no_trace(tmp_path):
    count = CHUNK_VALUES + 10
    kinds = ("float", "date", "text")
    whole = template(kinds, count)
    create_store(tmp_path / "once.zarr", whole, {"v": {"chunks": (4096, 3, 4)}}, {})
    create_store(tmp_path / "grown.zarr", template(kinds, 0), {"v": {"chunks": (4096, 3, 4)}}, {})
    for part in (7, CHUNK_VALUES // 2 + 1, CHUNK_VALUES, CHUNK_VALUES + 1, count, count, 5):
        grow_time(tmp_path / "grown.zarr", {"v": part}, values_along_time(whole, part))
    assert store_digest(tmp_path / "grown.zarr") == store_digest(tmp_path / "once.zarr")
    assert (tmp_path / "grown.zarr" / "time" / "c" / "1").exists()
    with xr.open_zarr(tmp_path / "grown.zarr") as found:
        np.testing.assert_array_equal(found["time"], whole["time"])
        assert found["c2"].values[-1] == f"é{count - 1}"


@pytest.mark.parametrize("kind", KINDS)
def test_a_grown_coordinate_has_its_values(tmp_path, kind):
    whole = template((kind,), 9)
    create_store(tmp_path / "s.zarr", template((kind,), 0), {"v": {}}, {})
    for count in (4, 9):
        grow_time(tmp_path / "s.zarr", {"v": count}, values_along_time(whole, count))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with xr.open_zarr(tmp_path / "s.zarr") as found:
            loaded = found.load()
    expected = whole["c0"].values
    if kind == "bytes":
        expected = expected.astype(str)
    np.testing.assert_array_equal(loaded["c0"].values, expected)
    np.testing.assert_array_equal(loaded["edges"].values, whole["edges"].values)


def test_dates_with_gaps_keep_them(tmp_path):
    dates = np.array(["2001-01-01", "NaT", "2001-03-01"], "M8[ns]")
    whole = xr.Dataset({"v": ("time", np.zeros(3))}, {"time": np.arange(3), "issued": ("time", dates)})
    create_store(tmp_path / "a.zarr", whole, {"v": {}}, {})
    create_store(tmp_path / "b.zarr", whole.isel(time=slice(0, 0)), {"v": {}}, {})
    grow_time(tmp_path / "b.zarr", {"v": 3}, {"time": np.arange(3), "issued": dates})
    assert store_digest(tmp_path / "a.zarr") == store_digest(tmp_path / "b.zarr")
    np.testing.assert_array_equal(open_dataset(tmp_path / "b.zarr")["issued"].values, dates)


def test_an_empty_variable_is_never_read(tmp_path):
    lazy = xr.Variable(("time", "y", "x"), xr.core.indexing.LazilyIndexedArray(_Lazy()))
    ds = xr.Dataset({"v": lazy}, {"lat": (("y", "x"), np.zeros((3, 4)))}, {"title": "t"})
    create_store(tmp_path / "s.zarr", ds, {"v": {"chunks": (1, 3, 4)}}, {"more": 1})
    array = zarr.open_array(tmp_path / "s.zarr" / "v", mode="r")
    assert (array.shape, array.chunks, array.dtype) == ((10**6, 3, 4), (1, 3, 4), np.dtype("<f4"))
    assert np.isnan(array.fill_value)
    assert not (tmp_path / "s.zarr" / "v" / "c").exists()
    assert open_dataset(tmp_path / "s.zarr").attrs == {"title": "t", "more": 1}


class _Lazy(xr.backends.BackendArray):
    shape, dtype = (10**6, 3, 4), np.dtype(">f4")

    def __getitem__(self, key):
        shape = xr.core.indexing.LazilyIndexedArray(self, key).shape
        assert 0 in shape, f"read {shape}"
        return np.zeros(shape, self.dtype)


def test_creating_does_not_change_the_template(tmp_path):
    ds = template(("date", "text", "model date"), 3)
    before = {name: (variable.dtype, dict(variable.encoding)) for name, variable in ds.variables.items()}
    create_store(tmp_path / "s.zarr", ds, {"v": {}}, {"x": 1})
    assert {name: (variable.dtype, dict(variable.encoding)) for name, variable in ds.variables.items()} == before
    assert ds.attrs == {"title": "a"}


def test_a_store_opens_in_plain_xarray_without_a_word_from_the_first_moment(tmp_path):
    kinds = ("float", "date", "text", "bytes", "flag", "complex")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        create_store(tmp_path / "s.zarr", template(kinds, 0), {"v": {}}, {})
        for count in (0, 3, 5):
            grow_time(tmp_path / "s.zarr", {"v": count}, values_along_time(template(kinds, 5), count))
            with xr.open_zarr(tmp_path / "s.zarr") as found:
                assert found.sizes["time"] == count


def test_consolidating_again_changes_nothing(tmp_path):
    create_store(tmp_path / "s.zarr", template(("float",), 4), {"v": {}}, {})
    before = store_digest(tmp_path / "s.zarr")
    consolidate(tmp_path / "s.zarr")
    assert store_digest(tmp_path / "s.zarr") == before


def test_the_consolidated_metadata_are_what_zarr_itself_gathers(tmp_path):
    create_store(tmp_path / "s.zarr", template(("float", "text"), 0), {"v": {}}, {})
    grow_time(tmp_path / "s.zarr", {"v": 4}, values_along_time(template(("float", "text"), 4), 4))
    ours = (tmp_path / "s.zarr" / "zarr.json").read_bytes()
    consolidate(tmp_path / "s.zarr")
    assert (tmp_path / "s.zarr" / "zarr.json").read_bytes() == ours


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_real_file_goes_through_a_store(tmp_path, path):
    source = open_dataset(path)
    names = [
        str(name) for name, variable in source.data_vars.items() if variable.dtype.kind in "iufc" and variable.ndim
    ]
    create_store(tmp_path / "s.zarr", source, {name: {"compressors": None} for name in names}, {})
    for name in names:
        array = zarr.open_array(tmp_path / "s.zarr" / name, mode="r+")
        write_region(array, tuple(slice(0, n) for n in array.shape), source[name].values)
    found, wanted = open_dataset(tmp_path / "s.zarr").load(), source.load()
    for name, variable in wanted.variables.items():
        assert found[name].dims == variable.dims
        if variable.dtype.kind in "US":
            np.testing.assert_array_equal(found[name].values.astype(object).astype(str), variable.values.astype(str))
        else:
            assert found[name].dtype == variable.dtype
            np.testing.assert_array_equal(found[name].values, variable.values)
        assert _plain_attrs(found[name].attrs) == _plain_attrs(variable.attrs), name
    assert set(found.coords) == set(wanted.coords)


def _plain_attrs(attrs):
    return {key: np.asarray(value).tolist() for key, value in attrs.items()}


@pytest.mark.parametrize(
    "path", [path for path in FILES if path.name[:3] in {"A1B", "ost", "orc", "vls"}], ids=lambda path: path.name
)
def test_a_real_file_streams_through_a_growing_store(tmp_path, path):
    chosen = select(open_dataset(path))
    ds, dim = chosen.dataset, chosen.time_dim
    count = ds.sizes[dim]
    encodings = {name: {"chunks": (1, *ds[name].shape[1:]), "compressors": None} for name in chosen.variables}
    create_store(tmp_path / "s.zarr", ds.isel({dim: slice(0, 0)}), encodings, {})
    for frame in range(count):
        for name in chosen.variables:
            values = np.ascontiguousarray(ds[name].isel({dim: slice(frame, frame + 1)}).values)
            write_chunk(tmp_path / "s.zarr", name, (frame,) + (0,) * (values.ndim - 1), values.tobytes())
        if frame % 50 == 7 or frame == count - 1:
            rest = [n for n, v in ds.variables.items() if dim in v.dims and n not in chosen.variables]
            upto = ds.isel({dim: slice(0, frame + 1)})
            grow_time(
                tmp_path / "s.zarr", dict.fromkeys(chosen.variables, frame + 1), {n: upto[n].values for n in rest}
            )
    found = open_dataset(tmp_path / "s.zarr").load()
    xr.testing.assert_equal(found.drop_vars("expver", errors="ignore"), ds.load().drop_vars("expver", errors="ignore"))


def test_a_taken_place_is_refused(tmp_path):
    (tmp_path / "s.zarr").mkdir()
    with pytest.raises(RunExistsError, match="exists; expected a free place"):
        create_store(tmp_path / "s.zarr", template((), 1), {"v": {}}, {})
    assert not list((tmp_path / "s.zarr").iterdir())


@pytest.mark.parametrize(
    ("encodings", "message"),
    [
        ({"w": {}}, "encodings name 'w'; expected variables of the template"),
        ({"v": {"chunks": (1, 2)}}, "cannot be laid out"),
        ({"v": {"nonsense": 1}}, "cannot be laid out.*nonsense"),
    ],
)
def test_a_store_that_cannot_be_made_leaves_nothing(tmp_path, encodings, message):
    with pytest.raises(ParameterError, match=message):
        create_store(tmp_path / "s.zarr", template((), 1), encodings, {})
    assert not list(tmp_path.iterdir())


def test_growing_what_is_not_there_or_does_not_fit_is_refused(tmp_path):
    create_store(tmp_path / "s.zarr", template((), 2), {"v": {}}, {})
    before = store_digest(tmp_path / "s.zarr")
    with pytest.raises(SourceError, match="no array 'w'"):
        grow_time(tmp_path / "s.zarr", {"w": 3}, {})
    with pytest.raises(ShapeError, match=r"'edges' have shape \(3, 5\); expected \(n, \*\(2,\)\)"):
        grow_time(tmp_path / "s.zarr", {"v": 3}, {"edges": np.zeros((3, 5))})
    with pytest.raises(ShapeError, match=r"'\w+' would have . values along 'time' and '\w+' .; expected one length"):
        grow_time(tmp_path / "s.zarr", {"v": 3}, {"time": np.arange(3.0)})
    assert store_digest(tmp_path / "s.zarr") == before


def test_damaged_metadata_are_named(tmp_path):
    create_store(tmp_path / "s.zarr", template((), 2), {"v": {}}, {})
    (tmp_path / "s.zarr" / "v" / "zarr.json").write_text("{}")
    with pytest.raises(StoreError, match=r"v/zarr\.json describes no array"):
        grow_time(tmp_path / "s.zarr", {"v": 3}, {})


@given(st.data())
def test_a_region_is_written_if_and_only_if_it_is_whole_chunks(data):
    ndim = data.draw(st.integers(1, 3))
    sides = st.lists(st.integers(1, 9), min_size=ndim, max_size=ndim)
    shape, chunks = tuple(data.draw(sides)), tuple(data.draw(st.lists(st.integers(1, 4), min_size=ndim, max_size=ndim)))
    sharded = data.draw(st.booleans())
    factor = data.draw(st.integers(1, 2)) if sharded else 1
    unit = tuple(factor * c for c in chunks)
    array = zarr.create_array(
        {}, shape=shape, chunks=chunks, shards=unit if sharded else None, dtype="i4", fill_value=-1
    )
    ends = [sorted(data.draw(st.lists(st.integers(0, n), min_size=2, max_size=2))) for n in shape]
    region = tuple(slice(low, high) for low, high in ends)
    whole = all(
        low < high and low % u == 0 and (high % u == 0 or high == n)
        for (low, high), u, n in zip(ends, unit, shape, strict=True)
    )
    values = np.arange(np.prod([high - low for low, high in ends])).reshape([high - low for low, high in ends])
    expected = np.full(shape, -1)
    if whole:
        write_region(array, region, values)
        expected[region] = values
    else:
        with pytest.raises(ShapeError, match="is not whole chunks"):
            write_region(array, region, values)
    np.testing.assert_array_equal(array[:], expected)


def test_a_region_of_another_shape_is_refused():
    array = zarr.create_array({}, shape=(4, 4), chunks=(2, 2), dtype="f4")
    with pytest.raises(ShapeError, match=r"data of shape \(1, 4\) for a region of shape \(2, 4\)"):
        write_region(array, (slice(0, 2), slice(0, 4)), np.zeros((1, 4)))
    with pytest.raises(ShapeError, match="region has 1 slices; expected 2"):
        write_region(array, (slice(0, 2),), np.zeros((2, 4)))
    with pytest.raises(ShapeError, match="is not whole chunks"):
        write_region(array, (slice(0, 4, 2), slice(0, 4)), np.zeros((2, 4)))


@pytest.mark.parametrize("shape", [(), (4,), (4, 6)])
def test_encoded_chunks_lie_where_zarr_looks_for_them(tmp_path, shape):
    chunks = tuple(n // 2 for n in shape)
    array = zarr.create_array(tmp_path / "a", shape=shape, chunks=chunks or "auto", dtype="<f8", compressors=None)
    index = (1,) * len(shape)
    assert read_chunk(tmp_path, "a", index) is None
    values = np.random.default_rng(0).random(chunks)
    write_chunk(tmp_path, "a", index, values.tobytes())
    assert read_chunk(tmp_path, "a", index) == values.tobytes()
    np.testing.assert_array_equal(array[tuple(slice(n // 2, n) for n in shape)], values)
    assert not list(tmp_path.rglob("*.tmp"))


def test_the_digest_sees_names_and_contents_and_nothing_temporary(tmp_path):
    seen = set()
    for files in ({"a": "x"}, {"a": "y"}, {"b": "x"}, {"a": "x", "c": ""}, {"d/a": "x"}, {"a": "", "x": ""}):
        folder = tmp_path / str(len(seen))
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        seen.add(store_digest(folder))
        (folder / ".0a.tmp").write_text("half")
        (folder / "0.0b.partial").write_text("half")
        assert store_digest(folder) in seen
    assert len(seen) == 6
