"""The numbers of a report against the same run done again, and what it says about damaged ones."""

import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from headrace.storage.codecs.bounds import Bound
from headrace.storage.codecs.plain import LOSSY
from headrace.storage.errors import SourceError, StoreError
from headrace.tasks.insitu.encode import encode_unit
from headrace.tasks.insitu.gates import KeepAll
from headrace.tasks.insitu.measure import FinishedRun, FrameError
from headrace.tasks.insitu.sources import open_source
from headrace.tasks.insitu.stream import Layout, Stream, choose_watches, make_gate
from headrace.tasks.insitu.summary import METRIC_NAMES, metric_unit, summarise
from headrace.tasks.insitu.target import complete, create_target, store_template


def compress(run, source, bounds, *, gate=None, block=None, metrics=("rms",), group_size=8):
    """What the flow does, without run folder and engine."""
    run.mkdir()
    shapes = {name: tuple(source.template[name].shape[1:]) for name in source.variables}
    layouts = {
        name: Layout(shape, tuple(min(n, block or n) for n in shape), bounds[name], k)
        for k, (name, shape) in enumerate(shapes.items())
    }
    watches = choose_watches(metrics, source.variables)
    template = store_template(source.template, layouts, watches)
    create_target(run / "data.zarr", template, layouts, group_size=group_size, codecs=LOSSY, history="test")
    stream = Stream(run, source, gate or KeepAll(), watches, layouts, group_size, LOSSY)
    for group in stream.closed_groups():
        for job in group.jobs:
            encode_unit(job)
        group.drop_spool()
    complete(run / "data.zarr", stream)
    return run


@pytest.fixture(scope="module")
def turbulence(tmp_path_factory):
    """Decaying turbulence, thinned by the gate, under each kind of bound."""
    runs = {}
    for mode, value in (("abs", 0.05), ("rel", 1e-3), ("l2", 1e-2)):
        source = open_source("kolmogorov-decaying", frames=60, grid=64, interval=0.05)
        gate = make_gate("swinging-door", choose_watches(["enstrophy"], ["vorticity"]), 5e-3, 64, None)
        path = tmp_path_factory.mktemp("runs") / mode
        runs[mode] = compress(path, source, {"vorticity": Bound(mode, value)}, gate=gate, metrics=["enstrophy"])
    return runs


@pytest.fixture(scope="module")
def ocean(tmp_path_factory):
    """A file with dates, land, several variables of different shape, in blocks."""
    rng = np.random.default_rng(0)
    time = np.datetime64("2001-01-01", "ns") + np.arange(12) * np.timedelta64(31, "D")
    temperature = 15 + np.cumsum(rng.standard_normal((12, 20, 30)), axis=2).astype(np.float32)
    temperature[:, :7, :9] = np.nan
    level = np.cumsum(rng.standard_normal(12))
    stations = rng.integers(0, 100, (12, 5)).astype(np.int32)
    ds = xr.Dataset(
        {
            "temperature": (("time", "lat", "lon"), temperature, {"units": "degC", "long_name": "water temperature"}),
            "level": ("time", level, {"units": "m"}),
            "count": (("time", "station"), stations),
        },
        coords={"time": time, "lat": ("lat", np.linspace(40, 21, 20), {"units": "degrees_north"})},
    )
    folder = tmp_path_factory.mktemp("ocean")
    ds.to_netcdf(folder / "ocean.nc", engine="h5netcdf")
    source = open_source(str(folder / "ocean.nc"))
    bounds = {name: Bound("abs", 0.01) for name in source.variables}
    return compress(folder / "run", source, bounds, block=16), ds


def again(run):
    """The kept frames of ``turbulence``, simulated once more."""
    ds = xr.open_zarr(run / "data.zarr", chunks=None)
    frames = open_source("kolmogorov-decaying", frames=60, grid=64, interval=0.05).snapshots(None)
    kept = np.flatnonzero(ds["offered_kept"].values)
    original = np.stack([s.fields["vorticity"] for s in frames])[kept].astype(float)
    return original, ds["vorticity"].values.astype(float), kept


