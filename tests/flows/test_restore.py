"""Restore as a flow: planned, resumed, complete at once, and leaving nothing behind when it is refused."""

import pytest

from headrace.flows import compress, restore
from headrace.flows._base import inline
from headrace.storage.errors import ParameterError, RunExistsError, SourceError, StoreError
from headrace.storage.readers import open_dataset
from headrace.storage.runs import list_runs, read_json, write_json


@pytest.fixture(scope="module")
def compressed(tmp_path_factory):
    """Output folder with one complete, small compress run."""
    out = tmp_path_factory.mktemp("runs")
    return compress.run(compress.Params.smoke().model_copy(update={"out": out, "executor": "inline"}))


@pytest.fixture
def params(compressed, tmp_path):
    return restore.Params(out=tmp_path / "runs", run=str(compressed.path), executor="inline", time="0:2")


def refuse(*arguments):
    raise AssertionError("work was done again")


@pytest.mark.parametrize("form", ["nc", "h5", "zarr"])
def test_the_default_target_lies_in_the_run_folder(params, form):
    report = restore.run(params.model_copy(update={"format": form}))
    assert open_dataset(report.path / f"restored.{form}").sizes["time"] == 2
    assert report.metrics["frames"] == 2
    assert report.metrics["bytes_target"] > 0
    assert read_json(report.path / "report.json")["metrics"] == report.metrics


def test_a_complete_restore_is_not_repeated_unless_its_target_is_gone(params, tmp_path):
    params = params.model_copy(update={"to": tmp_path / "out.nc"})
    first = restore.run(params)
    again = restore.run(params, refuse)
    assert (again.metrics, again.path, again.tables) == (first.metrics, first.path, first.tables)
    (tmp_path / "out.nc").unlink()
    restore.run(params)
    assert (tmp_path / "out.nc").exists()


def test_a_restore_that_was_killed_replaces_its_own_target(params, tmp_path):
    params = params.model_copy(update={"to": tmp_path / "out.nc"})
    report = restore.run(params)
    record = read_json(report.path / "run.json")
    write_json(report.path / "run.json", {**record, "status": "running"})  # killed after the rename, before the end
    restore.run(params)
    assert list_runs(params.out)[0].status == "complete"


def test_a_target_of_someone_else_is_left_alone_and_so_is_the_output_folder(params, tmp_path):
    (tmp_path / "out.nc").write_text("mine")
    with pytest.raises(RunExistsError, match="exists"):
        restore.run(params.model_copy(update={"to": tmp_path / "out.nc"}))
    assert (tmp_path / "out.nc").read_text() == "mine"
    assert list_runs(params.out) == []


def test_the_last_compress_run_is_the_default(compressed, tmp_path):
    out = compressed.path.parents[1]
    restore.run(restore.Params(out=out, to=tmp_path / "a.nc", executor="inline"))
    report = restore.run(restore.Params(out=out, to=tmp_path / "b.nc", executor="inline"))
    assert report.provenance["store"] == str(compressed.path / "data.zarr")
    with pytest.raises(SourceError, match="no compress run in"):
        restore.run(restore.Params(out=tmp_path / "none"))


def test_a_plan_reads_and_writes_nothing(params, monkeypatch):
    monkeypatch.setattr("headrace.storage.codecs.spacetime.SpaceTimeCodec._decode_single", refuse)
    plan = restore.plan(params)
    assert plan.units == 1
    assert plan.bytes_out == 2 * 48 * 48 * 4
    assert "vorticity (2, 48, 48)" in plan.details["variables"]
    assert not params.out.exists()


def test_smoke_needs_nothing_before(tmp_path):
    params = restore.Params.smoke().model_copy(update={"out": tmp_path, "executor": "inline"})
    assert restore.plan(params).units == 1
    report = restore.run(params, inline)
    assert open_dataset(report.path / "restored.nc").sizes["time"] == 4


def test_a_target_that_was_changed_is_not_taken_for_the_result(params, tmp_path):
    params = params.model_copy(update={"to": tmp_path / "out.nc"})
    restore.run(params)
    (tmp_path / "out.nc").write_text("garbage")
    with pytest.raises(RunExistsError, match="exists"):
        restore.run(params)
    restore.run(params.model_copy(update={"overwrite": True}))
    assert (tmp_path / "out.nc").read_bytes()[:4] == b"\x89HDF"


def test_the_store_itself_is_no_target(params, compressed):
    for target in (compressed.path / "data.zarr", compressed.path / "data.zarr" / "x.nc", compressed.path / "y.nc"):
        with pytest.raises(ParameterError, match="lies in or around what is restored"):
            restore.run(params.model_copy(update={"to": target, "overwrite": True}))


def test_a_store_with_a_hole_is_refused(params, compressed, tmp_path):
    chunk = next((compressed.path / "data.zarr" / "vorticity" / "c").rglob("0"))
    while chunk.is_dir():
        chunk /= "0"
    saved = chunk.read_bytes()
    chunk.unlink()
    try:
        with pytest.raises(StoreError, match=r"array 'vorticity' in .* lacks 1 chunks"):
            restore.run(params.model_copy(update={"to": tmp_path / "out.nc"}))
    finally:
        chunk.write_bytes(saved)
