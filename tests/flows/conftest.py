"""Fixtures of the flow tests: functions that workers can import, a Dask scheduler, a Prefect server."""

import importlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

UNITS = """
import os, sys, time
from pathlib import Path
from headrace.storage.errors import ParameterError

def square(x):
    return x * x

def where():
    main = sys.modules["__main__"].__dict__.get("__file__")
    return os.getpid(), os.environ.get("OMP_NUM_THREADS"), os.getcwd() in sys.path, main

def fail_once(folder, error):
    mark = Path(folder, "failed")
    if not mark.exists():
        mark.touch()
        raise error
    return "second try"

def always(folder, error):
    with Path(folder, "tries").open("a") as file:
        file.write("x")
    raise error

def slow(folder, number, seconds):
    Path(folder, f"{number}.begun").touch()
    time.sleep(seconds)
    Path(folder, f"{number}.done").touch()
"""


@pytest.fixture(scope="session")
def unit_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a module of functions that workers can import."""
    folder = tmp_path_factory.mktemp("units")
    (folder / "probe_units.py").write_text(UNITS)
    return folder


@pytest.fixture
def units(unit_folder: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Module-level functions for units of work."""
    monkeypatch.syspath_prepend(str(unit_folder))
    return importlib.import_module("probe_units")


def end(process: "subprocess.Popen[str]") -> None:
    """Stop a program and its children."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def start(command: list[str], folder: Path, log: Path, **environment: str) -> "subprocess.Popen[str]":
    """Start a program in its own process group, its output in a file."""
    with log.open("w") as file:
        return subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **environment},
            stdout=file,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )


def wait_until(ready: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait for something, or fail naming it."""
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline, f"{what} did not come within {seconds} s"
        time.sleep(0.1)


def free_port() -> int:
    """A port nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def dask_address(tmp_path_factory: pytest.TempPathFactory, unit_folder: Path) -> Iterator[str]:
    """A ``dask scheduler`` and a ``dask worker``, both started in an empty folder."""
    folder, logs = tmp_path_factory.mktemp("empty"), tmp_path_factory.mktemp("dask-logs")
    dask = [sys.executable, "-P", "-m", "dask"]
    paths = {"PYTHONPATH": str(unit_folder), "PYTHONSAFEPATH": "1"}
    options = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard"]
    scheduler = start([*dask, "scheduler", *options], folder, logs / "scheduler", **paths)

    def address() -> list[str]:
        return re.findall(r"Scheduler at:\s+(tcp://[\d.:]+)", (logs / "scheduler").read_text())

    try:
        wait_until(lambda: bool(address()), 60, "the Dask scheduler")
        options = ["--nworkers", "2", "--nthreads", "1", "--no-dashboard", "--local-directory", str(logs)]
        worker = start([*dask, "worker", address()[0], *options], folder, logs / "worker", **paths)
        try:
            yield address()[0]
        finally:
            end(worker)
    finally:
        end(scheduler)


class PrefectServer:
    """A Prefect server of these tests, with its own database."""

    def __init__(self, url: str, home: Path) -> None:
        self.url, self.home = url, home

    def environment(self) -> dict[str, str]:
        """What a program needs to talk to it."""
        return {**os.environ, "PREFECT_API_URL": self.url, "PREFECT_HOME": str(self.home), "DO_NOT_TRACK": "1"}

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Answer of the REST API: a POST with ``body``, a GET without."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/{path}", data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)

    def flow_runs(self) -> list[dict[str, Any]]:
        """Flow runs that have begun, the latest first."""
        found = self.ask("flow_runs/filter", {"sort": "EXPECTED_START_TIME_DESC"})
        return [run for run in found if run["start_time"] is not None]

    def of_run(self, kind: str, run: str) -> list[dict[str, Any]]:
        """Task runs or artifacts of a flow run."""
        return list(self.ask(f"{kind}/filter", {"flow_runs": {"id": {"any_": [run]}}}))

    def logs(self, run: str) -> list[str]:
        """Messages that a flow run and its task runs logged."""
        found = self.ask("logs/filter", {"logs": {"flow_run_id": {"any_": [run]}}})
        return [entry["message"] for entry in found]


def answers(url: str) -> bool:
    """Whether an HTTP server answers with success."""
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


@pytest.fixture(scope="session")
def prefect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectServer]:
    """A real ``prefect server`` on SQLite and a free port."""
    home, port = tmp_path_factory.mktemp("prefect-home"), free_port()
    server = PrefectServer(f"http://127.0.0.1:{port}/api", home)
    command = [sys.executable, "-P", "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    quiet = {"PREFECT_SERVER_ANALYTICS_ENABLED": "false", "PREFECT_SERVER_UI_ENABLED": "false"}
    process = start(command, home, home / "log", PREFECT_HOME=str(home), DO_NOT_TRACK="1", **quiet)
    try:
        wait_until(lambda: answers(f"{server.url}/health"), 120, "the Prefect server")
        yield server
    finally:
        end(process)
