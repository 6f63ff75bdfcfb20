"""Executors do the same work everywhere, retry what may pass, and leave nothing behind."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from threading import Thread
from types import ModuleType

import pytest

from headrace.flows._executors import is_transient, open_executor, parse_spec
from headrace.storage.errors import (
    MissingExtraError,
    ParameterError,
    ServiceError,
    StoreError,
)

LOCAL = ("inline", "threads:2", "processes:2", "dask:2")


@pytest.fixture(params=[*LOCAL, "scheduler"])
def spec(request: pytest.FixtureRequest) -> str:
    """Every executor that needs no batch system."""
    return (
        request.getfixturevalue("dask_address").join(["dask:", ""]) if request.param == "scheduler" else request.param
    )


@pytest.mark.parametrize(
    ("spec", "units", "expected"),
    [
        ("auto", 1, ("inline", "")),
        ("auto", 2, ("dask", "")),
        ("threads:3", 9, ("threads", "3")),
        ("dask", 1, ("dask", "")),
        ("dask:tcp://host:8786", 1, ("scheduler", "tcp://host:8786")),
        ("slurm:cpu", 1, ("slurm", "cpu")),
    ],
)
def test_specs_are_understood(spec: str, units: int, expected: tuple[str, str]) -> None:
    assert parse_spec(spec, units) == expected


@pytest.mark.parametrize("spec", ["", "auto:2", "inline:1", "threads:0", "threads:x", "dask:host:1", "slurm", "mpi"])
def test_unknown_specs_are_refused_with_the_known_forms(spec: str) -> None:
    with pytest.raises(ParameterError, match=r"expected auto, inline, threads:N"):
        parse_spec(spec, 1)


def test_units_give_the_same_results_everywhere(spec: str, units: ModuleType) -> None:
    with open_executor(spec, 8) as submit:
        jobs = [submit(units.square, number) for number in [3, 3, *range(6)]]
        assert [job.result() for job in jobs] == [9, 9, 0, 1, 4, 9, 16, 25]
        assert all(job.done() for job in jobs)


def test_equal_arguments_are_worked_on_again(spec: str, units: ModuleType, tmp_path: Path) -> None:
    with open_executor(spec, 2) as submit:
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                submit(units.always, str(tmp_path), ZeroDivisionError()).result()
    assert (tmp_path / "tries").read_text() == "xx"


def test_trouble_of_the_system_is_tried_once_more(spec: str, units: ModuleType, tmp_path: Path) -> None:
    with open_executor(spec, 2) as submit:
        assert submit(units.fail_once, str(tmp_path), OSError(5, "I/O error")).result() == "second try"


@pytest.mark.parametrize("retry", [True, False])
def test_lasting_trouble_is_raised_after_the_second_try(retry: bool, units: ModuleType, tmp_path: Path) -> None:
    with open_executor("inline", 1, retry=retry) as submit:
        job = submit(units.always, str(tmp_path), OSError(5, "I/O error"))
        for _ in range(2):
            with pytest.raises(OSError, match="I/O error"):
                job.result()
    assert (tmp_path / "tries").read_text() == "x" * (2 if retry else 1)


def test_numerical_failure_is_not_tried_again(units: ModuleType, tmp_path: Path) -> None:
    with open_executor("threads:1", 1) as submit, pytest.raises(ArithmeticError):
        submit(units.always, str(tmp_path), ArithmeticError("diverged")).result()
    assert (tmp_path / "tries").read_text() == "x"


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        (OSError(5, "I/O error"), True),
        (ConnectionResetError(), True),
        (StoreError("record does not match its checksum"), False),
        (OSError(28, "No space left on device"), False),
        (FileNotFoundError(2, "gone"), False),
        (PermissionError(13, "no"), False),
        (ServiceError("scheduler gone"), False),
        (ValueError("bad"), False),
    ],
)
def test_which_errors_may_pass(error: Exception, transient: bool) -> None:
    assert is_transient(error) is transient


def test_errors_of_ours_survive_the_way_back(spec: str, units: ModuleType, tmp_path: Path) -> None:
    with open_executor(spec, 2) as submit, pytest.raises(ParameterError, match="value 3 is odd"):
        submit(units.always, str(tmp_path), ParameterError("value 3 is odd")).result()


@pytest.mark.parametrize("spec", ["processes:2", "dask:2"])
def test_local_workers_run_one_thread_and_not_the_main_script(
    spec: str, units: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = dict(os.environ)
    with open_executor(spec, 2) as submit:
        pid, threads, in_path, main = submit(units.where).result()
    assert pid != os.getpid()
    assert threads == "1"
    assert not in_path
    assert main is None
    assert dict(os.environ) == before
    assert sys.modules["__main__"].__dict__.get("__file__") is not None


def test_no_worker_is_started_before_the_first_unit() -> None:
    code = (
        "import sys\nfrom headrace.flows._executors import open_executor\n"
        "with open_executor('dask:2', 5):\n    print('distributed' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


SCRIPT = """
import sys
from headrace.flows._executors import open_executor
import probe_units

