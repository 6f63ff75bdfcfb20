"""Foreign files: what opens, as what, lazily; and what is said of what does not."""

import gzip
import pickle
import shutil
import warnings
import zipfile
from pathlib import Path

import cftime
import h5py
import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import given
from hypothesis import strategies as st

from headrace.storage.errors import SourceError, StoreError
from headrace.storage.hdf5 import dimension_names, open_raw, survey
from headrace.storage.readers import load, open_dataset

iris = pytest.importorskip("iris_sample_data")
FILES = sorted(Path(iris.path).rglob("*.nc"))
NETCDF4 = [path for path in FILES if path.open("rb").read(4) == b"\x89HDF"]


def by_name(path):
    return path.name


@pytest.fixture
def field():
    return xr.Dataset(
        {"w": (("time", "x"), np.arange(12.0).reshape(3, 4), {"units": "m"})},
        {"time": ("time", np.arange(3.0), {"units": "s"}), "x": np.arange(4.0)},
        {"title": "a"},
    )


def lazy(variable):
    return not isinstance(variable.variable._data, np.ndarray)


@pytest.mark.parametrize("path", FILES, ids=by_name)
def test_real_files_open_as_xarray_opens_them_and_lazily(path):
    engine = "h5netcdf" if path in NETCDF4 else "scipy"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = open_dataset(path)
    assert all(lazy(variable) for variable in found.data_vars.values())
    with xr.open_dataset(path, engine=engine, decode_timedelta=False) as wanted:
        xr.testing.assert_identical(found.load(), wanted.load())


@pytest.mark.parametrize("path", NETCDF4, ids=by_name)
def test_our_reading_of_hdf5_agrees_with_the_netcdf_library(path):
    raw = open_raw(path, "", survey(path, ""))
    found = xr.decode_cf(raw, decode_timedelta=False)
    with xr.open_dataset(path, engine="h5netcdf", decode_timedelta=False) as wanted:
        xr.testing.assert_equal(found.load(), wanted.load())
        for name, variable in wanted.variables.items():
            assert {k: np.asarray(v).tolist() for k, v in found[name].attrs.items()} == {
                k: np.asarray(v).tolist() for k, v in variable.attrs.items()
            }


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("gathered", [True, False])
@pytest.mark.parametrize("packed", ["folder", "zip", "zip of folder"])
def test_zarr_of_either_version_opens(tmp_path, field, version, gathered, packed):
    path = tmp_path / "w.zarr"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        field.to_zarr(path, zarr_format=version, consolidated=gathered)
    if packed != "folder":
        root = tmp_path if packed == "zip of folder" else path
        with zipfile.ZipFile(tmp_path / "w.zip", "w") as archive:
            for file in sorted(path.rglob("*")):
                archive.write(file, file.relative_to(root))
        path = tmp_path / "w.zip"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = open_dataset(path)
        assert lazy(found["w"])
        xr.testing.assert_identical(found.load(), field)


@pytest.mark.parametrize("ending", ["nc", "zarr", "h5", "dat"])
def test_the_ending_does_not_matter(tmp_path, field, ending):
    field.to_netcdf(tmp_path / f"w.{ending}", engine="h5netcdf")
    xr.testing.assert_identical(open_dataset(tmp_path / f"w.{ending}").load(), field)


def test_groups_are_chosen_and_listed(tmp_path, field):
    path = tmp_path / "g.nc"
    field.to_netcdf(path, group="forecast/one", engine="h5netcdf")
    xr.testing.assert_identical(open_dataset(path, "forecast/one").load(), field)
    xr.testing.assert_identical(open_dataset(path, "/forecast/one/").load(), field)
    with pytest.raises(SourceError, match=r"no group 'analysis' in .*expected one of: forecast, forecast/one"):
        open_dataset(path, "analysis")
    with pytest.raises(SourceError, match=r"no variable at its root; expected some; choose one of its groups"):
        open_dataset(path)
    store = tmp_path / "g.zarr"
    field.to_zarr(store, group="forecast/one", consolidated=False, zarr_format=3)
    xr.testing.assert_identical(open_dataset(store, "forecast/one").load(), field)
    with pytest.raises(SourceError, match=r"no group 'analysis' in .*forecast/one"):
        open_dataset(store, "analysis")
    with pytest.raises(SourceError, match="choose one of its groups: forecast, forecast/one"):
        open_dataset(store)


