"""Ordinary files: whole or not at all, in bounded memory, equal to what was given."""

import subprocess
import sys
import warnings
from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray as xr
from xarray.backends import BackendArray
from xarray.core import indexing

from headrace.storage.errors import ParameterError, RunExistsError, StoreError
from headrace.storage.readers import open_dataset, select
from headrace.storage.writers import BLOCK_BYTES, blocked, write_dataset

iris = pytest.importorskip("iris_sample_data")
FILES = sorted(Path(iris.path).rglob("*.nc"))
ENDINGS = ("nc", "h5", "zarr")


@pytest.fixture
def field():
    return xr.Dataset(
        {"w": (("time", "x"), np.random.default_rng(0).random((40, 500)), {"units": "m"})},
        {"time": np.arange(40.0), "x": np.arange(500)},
        {"title": "a"},
    )


def plain_attrs(attrs):
    return {key: np.asarray(value).tolist() for key, value in attrs.items()}


def assert_same(found, wanted):
    """Equal values, dtypes (text aside), attributes and coordinates."""
    assert list(found.coords) == list(wanted.coords) or set(found.coords) == set(wanted.coords)
    assert plain_attrs(found.attrs) == plain_attrs(wanted.attrs)
    for name, variable in wanted.variables.items():
        assert found[name].dims == variable.dims
        assert plain_attrs(found[name].attrs) == plain_attrs(variable.attrs), name
        if variable.dtype.kind in "UST":
            text = variable.values.astype(object).astype(str)
            np.testing.assert_array_equal(found[name].values.astype(object).astype(str), text)
        else:
            assert found[name].dtype == variable.dtype, name
            np.testing.assert_array_equal(found[name].values, variable.values)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_real_file_comes_back_from_every_format(tmp_path, path, ending):
    source = open_dataset(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write_dataset(source, tmp_path / f"out.{ending}")
        found = open_dataset(tmp_path / f"out.{ending}").load()
    assert_same(found, source.load())
    assert [item.name for item in tmp_path.iterdir()] == [f"out.{ending}"]


@pytest.mark.parametrize("ending", ENDINGS)
def test_other_programs_read_what_was_written(tmp_path, field, ending):
    path = tmp_path / f"w.{ending}"
    write_dataset(field, path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened = xr.open_zarr(path) if ending == "zarr" else xr.open_dataset(path, engine="h5netcdf")
        with opened:
            xr.testing.assert_identical(opened.load(), field)
    if ending != "zarr":
        with h5py.File(path) as file:
            assert file["w"].compression == "gzip"
            assert [dim[0].name for dim in file["w"].dims] == ["/time", "/x"]


@pytest.mark.parametrize("ending", ENDINGS)
def test_unusual_values_are_kept_or_changed_as_documented(tmp_path, ending):
    ds = xr.Dataset(
        {
            "wave": ("n", np.array([1 + 2j, np.nan, 3])),
            "half": ("n", np.array([0.5, 2, -1], "f2")),
            "flag": ("n", [True, False, True]),
            "large": ("n", np.array([2**63, 1, 0], "u8")),
            "big": ("n", np.array([1.5, 2, np.inf], ">f4")),
            "empty": (("n", "none"), np.zeros((3, 0))),
            "when": ("n", np.array(["2000-01-01", "NaT", "2000-01-01T00:00:00.000000001"], "M8[ns]")),
            "text": ("n", np.array(["a", "é", ""], dtype=object)),
        },
        attrs={
            "nested": {"a": [1, None]},
            "yes": True,
            "list": ["a", "b"],
            "numbers": [1, 2],
            "mixed": [1, "a"],
            "none": [],
        },
    )
    write_dataset(ds, tmp_path / f"w.{ending}")
    found = open_dataset(tmp_path / f"w.{ending}").load()
    for name, variable in ds.variables.items():
        np.testing.assert_array_equal(found[name].values, variable.values, err_msg=name)
    assert found["half"].dtype == (np.float32 if ending == "nc" else np.float16)
    assert found["wave"].dtype == np.complex128
    assert found["flag"].dtype == bool
    if ending == "zarr":
        assert found.attrs == ds.attrs
    else:
        assert found.attrs["nested"] == '{"a": [1, null]}'
        assert found.attrs["yes"] == 1
        assert list(found.attrs["list"]) == ["a", "b"]
        assert found.attrs["mixed"] == '[1, "a"]'


@pytest.mark.parametrize("ending", ENDINGS)
def test_packing_of_the_source_is_not_repeated(tmp_path, ending):
    ds = xr.Dataset({"p": ("n", [0.5, np.nan, 2.0])})
    ds.to_netcdf(
        tmp_path / "packed.nc",
        engine="h5netcdf",
        encoding={"p": {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -1}},
    )
    source = open_dataset(tmp_path / "packed.nc")
    exact = source.assign(p=source["p"] + 0.1)
    exact["p"].encoding = dict(source["p"].encoding)
    write_dataset(exact, tmp_path / f"out.{ending}")
    np.testing.assert_array_equal(open_dataset(tmp_path / f"out.{ending}")["p"], exact["p"])


class Recorder(BackendArray):
    """A large array that is never whole in memory, and remembers the largest part asked for."""

    def __init__(self, shape):
        self.shape, self.dtype, self.largest = shape, np.dtype("f4"), 0

    def __getitem__(self, key):
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.BASIC, self.read)

    def read(self, key):
        rows = np.arange(self.shape[0])[key[0]]
        values = np.broadcast_to(np.asarray(rows, "f4").reshape(-1, 1, 1), (np.size(rows), *self.shape[1:]))[
            (slice(None), *key[1:])
        ]
        self.largest = max(self.largest, values.size * 4)
        return values.reshape(-1) if np.ndim(rows) == 0 else values


@pytest.mark.parametrize("ending", ENDINGS)
def test_memory_does_not_grow_with_the_dataset(tmp_path, ending):
    array = Recorder((600, 256, 512))
    ds = xr.Dataset({"w": (("time", "y", "x"), indexing.LazilyIndexedArray(array))})
    write_dataset(ds, tmp_path / f"w.{ending}")
    assert BLOCK_BYTES / 4 < array.largest <= BLOCK_BYTES
    found = open_dataset(tmp_path / f"w.{ending}")["w"]
    np.testing.assert_array_equal(found[:, 7, 9], np.arange(600))


def test_stored_chunks_are_not_decoded_twice_when_a_part_is_cut(tmp_path):
    whole = xr.Dataset({"w": (("time", "x"), np.random.default_rng(0).random((40, 2**17)))})
    whole.to_zarr(tmp_path / "s.zarr", encoding={"w": {"chunks": (4, 2**17)}}, zarr_format=3, consolidated=False)
    part = blocked(open_dataset(tmp_path / "s.zarr")).isel(time=slice(5, 38))
    assert part["w"].chunks == ((11, 16, 6), (2**17,))
    write_dataset(part, tmp_path / "p.zarr")
    assert open_dataset(tmp_path / "p.zarr")["w"].encoding["chunks"] == (4, 2**17)
    xr.testing.assert_identical(open_dataset(tmp_path / "p.zarr").load(), whole.isel(time=slice(5, 38)))


def test_a_frame_larger_than_a_block_is_split():
    array = indexing.LazilyIndexedArray(Recorder((2, 4096, 4096)))
    [time, y, x] = blocked(xr.Dataset({"w": (("time", "y", "x"), array)}))["w"].chunks
    assert (time, x) == ((1, 1), (4096,))
    assert max(y) * 4096 * 4 <= BLOCK_BYTES


def test_tiny_stored_chunks_are_gathered_into_blocks_and_larger_chunks(tmp_path):
    ds = xr.Dataset({"w": (("time", "x"), np.arange(4e5, dtype="f4").reshape(400, 1000))})
    ds.to_netcdf(tmp_path / "s.nc", engine="h5netcdf", encoding={"w": {"chunksizes": (1, 100)}})
    assert blocked(open_dataset(tmp_path / "s.nc"))["w"].chunks == ((400,), (1000,))
    write_dataset(open_dataset(tmp_path / "s.nc"), tmp_path / "w.zarr")
    assert open_dataset(tmp_path / "w.zarr")["w"].encoding["chunks"] == (400, 1000)
    xr.testing.assert_equal(open_dataset(tmp_path / "w.zarr").load(), ds)


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_taken_place_is_refused_unless_it_may_be_replaced(tmp_path, field, ending):
    path = tmp_path / f"w.{ending}"
    write_dataset(field * 2, path)
    with pytest.raises(RunExistsError, match="exists; expected a free place"):
        write_dataset(field, path)
    np.testing.assert_array_equal(open_dataset(path)["w"], field["w"] * 2)
    write_dataset(field, path, overwrite=True)
    np.testing.assert_array_equal(open_dataset(path)["w"], field["w"])
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_folder_that_is_no_store_is_never_replaced(tmp_path, field, ending):
    (tmp_path / f"w.{ending}").mkdir()
    (tmp_path / f"w.{ending}" / "thesis.tex").touch()
    with pytest.raises(RunExistsError, match="is a folder and no Zarr store"):
        write_dataset(field, tmp_path / f"w.{ending}", overwrite=True)
    assert (tmp_path / f"w.{ending}" / "thesis.tex").exists()


@pytest.mark.parametrize("name", ["w", "w.csv", "w.nc.gz"])
def test_an_unknown_ending_is_refused(tmp_path, field, name):
    with pytest.raises(ParameterError, match=r"expected \.nc, \.h5, \.hdf5 or \.zarr"):
        write_dataset(field, tmp_path / name)


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_place_that_cannot_be_written_is_named(tmp_path, field, ending):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"cannot write .*file/w\."):
        write_dataset(field, tmp_path / "file" / f"w.{ending}")