spec, folder = sys.argv[1:]
try:
    with open_executor(spec, 4) as submit:
        jobs = [submit(probe_units.slow, folder, number, 2.0) for number in range(50)]
        print("started", flush=True)
        for job in jobs:
            job.result()
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.fixture
def running(request: pytest.FixtureRequest, unit_folder: Path, tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """A program in its own process group, busy with fifty units on two workers.

    It has no ``if __name__ == "__main__"``: workers must not run it again.
    """
    script = tmp_path / "main_without_guard.py"
    script.write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, "-P", str(script), request.param, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(unit_folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 60
        while len(list(tmp_path.glob("*.begun"))) < 2:
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline, "two units did not begin"
            time.sleep(0.05)
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def alive(group: int) -> list[str]:
    """Processes of a group that are no zombies."""
    listed = subprocess.run(["ps", "-e", "-o", "pgid=,stat=,args="], capture_output=True, text=True, check=True)
    lines = [line.split(None, 2) for line in listed.stdout.splitlines()]
    return [args for pgid, stat, args in lines if int(pgid) == group and not stat.startswith("Z")]


def wait_for_the_end(group: int) -> None:
    """Wait until a process group is gone, or fail naming who stays."""
    deadline = time.monotonic() + 60
    while alive(group):
        assert time.monotonic() < deadline, f"still there: {alive(group)}"
        time.sleep(0.1)


@pytest.mark.parametrize("running", ["processes:2", "dask:2"], indirect=True)
def test_ctrl_c_ends_workers_without_a_word(running: "subprocess.Popen[str]") -> None:
    os.killpg(running.pid, signal.SIGINT)
    out, err = running.communicate(timeout=180)
    assert running.returncode == 0
    assert out.splitlines() == ["started", "interrupted"]
    assert err == ""
    wait_for_the_end(running.pid)


@pytest.mark.parametrize("running", ["processes:2", "dask:2"], indirect=True)
@pytest.mark.parametrize("whole_group", [True, False])
def test_sigkill_leaves_no_workers(running: "subprocess.Popen[str]", whole_group: bool) -> None:
    (os.killpg if whole_group else os.kill)(running.pid, signal.SIGKILL)
    running.communicate(timeout=60)  # returns when the last process has closed its end of the pipe
    wait_for_the_end(running.pid)


def test_local_dask_leaves_no_files(units: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with open_executor("dask:2", 2) as submit:
        submit(units.square, 2).result()
        assert list(tmp_path.iterdir())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.timeout(30)  # Dask's own client would wait much longer, or for ever
def test_an_unreachable_scheduler_is_named() -> None:
    wanted = r"No Dask scheduler answers at tcp://127\.0\.0\.1:9 .*--executor dask"
    with pytest.raises(ServiceError, match=wanted), open_executor("dask:tcp://127.0.0.1:9", 2):
        pass


@pytest.mark.timeout(30)
@pytest.mark.parametrize("greeting", [b"", b"SSH-2.0-OpenSSH_9.2\r\n"])
def test_something_else_at_the_address_is_no_scheduler(greeting: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            held.append(server.accept()[0])
            with contextlib.suppress(OSError):  # who asks may be gone by then
                held[0].sendall(greeting)

        held: list[socket.socket] = []
        greeter = Thread(target=greet, daemon=True)
        greeter.start()
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ServiceError, match=address), open_executor(f"dask:{address}", 2):
            pass
        greeter.join(10)
        held[0].close()


@pytest.mark.parametrize("address", ["tcp://host", "tcp://:8786", "tcp://host:port"])
def test_a_malformed_scheduler_address_is_refused(address: str) -> None:
    with pytest.raises(ParameterError, match="HOST:PORT"), open_executor(f"dask:{address}", 2):
        pass


@pytest.mark.parametrize(
    ("found", "words"),
    [("0.0.1", "has headrace 0.0.1; expected headrace 1.0"), (PackageNotFoundError("headrace"), "has no headrace")],
)
def test_workers_without_this_headrace_are_refused(found: object, words: str) -> None:
    from headrace.flows._dask import check_headrace

    check_headrace({"tcp://w:1": "1.0"}, "1.0", "tcp://s:1")
    with pytest.raises(ServiceError, match=f"1 of 2 workers .*tcp://w:2 {words}"):
        check_headrace({"tcp://w:1": "1.0", "tcp://w:2": found}, "1.0", "tcp://s:1")


@pytest.mark.parametrize(
    ("who", "package", "theirs"),
    [("scheduler", "distributed", "2020.1.0"), ("workers", "distributed", "2020.1.0"), ("workers", "python", "3.8.1")],
)
def test_other_versions_of_dask_or_python_are_refused(who: str, package: str, theirs: str) -> None:
    from headrace.flows._dask import check_versions

    def info(**found: str) -> dict[str, dict[str, str]]:
        python, distributed = found.get("python", "3.11.7"), found.get("distributed", "2026.8.0")
        return {"host": {"python": python}, "packages": {"distributed": distributed}}

    versions = {"client": info(), "scheduler": info(), "workers": {"tcp://w:1": info()}}
    check_versions(versions, "tcp://s:1")
    other = info(**{package: theirs})
    versions[who] = {"tcp://w:1": other} if who == "workers" else other
    with pytest.raises(ServiceError, match=r"expected .* as here"):
        check_versions(versions, "tcp://s:1")


def test_slurm_needs_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dask_jobqueue", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'headrace\[hpc\]'"), open_executor("slurm:cpu", 2):
        pass


def test_an_unknown_slurm_preset_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ParameterError, match=r"no SLURM preset 'fast'.*cpu, node, gpu"), open_executor("slurm:fast", 2):
        pass


def test_a_slurm_preset_can_be_a_file_of_ones_own(tmp_path: Path) -> None:
    from headrace.flows._dask import read_preset

    mine = tmp_path / "mine.yaml"
    mine.write_text(json.dumps({"cores": 3, "queue": "debug"}))
    assert read_preset(str(mine)) == {"cores": 3, "queue": "debug"}
    with pytest.raises(ParameterError, match="no SLURM preset file"):
        read_preset(str(tmp_path / "other.yaml"))


@pytest.fixture
def slurm_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with ``sbatch`` and ``scancel`` that run jobs at once; its log of calls."""
    pytest.importorskip("dask_jobqueue", reason="the extra hpc is not installed")
    programs, log = tmp_path / "bin", tmp_path / "calls"
    programs.mkdir()
    submit = f"""#!/bin/bash
echo "sbatch $*" >> {log}
if [ "$1" = --test-only ]; then exit "$(cat {tmp_path}/status 2>/dev/null || echo 0)"; fi
cp "$1" {tmp_path}/job.sh
setsid bash {tmp_path}/job.sh > {tmp_path}/job.log 2>&1 < /dev/null &
echo "Submitted batch job $!"
"""
    (programs / "sbatch").write_text(submit)
    (programs / "scancel").write_text(f'#!/bin/bash\necho "scancel $*" >> {log}\nkill -TERM -- "-$1"\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return log


@pytest.mark.timeout(120)
def test_units_run_in_slurm_jobs(
    slurm_here: Path, units: ModuleType, unit_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(unit_folder))
    preset = tmp_path / "mine.yaml"
    preset.write_text(json.dumps({"jobs": 1, "cores": 2, "processes": 2, "memory": "1 GB", "interface": "lo"}))
    with open_executor(f"slurm:{preset}", 5) as submit:
        assert [submit(units.square, number).result() for number in range(5)] == [0, 1, 4, 9, 16]
    calls = [line.split()[0] for line in slurm_here.read_text().splitlines()]
    assert calls == ["sbatch", "sbatch", "scancel"]


def test_a_job_that_slurm_refuses_is_no_endless_wait(slurm_here: Path, tmp_path: Path) -> None:
    (tmp_path / "status").write_text("1")
    with (
        pytest.raises(ServiceError, match="SLURM refuses the batch script of preset 'cpu'"),
        open_executor("slurm:cpu", 2),
    ):
        pass


def test_without_slurm_the_run_does_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.flows._dask import check_batch

    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ServiceError, match="no sbatch on PATH"):
        check_batch("#!/bin/bash", "cpu")
