"""Flows through Prefect: a real server, few named task runs, the same bytes, and quiet."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from headrace.flows import _catalog
from headrace.flows._base import FlowParams, Plan, Progress, Report, Submit, UnitResults, lazy_flow
from headrace.storage.arrays import store_digest
from headrace.storage.errors import UnitError

pytestmark = [pytest.mark.prefect, pytest.mark.timeout(300)]

Server = Any


@pytest.fixture
def probe(units: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A flow module of these tests, with a unit of any kind."""

    class Params(FlowParams):
        folder: str = ""
        count: int = 60
        fault: str = ""

    def plan(params: Params) -> Plan:
        return Plan("probe", params.count, 0, None, 0, "cpu", key="abc123")

    def run(params: Params, submit: Submit, notify: Callable[[Progress], None]) -> Report:
        results, jobs = UnitResults(), []
        for number in range(params.count):
            if params.fault and number == 3:
                error = ValueError("bad") if params.fault == "value" else OSError(5, "I/O error")
                fn = units.fail_once if params.fault == "once" else units.always
                jobs.append(submit(fn, params.folder, error))
            else:
                jobs.append(submit(units.square, number))
        taken = [results.take(f"unit-{number}", job) for number, job in enumerate(jobs)]
        notify(Progress(params.count, params.count, "units"))
        results.check()
        total = sum(value for value in taken if isinstance(value, int))
        return Report("A probe", {"total": float(total)}, path=Path(params.folder))

    module = ModuleType("headrace.flows.probe", "Probe the adapter.")
    module.__dict__.update(Params=Params, plan=plan, run=run, __getattr__=lazy_flow("headrace.flows.probe"))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(_catalog, "FLOWS", (*_catalog.FLOWS, "probe"))
    return module


@pytest.fixture
def fresh_flows() -> Iterator[None]:
    """Build flows anew: the probe is another module in every test."""
    from headrace.flows._prefect import flow_attribute

    flow_attribute.cache_clear()
    yield
    flow_attribute.cache_clear()


def settled(server: Server, run: str, states: set[str]) -> list[dict[str, Any]]:
    """Task runs of a flow run, once all have come to an end: they arrive as events."""
    deadline = time.monotonic() + 30
    while True:
        tasks = server.of_run("task_runs", run)
        if tasks and {task["state_name"] for task in tasks} <= states:
            return sorted(tasks, key=lambda task: int(task["name"].split()[1].split("-")[0]))
        assert time.monotonic() < deadline, [(task["name"], task["state_name"]) for task in tasks]
        time.sleep(0.2)


def test_few_named_task_runs(prefect_server: Server, probe: ModuleType, fresh_flows: None, tmp_path: Path) -> None:
    from headrace.flows._prefect import run_flow

    told: list[Progress] = []
    params = probe.Params(folder=str(tmp_path), executor="threads:2")
    report = run_flow("probe", params, prefect_server.url, told.append)
    assert report.metrics == {"total": float(sum(number**2 for number in range(60)))}
    assert told[-1].done == 60
    run = prefect_server.flow_runs()[0]
    assert (run["name"], run["state_name"]) == ("probe-abc123", "Completed")
    assert set(run["tags"]) == {"probe", "cpu"}
    tasks = settled(prefect_server, run["id"], {"Completed"})
    assert [task["name"] for task in tasks] == [f"units {first}-{first + 2}" for first in range(0, 60, 3)]
    assert all(task["task_inputs"] == {} for task in tasks), "no data goes through Prefect"
    artifacts = {each["key"]: each for each in prefect_server.of_run("artifacts", run["id"])}
    assert "| total |" in artifacts["probe-report"]["data"]
    assert "total" in artifacts["probe-metrics"]["data"]


def test_a_unit_that_fails_once_shows_as_a_retry(
    prefect_server: Server, probe: ModuleType, fresh_flows: None, tmp_path: Path
) -> None:
    from headrace.flows._prefect import run_flow

    run_flow("probe", probe.Params(folder=str(tmp_path), fault="once", executor="threads:2"), prefect_server.url)
    run = prefect_server.flow_runs()[0]
    assert run["state_name"] == "Completed"
    tasks = settled(prefect_server, run["id"], {"Completed"})
    assert {task["name"]: task["run_count"] for task in tasks}["units 3-5"] == 2
    assert all(task["run_count"] == 1 for task in tasks if task["name"] != "units 3-5")
    deadline = time.monotonic() + 30  # log records are sent in batches
    while not any("fail_once failed" in text and "trying once more" in text for text in prefect_server.logs(run["id"])):
        assert time.monotonic() < deadline, prefect_server.logs(run["id"])
        time.sleep(0.2)


