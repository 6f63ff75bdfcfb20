"""The wheel holds what the tree holds, says what the project says, and runs from anywhere."""

import email
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from configparser import ConfigParser
from pathlib import Path

import pytest

from headrace.flows._catalog import FLOWS, command_name

ROOT = Path(__file__).parents[1]
FOLDERS = ("flows", "tasks", "gpu", "storage", "deployments")
ROOT_FILES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LEFT_OVERS = shutil.ignore_patterns("__pycache__", "*.pyc", "*.tmp", ".*")


def call_backend(hook: str, source: Path, target: Path) -> Path:
    """Run one hook of the build backend in ``source``; offline, since nothing is installed for it."""
    target.mkdir()
    code = f"from setuptools import build_meta; build_meta.{hook}({str(target)!r})"
    done = subprocess.run([sys.executable, "-c", code], cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [result] = target.iterdir()
    return result


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A clean copy of the sources: a build leaves files in the tree it is made from."""
    copy = tmp_path_factory.mktemp("tree") / "clone"
    copy.mkdir()
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, copy / folder, ignore=LEFT_OVERS)
    for name in (*ROOT_FILES, "constraints.txt"):
        shutil.copy(ROOT / name, copy / name)
    return copy


@pytest.fixture(scope="module")
def files(tree):
    """Every file of the package, before anything is built."""
    return {
        f"headrace/{path.relative_to(tree)}" for each in FOLDERS for path in (tree / each).rglob("*") if path.is_file()
    }


@pytest.fixture(scope="module")
def wheel(tree, files, tmp_path_factory):
    return call_backend("build_wheel", tree, tmp_path_factory.mktemp("wheel") / "dist")


@pytest.fixture(scope="module")
def metadata(wheel):
    with zipfile.ZipFile(wheel) as archive:
        info = next(name.partition("/")[0] for name in archive.namelist() if ".dist-info/" in name)
        return {name: archive.read(f"{info}/{name}").decode() for name in ("METADATA", "entry_points.txt")}


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A folder with the installed wheel and nothing else."""
    target = tmp_path_factory.mktemp("site")
    options = ["--no-deps", "--no-index", "--no-compile", "--quiet", "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, "--target", target, wheel], check=True)
    return target


def packed(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name and not name.endswith("/")}


def run_installed(site: Path, cwd: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run Python in another folder, with the installed wheel before everything else."""
    environment = {**os.environ, "PYTHONPATH": str(site)}
    return subprocess.run(
        [sys.executable, *command], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


def test_wheel_holds_exactly_the_tree(wheel, files):
    assert {"headrace/storage/py.typed", "headrace/deployments/README.md", "headrace/flows/__init__.py"} <= files
    assert packed(wheel) == files


def test_wheel_from_the_source_archive_is_the_same(tree, wheel, files, tmp_path):
    archive = call_backend("build_sdist", tree, tmp_path / "sdist")
    with tarfile.open(archive) as content:
        content.extractall(tmp_path / "unpacked", filter="data")
    [source] = (tmp_path / "unpacked").iterdir()
    assert (source / "constraints.txt").is_file()
    assert packed(call_backend("build_wheel", source, tmp_path / "again")) == packed(wheel)


def test_metadata_says_what_the_project_says(metadata):
    message = email.message_from_string(metadata["METADATA"])
    assert message["Name"] == "headrace"
    assert message["Version"] == PROJECT["version"]
    assert message["License-Expression"] == "Apache-2.0"
    assert set(message.get_all("Provides-Extra")) == set(PROJECT["optional-dependencies"])
    assert {"gpu", "insitu", "hpc", "test", "bench", "docs"} <= set(PROJECT["optional-dependencies"])


def test_codec_and_command_are_entry_points(metadata):
    points = ConfigParser()
    points.optionxform = str
    points.read_string(metadata["entry_points.txt"])
    assert points["console_scripts"]["headrace"] == "headrace.flows.cli:main"
    assert points["zarr.codecs"]["headrace.spacetime"] == "headrace.storage.codecs.spacetime:SpaceTimeCodec"


def test_data_files_are_found_from_an_installed_wheel(installed, tmp_path):
    code = (
        "from importlib.resources import files; import headrace.storage as s; print(s.__file__);"
        "print(files('headrace.deployments').joinpath('README.md').read_text())"
    )
    done = run_installed(installed, tmp_path, "-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(installed)), "the test looked at the checkout, not at the wheel"
    assert "Entry points" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("flow", FLOWS)
def test_every_flow_runs_from_an_installed_wheel(flow, installed, tmp_path):
    for name in ("tasks", "storage", "flows", "gpu", "config"):  # what a user's folder may hold
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('a file of the working directory was imported')\n")
    (tmp_path / "headrace").mkdir()
    command = ["-m", "headrace.flows", "run", command_name(flow), "--smoke", "--json"]
    done = run_installed(installed, tmp_path, *command)
    assert done.returncode == 0, done.stdout + done.stderr
    reports = {path.parts[-3].replace("-", "_") for path in (tmp_path / "runs").glob("*/*/report.json")}
    assert flow in reports
    assert json.loads(done.stdout)["flow"] == command_name(flow)