def test_hdf5_without_names_for_dimensions(tmp_path):
    with h5py.File(tmp_path / "sim.h5", "w") as file:
        file["w"] = np.arange(10 * 4 * 4, dtype=">f4").reshape(10, 4, 4)
        file["t"] = np.arange(10.0)
        file["mask"] = np.arange(16).reshape(4, 4) % 2 == 0
        file["w"].attrs["units"] = "m/s"
        file.attrs["code"] = np.array(["solver 3"], dtype=object)
    found = open_dataset(tmp_path / "sim.h5")
    assert found["w"].dims == ("t", "dim_0", "dim_1")
    assert found["mask"].dims == ("dim_0", "dim_1")
    assert "t" in found.coords
    assert lazy(found["w"])
    assert (found["w"].dtype, found["w"].attrs) == (np.dtype("f4"), {"units": "m/s"})
    assert found.attrs == {"code": "solver 3"}
    np.testing.assert_array_equal(found["w"][3:5, ::2, -1], np.arange(160.0).reshape(10, 4, 4)[3:5, ::2, -1])
    np.testing.assert_array_equal(found["mask"], np.arange(16).reshape(4, 4) % 2 == 0)


def test_labels_of_hdf5_dimensions_are_used(tmp_path):
    with h5py.File(tmp_path / "sim.h5", "w") as file:
        file["w"] = np.zeros((3, 3, 3))
        file["w"].dims[0].label = "time"
        file["w"].dims[2].label = "x"
    assert open_dataset(tmp_path / "sim.h5")["w"].dims == ("time", "dim_0", "x")


def test_what_is_no_array_of_numbers_or_text_is_left_out_and_said(tmp_path, caplog):
    with h5py.File(tmp_path / "odd.h5", "w") as file:
        file["w"] = np.arange(6.0).reshape(3, 2)
        file["pairs"] = np.zeros(3, [("a", "f4"), ("b", "i4")])
        file["reference"] = np.array([file["w"].ref], dtype=h5py.ref_dtype)
        file["opaque"] = np.void(b"abc")
        file["ragged"] = np.array([np.arange(2), np.arange(3)], dtype=object, ndmin=1).astype(h5py.vlen_dtype("i4"))
        file["nothing"] = h5py.Empty("f4")
        file["text"] = ["a", "bé"]
        file["bytes"] = np.array([b"ab", b"c"])
        file["kind"] = np.array([1, 0], h5py.enum_dtype({"A": 0, "B": 1}, "i1"))
        file["wave"] = np.array([1 + 2j, 3])
        file["half"] = np.array([1.5], "f2")
        file["w"].attrs["see"] = file["half"].ref
        file["w"].attrs["units"] = "K"
    found = open_dataset(tmp_path / "odd.h5")
    assert set(found.variables) == {"w", "text", "bytes", "kind", "wave", "half"}
    assert found["w"].attrs == {"units": "K"}
    assert found["text"].values.tolist() == ["a", "bé"]
    assert found["kind"].values.tolist() == [1, 0]
    assert found["wave"].values.tolist() == [1 + 2j, 3]
    for name, reason in {
        "pairs": "compound",
        "reference": "references",
        "opaque": "opaque",
        "ragged": "varying",
        "nothing": "no values",
    }.items():
        [line] = [text for text in caplog.messages if f"dataset {name} of" in text]
        assert "is left out" in line
        assert reason in line


def test_one_odd_dataset_does_not_hide_a_netcdf_file(tmp_path, field):
    field.to_netcdf(tmp_path / "w.nc", engine="h5netcdf")
    with h5py.File(tmp_path / "w.nc", "a") as file:
        file["pairs"] = np.zeros(3, [("a", "f4"), ("b", "i4")])
        file["pairs"].dims[0].attach_scale(file["time"])
        file["loose"] = np.zeros((3, 7))
    found = open_dataset(tmp_path / "w.nc")
    xr.testing.assert_equal(found[["w"]].load(), field)
    assert found["loose"].sizes == {"dim_0": 3, "dim_1": 7}


