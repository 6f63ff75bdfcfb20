"""What every flow module keeps, whatever it does. A new flow is found and tested without a line here."""

import hashlib
import inspect
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

import pytest
import xarray as xr
import yaml
from pydantic import ValidationError

from headrace.flows._base import FlowParams, Notify, Plan, Progress, Report, Submit, inline
from headrace.flows._catalog import FLOWS, command_name, load_flow
from headrace.flows._executors import open_executor
from headrace.storage.arrays import store_digest
from headrace.storage.files import read_json
from headrace.storage.listing import find_run, list_runs


@pytest.fixture(params=FLOWS)
def flow(request: pytest.FixtureRequest) -> ModuleType:
    """Every flow module."""
    return load_flow(request.param)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Callable[[ModuleType], Report]:
    """One undisturbed smoke run of a flow, in place."""
    reports: dict[str, Report] = {}

    def run(flow: ModuleType) -> Report:
        if flow.__name__ not in reports:
            reports[flow.__name__] = flow.run(smoke(flow, tmp_path_factory.mktemp("reference")))
        return reports[flow.__name__]

    return run


def name_of(flow: ModuleType) -> str:
    return flow.__name__.rpartition(".")[2]


def smoke(flow: ModuleType, out: Path, **changes: object) -> Any:
    return flow.Params.smoke().model_copy(update={"out": out, **changes})


def result(report: Report) -> dict[str, str]:
    """Digest of what a run made: its store, and files that hold arrays."""
    found = {"data.zarr": store_digest(report.path / "data.zarr")} if (report.path / "data.zarr").exists() else {}
    for file in sorted(report.path.glob("*.nc")):
        with xr.open_dataset(file) as dataset:
            content = dataset.load()
        values = [content[name].values.tobytes() for name in sorted(map(str, content.variables))]
        found[file.name] = hashlib.sha256(b"".join(values)).hexdigest()
    assert found, "a run leaves a result"
    return found


def test_four_names(flow: ModuleType) -> None:
    assert issubclass(flow.Params, FlowParams)
    assert get_type_hints(flow.plan) == {"params": flow.Params, "return": Plan}
    assert get_type_hints(flow.run) == {"params": flow.Params, "submit": Submit, "notify": Notify, "return": Report}
    assert list(inspect.signature(flow.run).parameters) == ["params", "submit", "notify"]
    with pytest.raises(AttributeError):
        flow.no_such_name  # noqa: B018


@pytest.mark.parametrize("preset", ["default", "smoke"])
def test_parameters_are_complete_and_survive_json(flow: ModuleType, preset: str) -> None:
    params = flow.Params() if preset == "default" else flow.Params.smoke()
    assert flow.Params.model_validate_json(params.model_dump_json()) == params
    assert flow.Params.model_validate(params.model_dump()) == params


def test_every_parameter_is_described(flow: ModuleType) -> None:
    for name, field in flow.Params.model_fields.items():
        assert field.description, name
        assert not field.is_required(), f"{name} has no default"


