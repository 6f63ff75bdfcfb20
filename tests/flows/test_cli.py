"""The command line: exit status, one clear message, results on stdout, nothing imported that is not needed."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from headrace.flows import cli
from headrace.flows._catalog import FLOWS, command_name, load_flow, summary
from headrace.flows._cli_params import options

Cli = Callable[..., tuple[int, str, str]]

SMOKE_FRAMES = str(load_flow("compress").Params.smoke().frames)


@pytest.fixture
def headrace(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run a command line in this process, in an empty folder: status, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words: str) -> tuple[int, str, str]:
        try:
            status = cli.main(words)
        except SystemExit as exit_:  # --help and --version of cyclopts
            status = int(exit_.code or 0)
        out, err = capsys.readouterr()
        return status, out, err

    return run


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Output folder with one finished run of compress."""
    from headrace.flows.compress import Params, run

    folder = tmp_path_factory.mktemp("finished")
    run(Params.smoke().model_copy(update={"out": folder / "runs"}))
    return folder / "runs"


def shell(*words: str, **kwargs: Any) -> "subprocess.CompletedProcess[str]":
    """Run ``headrace`` as a program."""
    command = [sys.executable, "-P", "-m", "headrace.flows", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, **kwargs)


def test_list_shows_every_flow_with_its_summary(headrace: Cli) -> None:
    status, out, err = headrace("list")
    assert (status, err) == (0, "")
    for flow in FLOWS:
        assert f"{command_name(flow)} " in out
        assert summary(flow) in out


def test_list_as_json(headrace: Cli) -> None:
    status, out, _ = headrace("list", "--json")
    assert status == 0
    assert json.loads(out) == [{"name": command_name(flow), "summary": summary(flow)} for flow in FLOWS]


