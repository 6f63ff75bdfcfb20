"""Parts of a store, named by positions or values, and what they hold."""

import cftime
import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import given
from hypothesis import strategies as st

from headrace.storage.arrays import create_store, grow_time, write_chunk
from headrace.storage.codecs.spacetime import SpaceTimeCodec
from headrace.storage.errors import ParameterError, RunExistsError, SourceError, StoreError
from headrace.storage.readers import open_dataset
from headrace.tasks.insitu.restore import RestoreJob, cut, restore

NUMBERS = [0.0, 0.5, 1.0, 2.0, 4.0, 8.0]


@pytest.fixture
def axes():
    """One dimension of every kind."""
    return xr.Dataset(
        coords={
            "x": NUMBERS,
            "lat": [60.0, 45.0, 30.0],
            "day": np.datetime64("2001-01-30", "ns") + np.arange(40) * np.timedelta64(1, "D"),
            "month": [cftime.Datetime360Day(2001 + m // 12, 1 + m % 12, 16) for m in range(24)],
            "station": ["b", "a", "c"],
            "n": ("n", np.array([10, 20, 30])),
        },
        data_vars={"w": ("bare", np.zeros(5))},
    )


def positions(part, size):
    return np.arange(size)[part].tolist()


@given(
    st.integers(1, 30),
    st.none() | st.integers(-40, 40),
    st.none() | st.integers(-40, 40),
    st.none() | st.integers(1, 9),
)
def test_whole_numbers_are_positions_as_in_python(size, start, stop, step):
    ds = xr.Dataset({"w": ("x", np.zeros(size))}, {"x": np.arange(size) * 0.1})
    text = f"{'' if start is None else start}:{'' if stop is None else stop}" + ("" if step is None else f":{step}")
    wanted = list(range(size))[start:stop:step]
    if wanted:
        assert positions(cut(ds, "x", text), size) == wanted
    else:
        with pytest.raises(ParameterError, match="selects nothing"):
            cut(ds, "x", text)


@given(st.integers(1, 20), st.integers(-30, 30))
def test_one_whole_number_is_one_position(size, position):
    ds = xr.Dataset({"w": ("x", np.zeros(size))})
    if -size <= position < size:
        assert positions(cut(ds, "x", str(position)), size) == [range(size)[position]]
    else:
        with pytest.raises(ParameterError, match=f"position {position} of 'x' is outside"):
            cut(ds, "x", str(position))


@pytest.mark.parametrize(
    ("dim", "text", "wanted"),
    [
        ("x", "0.5:4.0", [1, 2, 3, 4]),
        ("x", "0.4:4.5", [1, 2, 3, 4]),
        ("x", "1e0:", [2, 3, 4, 5]),
        ("x", ":0.5", [0, 1]),
        ("x", "2.0", [3]),
        ("x", "2.2", [3]),
        ("x", " 0.5 : 1.0 ", [1, 2]),
        ("lat", "30.0:45.0", [1, 2]),
        ("lat", "45.0:30.0", [1, 2]),
        ("n", "15.0:30.0", [1, 2]),
        ("day", "2001-02", list(range(2, 30))),
        ("day", "2001-02-03", [4]),
        ("day", "2001-01:2001-02-01", [0, 1, 2]),
        ("day", "2001-03-09:", [38, 39]),
        ("day", "2001-01-30T00:00:2001-01-31T12:00:00", [0, 1]),
        ("day", "2001-01-31 00:00", [1]),
        ("month", "2001-03:2001-05", [2, 3, 4]),
        ("month", "2002-02", [13]),
        ("month", ":2001-02", [0, 1]),
        ("station", "a", [1]),
        ("station", "b:a", [0, 1]),
        ("station", "a:", [1, 2]),
        ("bare", "1:3", [1, 2]),
    ],
)
def test_everything_else_is_a_value(axes, dim, text, wanted):
    assert positions(cut(axes, dim, text), axes.sizes[dim]) == wanted


def test_values_that_do_not_lie_side_by_side_are_all_taken():
    ds = xr.Dataset({"w": ("lon", np.zeros(5))}, {"lon": [170.0, 180, -170, -160, 175]})
    assert positions(cut(ds, "lon", "165.0:178.0"), 5) == [0, 4]
    assert positions(cut(ds, "lon", "165.0:181.0"), 5) == [0, 1, 4]


@pytest.mark.parametrize(
    ("dim", "text", "message"),
    [
        (
            "x",
            "9.0:10.0",
            r"part '9\.0:10\.0' of 'x' selects nothing; expected something within positions 0 to 5, values 0",
        ),
        ("x", "20.0", "selects nothing"),
        ("x", "banana", r"part 'banana' of 'x' cannot be read \(could not convert.*expected a position"),
        ("x", "", "cannot be read|selects nothing"),
        ("x", "0:5:-1", "step -1 of 'x' is not positive"),
        ("x", "nan", "selects nothing"),
        ("day", "2003-01", "selects nothing|cannot be read"),
        ("day", "monday", "cannot be read"),
        ("day", "2001-13:2001-14", "cannot be read"),
        ("month", "1999-01:1999-12", "selects nothing"),
        ("station", "z", "cannot be read"),
        ("bare", "0.5", "'bare' has no coordinate to find '0.5' on; expected positions 0 to 4"),
    ],
)
def test_parts_that_are_none_are_refused(axes, dim, text, message):
    with pytest.raises(ParameterError, match=message):
        cut(axes, dim, text)


@pytest.fixture
def store(tmp_path):
    """A compressed store of two fields along a calendar, with its audit trail, and what it must decode to."""
    path = tmp_path / "data.zarr"
    dates = np.array([cftime.Datetime360Day(2001, 1 + m, 16) for m in range(10)])
    rng = np.random.default_rng(0)
    ds = xr.Dataset(
        {
            "t": (("time", "y", "x"), rng.random((10, 8, 8)).astype("f4")),
            "p": (("time", "x"), rng.random((10, 8)).astype("f4")),
        },
        {"time": ("time", dates, {"bounds": "edges"}), "x": np.arange(8.0), "lat": (("y", "x"), rng.random((8, 8)))},
        {"title": "weather"},
    )
    ds["edges"] = (("time", "side"), np.arange(20.0).reshape(10, 2))
    ds["offered_time"] = ("offered", np.arange(50.0))
    ds["time"].encoding = {"units": "days since 2001-01-01", "calendar": "360_day", "dtype": "float64"}
    for name in ("t", "p"):
        ds[name].attrs["headrace_bound"] = 0.5
    codec = SpaceTimeCodec("abs", 1e-3, ("spectrum",), 1)
    encodings = {
        name: {"chunks": (4, *ds[name].shape[1:]), "serializer": codec, "compressors": None} for name in ("t", "p")
    }
    create_store(path, ds, encodings, {})
    for name in ("t", "p"):
        zarr.open_array(path / name, mode="r+")[:] = ds[name].values
    return path, open_dataset(path).load()


@pytest.mark.parametrize("ending", ["nc", "h5", "zarr"])
def test_a_store_is_decoded_whole(store, tmp_path, ending):
    path, wanted = store
    result = restore(RestoreJob(str(path), str(tmp_path / f"out.{ending}")))
    found = open_dataset(tmp_path / f"out.{ending}").load()
    xr.testing.assert_equal(found, wanted.drop_vars("offered_time"))
    assert found.attrs["title"] == "weather"
    assert (result.frames, result.variables, result.ranges) == (10, ("p", "t"), {})
    target = tmp_path / f"out.{ending}"
    files = [target] if target.is_file() else [file for file in target.rglob("*") if file.is_file()]
    assert result.bytes == sum(file.stat().st_size for file in files)


def test_a_part_is_what_indexing_gives(store, tmp_path):
    path, wanted = store
    job = RestoreJob(str(path), str(tmp_path / "out.nc"), ("t",), "2001-03:2001-08", {"x": "1.0:3.0", "y": "::3"})
    result = restore(job)
    found = open_dataset(tmp_path / "out.nc").load()
    xr.testing.assert_equal(found["t"], wanted["t"].isel(time=slice(2, 8), x=slice(1, 4), y=slice(None, None, 3)))
    np.testing.assert_array_equal(found["edges"], wanted["edges"][2:8])
    assert "p" not in found
    assert (result.frames, result.variables) == (6, ("t",))
    assert result.ranges["x"] == "1 to 3 (3)"
    assert result.ranges["y"] == "3 positions"


def test_chunks_outside_the_part_are_not_read(store, tmp_path):
    path, wanted = store
    for damaged in (path / "t" / "c" / "0" / "0" / "0", path / "p" / "c" / "2" / "0"):
        damaged.write_bytes(b"damage")
    restore(RestoreJob(str(path), str(tmp_path / "out.nc"), ("t",), "4:"))
    np.testing.assert_array_equal(open_dataset(tmp_path / "out.nc")["t"], wanted["t"][4:])
    with pytest.raises(StoreError, match=r"^array '(p|t)', chunk "):
        restore(RestoreJob(str(path), str(tmp_path / "all.nc")))
    assert not (tmp_path / "all.nc").exists()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"variables": ("q",)}, SourceError, "no variable 'q'"),
        ({"select": {"z": "1"}}, SourceError, r"no dimension 'z'; expected one of: .*time \(10\)"),
        ({"select": {"time": "1"}, "time": "2"}, ParameterError, "two parts of 'time'"),
        ({"time": "2005-01:"}, ParameterError, "selects nothing"),
        ({"to": "out.csv"}, ParameterError, "ends in '.csv'"),
        ({"store": "nowhere.zarr"}, SourceError, "no input at nowhere.zarr"),
    ],
)
def test_what_cannot_be_restored_is_refused_and_nothing_is_written(store, tmp_path, options, error, message):
    settings = {"store": str(store[0]), "to": str(tmp_path / "out.nc"), **options}
    with pytest.raises(error, match=message):
        restore(RestoreJob(**settings))
    assert [item.name for item in tmp_path.iterdir()] == ["data.zarr"]


