"""Run folders: keys, resuming, refusing what is foreign, and telling what happened."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.storage.errors import (
    IncompatibleRunError,
    ParameterError,
    RunExistsError,
    RunLockedError,
    SourceError,
    StoreError,
)
from headrace.storage.runs import (
    FORMAT,
    Run,
    find_run,
    list_runs,
    mark_done,
    marker_path,
    read_json,
    remove_run,
    run_key,
    write_json,
)

PARAMS = {"bound": 1e-3, "source": "a.nc", "device": "cpu"}


def open_run(out, params=PARAMS, **options):
    settings = {"inputs": {"a.nc": "stat:1"}, "version": 1, "volatile": frozenset({"device"}), **options}
    return Run.open(out, "compress", params, **settings)


def finished(out, **options):
    with open_run(out, **options) as run:
        mark_done(run.path, "v.0", {"nbytes": 3})
        run.write_report({"ratio": 4.0})
        run.finish()
    return run


def test_a_run_records_where_it_came_from(run_dir):
    with open_run(run_dir, command=["headrace", "run", "a b"], seed=3) as run:
        assert (run.resumed, run.complete) == (False, False)
        assert run.data == run.path / "data.zarr"
        assert run.path == run_dir.absolute() / "compress" / run.key
        assert read_json(run.path / "run.json")["status"] == "running"
        run.finish(ratio=np.float32(0.5))
    record = read_json(run.path / "run.json")
    expected = {"format": FORMAT, "flow": "compress", "status": "complete", "seed": 3, "device": "cpu", "ratio": 0.5}
    assert {name: record[name] for name in expected} == expected
    assert record["params"] == {"bound": 1e-3, "source": "a.nc"}
    assert record["command"] == "headrace run 'a b'"
    assert record["inputs"] == {"a.nc": "stat:1"}
    assert record["peak_memory_bytes"] > 10e6
    assert record["started"] < record["ended"]
    assert record["versions"]["numpy"] == np.__version__
    assert not (run.path / "lock").exists()


def test_the_key_follows_what_decides_the_result(run_dir):
    keys = set()
    for options in (
        {},
        {"params": {**PARAMS, "bound": 2e-3}},
        {"inputs": {"a.nc": "stat:2"}},
        {"version": 2},
    ):
        with open_run(run_dir, **options) as run:
            keys.add(run.key)
            run.finish()
    assert len(keys) == 4
    with open_run(run_dir, params={**PARAMS, "device": "cuda"}, seed=9, command=["x"]) as run:
        assert run.key in keys
        assert run.complete


def test_the_key_does_not_depend_on_order_or_container():
    one = {"flow": "f", "params": {"a": (1, 2), "b": Path("x")}, "inputs": {}, "version": 1}
    two = {"version": 1, "inputs": {}, "params": {"b": "x", "a": [1, 2]}, "flow": "f"}
    assert run_key(one) == run_key(two)


def test_a_complete_run_is_given_back_untouched(run_dir):
    path = finished(run_dir).path
    before = (path / "run.json").read_bytes()
    with open_run(run_dir) as run:
        assert (run.resumed, run.complete) == (True, True)
        assert run.read_report() == {"ratio": 4.0}
    assert (path / "run.json").read_bytes() == before


@pytest.mark.parametrize(
    ("error", "status"),
    [(ValueError("bad"), "failed"), (KeyboardInterrupt(), "cancelled"), (SystemExit(1), "cancelled")],
)
def test_a_run_that_stops_says_why_and_resumes(run_dir, error, status):
    with pytest.raises(type(error)), open_run(run_dir) as run:
        raise error
    record = read_json(run.path / "run.json")
    assert (record["status"], record["sessions"][0]["status"]) == (status, status)
    assert record["error"].startswith(type(error).__name__)
    with open_run(run_dir) as run:
        assert (run.resumed, run.complete) == (True, False)
        run.finish()
    record = read_json(run.path / "run.json")
    assert (record["status"], record["error"], len(record["sessions"])) == ("complete", None, 2)


def test_a_block_left_without_finish_is_an_error_of_the_program(run_dir):
    with pytest.raises(RuntimeError, match="without finish"), open_run(run_dir):
        pass
    assert list_runs(run_dir)[0].status == "failed"


def test_fresh_deletes_what_was_there(run_dir):
    path = finished(run_dir).path
    (path / "data.zarr").mkdir()
    with open_run(run_dir, fresh=True) as run:
        assert (run.resumed, run.complete) == (False, False)
        assert sorted(item.name for item in path.iterdir()) == ["lock", "run.json"]
        run.finish()


def test_a_deletion_that_was_killed_goes_on(run_dir):
    path = finished(run_dir).path
    write_json(path / "run.json", {**read_json(path / "run.json"), "status": "clearing"})
    assert list_runs(run_dir)[0].status == "interrupted"
    with open_run(run_dir) as run:
        assert (run.resumed, run.complete, run.markers()) == (False, False, {})
        run.finish()


def test_two_processes_cannot_write_one_run(run_dir):
    with open_run(run_dir) as run:
        with pytest.raises(RunLockedError, match="in use by process"):
            open_run(run_dir)
        run.finish()
    assert list_runs(run_dir)[0].status == "complete"


def test_the_lock_of_a_killed_process_does_not_stop_anyone(run_dir):
    code = """if True:
        import os, signal, sys
        from headrace.storage.runs import Run, mark_done
        params, inputs = {"bound": 1e-3, "source": "a.nc"}, {"a.nc": "stat:1"}
        run = Run.open(sys.argv[1], "compress", params, inputs=inputs, version=1)
        mark_done(run.path, "v.0", {})
        (run.path / ".0a.tmp").write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)
    """
    child = subprocess.run([sys.executable, "-c", code, str(run_dir)], check=False)
    assert child.returncode == -9
    [info] = list_runs(run_dir)
    assert info.status == "interrupted"
    assert (info.path / "lock").exists()
    with open_run(run_dir) as run:
        assert run.resumed
        assert list(run.markers()) == ["v.0"]
        assert not list(run.path.glob("*.tmp"))
        run.finish()


def test_a_foreign_folder_is_refused_and_left_alone(run_dir):
    with open_run(run_dir) as run:
        run.finish()
    (run.path / "run.json").unlink()
    (run.path / "thesis.tex").write_text("years of work")
    for fresh in (False, True):
        with pytest.raises(IncompatibleRunError, match=r"holds thesis\.tex but no run\.json"):
            open_run(run_dir, fresh=fresh)
    assert [item.name for item in run.path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 99}, "has format 99; expected 1; use the headrace that wrote it"),
        ({"params": {"bound": 5, "source": "a.nc"}}, r"params\.bound is 5 there and 0\.001 here"),
        ({"inputs": {"a.nc": "stat:7"}}, r"inputs\.a\.nc is 'stat:7' there"),
        ({"flow": "merge"}, "flow is 'merge' there"),
    ],
)
def test_a_record_of_another_run_is_refused_with_the_difference(run_dir, change, message):
    path = finished(run_dir).path
    write_json(path / "run.json", {**read_json(path / "run.json"), **change})
    with pytest.raises(IncompatibleRunError, match=message):
        open_run(run_dir)
    assert (path / "report.json").exists()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"status": "complete"}'])
def test_a_damaged_record_is_never_taken_for_nothing(run_dir, content):
    path = finished(run_dir).path
    (path / "run.json").write_text(content)
    with pytest.raises(StoreError, match=r"run\.json .*--fresh"):
        open_run(run_dir)
    assert (path / "report.json").exists()
    assert list_runs(run_dir)[0].status == "damaged"
    with open_run(run_dir, fresh=True) as run:
        assert not (path / "report.json").exists()
        run.finish()


def test_a_file_in_the_way_is_named(tmp_path):
    (tmp_path / "runs").write_text("x")
    with pytest.raises(RunExistsError, match=r"runs is a file; expected a folder.*--out"):
        open_run(tmp_path / "runs")
    assert (tmp_path / "runs").read_text() == "x"


def test_a_place_that_cannot_be_written_is_named_and_nothing_stays(tmp_path, monkeypatch):
    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("headrace.storage.files.os.fsync", full)
    with pytest.raises(StoreError, match=r"No space left on device.*free some space"):
        open_run(tmp_path / "a" / "runs")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="needs a file system nobody can write to")
def test_a_read_only_place_is_named():
    with pytest.raises(StoreError, match=r"cannot create /sys/kernel/runs.*choose"):
        open_run(Path("/sys/kernel/runs"))


def test_a_folder_of_someone_else_is_not_removed_when_opening_fails(tmp_path, monkeypatch):
    (tmp_path / "runs" / "merge").mkdir(parents=True)
    monkeypatch.setattr("headrace.storage.runs.provenance.collect", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        open_run(tmp_path / "runs")
    assert [item.name for item in (tmp_path / "runs").iterdir()] == ["merge"]


def test_a_full_disk_at_the_end_does_not_hide_the_first_error(run_dir, monkeypatch):
    def full(*arguments, **options):
        raise StoreError("full")

    def failing():
        with open_run(run_dir):
            monkeypatch.setattr("headrace.storage.runs.write_json", full)
            raise ValueError("first")

    with pytest.raises(ValueError, match="first"):
        failing()
    assert not list(run_dir.rglob("lock"))


@given(st.text(min_size=1, max_size=40).filter(lambda text: len(text.encode("utf-8", "ignore")) * 3 < 245))
def test_any_unit_name_is_a_marker(tmp_path_factory, unit):
    if "\ud800" <= max(unit) <= "\udfff" or any("\ud800" <= c <= "\udfff" for c in unit):
        return
    out = tmp_path_factory.mktemp("runs")
    with open_run(out) as run:
        assert not run.is_done(unit)
        mark_done(run.path, unit, {"n": 1})
        assert run.is_done(unit)
        assert run.markers() == {unit: {"n": 1}}
        run.finish()


def test_markers_are_sorted_and_a_damaged_one_is_work_to_do_again(run_dir):
    with open_run(run_dir) as run:
        for unit in ("v.2", "v.10", "a/b"):
            mark_done(run.path, unit, {"unit": unit})
        assert list(run.markers()) == ["a/b", "v.10", "v.2"]
        marker_path(run.path, "v.2").write_text('{"unit"')
        assert not run.is_done("v.2")
        assert list(run.markers()) == ["a/b", "v.10"]
        run.finish()


@pytest.mark.parametrize("unit", ["", "x" * 300])
def test_a_unit_without_a_possible_name_is_refused(run_dir, unit):
    with pytest.raises(ParameterError, match="cannot be a file name"):
        mark_done(run_dir, unit, {})


def test_checkpoints_that_are_damaged_do_not_count(run_dir):
    with open_run(run_dir) as run:
        for number in (2, 10, 3):
            run.save_checkpoint(number, {"w": np.full(4, number)}, {"at": number})
        assert run.checkpoints() == [2, 3, 10]
        (run.path / "checkpoints" / "10.npz").write_bytes(b"PK")
        assert run.checkpoints() == [2, 3]
        arrays, meta = run.load_checkpoint(3)
        assert (arrays["w"].tolist(), meta) == ([3, 3, 3, 3], {"at": 3})
        run.drop_checkpoints(keep=[3])
        assert [item.name for item in (run.path / "checkpoints").iterdir()] == ["3.npz"]
        run.finish()


def test_runs_are_listed_and_found(run_dir):
    first = finished(run_dir)
    second = finished(run_dir, version=2)
    listed = list_runs(run_dir)
    assert [info.key for info in listed] == [first.key, second.key]
    assert listed[0].bytes == sum(file.stat().st_size for file in first.path.rglob("*") if file.is_file())
    assert listed[0].seconds is not None
    assert find_run(run_dir, "last").key == second.key
    for text in (first.key, first.key[:7], f"compress/{first.key[:7]}", str(first.path)):
        assert find_run(run_dir, text).path == first.path
    with pytest.raises(SourceError, match=r"no run 'zzz'.*there are 2"):
        find_run(run_dir, "zzz")
    with pytest.raises(ParameterError, match=r"'compress' fits 2 runs"):
        find_run(run_dir, "compress")


def test_a_run_is_removed_unless_it_is_running(run_dir):
    with open_run(run_dir) as run:
        with pytest.raises(RunLockedError):
            remove_run(run.path)
        run.finish()
    (run.path / "run.json").write_text("damaged")
    remove_run(run.path)
    assert not run.path.exists()
    with pytest.raises(SourceError, match="no run in"):
        remove_run(run.path)


def test_a_removal_that_was_killed_leaves_a_run_that_starts_over(run_dir, monkeypatch):
    path = finished(run_dir).path
    monkeypatch.setattr("headrace.storage.runs.remove", lambda path: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        remove_run(path)
    assert list_runs(run_dir)[0].status == "interrupted"
    with open_run(run_dir) as run:
        assert (run.resumed, run.complete, run.markers()) == (False, False, {})
        run.finish()


def test_a_discarded_run_leaves_nothing(tmp_path):
    with open_run(tmp_path / "a" / "runs") as run:
        run.discard()
    assert list(tmp_path.iterdir()) == []


def test_an_empty_place_has_no_runs(run_dir):
    assert list_runs(run_dir) == []
    with pytest.raises(SourceError, match="none at all"):
        find_run(run_dir, "last")


def test_the_record_is_strict_json(run_dir):
    with open_run(run_dir, params={**PARAMS, "bound": float("nan")}) as run:
        run.write_report({"worst": float("inf")})
        run.finish()
    for name in ("run.json", "report.json"):
        json.loads((run.path / name).read_text(), parse_constant=pytest.fail)