@pytest.mark.parametrize("words", [["--help"], ["list"], ["run", "--help"], ["--version"]])
def test_light_commands_import_nothing_heavy(words: list[str]) -> None:
    code = (
        "import atexit, sys\n"
        "heavy = ['numpy', 'xarray', 'zarr', 'prefect', 'distributed', 'pydantic', 'matplotlib', 'yaml']\n"
        "atexit.register(lambda: print('HEAVY', [name for name in heavy if name in sys.modules]))\n"
        f"from headrace.flows.cli import main\nsys.exit(main({words!r}))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "HEAVY []"


@pytest.mark.parametrize("action", ["run", "plan"])
@pytest.mark.parametrize("flow", FLOWS)
def test_help_mentions_every_parameter_and_common_option(headrace: Cli, flow: str, action: str) -> None:
    status, out, _ = headrace(action, command_name(flow), "--help")
    assert status == 0
    extra = {"config", "set", "smoke", "json"} | ({"engine", "dry-run", "print-script"} if action == "run" else set())
    for name in {option.name for option in options(load_flow(flow).Params)} | extra:
        assert f"--{name} " in out, name


@pytest.mark.parametrize("flow", FLOWS)
def test_show_describes_every_parameter(headrace: Cli, flow: str) -> None:
    status, out, _ = headrace("show", command_name(flow), "--json")
    fields = json.loads(out)["parameters"]["properties"]
    assert status == 0
    assert set(fields) == set(load_flow(flow).Params.model_fields)
    status, out, _ = headrace("show", command_name(flow))
    assert all(f"--{name.replace('_', '-')} " in out for name in fields)


def test_run_prints_the_result_and_progress_apart(headrace: Cli) -> None:
    status, out, err = headrace("run", "compress", "--smoke", "--executor", "inline")
    assert status == 0
    assert "ratio" in out
    assert "run folder" in out
    assert err.startswith("compress: ")
    status, again, _ = headrace("run", "compress", "--smoke", "--executor", "inline", "--json")
    report = json.loads(again)
    assert status == 0
    assert report["flow"] == "compress"
    assert Path(report["path"], "run.json").is_file()
    assert report["metrics"]["ratio"] > 1


def test_dry_run_and_plan_agree_and_write_nothing(headrace: Cli, tmp_path: Path) -> None:
    status, out, _ = headrace("plan", "compress", "--smoke", "--json")
    assert status == 0
    assert headrace("run", "compress", "--smoke", "--json", "--dry-run")[1] == out
    assert json.loads(out)["units"] >= 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rum"], 'Unknown command "rum".*Did you mean "run"'),
        (["run", "compres"], 'Unknown command "compres".*Did you mean "compress"'),
        (["show", "compres"], "no flow 'compres'.*Did you mean 'compress'"),
        (["run", "compress", "--bond", "1"], 'Unknown option: "?--bond.*--bound'),
        (["run", "compress", "--bound", "0"], "--bound is '0'; expected a value greater than 0"),
        (["run", "compress", "--bound", "-1"], "--bound is '-1'; expected a value greater than 0"),
        (["run", "compress", "--bound", "nan"], "--bound is 'nan'; expected a (finite number|value greater than 0)"),
        (["run", "compress", "--bound", "small"], "--bound is 'small'; expected a valid number"),
        (["run", "compress", "--bound-mode", "max"], 'Invalid value "max".*abs'),
        (["run", "compress", "--set", "bond=1"], "no parameter 'bond'; did you mean 'bound'"),
        (["run", "compress", "--set", "bound"], "--set 'bound' names no value; expected NAME=VALUE"),
        (["run", "compress", "--config", "gone.yaml"], "no file 'gone.yaml'; expected"),
        (["run", "compress", "--executor", "ray"], "--executor is 'ray'; expected .*threads:N"),
        (["run", "compress", "--executor", "dask:tcp://127.0.0.1:9"], "No Dask scheduler answers at tcp://127.0.0.1:9"),
        (["run", "compress", "--engine", "airflow"], 'Invalid value "airflow".*prefect'),
        (["run", "compress", "--print-script"], "only --executor slurm:PRESET has a script"),
        (["run", "compress", "--source", "gone.nc"], "gone.nc"),
        (["runs", "show", "abc"], "no run 'abc'"),
        (["runs", "rm"], "No run is named"),
        (["report", "last"], "no run 'last'"),
        (["restore", "abc", "--to", "x.nc"], "no run 'abc'"),
        (["bench", "nothing"], "no flow 'nothing'"),
        (["deploy"], "No Prefect API is configured"),
    ],
)
def test_bad_input_is_one_clear_message(headrace: Cli, tmp_path: Path, words: list[str], message: str) -> None:
    status, out, err = headrace(*words)
    assert status == 2, err
    assert out == ""
    assert len(err.splitlines()) <= 3
    assert "Traceback" not in err
    import re

    assert re.search(message, err), err
    assert list(tmp_path.iterdir()) == [], "something half-written is left"


def test_several_bad_parameters_are_three_lines_at_most(headrace: Cli) -> None:
    words = ["--bound", "0", "--frames", "0", "--grid", "1", "--seed", "-1", "--max-gap", "x"]
    status, _, err = headrace("run", "compress", *words)
    assert status == 2
    assert len(err.splitlines()) == 3
    assert "2 more" in err


