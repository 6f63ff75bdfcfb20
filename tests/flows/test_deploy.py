"""Deployments: the files are well-formed, and a real server with a real worker runs one."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.storage.arrays import store_digest

DEPLOYMENTS = files("headrace.deployments")
Server = Any


def load(name: str) -> Any:
    return yaml.safe_load(DEPLOYMENTS.joinpath(*name.split("/")).read_text())


def test_compress_runs_every_night() -> None:
    (nightly,) = [each for each in load("prefect.yaml")["deployments"] if each["name"] == "nightly"]
    assert nightly["entrypoint"] == "headrace.flows.compress.compress"
    assert nightly["schedules"] == [{"cron": "0 3 * * *", "timezone": "UTC"}]
    assert nightly["concurrency_limit"] == 1


def test_entrypoints_are_modules_and_nothing_is_pulled() -> None:
    content = load("prefect.yaml")
    assert content["pull"] == []
    for each in content["deployments"]:
        assert ":" not in each["entrypoint"]
        assert each["work_pool"]["job_variables"]["env"]["OMP_NUM_THREADS"] == "1"
        assert each["parameters"]["params"]["out"] == "{{ $HEADRACE_OUT }}"


@pytest.mark.parametrize("name", ["compress.sbatch", "dask.sbatch"])
def test_batch_scripts_are_valid(name: str, tmp_path: Path) -> None:
    script = tmp_path / name
    script.write_text((DEPLOYMENTS / "slurm" / name).read_text())
    subprocess.run(["bash", "-n", str(script)], check=True)
    lines = script.read_text().splitlines()
    assert lines[0].startswith("#!")
    directives = [line for line in lines if line.startswith("#SBATCH")]
    assert all(re.fullmatch(r"#SBATCH --[a-z-]+(=\S+)?", line) for line in directives)
    first_command = next(index for index, line in enumerate(lines) if line and not line.startswith("#"))
    assert max(lines.index(line) for line in directives) < first_command, "SLURM stops reading at the first command"


def test_slurm_presets_keep_to_one_thread_per_worker() -> None:
    for name, preset in load("slurm/presets.yaml").items():
        assert preset["jobs"] >= 1, name
        assert "OMP_NUM_THREADS=1" in " ".join(preset["job_script_prologue"]), name


@pytest.mark.parametrize("preset", load("slurm/presets.yaml"))
def test_slurm_presets_make_a_batch_script(preset: str) -> None:
    pytest.importorskip("dask_jobqueue", reason="the extra hpc is not installed")
    from headrace.flows._dask import slurm_script

    script = slurm_script(preset)
    assert "#SBATCH" in script
    assert "OMP_NUM_THREADS=1" in script
    assert "distributed.cli.dask_worker" in script or "dask worker" in script


KUBERNETES_VARIABLES = {
    # of the default job template of Prefect's Kubernetes worker
    "annotations", "backoff_limit", "cluster_config", "command", "cpu_limit", "cpu_request", "env", "finished_job_ttl",
    "image", "image_pull_policy", "job_watch_timeout_seconds", "labels", "memory_limit", "memory_request", "name",
    "namespace", "pod_watch_timeout_seconds", "service_account_name", "stream_output",
}  # fmt: skip


def test_kubernetes_presets_use_variables_of_the_default_template() -> None:
    for name, preset in load("kubernetes/job-variables.yaml").items():
        assert set(preset) <= KUBERNETES_VARIABLES, name


def test_the_image_leaves_the_command_to_the_worker() -> None:
    lines = (DEPLOYMENTS / "Dockerfile").read_text().splitlines()
    words = [line.split()[0] for line in lines if line and not line.startswith(("#", " "))]
    assert words[0] == "FROM"
    assert "ENTRYPOINT" not in words
    assert "USER" in words


def headrace(server: Server, folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run the program against a server."""
    command = [sys.executable, "-P", "-m", "headrace.flows", *words]
    return subprocess.run(
        command, cwd=folder, env=server.environment(), capture_output=True, text=True, check=False, timeout=240
    )


