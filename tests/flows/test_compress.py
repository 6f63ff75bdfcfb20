"""The compress flow: every kind of field keeps its bound, bad input leaves nothing behind, kills do no harm."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from headrace.flows import _flight
from headrace.flows._base import Done, Report, inline
from headrace.flows.benchmarks._guarantee import beyond
from headrace.flows.compress import Params, parse_bound, plan, run
from headrace.storage.arrays import store_digest
from headrace.storage.errors import HeadraceError, ParameterError, SourceError, StoreError, UnitError
from headrace.tasks.insitu.encode import encode_unit


def dataset(values: np.ndarray, **coords: Any) -> xr.Dataset:
    dims = ("time", "y", "x")[: values.ndim]
    times = coords.pop("time", np.arange(len(values), dtype="f8"))
    return xr.Dataset({"u": (dims, values, {"units": "m s-1"})}, coords={"time": times, **coords})


def waves(frames: int = 10, shape: tuple[int, ...] = (12, 14), dtype: str = "f4") -> np.ndarray:
    noise = np.random.default_rng(5).standard_normal((frames, *shape))
    return np.cumsum(noise, axis=-1).astype(dtype)


def compress(source: Path | str, out: Path, **options: Any) -> Report:
    return run(Params(source=str(source), out=out, **options))


def stored(report: Report) -> xr.Dataset:
    return xr.open_zarr(report.path / "data.zarr", chunks=None)


@pytest.mark.parametrize("ending", ["nc", "zarr"])
def test_file_round_trip_keeps_bound_names_and_units(tmp_path: Path, ending: str) -> None:
    source = tmp_path / f"in.{ending}"
    made = dataset(waves(), x=("x", np.linspace(0, 1, 14), {"units": "m"}), station=("y", [f"s{k}" for k in range(12)]))
    made.to_netcdf(source, engine="h5netcdf") if ending == "nc" else made.to_zarr(source)
    report = compress(source, tmp_path / "out", bound=1e-3)
    found = stored(report)
    assert beyond(made.u.values[0], found.u.values[0], 1e-3) == 0
    assert sum(beyond(a, b, 1e-3) for a, b in zip(made.u.values, found.u.values, strict=True)) == 0
    assert found.u.attrs["units"] == "m s-1"
    np.testing.assert_array_equal(found.x, made.x)
    assert list(found.station.values) == list(made.station.values)
    np.testing.assert_array_equal(found.offered_kept, True)
    np.testing.assert_allclose(found.metric_rms, np.sqrt(np.mean(made.u.values.astype("f8") ** 2, axis=(1, 2))))
    assert report.metrics["violations"] == 0
    assert report.metrics["kept"] == report.metrics["offered"] == 10


@pytest.mark.parametrize(
    "values",
    [
        np.full((6, 9, 8), np.nan, "f4"),
        np.full((6, 9, 8), 2.5, "f8"),
        np.arange(6 * 9 * 8, dtype="i4").reshape(6, 9, 8),
        (waves(6, (9, 8)) + 1j * waves(6, (9, 8))[::-1]).astype("c8"),
        waves(6, (9, 8), ">f8"),
        waves(6, ()),
        np.where(waves(6, (9, 8)) > 1, np.nan, waves(6, (9, 8))),
        np.where(waves(6, (9, 8)) > 2, -np.inf, waves(6, (9, 8))),
    ],
    ids=["all-NaN", "constant", "integer", "complex", "big-endian", "series", "land mask", "infinite"],
)
def test_odd_fields_are_stored_within_the_bound(tmp_path: Path, values: np.ndarray) -> None:
    source = tmp_path / "in.zarr"
    dataset(values).to_zarr(source, zarr_format=2)
    found = stored(compress(source, tmp_path / "out", bound=1e-2, bound_mode="abs")).u.values
    assert found.shape == values.shape
    if values.dtype.kind == "i":
        np.testing.assert_array_equal(found, values)
        return
    finite = np.isfinite(values)
    assert np.abs(found[finite] - values[finite]).max(initial=0) <= 1e-2
    np.testing.assert_array_equal(np.isnan(found), np.isnan(values))
    np.testing.assert_array_equal(found[np.isinf(values)], values[np.isinf(values)])


def test_blocks_share_the_bound_of_the_whole_frame(tmp_path: Path) -> None:
    source = tmp_path / "in.nc"
    values = waves(5, (30, 40))
    values[:, :10, :10] *= 1e-4
    dataset(values).to_netcdf(source, engine="h5netcdf")
    report = compress(source, tmp_path / "out", bound=1e-2, bound_mode="l2", block=16, group_size=3)
    found = stored(report).u.values.astype("f8")
    for before, after in zip(values, found, strict=True):
        assert np.linalg.norm(after - before) <= 1e-2 * np.linalg.norm(before)
    assert len(list((report.path / "done").iterdir())) == 2 * 2 * 3


def test_fields_can_have_bounds_of_their_own(tmp_path: Path) -> None:
    source = tmp_path / "in.nc"
    made = dataset(waves()).assign(v=dataset(waves() * 100).u)
    made.to_netcdf(source, engine="h5netcdf")
    found = stored(compress(source, tmp_path / "out", bound=1e-3, field_bounds=("v=abs:5",)))
    assert 0.01 < float(abs(found.v - made.v).max()) <= 5
    assert float(abs(found.u - made.u).max()) < 0.1
    assert (found.v.attrs["headrace_bound_mode"], found.v.attrs["headrace_bound"]) == ("abs", 5.0)
    with pytest.raises(ParameterError, match="field_bounds names 'w'; expected one of u, v"):
        compress(source, tmp_path / "out", field_bounds=("w=abs:5",))


def test_gate_drops_what_a_line_replaces(tmp_path: Path) -> None:
    report = compress("kolmogorov-decaying", tmp_path, grid=32, frames=80, gate_tolerance=0.01)
    found = stored(report)
    curve, kept = found.metric_enstrophy.values, found.offered_kept.values
    line = np.interp(found.offered_time, found.offered_time[kept], curve[kept])
    assert np.abs(line / curve - 1).max() <= 0.01
    assert report.metrics["kept"] == kept.sum() == found.sizes["time"] < 40
    np.testing.assert_array_equal(found.time, found.offered_time[kept])


def test_finished_run_returns_its_report_and_recomputes_nothing(tmp_path: Path) -> None:
    params = Params.smoke().model_copy(update={"out": tmp_path})
    first = run(params)
    times = {path: path.stat().st_mtime_ns for path in first.path.rglob("*")}
    second = run(params)
    assert second.metrics == first.metrics
    assert [t.title for t in second.tables] == [t.title for t in first.tables]
    assert {path: path.stat().st_mtime_ns for path in first.path.rglob("*")} == times


def test_report_files_say_the_same_as_the_report(tmp_path: Path) -> None:
    report = run(Params.smoke().model_copy(update={"out": tmp_path}))
    content = json.loads((report.path / "report.json").read_text())
    assert content["metrics"] == report.metrics
    page = (report.path / "report.html").read_text()
    assert 'src="http' not in page
    assert page.count("data:image/png;base64") == len(report.figures) >= 3
    rows = (report.path / "metrics.csv").read_text().splitlines()
    assert rows[0] == "offered_time,offered_kept,metric_enstrophy"
    assert len(rows) == 1 + report.metrics["offered"]
    assert not (report.path / "spool").exists()


@pytest.mark.parametrize("at", [1, 4, 9])
def test_run_killed_between_units_resumes_to_the_same_bytes(
    tmp_path: Path, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_flight, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(_flight, "PUBLISH_SECONDS", 0.0)
    params = Params(grid=32, frames=100, gate="all", group_size=8, out=tmp_path / "a")
    reference = store_digest(run(params).path / "data.zarr")
    calls: list[str] = []

    class Killed(BaseException):
        pass

    def stop_at(fn: Any, job: Any) -> Done[Any]:
        if len(calls) == at:
            raise Killed
        calls.append(job.unit)
        return inline(fn, job)

    def count(fn: Any, job: Any) -> Done[Any]:
        calls.append(job.unit)
        return inline(fn, job)

    again = params.model_copy(update={"out": tmp_path / "b"})
    with pytest.raises(Killed):
        run(again, stop_at)
    (folder,) = (tmp_path / "b" / "compress").iterdir()
    readable = xr.open_zarr(folder / "data.zarr", consolidated=False)
    assert readable.sizes["time"] % 8 == 0
    readable.vorticity.load()
    report = run(again, count)
    assert store_digest(report.path / "data.zarr") == reference
    assert len(calls) == len(set(calls)) == 13


def test_sigkill_of_the_process_group(tmp_path: Path) -> None:
    from headrace.flows.benchmarks._process import killed

    figures = list(killed("small"))
    assert [figure["name"] for figure in figures if not figure["ok"]] == []


def test_failed_units_are_named_and_the_rest_is_kept(tmp_path: Path) -> None:
    params = Params(grid=32, frames=60, gate="all", group_size=8, out=tmp_path)

    def fail(fn: Any, job: Any) -> Done[Any]:
        return Done(error=MemoryError("no room")) if job.group == 3 else inline(fn, job)

    with pytest.raises(UnitError, match=r"1 of 8 units of work failed \(vorticity.3.0.0\).*no room"):
        run(params, fail)
    report = run(params)
    assert report.metrics["violations"] == 0


def test_units_in_flight_are_bounded(tmp_path: Path) -> None:
    waiting: list[int] = []
    most = 0

    class Later:
        def __init__(self, fn: Any, job: Any) -> None:
            nonlocal most
            self.call = (fn, job)
            waiting.append(job.group)
            most = max(most, len(waiting))

        def result(self) -> Any:
            waiting.remove(self.call[1].group)
            return self.call[0](self.call[1])

        def done(self) -> bool:
            return False

    run(Params(grid=32, frames=100, gate="all", group_size=4, out=tmp_path), Later)  # type: ignore[arg-type]
    assert most == _flight.IN_FLIGHT + 1


def bad_sources(folder: Path) -> dict[str, tuple[dict[str, Any], type[HeadraceError], str]]:
    """Parameters that must be refused: (params, error, part of its message)."""
    dataset(waves()).to_netcdf(folder / "good.nc", engine="h5netcdf")
    dataset(waves()).drop_vars("time").rename(time="a", y="b", x="c").to_netcdf(folder / "notime.nc", engine="h5netcdf")
    dataset(waves(3), time=[0.0, 2.0, 1.0]).to_netcdf(folder / "rewound.nc", engine="h5netcdf")
    dataset(np.full((4, 3, 3), np.nan, "f4")).to_netcdf(folder / "nan.nc", engine="h5netcdf")
    (folder / "text.nc").write_text("no NetCDF")
    good = str(folder / "good.nc")
    return {
        "missing path": ({"source": str(folder / "none.nc")}, SourceError, "none.nc"),
        "unknown simulation": ({"source": "kolmogorov"}, SourceError, "kolmogorov"),
        "unknown variable": ({"source": good, "variables": ("w",)}, SourceError, "no variable 'w'; expected one of"),
        "no time axis": ({"source": str(folder / "notime.nc")}, SourceError, "no time axis"),
        "rewound time": ({"source": str(folder / "rewound.nc")}, ParameterError, "2.0"),
        "not a data file": ({"source": str(folder / "text.nc")}, StoreError, "text.nc"),
        "grid of a file": ({"source": good, "grid": 64}, ParameterError, "grid=64 does not apply"),
        "time_dim of a simulation": ({"time_dim": "t"}, ParameterError, "time_dim='t' does not apply"),
        "gate on NaN": (
            {"source": str(folder / "nan.nc"), "gate": "swinging-door", "metrics": ("mean",)},
            ParameterError,
            "metric 'mean' is not finite at t=0",
        ),
    }


@pytest.mark.parametrize(
    "case",
    [
        "missing path", "unknown simulation", "unknown variable", "no time axis", "rewound time", "not a data file",
        "grid of a file", "time_dim of a simulation", "gate on NaN",
    ],
)  # fmt: skip
def test_bad_input_is_named_and_leaves_nothing(tmp_path: Path, case: str) -> None:
    options, error, message = bad_sources(tmp_path)[case]
    with pytest.raises(error, match=message.replace("(", r"\(")):
        run(Params(out=tmp_path / "out", **options))
    assert not list((tmp_path / "out").rglob("data.zarr"))
    assert not list((tmp_path / "out").glob("compress/*"))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("bound", 0),
        ("bound", -1e-3),
        ("bound", float("nan")),
        ("frames", 0),
        ("codecs", ("gzip",)),
        ("bound_mode", "x"),
    ],
)
def test_bad_parameters_name_the_field(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=field):
        Params(**{field: value})


@pytest.mark.parametrize("text", ["u", "u=abs", "u=abs:x", "=abs:1", "u=huge:1", "u=abs:-1"])
def test_unreadable_exceptions(text: str) -> None:
    with pytest.raises(ParameterError):
        parse_bound(text)


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("mount"), reason="needs to mount a small file system")
def test_full_disk_leaves_a_run_that_resumes(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "none", str(disk)], check=False)
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    try:
        params = Params(grid=64, frames=200, gate="all", group_size=4, bound=1e-6, out=disk / "runs")
        with pytest.raises((StoreError, UnitError), match="room"):
            run(params)
        for folder in (disk / "runs" / "compress").glob("*/data.zarr"):
            xr.open_zarr(folder, consolidated=False).load()
        subprocess.run(["mount", "-o", "remount,size=60m", str(disk)], check=True)
        assert run(params).metrics["violations"] == 0
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_plan_reads_metadata_only_and_writes_nothing(tmp_path: Path) -> None:

    params = Params(grid=64, frames=100, group_size=10, out=tmp_path / "out")
    found = plan(params)
    assert (found.units, found.bytes_in) == (10, 100 * 64 * 64 * 4)
    assert found.peak_memory > found.bytes_in / 10
    assert not (tmp_path / "out").exists()
    assert run(params).path.name == found.key


def test_units_run_in_a_bare_worker(tmp_path: Path) -> None:
    """What a worker imports has no engine in it."""
    code = "import sys, headrace.tasks.insitu.encode; print({'prefect', 'distributed', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
    assert encode_unit.__module__ == "headrace.tasks.insitu.encode"


def test_lost_and_cut_chunks_are_made_again_or_named(tmp_path: Path) -> None:
    params = Params(grid=32, frames=60, gate="all", group_size=8, out=tmp_path)

    def stop(fn: Any, job: Any) -> Done[Any]:
        if job.group == 6:
            raise KeyboardInterrupt
        return inline(fn, job)

    with pytest.raises(KeyboardInterrupt):
        run(params, stop)
    (folder,) = (tmp_path / "compress").iterdir()
    chunks = folder / "data.zarr" / "vorticity" / "c"
    (chunks / "2" / "0" / "0").unlink()
    (chunks / "4" / "0" / "0").write_bytes(b"cut")
    report = run(params)
    reference = run(params.model_copy(update={"out": tmp_path / "whole"}))
    assert store_digest(report.path / "data.zarr") == store_digest(reference.path / "data.zarr")
    assert not (report.path / "samples").exists()
    (chunks / "2" / "0" / "0").unlink()
    with pytest.raises(StoreError, match=r"1 of 8 chunks of the complete run .* are missing or damaged"):
        run(params)


def test_dimensions_that_make_no_frames_are_refused(tmp_path: Path) -> None:
    made = xr.Dataset({"u": (("time", "y", "x"), np.zeros((3, 0, 4), "f4"))}, coords={"time": [0.0, 1.0, 2.0]})
    made.to_netcdf(tmp_path / "in.nc", engine="h5netcdf")
    with pytest.raises(ParameterError, match="at least one point along each"):
        compress(tmp_path / "in.nc", tmp_path / "out")


def test_fields_too_large_to_draw_are_stored_all_the_same(tmp_path: Path) -> None:
    values = np.random.default_rng(0).uniform(-1, 1, (3, 12, 14)) * 1.7e308
    dataset(values).to_netcdf(tmp_path / "in.nc", engine="h5netcdf")
    found = stored(compress(tmp_path / "in.nc", tmp_path / "out", bound=1e300, bound_mode="abs"))
    assert np.abs(found.u.values - values).max() <= 1e300


def test_a_device_that_is_not_there_is_refused(tmp_path: Path) -> None:
    from headrace.gpu.backend import has_gpu
    from headrace.storage.errors import DeviceError

    if not has_gpu():
        with pytest.raises(DeviceError):
            run(Params.smoke().model_copy(update={"out": tmp_path, "device": "cuda"}))