@pytest.mark.parametrize("version", [2, 3])
def test_zarr_without_names_for_dimensions(tmp_path, version):
    group = zarr.open_group(tmp_path / "s.zarr", mode="w", zarr_format=version)
    group.create_array("w", data=np.arange(60, dtype=">i2").reshape(5, 4, 3))
    group.create_array("time", data=np.arange(5.0))
    group.attrs["code"] = "solver"
    found = open_dataset(tmp_path / "s.zarr")
    assert found["w"].dims == ("time", "dim_0", "dim_1")
    assert lazy(found["w"])
    np.testing.assert_array_equal(found["w"][1:, 2], np.arange(60).reshape(5, 4, 3)[1:, 2])
    assert found.attrs == {"code": "solver"}
    alone = open_dataset(tmp_path / "s.zarr" / "w")
    assert alone["w"].dims == ("dim_0", "dim_1", "dim_2")
    np.testing.assert_array_equal(alone["w"], np.arange(60).reshape(5, 4, 3))


@given(st.dictionaries(st.sampled_from("abtxy"), st.lists(st.integers(0, 3), max_size=4).map(tuple), max_size=5))
def test_names_of_dimensions_fit_together(shapes):
    names = dimension_names(shapes, {})
    sizes = {}
    for array, shape in shapes.items():
        assert len(names[array]) == len(shape) == len(set(names[array]))
        for name, size in zip(names[array], shape, strict=True):
            assert sizes.setdefault(name, size) == size
    xr.Dataset({array: (names[array], np.zeros(shape)) for array, shape in shapes.items()})


def test_packed_masked_and_foreign_numbers_are_decoded(tmp_path):
    values = np.array([[1.0, np.nan, 3.5], [-2.0, 0.5, np.nan]])
    ds = xr.Dataset(
        {"p": (("time", "x"), values), "m": (("time", "x"), np.array([[1, 2, 3], [4, -9, 6]]))}, {"time": [0, 1]}
    )
    packing = {"dtype": ">i2", "scale_factor": 0.5, "add_offset": 10.0, "_FillValue": -32768}
    ds["m"].attrs["missing_value"] = -9
    for path, engine in ((tmp_path / "a.nc", "h5netcdf"), (tmp_path / "b.nc", "scipy")):
        ds.to_netcdf(path, engine=engine, encoding={"p": packing, "m": {"dtype": "i4"}})
        found = open_dataset(path)
        np.testing.assert_array_equal(found["p"], values)
        np.testing.assert_array_equal(found["m"], [[1, 2, 3], [4, np.nan, 6]])
        assert found["p"].values.dtype.isnative


def test_calendars_missing_and_undecodable_times(tmp_path, caplog):
    ds = xr.Dataset(
        {
            "a": ("n", np.array([0.0, 30, 60]), {"units": "days since 2000-02-01", "calendar": "360_day"}),
            "b": ("n", np.array([0, -1, 2], "i4"), {"units": "hours since 2000-01-01", "_FillValue": np.int32(-1)}),
            "c": ("n", np.array([0.0, 1, 2]), {"units": "days since the beginning"}),
            "d": ("n", np.array([0.0, 1, 2]), {"units": "days since 0001-01-01", "calendar": "proleptic_gregorian"}),
            "e": ("n", np.array([4, 5, 6]), {"units": "hours"}),
        }
    )
    ds.to_netcdf(tmp_path / "t.nc", engine="h5netcdf")
    found = open_dataset(tmp_path / "t.nc").load()
    assert found["a"].values[2] == cftime.Datetime360Day(2000, 4, 1)
    assert found["b"].values.tolist() == np.array(["2000-01-01T00", "NaT", "2000-01-01T02"], "M8[ns]").tolist()
    assert found["c"].values.tolist() == [0, 1, 2]
    assert found["c"].attrs["units"] == "days since the beginning"
    assert "times of c in" in caplog.text
    assert found["d"].values[1].year == 1
    assert (found["e"].dtype, found["e"].attrs["units"]) == (np.dtype("i8"), "hours")


def test_unlimited_and_empty_dimensions(tmp_path):
    ds = xr.Dataset({"w": (("time", "x"), np.zeros((0, 3)))}, {"time": np.zeros(0)})
    ds.to_netcdf(tmp_path / "w.nc", engine="h5netcdf", unlimited_dims=["time"])
    assert open_dataset(tmp_path / "w.nc")["w"].shape == (0, 3)


def test_text_comes_back_from_every_format(tmp_path):
    ds = xr.Dataset(coords={"station": ("n", np.array(["Zürich", "B"], dtype=object)), "one": "x"})
    ds.to_netcdf(tmp_path / "a.nc", engine="h5netcdf")
    ds.to_netcdf(tmp_path / "b.nc", engine="scipy")
    ds.to_zarr(tmp_path / "c.zarr", zarr_format=3, consolidated=False)
    ds.to_zarr(tmp_path / "d.zarr", zarr_format=2, consolidated=False)
    for path in tmp_path.iterdir():
        found = open_dataset(path).load()
        assert found["station"].values.tolist() == ["Zürich", "B"], path
        assert str(found["one"].values) == "x"