@pytest.mark.timeout(60)
def test_an_unreachable_prefect_api_is_one_message(
    headrace: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    for words in (["run", "compress", "--smoke"], ["deploy"]):
        status, _, err = headrace(*words)
        assert status == 2
        assert "No Prefect API answers at http://127.0.0.1:9/api" in err
        assert len(err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_failed_work_is_exit_status_3(headrace: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.storage.errors import UnitError

    def fail(*_: object) -> None:
        raise UnitError("3 of 12 units of work failed (a, b, c)")

    monkeypatch.setattr("headrace.flows.compress.run", fail)
    status, out, err = headrace("run", "compress", "--smoke", "--executor", "inline")
    assert (status, out, err) == (3, "", "headrace: 3 of 12 units of work failed (a, b, c)\n")


def test_a_defect_is_a_line_and_a_traceback_with_debug(headrace: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr("headrace.flows.compress.run", broken)
    status, _, err = headrace("run", "compress", "--smoke", "--executor", "inline")
    assert status == 3
    assert len(err.splitlines()) == 1
    assert "RuntimeError: boom" in err
    assert "--debug" in err
    status, _, err = headrace("run", "compress", "--smoke", "--executor", "inline", "--debug")
    assert status == 3
    assert "Traceback" in err


def test_an_interrupt_says_how_to_resume(headrace: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("headrace.flows.compress.run", interrupted)
    status, out, err = headrace("run", "compress", "--smoke", "--executor", "inline", "--fresh", "--out", "my runs")
    assert (status, out) == (130, "")
    assert err.splitlines()[-1] == "  headrace run compress --smoke --executor inline --out 'my runs'"


def test_every_source_of_parameters_in_its_order(headrace: Cli, tmp_path: Path) -> None:
    def units(*words: str) -> dict[str, Any]:
        status, out, err = headrace("plan", "compress", *words, "--json")
        assert status == 0, err
        return dict(json.loads(out)["details"])

    config = tmp_path / "run.yaml"
    config.write_text("frames: 70\nbound: 1e-2\ngroup_size: 7\n")
    assert units()["frames offered"] == "600"
    assert units("--smoke")["frames offered"] == SMOKE_FRAMES
    assert units("--smoke", "--config", "run.yaml")["frames offered"] == "70"
    assert units("--smoke", "--config", "run.yaml", "--set", "frames=80")["frames offered"] == "80"
    last = units("--smoke", "--config", "run.yaml", "--set", "frames=80", "--frames", "90")
    assert last["frames offered"] == "90"
    assert "0.01" in last["bounds"]
    assert last["chunk"].startswith("7 frames")


def test_run_json_of_an_earlier_run_is_a_config(headrace: Cli, finished: Path) -> None:
    record = next(finished.glob("compress/*/run.json"))
    status, out, err = headrace("plan", "compress", "--config", str(record), "--json")
    assert status == 0, err
    assert json.loads(out)["details"]["frames offered"] == SMOKE_FRAMES


def test_runs_are_listed_shown_and_removed(headrace: Cli, finished: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "runs"
    shutil.copytree(finished, copy)
    status, out, _ = headrace("runs", "list", "--json")
    (info,) = json.loads(out)
    assert (status, info["flow"], info["status"]) == (0, "compress", "complete")
    key = info["key"]
    assert key in headrace("runs", "list")[1]
    status, out, _ = headrace("runs", "show", key[:5], "--json")
    assert str(json.loads(out)["params"]["frames"]) == SMOKE_FRAMES
    status, out, _ = headrace("runs", "rm", key)
    assert status == 0
    assert json.loads(headrace("runs", "list", "--json")[1]) == []
    assert headrace("runs", "list") == (0, "No runs in runs.\n", "")


def test_a_running_run_is_not_removed(headrace: Cli, run_dir: Path) -> None:
    from headrace.storage.runs import Run

    with Run.open(run_dir, "compress", {}, inputs={}, version=1) as run:
        status, _, err = headrace("runs", "rm", run.key)
        assert status == 2
        assert "is running" in err
        assert run.path.is_dir()
        run.finish()


def test_report_is_shown_and_opened(headrace: Cli, finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    status, out, _ = headrace("report", "last", "--out", str(finished), "--open")
    assert status == 0
    assert "ratio" in out
    page = next(finished.glob("compress/*/report.html"))
    assert opened == [page.as_uri()]
    status, out, _ = headrace("report", "last", "--out", str(finished), "--json")
    assert json.loads(out) == json.loads(page.with_name("report.json").read_text())


def test_restore_is_short_for_its_flow(headrace: Cli, finished: Path, tmp_path: Path) -> None:
    status, _, err = headrace("restore", "last", "--to", "back.nc", "--out", str(finished), "--select", "x=0:3")
    assert status == 0, err
    with xr.open_dataset(tmp_path / "back.nc") as back:
        assert back["vorticity"].shape[-1] == 3
        assert np.isfinite(back["vorticity"]).all()


@pytest.mark.parametrize("shell_name", ["bash", "zsh", "fish"])
def test_completion_knows_commands_flows_and_options(headrace: Cli, shell_name: str) -> None:
    status, out, _ = headrace("completion", "show", shell_name)
    assert status == 0
    for word in ("compress", "doctor", "bound-mode", "executor"):
        assert word in out


def test_completion_script_is_valid_bash(headrace: Cli, tmp_path: Path) -> None:
    script = tmp_path / "completion.bash"
    script.write_text(headrace("completion", "show", "bash")[1])
    subprocess.run(["bash", "-n", str(script)], check=True)


def test_version_is_the_installed_one(headrace: Cli) -> None:
    from importlib.metadata import version

    assert headrace("--version")[1].strip() == version("headrace")


def test_doctor_finds_everything_in_order(headrace: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    status, out, err = headrace("doctor", "--json")
    found = json.loads(out)
    assert status == 0, err
    assert found["versions"]["numpy"] == np.__version__
    assert all(check["ok"] for check in found["checks"].values())
    monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", "tcp://127.0.0.1:9")
    status, out, err = headrace("doctor")
    assert status == 3
    assert "Dask scheduler" in err
    assert "FAILED" in out


def test_bench_prints_writes_and_fails_on_a_miss(
    headrace: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from types import SimpleNamespace

    seen: list[tuple[str, str | None]] = []

    def bench(size: str, only: str | None) -> list[dict[str, Any]]:
        seen.append((size, only))
        good = {"name": "ratio", "required": ">= 5", "measured": 7.25, "ok": True, "note": "forced run"}
        bad = {"name": "speed", "required": "<= 1 s", "measured": "2 s", "ok": False, "note": ""}
        return [good] if only == "ratio" else [good, bad]

    module = SimpleNamespace(bench=bench)
    monkeypatch.setattr("headrace.flows.benchmarks.importlib.util.find_spec", lambda name: module)
    monkeypatch.setattr("headrace.flows.benchmarks.importlib.import_module", lambda name: module)
    status, out, err = headrace(
        "bench", "compress", "--only", "ratio", "--json", "deep/figures.json", "--size", "small"
    )
    assert (status, err) == (0, "")
    assert "7.25" in out
    figures = json.loads((tmp_path / "deep/figures.json").read_text())
    assert [sorted(figure) for figure in figures] == [["measured", "name", "note", "ok", "required"]]
    status, out, err = headrace("bench", "compress")
    assert status == 3
    assert "1 of 2 figures miss what is required: speed" in err
    assert seen == [("small", "ratio"), ("full", None)]


@pytest.fixture
def traps(tmp_path: Path) -> Path:
    """A folder full of modules that must not be imported, and an empty one called like us."""
    (tmp_path / "headrace").mkdir()
    for name in ("tasks", "storage", "flows", "gpu", "config", "zarr", "numpy", "prefect"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('imported from the working directory')\n")
    return tmp_path


@pytest.mark.parametrize(
    ("program", "executor"),
    [("script", "inline"), ("script", "dask:2"), ("module", "processes:2"), ("module", "dask:2")],
)
def test_modules_of_the_working_directory_are_not_ours(traps: Path, program: str, executor: str) -> None:
    script = [str(Path(sys.executable).with_name("headrace"))]
    command = script if program == "script" else [sys.executable, "-m", "headrace.flows"]
    words = ["run", "compress", "--smoke", "--executor", executor, "--json"]
    environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONSAFEPATH", "PYTHONPATH"}}
    done = subprocess.run([*command, *words], cwd=traps, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["metrics"]["violations"] == 0


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    command = f"{sys.executable} -P -m headrace.flows show compress | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0"
    assert done.stderr == ""