def test_a_taken_target_is_refused_unless_it_may_be_replaced(store, tmp_path):
    (tmp_path / "out.nc").write_text("mine")
    with pytest.raises(RunExistsError, match=r"out\.nc exists"):
        restore(RestoreJob(str(store[0]), str(tmp_path / "out.nc")))
    assert (tmp_path / "out.nc").read_text() == "mine"
    restore(RestoreJob(str(store[0]), str(tmp_path / "out.nc"), overwrite=True))
    assert open_dataset(tmp_path / "out.nc")["t"].shape == (10, 8, 8)


def test_a_store_along_another_axis_than_time_is_restored_along_it(tmp_path):
    ds = xr.Dataset(
        {"w": (("depth", "x"), np.arange(12.0).reshape(4, 3), {"headrace_bound": 1.0})}, {"depth": [5.0, 10, 20, 40]}
    )
    create_store(tmp_path / "s.zarr", ds.isel(depth=slice(0, 0)), {"w": {"chunks": (1, 3), "compressors": None}}, {})
    for k in range(4):
        write_chunk(tmp_path / "s.zarr", "w", (k, 0), ds["w"].values[k].tobytes())
    grow_time(tmp_path / "s.zarr", {"w": 4}, {"depth": ds["depth"].values})
    result = restore(RestoreJob(str(tmp_path / "s.zarr"), str(tmp_path / "out.nc"), time="10.0:25.0"))
    assert result.frames == 2
    np.testing.assert_array_equal(open_dataset(tmp_path / "out.nc")["w"], ds["w"][1:3])
