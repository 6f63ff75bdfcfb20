"""Variables and time axes: found by what files say of them, and refused with reasons."""

from pathlib import Path

import cftime
import dask.array
import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from headrace.storage.errors import ParameterError, SourceError
from headrace.storage.lazy import with_leading
from headrace.storage.readers import find_time, open_dataset, select, times_as_seconds

iris = pytest.importorskip("iris_sample_data")
REAL = {
    "A1B_north_america.nc": ("air_temperature", "time", 240, "latitude_longitude time_bnds"),
    "ostia_monthly.nc": (
        "surface_temperature",
        "time",
        54,
        "forecast_reference_time_bnds latitude_longitude time_bnds",
    ),
    "orca2_votemper.nc": ("votemper", "time_counter", 1, "deptht_bnds nav_lat_bnds nav_lon_bnds"),
    "nemo_1m_20150101-20150201_grid-T.nc": ("tos", "time_counter", 1, "bounds_lat bounds_lon time_centered_bounds"),
    "SOI_Darwin.nc": ("SOI_Darwin", "time", 1776, ""),
    "vlstr_type.nc": ("wind", "time", 150, ""),
    "atlantic_profiles.nc": ("salinity theta", "time", 1, ""),
}


@pytest.fixture
def weather():
    return xr.Dataset(
        {
            "t2m": (
                ("time", "lat", "lon"),
                np.zeros((4, 2, 3), "f4"),
                {"grid_mapping": "crs", "ancillary_variables": "quality"},
            ),
            "precipitation": (("lat", "time", "lon"), np.arange(24.0).reshape(2, 4, 3)),
            "quality": (("time", "lat", "lon"), np.zeros((4, 2, 3), "i1")),
            "orography": (("lat", "lon"), np.zeros((2, 3))),
            "name": (("time",), np.array(["a", "b", "c", "d"])),
            "crs": ((), np.int32(0)),
            "time_bnds": (("time", "side"), np.zeros((4, 2))),
        },
        {
            "time": (
                "time",
                np.datetime64("2000-01-01", "ns") + np.arange(4) * np.timedelta64(6, "h"),
                {"bounds": "time_bnds"},
            )
        },
    )


@pytest.mark.parametrize("name", REAL)
def test_real_files_say_what_is_to_be_done(name):
    [path] = Path(iris.path).rglob(name)
    found = select(open_dataset(path))
    variables, dim, frames, auxiliary = REAL[name]
    assert (" ".join(found.variables), found.time_dim, " ".join(found.auxiliary)) == (variables, dim, auxiliary)
    assert found.dataset.sizes[dim] == frames
    for variable in found.variables:
        assert found.dataset[variable].dims[0] == dim
        assert not isinstance(found.dataset[variable].variable._data, np.ndarray)


def test_everything_with_numbers_and_time_is_chosen_but_companions(weather):
    found = select(weather)
    assert found.variables == ("t2m", "precipitation")
    assert found.auxiliary == ("crs", "quality", "time_bnds")
    assert set(found.dataset.data_vars) == {"t2m", "precipitation", "crs", "quality", "time_bnds"}
    assert found.dataset["precipitation"].dims == ("time", "lat", "lon")
    np.testing.assert_array_equal(
        found.dataset["precipitation"], weather["precipitation"].transpose("time", "lat", "lon")
    )


def test_a_companion_can_be_chosen_by_name(weather):
    found = select(weather, ["quality", "t2m", "quality"])
    assert found.variables == ("quality", "t2m")
    assert "quality" not in found.auxiliary


def test_a_companion_that_is_a_field_itself_is_left_out_with_a_word(weather, caplog):
    big = weather.drop_dims(["lat", "lon"]).assign(
        {
            "t2m": (("time", "x"), np.zeros((4, 5000)), {"ancillary_variables": "quality"}),
            "quality": (("time", "x"), np.zeros((4, 5000))),
        }
    )
    assert "quality" not in select(big, ["t2m"]).auxiliary
    assert "quality is left out" in caplog.text


