"""Fixtures that all tests share."""

import os
import signal
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import hypothesis
import pytest

from headrace.flows._base import Submit
from headrace.gpu.backend import has_gpu

hypothesis.settings.register_profile("house", deadline=None, derandomize="CI" in os.environ, print_blob=True)
hypothesis.settings.load_profile("house")


def pytest_configure() -> None:
    """Let programs that tests start hear Ctrl-C.

    A shell starts background jobs with the interrupt signal ignored, and what is ignored stays so in all descendants.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked ``gpu`` where there is no GPU."""
    if not has_gpu():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no CUDA device, or no CuPy"))


@pytest.fixture(scope="session", autouse=True)
def _own_settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the tests away from the Prefect profile and the display of whoever runs them."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("PREFECT_API_URL", "PREFECT_API_KEY", "PREFECT_PROFILE"):
            patch.delenv(name, raising=False)
        patch.setenv("PREFECT_HOME", str(tmp_path_factory.mktemp("prefect")))
        patch.setenv("MPLBACKEND", "agg")
        yield


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """An ``out`` folder for runs, not there yet."""
    return tmp_path / "runs"


@pytest.fixture(params=["inline", "threads:2", "processes:2"])
def executor(request: pytest.FixtureRequest) -> Iterator[Submit]:
    """``submit`` of every executor that needs no scheduler; for Dask see the tests of ``flows``."""
    from headrace.flows._executors import open_executor

    with open_executor(request.param, 2) as submit:
        yield submit


@pytest.fixture(params=["numpy", pytest.param("cupy", marks=pytest.mark.gpu)])
def xp(request: pytest.FixtureRequest) -> ModuleType:
    """NumPy, and CuPy where there is a GPU."""
    return import_module(request.param)