@pytest.mark.parametrize("ending", ENDINGS)
def test_damage_in_the_source_leaves_no_target(tmp_path, field, ending):
    field.to_zarr(tmp_path / "s.zarr", encoding={"w": {"chunks": (10, 500)}}, zarr_format=3, consolidated=False)
    chunk = tmp_path / "s.zarr" / "w" / "c" / "2" / "0"
    chunk.write_bytes(chunk.read_bytes()[:100])
    with pytest.raises(StoreError, match=r"'w'.*restore"):
        write_dataset(open_dataset(tmp_path / "s.zarr"), tmp_path / f"out.{ending}")
    assert [item.name for item in tmp_path.iterdir()] == ["s.zarr"]


def test_a_full_disk_is_an_error_and_no_crash(tmp_path):
    """In a process of its own, several times: HDF5 used to end it with a segmentation fault."""
    code = """if True:
        import resource, sys
        from pathlib import Path
        import numpy as np, xarray as xr
        from headrace.storage.errors import StoreError
        from headrace.storage.writers import write_dataset
        ds = xr.Dataset({"w": (("t", "x"), np.random.default_rng(0).random((64, 4096)))}).chunk(t=8)
        folder = Path(sys.argv[1])
        for limit in (0, 100, 5_000, 300_000, 1_000_000):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            for ending in ("nc", "h5"):
                try:
                    write_dataset(ds, folder / f"w.{ending}")
                    sys.exit("written")
                except StoreError as error:
                    assert "File too large" in str(error), error
            assert not list(folder.iterdir())
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        write_dataset(ds, folder / "w.nc")
        xr.testing.assert_equal(xr.open_dataset(folder / "w.nc", engine="h5netcdf").load(), ds.load())
    """
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "rror" not in done.stderr, done.stderr


def test_a_selection_of_a_file_without_a_time_dimension_is_written(tmp_path):
    source = select(open_dataset(Path(iris.path) / "orca2_votemper.nc")).dataset
    write_dataset(source, tmp_path / "out.nc")
    xr.testing.assert_equal(open_dataset(tmp_path / "out.nc").load(), source.load())