def test_unknown_variables_are_named_with_the_nearest(weather):
    with pytest.raises(
        SourceError, match=r"no variable 'precipitaton'; expected one of: t2m, precip.*did you mean 'precipitation'"
    ):
        select(weather, ["precipitaton"])


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["name"], "variable 'name' has dtype <U1; expected numbers"),
        (["orography"], r"'orography' has dimensions \('lat', 'lon'\); expected 'time' among them"),
    ],
)
def test_variables_that_cannot_be_taken_are_refused(weather, names, message):
    with pytest.raises(ParameterError, match=message):
        select(weather, names, "time")


def test_no_time_axis_is_said_with_the_dimensions_there_are():
    ds = xr.Dataset({"w": (("x", "y"), np.zeros((3, 4)))})
    with pytest.raises(SourceError, match=r"no time axis among the dimensions x \(3\), y \(4\).*--time-dim"):
        select(ds)
    with pytest.raises(SourceError, match=r"no dimension 'z'; expected one of: x \(3\), y \(4\)"):
        select(ds, time_dim="z")
    assert select(ds, time_dim="y").dataset["w"].dims == ("y", "x")


def test_nothing_to_take_is_said_with_what_is_there():
    ds = xr.Dataset({"s": ("time", ["a", "b"])}, {"time": [0, 1]})
    with pytest.raises(SourceError, match=r"no time axis|no variable of numbers"):
        select(ds)
    with pytest.raises(SourceError, match=r"no variable of numbers with dimension 'time'; there are: s \('time',\)"):
        select(ds, time_dim="time")


@pytest.mark.parametrize(
    ("coords", "dims", "wanted"),
    [
        ({"t": ("t", [0.0, 1])}, ("t", "x"), "t"),
        ({}, ("x", "time"), "time"),
        ({"step": ("step", np.array(["2000-01-01", "2000-01-02"], "M8[ns]"))}, ("x", "step"), "step"),
        ({"n": ("n", [0, 1], {"axis": "T"}), "time": ("time", [0, 1])}, ("time", "n"), "n"),
        ({"n": ("n", [0, 1], {"standard_name": "time"})}, ("n", "x"), "n"),
        ({"when": ("n", np.array(["2000-01-01", "2000-01-02"], "M8[ns]"))}, ("x", "n"), "n"),
        ({"n": ("n", [cftime.Datetime360Day(2000, 1, d) for d in (1, 30)])}, ("x", "n"), "n"),
        ({"n": ("n", [0, 1], {"units": "days since the flood"})}, ("x", "n"), "n"),
    ],
)
def test_a_time_axis_is_found_by_what_is_said_of_it(coords, dims, wanted):
    ds = xr.Dataset({"w": (dims, np.zeros((2, 2)))}, coords)
    assert find_time(ds) == wanted


def test_a_time_axis_can_be_named_by_a_coordinate_along_it():
    ds = xr.Dataset({"w": (("n", "x"), np.zeros((2, 3)))}, {"hour": ("n", [6, 12])})
    assert find_time(ds, "hour") == "n"


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ([0.0, 2, 1], r"times are not in order: time\[1\] = 2\.0 and time\[2\] = 1\.0; expected increasing"),
        ([0.0, 2, 2], r"times are repeated: time\[1\] = 2\.0 and time\[2\] = 2\.0"),
        ([0.0, np.nan, 2], r"time time\[1\] is nan \(1 of 3 are missing\)"),
        (np.array(["2000-01-01", "NaT", "2000-01-03"], "M8[ns]"), r"time time\[1\] is NaT"),
        (
            np.array(["2000-01-03", "2000-01-02", "2000-01-04"], "M8[ns]"),
            r"time\[0\] = 2000-01-03T.* and time\[1\] = 2000-01-02T",
        ),
        ([cftime.Datetime360Day(2000, 2, d) for d in (1, 30, 29)], r"time\[1\] = 2000-02-30 .*time\[2\] = 2000-02-29"),
    ],
)
def test_times_that_do_not_increase_are_refused_with_both(times, message):
    ds = xr.Dataset({"w": ("time", np.zeros(3))}, {"time": ("time", times)})
    with pytest.raises(ParameterError, match=message):
        select(ds)