def test_failed_units_fail_the_flow_run_with_our_message(
    prefect_server: Server, probe: ModuleType, fresh_flows: None, tmp_path: Path
) -> None:
    from headrace.flows._prefect import run_flow

    params = probe.Params(folder=str(tmp_path), fault="value", executor="threads:2")
    with pytest.raises(UnitError, match=r"1 of 60 units .*unit-3.*ValueError: bad"):
        run_flow("probe", params, prefect_server.url)
    run = prefect_server.flow_runs()[0]
    assert run["state_name"] == "Failed"
    assert "1 of 60 units of work failed (unit-3)" in run["state"]["message"]
    tasks = settled(prefect_server, run["id"], {"Completed", "Failed"})
    assert [task["name"] for task in tasks if task["state_name"] == "Failed"] == ["units 3-5"]


def test_settings_of_the_caller_are_left_alone(
    prefect_server: Server, probe: ModuleType, fresh_flows: None, tmp_path: Path
) -> None:
    from headrace.flows._prefect import run_flow

    before = dict(os.environ)
    run_flow("probe", probe.Params(folder=str(tmp_path), count=1), prefect_server.url)
    assert dict(os.environ) == before


@pytest.fixture(scope="module")
def local_digest(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Bytes of a smoke run without Prefect."""
    from headrace.flows.compress import Params, run

    out = tmp_path_factory.mktemp("local")
    return store_digest(run(Params.smoke().model_copy(update={"out": out})).path / "data.zarr")


def headrace(*words: str, folder: Path, environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    """Run the program in its own process group."""
    command = [sys.executable, "-P", "-m", "headrace.flows", *words]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, start_new_session=True
    )


@pytest.mark.parametrize("executor", ["inline", "dask:2"])
def test_a_configured_api_is_used_with_the_same_bytes(
    prefect_server: Server, local_digest: str, tmp_path: Path, executor: str
) -> None:
    words = ("run", "compress", "--smoke", "--executor", executor)
    done = headrace(*words, folder=tmp_path, environment=prefect_server.environment())
    assert done.returncode == 0, done.stderr
    assert all(line.startswith("compress: ") for line in done.stderr.splitlines()), done.stderr
    (path,) = tmp_path.glob("runs/compress/*")
    assert store_digest(path / "data.zarr") == local_digest
    run = prefect_server.flow_runs()[0]
    assert (run["name"], run["state_name"]) == (f"compress-{path.name}", "Completed")
    keys = {each["key"] for each in prefect_server.of_run("artifacts", run["id"])}
    assert keys >= {"compress-report", "compress-metrics"}


def test_bad_input_is_the_same_message_through_prefect(prefect_server: Server, tmp_path: Path) -> None:
    words = ("run", "compress", "--source", "gone.nc")
    done = headrace(*words, folder=tmp_path, environment=prefect_server.environment())
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "gone.nc" in done.stderr
    assert done.stderr == headrace(*words, "--engine", "local", folder=tmp_path, environment=dict(os.environ)).stderr


def without_api(home: Path) -> dict[str, str]:
    """An environment with no Prefect API, and a database of its own."""
    home.mkdir()
    return {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"} | {
        "PREFECT_HOME": str(home),
        "DO_NOT_TRACK": "1",
    }


def in_group(group: int) -> list[str]:
    """Programs of a process group that still run."""
    listed = subprocess.run(["ps", "-e", "-o", "pgid=,stat=,args="], capture_output=True, text=True, check=True)
    lines = [line.split(None, 2) for line in listed.stdout.splitlines()]
    return [args for pgid, stat, args in lines if int(pgid) == group and not stat.startswith("Z")]


def test_without_an_api_one_server_is_started_and_stopped(tmp_path: Path, local_digest: str) -> None:
    environment = without_api(tmp_path / "home")
    words = ("run", "compress", "--smoke", "--engine", "prefect", "--executor", "dask:2")
    done = headrace(*words, folder=tmp_path, environment=environment)
    assert done.returncode == 0, done.stderr
    assert all(line.startswith("compress: ") for line in done.stderr.splitlines()), done.stderr
    (path,) = tmp_path.glob("runs/compress/*")
    assert store_digest(path / "data.zarr") == local_digest
    with sqlite3.connect(tmp_path / "home" / "prefect.db") as database:
        rows = database.execute("select name, state_name from flow_run").fetchall()
        artifacts = {key for (key,) in database.execute("select key from artifact")}
    assert rows == [(f"compress-{path.name}", "Completed")]
    assert artifacts >= {"compress-report", "compress-metrics"}


def test_ctrl_c_ends_run_workers_and_server(tmp_path: Path) -> None:
    words = ["run", "compress", "--frames", "100000", "--grid", "32", "--gate", "all", "--executor", "dask:2"]
    command = [sys.executable, "-P", "-m", "headrace.flows", *words, "--engine", "prefect"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=without_api(tmp_path / "home"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 120
        while not list(tmp_path.glob("runs/compress/*/done/*.json")):
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline, "no unit was finished"
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=180)
    finally:
        if in_group(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
    assert (process.returncode, out) == (130, "")
    assert err.splitlines()[-1].strip().startswith("headrace run compress --frames 100000")
    assert "Traceback" not in err
    with sqlite3.connect(tmp_path / "home" / "prefect.db") as database:
        (state,) = database.execute("select state_type from flow_run").fetchone()
    assert state in {"CRASHED", "CANCELLED", "FAILED"}
