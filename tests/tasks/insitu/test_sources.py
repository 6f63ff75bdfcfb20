"""Sources: frames in order, whatever the chunks of the file, and from any point on."""

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from headrace.storage.errors import ParameterError, SourceError
from headrace.tasks.insitu import sources
from headrace.tasks.insitu.sources import FileSource, SimulationSource, open_source


@pytest.fixture
def values() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((23, 6, 5)).astype("f4")


@pytest.mark.parametrize("chunk", [1, 4, 7, 23])
@pytest.mark.parametrize("window", [1, 3 * 6 * 5 * 4, 2**26])
def test_frames_do_not_depend_on_chunks_or_windows(
    tmp_path: Path, values: np.ndarray, chunk: int, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "WINDOW_BYTES", window)
    made = xr.Dataset({"u": (("time", "y", "x"), values)}, coords={"time": np.arange(23.0)})
    made.to_netcdf(tmp_path / "in.nc", engine="h5netcdf", encoding={"u": {"chunksizes": (chunk, 6, 5)}})
    source = FileSource(tmp_path / "in.nc", frames=20)
    for first in (0, 5, 19):
        found = list(source.snapshots({"next": np.asarray(first)}))
        assert [snapshot.index for snapshot in found] == list(range(first, 20))
        np.testing.assert_array_equal(np.stack([snapshot.fields["u"] for snapshot in found]), values[first:20])
        assert all(snapshot.fields["u"].base is None for snapshot in found), "a frame kept must not hold its window"


def test_time_need_not_come_first(tmp_path: Path, values: np.ndarray) -> None:
    made = xr.Dataset({"u": (("y", "time", "x"), values.transpose(1, 0, 2))}, coords={"time": np.arange(23.0)})
    made.to_netcdf(tmp_path / "in.nc", engine="h5netcdf")
    found = [snapshot.fields["u"] for snapshot in FileSource(tmp_path / "in.nc").snapshots()]
    np.testing.assert_array_equal(np.stack(found), values)


def test_variables_left_out_are_named(tmp_path: Path, values: np.ndarray) -> None:
    made = xr.Dataset({"u": (("time", "y", "x"), values), "depth": (("y", "x"), values[0])})
    made.assign_coords(time=np.arange(23.0)).to_netcdf(tmp_path / "in.nc", engine="h5netcdf")
    assert FileSource(tmp_path / "in.nc").left_out == ("depth",)


def test_simulations_stop_after_their_frames_and_go_on_from_a_state() -> None:
    whole = [s.fields["u"] for s in SimulationSource("kdv", frames=6, grid=128).snapshots()]
    source = SimulationSource("kdv", frames=6, grid=128)
    stream = source.snapshots()
    for _ in range(3):
        next(stream)
    rest = [s.fields["u"] for s in SimulationSource("kdv", frames=6, grid=128).snapshots(source.state())]
    np.testing.assert_array_equal(np.stack(rest), np.stack(whole[3:]))


def test_what_is_neither_simulation_nor_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="nowhere"):
        open_source(str(tmp_path / "nowhere.nc"))
    with pytest.raises(ParameterError, match="variable 'w' is not in kdv; expected u"):
        open_source("kdv", variables=["w"])