def test_a_plan_is_cheap_and_writes_nothing(flow: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plan = flow.plan(smoke(flow, tmp_path / "runs"))
    assert isinstance(plan, Plan)
    assert plan.flow == name_of(flow)
    assert plan.units >= 1
    assert plan.peak_memory >= 0
    assert list(tmp_path.iterdir()) == []


def test_report_numbers_are_finite_and_on_disk(flow: ModuleType, reference: Callable[[ModuleType], Report]) -> None:
    report = reference(flow)
    content = json.loads((report.path / "report.json").read_text())
    assert report.metrics
    assert content["metrics"] == report.metrics
    assert all(math.isfinite(value) for value in report.metrics.values())
    assert report.provenance
    page = report.path / "report.html"
    assert page.is_file() or not report.figures, "figures belong into a page"
    assert not page.is_file() or report.title in page.read_text()


def test_a_run_leaves_a_complete_record(flow: ModuleType, reference: Callable[[ModuleType], Report]) -> None:
    report = reference(flow)
    record = read_json(report.path / "run.json")
    info = find_run(report.path.parents[1], report.path.name)
    assert (info.status, info.flow) == ("complete", name_of(flow))
    assert report.path == report.path.absolute()
    for name in ("params", "versions", "host", "seed", "seconds", "peak_memory_bytes", "format"):
        assert record.get(name) is not None, name


def test_progress_is_told(flow: ModuleType, tmp_path: Path) -> None:
    told: list[Progress] = []
    flow.run(smoke(flow, tmp_path), inline, told.append)
    assert told
    assert all(progress.unit for progress in told)
    assert told[-1].done == told[-1].total


@pytest.mark.parametrize("executor", ["threads:2", "processes:2", "dask:2"])
def test_executors_make_the_same_bytes(
    flow: ModuleType, executor: str, tmp_path: Path, reference: Callable[[ModuleType], Report]
) -> None:
    params = smoke(flow, tmp_path, executor=executor)
    with open_executor(executor, 8) as submit:
        report = flow.run(params, submit)
    assert result(report) == result(reference(flow))


def test_an_external_scheduler_makes_the_same_bytes(
    flow: ModuleType, dask_address: str, tmp_path: Path, reference: Callable[[ModuleType], Report]
) -> None:
    with open_executor(f"dask:{dask_address}", 8) as submit:
        report = flow.run(smoke(flow, tmp_path), submit)
    assert result(report) == result(reference(flow))


def test_relative_folders_work_in_workers_elsewhere(
    flow: ModuleType,
    dask_address: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    reference: Callable[[ModuleType], Report],
) -> None:
    monkeypatch.chdir(tmp_path)
    with open_executor(f"dask:{dask_address}", 8) as submit:
        report = flow.run(smoke(flow, Path("relative")), submit)
    assert report.path.is_relative_to(tmp_path / "relative")
    assert result(report) == result(reference(flow))


def test_a_finished_run_is_not_worked_on_again(flow: ModuleType, tmp_path: Path) -> None:
    def refuse(*_: object) -> Any:
        raise AssertionError("a unit was submitted")

    params = smoke(flow, tmp_path)
    first = flow.run(params)
    before = result(first)
    again = flow.run(params.model_copy(update={"executor": "threads:2", "device": "cpu"}), refuse)
    assert again.path == first.path
    assert again.metrics == first.metrics
    assert result(again) == before


def test_fresh_starts_over(flow: ModuleType, tmp_path: Path) -> None:
    first = flow.run(smoke(flow, tmp_path))
    before = result(first)
    calls: list[object] = []

    def counted(fn: Any, /, *args: Any) -> Any:
        calls.append(fn)
        return inline(fn, *args)

    again = flow.run(smoke(flow, tmp_path, fresh=True), counted)
    assert calls
    assert (again.path, result(again)) == (first.path, before)


def test_an_interrupted_run_resumes_to_the_same_bytes(
    flow: ModuleType, tmp_path: Path, reference: Callable[[ModuleType], Report]
) -> None:
    def interrupt(fn: Any, /, *args: Any) -> Any:
        inline(fn, *args)
        raise KeyboardInterrupt

    params = smoke(flow, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        flow.run(params, interrupt)
    assert {info.status for info in list_runs(tmp_path)} <= {"cancelled", "complete"}
    assert result(flow.run(params)) == result(reference(flow))


@pytest.mark.parametrize("delay", [0.0, 0.1, 0.4])
def test_a_killed_run_resumes_to_the_same_bytes(
    flow: ModuleType, delay: float, tmp_path: Path, reference: Callable[[ModuleType], Report]
) -> None:
    out = tmp_path / "runs"
    words = ["run", command_name(name_of(flow)), "--smoke", "--executor", "processes:2", "--out", str(out)]
    command = [sys.executable, "-P", "-m", "headrace.flows", *words]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        deadline = time.monotonic() + 120
        while not list(out.glob("*/*/run.json")) and process.poll() is None:
            assert time.monotonic() < deadline, "no run began"
            time.sleep(0.01)
        time.sleep(delay)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    report = flow.run(smoke(flow, out))
    assert result(report) == result(reference(flow))
    assert not list(report.path.rglob("*.tmp"))


def test_bad_parameters_are_named(flow: ModuleType) -> None:
    for name, value in (("no_such_parameter", 1), ("executor", "ray"), ("device", "abacus"), ("seed", "x")):
        with pytest.raises(ValidationError, match=name):
            flow.Params.model_validate({name: value})


def deployments() -> list[dict[str, Any]]:
    return list(yaml.safe_load((files("headrace.deployments") / "prefect.yaml").read_text())["deployments"])


def test_a_deployment_names_the_module_and_valid_parameters(flow: ModuleType) -> None:
    entrypoint = f"{flow.__name__}.{name_of(flow)}"
    mine = [each for each in deployments() if each["entrypoint"] == entrypoint]
    assert mine, f"deployments/prefect.yaml has no deployment with entrypoint {entrypoint}"
    for each in mine:
        assert set(each["parameters"]) == {"params"}
        flow.Params.model_validate(each["parameters"]["params"])
        assert command_name(name_of(flow)) in each["tags"]


@pytest.mark.prefect
def test_the_prefect_flow_takes_the_parameters(flow: ModuleType) -> None:
    from prefect import Flow
    from prefect.flows import load_flow_from_entrypoint

    name = name_of(flow)
    loaded: Any = load_flow_from_entrypoint(f"{flow.__name__}.{name}")
    assert isinstance(loaded, Flow)
    assert loaded is getattr(flow, name)
    assert loaded.name == command_name(name)
    schema = loaded.parameters.model_dump()
    fields = schema["definitions"]["Params"]["properties"]
    assert set(fields) == set(flow.Params.model_fields)
    assert all(field.get("description") for field in fields.values())
    assert not schema.get("required")
    with pytest.raises(Exception, match="no_such"):
        loaded.validate_parameters({"params": {"no_such": 1}})