@pytest.mark.parametrize("make", ["nc", "h5", "zarr", "zip"])
def test_a_lazy_dataset_travels_to_another_process(tmp_path, field, make):
    if make == "nc":
        field.to_netcdf(tmp_path / "w", engine="h5netcdf")
    elif make == "h5":
        with h5py.File(tmp_path / "w", "w") as file:
            file["w"] = field["w"].values
    else:
        field.to_zarr(tmp_path / "w", zarr_format=3, consolidated=False)
    path = tmp_path / "w"
    if make == "zip":
        path = Path(shutil.make_archive(str(tmp_path / "z"), "zip", tmp_path / "w"))
    again = pickle.loads(pickle.dumps(open_dataset(path)))
    assert lazy(again["w"])
    np.testing.assert_array_equal(again["w"], field["w"])


def test_a_missing_path_names_what_is_near(tmp_path):
    (tmp_path / "ocean_2001.nc").touch()
    with pytest.raises(SourceError, match=r"no input at .*ocean_2002\.nc \(there is ocean_2001\.nc\); expected Zarr"):
        open_dataset(tmp_path / "ocean_2002.nc")
    with pytest.raises(SourceError, match=r"nor is there a folder"):
        open_dataset(tmp_path / "a" / "b.nc")


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "empty"),
        (b"hello, world", r"unknown \(b'hello, w'\)"),
        (b"GRIB\x00\x00\x01\x02", "GRIB"),
        (b"CDF\x05\x00\x00", "NetCDF-3 with 64-bit data"),
        (gzip.compress(b"CDF\x01"), "gzip"),
    ],
)
def test_other_formats_are_named(tmp_path, content, found):
    (tmp_path / "x.nc").write_bytes(content)
    with pytest.raises(StoreError, match=rf"cannot read .*x\.nc: its content is {found}.*; expected Zarr .*convert"):
        open_dataset(tmp_path / "x.nc")


def test_folders_without_zarr_are_named(tmp_path, field):
    with pytest.raises(StoreError, match=r"is a folder without Zarr metadata.*name a file"):
        open_dataset(tmp_path)
    field.to_zarr(tmp_path / "data.zarr", zarr_format=3, consolidated=False)
    with pytest.raises(StoreError, match=r"did you mean .*data\.zarr\?"):
        open_dataset(tmp_path)
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("readme.txt", "x")
    with pytest.raises(StoreError, match="a zip file without Zarr metadata"):
        open_dataset(tmp_path / "x.zip")


@pytest.mark.parametrize("name", ["ostia_monthly.nc", "space_weather.nc", "vlstr_type.nc"])
@pytest.mark.parametrize("share", [0.0001, 0.01, 0.5, 0.999])
def test_a_truncated_file_is_an_error_and_no_crash(tmp_path, name, share):
    whole = (Path(iris.path) / name).read_bytes()
    (tmp_path / name).write_bytes(whole[: max(9, int(len(whole) * share))])
    with pytest.raises(StoreError, match=rf"cannot read .*{name}: .*expected.*restore it from a copy"):
        open_dataset(tmp_path / name)


def test_damaged_zarr_metadata_are_an_error(tmp_path, field):
    field.to_zarr(tmp_path / "w.zarr", zarr_format=3, consolidated=False)
    for content in ("{", '{"zarr_format": 3, "node_type": "array"}', '{"zarr_format": 9, "node_type": "group"}'):
        (tmp_path / "w.zarr" / "w" / "zarr.json").write_text(content)
        with pytest.raises(StoreError, match=r"cannot read .*w\.zarr: "):
            open_dataset(tmp_path / "w.zarr")


def test_damaged_chunks_are_an_error_when_they_are_read(tmp_path, field):
    field.to_zarr(tmp_path / "w.zarr", zarr_format=3, consolidated=False)
    chunk = tmp_path / "w.zarr" / "w" / "c" / "0" / "0"
    chunk.write_bytes(chunk.read_bytes()[:10])
    found = open_dataset(tmp_path / "w.zarr")
    with pytest.raises(StoreError, match=r"variable 'w' of .*w\.zarr cannot be read: .*restore"):
        load(found["w"])
    np.testing.assert_array_equal(load(found["x"]), field["x"])