@pytest.mark.parametrize("mode", ["abs", "rel", "l2"])
def test_numbers_equal_those_of_the_run_done_again(turbulence, mode):
    run = turbulence[mode]
    original, decoded, kept = again(run)
    metrics = summarise(run, pictures=False).metrics
    disk = sum(path.stat().st_size for path in Path(run / "data.zarr").rglob("*") if path.is_file())
    frame = 64 * 64 * 4
    assert metrics["kept"] == len(kept)
    assert metrics["offered"] == 60
    assert metrics["bytes_on_disk"] == disk
    assert metrics["ratio"] == pytest.approx(len(kept) * frame / disk)
    assert metrics["total_ratio"] == pytest.approx(60 * frame / disk)
    assert metrics["bits_per_value"] == pytest.approx(8 * disk / (len(kept) * 64 * 64))
    error = np.abs(decoded - original).reshape(len(kept), -1)
    relative = np.linalg.norm(error, axis=1) / np.linalg.norm(original.reshape(len(kept), -1), axis=1)
    assert metrics["max_error.vorticity"] == pytest.approx(error.max(), rel=1e-12)
    assert metrics["rel_l2.vorticity"] == pytest.approx(relative.max(), rel=1e-9)
    limit = {"abs": 0.05, "rel": 1e-3 * np.ptp(original.reshape(len(kept), -1), axis=1)[:, None], "l2": np.inf}[mode]
    assert np.all(error <= limit)
    assert mode != "l2" or relative.max() <= 1e-2
    assert metrics["violations"] == 0


def test_metric_error_is_within_the_gate_and_below_uniform_sampling(turbulence):
    summary = summarise(turbulence["abs"], pictures=False)
    (table,) = [t for t in summary.tables if t.title == "Metrics between kept frames"]
    ((label, kept, uniform),) = table.rows
    assert label == "enstrophy [s⁻²]"
    assert summary.metrics["metric_error.enstrophy"] == kept <= 5e-3 < uniform


def test_all_metric_names_are_documented_and_finite(turbulence, ocean):
    patterns = [re.sub(r"\.[A-Z]+$", r"\\..+", name) for name in METRIC_NAMES]
    for run in (turbulence["abs"], ocean[0]):
        metrics = summarise(run, seconds_solver=3.0, pictures=False).metrics
        assert all(isinstance(value, float) and math.isfinite(value) for value in metrics.values())
        assert not [name for name in metrics if not any(re.fullmatch(p, name) for p in patterns)]


def test_seconds_come_from_the_caller_the_run_or_the_markers(turbulence):
    run = turbulence["abs"]
    kept = summarise(run, pictures=False).metrics["kept"]
    given = summarise(run, seconds_solver=6.0, seconds_encode=3.0, pictures=False).metrics
    assert given["source_seconds_per_frame"] == pytest.approx(0.1)
    assert given["encode_seconds_per_frame"] == pytest.approx(3.0 / kept)
    own = summarise(run, pictures=False).metrics
    seconds = [json.loads(path.read_text())["seconds"] for path in (run / "done").glob("*.json")]
    assert own["encode_seconds_per_frame"] == pytest.approx(sum(seconds) / kept)
    assert "source_seconds_per_frame" not in own


def test_pictures_and_tables_of_a_simulation(turbulence):
    summary = summarise(turbulence["rel"])
    assert [f.title.split(":")[0] for f in summary.figures] == [
        "Enstrophy of every frame offered",
        "Original and decoded",
        "Error against size",
    ]
    assert all(f.png.startswith(b"\x89PNG") and f.caption for f in summary.figures)
    codecs = next(t for t in summary.tables if t.title.startswith("The same frames"))
    assert [row[0] for row in codecs.rows] == ["this run", "plain SPERR", "plain SZ3", "plain ZFP"]
    assert all(len(row) == len(codecs.columns) for t in summary.tables for row in t.rows if t is codecs)
    assert codecs.rows[0][codecs.columns.index("bound held")]
    stored = next(t for t in summary.tables if t.title == "How frames are stored")
    assert sum(row[3] for row in stored.rows) == summary.metrics["kept"]
    assert sum(row[-1] for row in stored.rows) == pytest.approx(1)


def test_bytes_of_frames_add_up_to_the_chunks(turbulence, ocean):
    for run in (turbulence["abs"], ocean[0]):
        found = FinishedRun(run)
        for name in found.bounds:
            shares = sum(record.nbytes for record in found.frame_records(name))
            chunks = [p for p in (run / "data.zarr" / name / "c").rglob("*") if p.is_file()]
            assert shares == pytest.approx(sum(p.stat().st_size for p in chunks))


def test_land_dates_blocks_scalars_and_integers(ocean):
    run, ds = ocean
    summary = summarise(run)
    assert summary.metrics["violations"] == 0
    assert {"bound.temperature", "max_error.level", "rel_l2.count"} <= set(summary.metrics)
    back = xr.open_zarr(run / "data.zarr", chunks=None)
    assert summary.metrics["max_error.temperature"] == pytest.approx(
        float(np.nanmax(np.abs(back["temperature"].values.astype(float) - ds["temperature"].values.astype(float))))
    )
    pictured = [f.title for f in summary.figures if f.title.startswith("Original")]
    assert sorted(pictured) == ["Original and decoded: count", "Original and decoded: water temperature"]
    (fields,) = [t for t in summary.tables if t.title == "Fields"]
    assert {row[0] for row in fields.rows} == {"temperature [°C]", "level [m]", "count"}
    notes = " ".join(t.note for t in summary.tables)
    assert "cannot be used on int32 frames" in notes