def test_no_frame_at_all_is_refused():
    ds = xr.Dataset({"w": (("time", "x"), np.zeros((0, 3)))}, {"time": np.zeros(0)})
    with pytest.raises(ParameterError, match="'time' has length 0; expected at least one frame"):
        select(ds)


@pytest.mark.parametrize(
    ("times", "seconds"),
    [
        (np.array(["2000-02-28T12", "2000-03-01T00", "2000-03-01T00:00:00.5"], "M8[ns]"), [0, 129600, 129600.5]),
        (
            [
                cftime.Datetime360Day(2000, 2, 30),
                cftime.Datetime360Day(2000, 3, 1, 1),
                cftime.Datetime360Day(2001, 2, 30),
            ],
            [0, 90000, 31104000],
        ),
        ([0.5, 0.75, 4], [0.5, 0.75, 4]),
        (np.array([3, 4, 9], "i2"), [3, 4, 9]),
        (np.array([1, 2, 3], "m8[m]"), [0, 60, 120]),
        (["a", "b", "c"], [0, 1, 2]),
    ],
)
def test_times_become_numbers(times, seconds):
    found = times_as_seconds(xr.Dataset(coords={"time": ("time", times)}), "time")
    assert found.dtype == np.float64
    assert found.tolist() == seconds


def test_without_a_coordinate_positions_are_the_times():
    assert times_as_seconds(xr.Dataset({"w": ("n", np.zeros(3))}), "n").tolist() == [0, 1, 2]


def test_one_scalar_time_becomes_an_axis_without_reading():
    ds = xr.Dataset(
        {"w": (("y", "x"), np.arange(6.0).reshape(2, 3))}, {"time": np.datetime64("2000-01-01", "ns"), "level": 5.0}
    )
    found = select(ds)
    assert found.time_dim == "time"
    assert found.dataset["w"].dims == ("time", "y", "x")
    assert found.dataset["level"].ndim == 0
    np.testing.assert_array_equal(found.dataset["w"][0], ds["w"])


def part_of(size):
    """A position, a slice that is not empty (xarray fails on some that are), or some positions."""
    slices = st.slices(size).filter(lambda part: len(range(size)[part]) > 0)
    return st.one_of(slices, st.integers(-size, size - 1), st.lists(st.integers(0, size - 1), min_size=1).map(np.array))


@given(st.data())
def test_a_reordered_variable_indexes_like_the_array_it_shows(data):
    ndim = data.draw(st.integers(1, 4))
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=ndim, max_size=ndim)))
    values = np.random.default_rng(0).random(shape)
    dims = tuple("abcd"[:ndim])
    lead = data.draw(st.sampled_from([*dims, "new"]))
    wanted = values[np.newaxis] if lead == "new" else np.moveaxis(values, dims.index(lead), 0)
    found = with_leading(xr.Variable(dims, values), lead)
    assert found.shape == wanted.shape
    key = tuple(data.draw(part_of(size)) for size in wanted.shape)
    outer = wanted
    for axis in reversed(range(wanted.ndim)):  # one axis at a time: orthogonal, as xarray indexes
        outer = outer[(slice(None),) * axis + (key[axis],)]
    np.testing.assert_array_equal(found[key].values, outer)


def test_a_variable_of_dask_stays_one():
    found = with_leading(xr.Variable(("x", "t"), dask.array.zeros((3, 4))), "t")
    assert found.dims == ("t", "x")
    assert found.chunks is not None