@pytest.fixture(scope="module")
def worker(prefect_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A real process worker, started in a folder full of traps; its output folder."""
    folder = tmp_path_factory.mktemp("worker")
    (folder / "headrace").mkdir()
    for name in ("tasks", "storage", "flows", "gpu", "config"):
        (folder / f"{name}.py").write_text("raise RuntimeError('imported from the working directory')\n")
    done = headrace(prefect_server, folder, "deploy")
    assert done.returncode == 2
    assert "no work pool 'local'" in done.stderr
    assert "--create-pool" in done.stderr
    done = headrace(prefect_server, folder, "deploy", "--create-pool", "--out", "runs")
    assert done.returncode == 0, done.stderr
    assert "compress/nightly" in done.stdout
    command = [sys.executable, "-P", "-m", "prefect", "worker", "start", "--pool", "local", "--type", "process"]
    with (folder / "worker.log").open("w") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=prefect_server.environment(),
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield folder
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:  # a worker waits for the runs it has begun
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.mark.prefect
@pytest.mark.timeout(400)
def test_a_triggered_deployment_completes_with_its_artifact(
    prefect_server: Server, worker: Path, tmp_path: Path
) -> None:
    deployment = prefect_server.ask("deployments/name/compress/nightly")
    assert deployment["schedules"][0]["schedule"]["cron"] == "0 3 * * *"
    assert deployment["parameters"]["params"]["out"] == str(worker / "runs")
    from headrace.flows.compress import Params, run

    smoke = Params.smoke().model_copy(update={"out": worker / "runs", "executor": "dask:2"})
    triggered = prefect_server.ask(
        f"deployments/{deployment['id']}/create_flow_run",
        {"parameters": {"params": smoke.model_dump(mode="json")}, "state": {"type": "SCHEDULED"}},
    )
    deadline = time.monotonic() + 240
    while True:
        state = prefect_server.ask(f"flow_runs/{triggered['id']}")
        if state["state_type"] in {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}:
            break
        assert time.monotonic() < deadline, (worker / "worker.log").read_text()[-3000:]
        time.sleep(0.5)
    assert state["state_name"] == "Completed", state["state"]["message"]
    (path,) = (worker / "runs").glob("compress/*")
    assert state["name"] == f"compress-{path.name}"
    artifacts = {each["key"]: each for each in prefect_server.of_run("artifacts", triggered["id"])}
    assert artifacts["compress-report"]["type"] == "markdown"
    assert str(path) in artifacts["compress-report"]["data"]
    local = run(smoke.model_copy(update={"out": tmp_path})).path
    assert store_digest(path / "data.zarr") == store_digest(local / "data.zarr")


@pytest.mark.prefect
@pytest.mark.timeout(200)
def test_bad_parameters_are_refused_before_a_run_exists(prefect_server: Server, worker: Path) -> None:
    before = len(prefect_server.flow_runs())
    command = [sys.executable, "-P", "-m", "prefect", "deployment", "run", "compress/nightly"]
    done = subprocess.run(
        [*command, "-p", 'params={"bound": -1}'],
        cwd=worker,
        env=prefect_server.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "bound" in done.stdout + done.stderr
    assert len(prefect_server.flow_runs()) == before


@pytest.mark.prefect
@pytest.mark.timeout(200)
def test_another_pool_and_a_preset_are_put_in(prefect_server: Server, tmp_path: Path) -> None:
    words = ("deploy", "--pool", "cluster", "--create-pool", "--preset", "cpu", "--out", "/runs", "--file")
    mine = tmp_path / "prefect.yaml"
    content = load("prefect.yaml")
    content["deployments"] = [{**content["deployments"][0], "name": "elsewhere"}]
    mine.write_text(yaml.safe_dump(content))
    done = headrace(prefect_server, tmp_path, *words, str(mine))
    assert done.returncode == 0, done.stderr
    made = prefect_server.ask("deployments/name/compress/elsewhere")
    assert made["work_pool_name"] == "cluster"
    assert made["job_variables"]["image"] == load("kubernetes/job-variables.yaml")["cpu"]["image"]
    assert made["job_variables"]["env"]["OMP_NUM_THREADS"] == "1"
    done = headrace(prefect_server, tmp_path, "deploy", "--preset", "huge")
    assert done.returncode == 2
    assert "no preset 'huge'; expected one of: cpu" in done.stderr
    assert not os.path.lexists(tmp_path / "runs")