def test_a_sample_that_the_store_does_not_give_back_is_a_violation(turbulence, tmp_path):
    run = copy(turbulence["abs"], tmp_path)
    path = min((run / "samples").glob("*.npy"))
    frame = np.load(path)
    frame[3, 4] += 1.0
    frame[5, 5] = np.nan
    np.save(path, frame)
    assert summarise(run, pictures=False).metrics["violations"] == 2


@pytest.mark.parametrize(
    ("mode", "field", "value"), [("abs", "max_error", 0.051), ("l2", "rel_l2", 0.0101), ("rel", "max_error", 0.2)]
)
def test_a_record_beyond_the_bound_is_a_violation(turbulence, tmp_path, mode, field, value):
    run = copy(turbulence[mode], tmp_path)
    path = min((run / "done").glob("*.json"))
    marker = json.loads(path.read_text())
    marker["records"][0][field][0] = value
    marker.setdefault("limits", [0.1] * marker["frames"])
    path.write_text(json.dumps(marker))
    assert summarise(run, pictures=False).metrics["violations"] == 1


def copy(run, tmp_path):
    return Path(shutil.copytree(run, tmp_path / "run"))


def test_samples_of_a_variable_whose_name_starts_another_are_told_apart(ocean, tmp_path):
    run = copy(ocean[0], tmp_path)
    (run / "samples" / "level.x.0.npy").write_bytes(b"of another variable")
    assert len(FinishedRun(run).samples("level")) == len(FinishedRun(ocean[0]).samples("level")) > 0


def test_folders_that_are_no_runs_are_refused(tmp_path, turbulence):
    with pytest.raises(SourceError, match=r"has no data\.zarr"):
        summarise(tmp_path)
    xr.Dataset({"x": ("t", np.arange(3.0))}).to_zarr(tmp_path / "data.zarr", zarr_format=3)
    with pytest.raises(StoreError, match="no array with a bound"):
        summarise(tmp_path)


# ----------------------------------------------------------------- errors of a frame


def test_frame_error_of_each_bound():
    original = np.array([0.0, 1.0, -3.0, 4.0], np.float32)
    decoded = original + np.array([0.5, 0.0, 0.0, -0.25], np.float32)
    pointwise = FrameError.of(original, decoded, Bound("abs", 0.25))
    assert (pointwise.max_error, pointwise.excess, pointwise.violations) == (0.5, 2.0, 1)
    assert pointwise.rel_l2 == pytest.approx(math.sqrt(0.3125 / 26))
    assert FrameError.of(original, decoded, Bound("rel", 0.5 / 7)).violations == 0
    assert FrameError.of(original, decoded, Bound("rel", 0.49 / 7)).violations == 1
    assert FrameError.of(original, decoded, Bound("l2", 0.11)).violations == 0
    assert FrameError.of(original, decoded, Bound("l2", 0.1)).violations == 1


def test_values_that_are_not_finite_must_come_back_bit_for_bit():
    original = np.array([np.nan, np.inf, 1.0, 2.0])
    bound = Bound("abs", 1.0)
    other_nan = original.copy()
    other_nan.view(np.uint64)[0] ^= 1
    assert FrameError.of(original, other_nan, bound).violations == 1
    assert FrameError.of(original, np.array([np.nan, -np.inf, 1.5, 2.0]), bound).violations == 1
    lost = FrameError.of(original, np.array([np.nan, np.inf, np.nan, 2.0]), bound)
    assert lost.violations == 1
    assert lost.max_error == math.inf
    assert FrameError.of(original, original.copy(), bound) == FrameError()


def test_complex_frames_are_measured_by_modulus():
    original = np.array([1 + 1j, 2 - 1j])
    error = FrameError.of(original, original + np.array([0.3 + 0.4j, 0]), Bound("abs", 0.5))
    assert error.max_error == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("metric", "unit", "expected"),
    [
        ("enstrophy", "s-1", "s-2"),
        ("enstrophy", "m s-1", "m2 s-2"),
        ("enstrophy", "K", "K2"),
        ("enstrophy", "m/s", "(m/s)2"),
        ("enstrophy", "1", "1"),
        ("mean", "m s-1", "m s-1"),
        ("rms", "", ""),
    ],
)
def test_units_of_metrics(metric, unit, expected):
    class Found:
        dataset = xr.Dataset(
            {
                "w": ("x", np.zeros(1), {"units": unit}),
                "metric_m": ("x", np.zeros(1), {"long_name": f"{metric} of w at every frame offered"}),
            }
        )

    assert metric_unit(Found(), "metric_m") == expected
