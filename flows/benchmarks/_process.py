"""Whole commands: the same bytes from every engine, life after SIGKILL, CPU seconds, memory."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from headrace.storage.arrays import store_digest
from headrace.storage.runs import list_runs

HEADRACE = (sys.executable, "-P", "-m", "headrace.flows")
#: Modules and a folder of these names in the working directory must not be taken for ours.
DECOYS = ("tasks.py", "storage.py", "flows.py", "gpu.py", "config.py")


def clean_environment(**extra: str) -> dict[str, str]:
    """Return the environment without any Prefect settings, plus ``extra``."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
    return {**kept, **extra}


def headrace(arguments: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None) -> tuple[float, int]:
    """Run the command line; return its CPU seconds with all children it waited for, and its peak memory in bytes.

    Raises
    ------
    RuntimeError
        The command failed; holds the end of what it said.
    """
    env = dict(environment or clean_environment(PREFECT_HOME=str(folder / "prefect")))
    with (folder / "output.txt").open("w+") as output:
        child = subprocess.Popen([*HEADRACE, *arguments], cwd=folder, env=env, stdout=output, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            output.seek(0)
            raise RuntimeError(f"headrace {' '.join(arguments)} exits {child.returncode}: {output.read()[-1000:]}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def _run_arguments(out: Path, frames: int, grid: int, *more: str) -> list[str]:
    options = {"--frames": frames, "--grid": grid, "--group-size": 4, "--out": out}
    return ["run", "compress", *(str(part) for pair in options.items() for part in pair), *more]


def _digest(out: Path) -> str:
    (run,) = list_runs(out)
    return store_digest(run.path / "data.zarr")


def identical(size: str) -> Iterator[dict[str, Any]]:
    """Run the same parameters on every executor and engine and compare the stores byte by byte."""
    frames, grid = (200, 64) if size == "full" else (40, 32)
    with TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        ways: dict[str, tuple[list[str], dict[str, str]]] = {
            "inline": (["--executor", "inline"], {}),
            "2 processes": (["--executor", "processes:2"], {}),
            "local Dask": (["--executor", "dask:2"], {}),
        }
        if size == "full":
            address = stack.enter_context(dask_cluster(folder / "elsewhere"))
            ways["external dask scheduler and worker"] = (["--executor", address], {})
            api = stack.enter_context(prefect_server(folder / "server"))
            ways["Prefect with a real server"] = (["--engine", "prefect"], {"PREFECT_API_URL": api})
        ways["folder of decoys"] = ([], {})
        reference = ""
        for way, (options, extra) in ways.items():
            place = folder / way.replace(" ", "-")
            place.mkdir()
            if way == "folder of decoys":
                _lay_decoys(place)
            env = clean_environment(PREFECT_HOME=str(place / "prefect"), **extra)
            headrace(_run_arguments(Path("runs"), frames, grid, *options), place, env)
            digest = _digest(place / "runs")
            reference = reference or digest
            yield {
                "name": f"store from: {way}",
                "required": f"sha256 {reference[:12]}",
                "measured": digest[:12],
                "ok": digest == reference,
                "note": "all files of data.zarr",
            }


def _lay_decoys(folder: Path) -> None:
    for name in DECOYS:
        (folder / name).write_text("raise SystemExit('a decoy was imported')\n")
    (folder / "headrace").mkdir()


def killed(size: str) -> Iterator[dict[str, Any]]:
    """Kill the process group when a share of the units is done, resume, and compare with an uninterrupted run."""
    frames, grid = (600, 96) if size == "full" else (120, 48)
    with TemporaryDirectory() as name:
        folder = Path(name)
        headrace(_run_arguments(folder / "whole", frames, grid), folder)
        reference, units = _digest(folder / "whole"), len(_markers(folder / "whole"))
        for share in (0.1, 0.5, 0.9):
            arguments = _run_arguments(folder / f"{share}", frames, grid)
            yield _killed_at(share, units, folder, arguments, reference)


def _killed_at(share: float, units: int, folder: Path, arguments: list[str], reference: str) -> dict[str, Any]:
    out = folder / f"{share}"
    child = subprocess.Popen(
        [*HEADRACE, *arguments],
        cwd=folder,
        env=clean_environment(),
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while len(_markers(out)) < share * units and child.poll() is None:
        time.sleep(0.002)
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    before = {path: path.stat().st_mtime_ns for path in _markers(out)}
    headrace(arguments, folder)
    again = sum(path.stat().st_mtime_ns != stamp for path, stamp in before.items())
    digest = _digest(out)
    return {
        "name": f"SIGKILL at {share:.0%}, resumed",
        "required": f"sha256 {reference[:12]}, 0 units again",
        "measured": f"{digest[:12]}, {again} units again",
        "ok": digest == reference and again == 0,
        "note": f"{len(before)} of {units} units were finished at the kill",
    }


def _markers(out: Path) -> list[Path]:
    return list(out.glob("compress/*/done/*.json"))


def costs(size: str) -> Iterator[dict[str, Any]]:
    """CPU seconds of the command line and of imports."""
    repeats = 3 if size == "full" else 1
    with TemporaryDirectory() as name:
        folder = Path(name)
        local, prefect = [], []
        for k in range(repeats):
            smoke = ["run", "compress", "--smoke", "--out"]
            local.append(headrace([*smoke, str(folder / f"local{k}"), "--engine", "local"], folder)[0])
            prefect.append(headrace([*smoke, str(folder / f"prefect{k}"), "--engine", "prefect"], folder)[0])
        ratio = min(local) / min(prefect)
        yield _limit(
            "CPU of run compress --smoke, local / Prefect", 0.35, ratio, f"{min(local):.2f} s / {min(prefect):.2f} s"
        )
        for command in ("--help", "list"):
            used = min(headrace([command], folder)[0] for _ in range(repeats))
            yield _limit(f"CPU of headrace {command} [s]", 0.6, used, "")
        yield _import_cost(repeats)


def _import_cost(repeats: int) -> dict[str, Any]:
    code = (
        "import json, sys, time\n"
        "import headrace.tasks.insitu.stream\n"
        "heavy = sorted({'prefect', 'distributed', 'torch'} & set(sys.modules))\n"
        "print(json.dumps([time.process_time(), heavy]))"
    )
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(repeats)
    ]
    seconds, heavy = min(json.loads(done.stdout) for done in runs)
    figure = _limit(
        "CPU of importing the in-situ stream [s]", 0.5, seconds, f"loads of prefect, distributed, torch: {heavy}"
    )
    return {**figure, "ok": figure["ok"] and not heavy}


def memory(size: str) -> Iterator[dict[str, Any]]:
    """Peak memory of a long stream against a short one."""
    short, long, grid = (200, 2000, 128) if size == "full" else (40, 120, 48)
    with TemporaryDirectory() as name:
        folder = Path(name)
        peaks = []
        for frames in (short, long):
            out = folder / str(frames)
            options = ["--gate", "all", "--group-size", "16"]
            headrace(
                ["run", "compress", "--frames", str(frames), "--grid", str(grid), "--out", str(out), *options], folder
            )
            (run,) = list_runs(out)
            record = json.loads((run.path / "run.json").read_text())
            peaks.append(record["peak_memory_bytes"] / 2**20)
        yield _limit(
            f"peak memory of {long} frames of {grid}x{grid} / {short} frames", 1.1, peaks[1] / peaks[0],
            f"{peaks[1]:.0f} MiB / {peaks[0]:.0f} MiB, all processes",
        )  # fmt: skip


def _limit(name: str, limit: float, measured: float, note: str) -> dict[str, Any]:
    return {
        "name": name,
        "required": f"<= {limit}",
        "measured": round(measured, 3),
        "ok": measured <= limit,
        "note": note,
    }


@contextmanager
def dask_cluster(folder: Path) -> Iterator[str]:
    """Start ``dask scheduler`` and ``dask worker`` as commands, in a folder of their own; yield the executor spec."""
    folder.mkdir()
    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    dask = shutil.which("dask") or str(Path(sys.executable).with_name("dask"))
    commands = [
        [dask, "scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard"],
        [dask, "worker", address, "--nthreads", "1", "--no-dashboard"],
    ]
    with _background(commands, folder, clean_environment()):
        wait_for_port(port)
        yield f"dask:{address}"


@contextmanager
def prefect_server(folder: Path) -> Iterator[str]:
    """Start ``prefect server`` with a database of its own; yield the address of its API."""
    folder.mkdir()
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "prefect",
        "server",
        "start",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--no-ui",
    ]
    with _background([command], folder, clean_environment(PREFECT_HOME=str(folder))):
        wait_for_port(port)
        yield f"http://127.0.0.1:{port}/api"


@contextmanager
def _background(commands: Sequence[Sequence[str]], folder: Path, env: Mapping[str, str]) -> Iterator[None]:
    quiet = subprocess.DEVNULL
    started = [
        subprocess.Popen(command, cwd=folder, env=dict(env), stdout=quiet, stderr=quiet, start_new_session=True)
        for command in commands
    ]
    try:
        yield
    finally:
        for child in reversed(started):
            os.killpg(child.pid, signal.SIGTERM)
        for child in started:
            try:
                child.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()


def free_port() -> int:
    """Return a TCP port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(port: int, seconds: float = 120.0) -> None:
    """Wait until something listens on a port of this machine.

    Raises
    ------
    RuntimeError
        Nothing did in time.
    """
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise RuntimeError(f"nothing listens on port {port} after {seconds:.0f} s")
