"""Devices, array modules and copies, with and without a GPU."""

import logging
import subprocess
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from headrace.gpu import backend
from headrace.gpu.backend import Device, array_module, gpu_count, has_gpu, parse_device, to_device, to_host
from headrace.storage.errors import DeviceError, ParameterError


class FakeArray:
    """Looks like a CuPy array: the type's module is what counts."""

    __module__ = "cupy._core.core"

    def get(self) -> np.ndarray:
        return np.arange(3)


def pretend_cupy(monkeypatch: pytest.MonkeyPatch, count: int | Exception) -> ModuleType:
    """Install a stand-in for CuPy whose driver reports ``count`` devices, or raises."""

    def get_device_count() -> int:
        if isinstance(count, Exception):
            raise count
        return count

    fake = ModuleType("cupy")
    fake.cuda = SimpleNamespace(runtime=SimpleNamespace(getDeviceCount=get_device_count))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupy", fake)
    return fake


@pytest.fixture
def no_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)


@pytest.fixture(autouse=True)
def _forget_lines():
    backend._announce.cache_clear()


def test_missing_package_means_no_gpu(no_cupy):
    assert not has_gpu()
    assert gpu_count() == 0
    assert parse_device("auto") == parse_device("cpu") == Device("cpu")
    with pytest.raises(DeviceError, match=r"'cuda'.*CuPy cannot be imported.*headrace\[gpu\].*device=cpu"):
        parse_device("cuda")


def test_missing_driver_means_no_gpu(monkeypatch):
    pretend_cupy(monkeypatch, RuntimeError("cudaErrorInsufficientDriver: driver is too old"))
    assert not has_gpu()
    assert parse_device("auto") == Device("cpu")
    with pytest.raises(DeviceError, match=r"'cuda:1'.*driver is too old.*device=cpu"):
        parse_device("cuda:1")


def test_driver_without_device_means_no_gpu(monkeypatch):
    pretend_cupy(monkeypatch, 0)
    assert not has_gpu()
    with pytest.raises(DeviceError, match="reports no device"):
        parse_device("cuda")


def test_devices_are_numbered(monkeypatch):
    pretend_cupy(monkeypatch, 2)
    assert has_gpu()
    assert parse_device("auto") == parse_device("cuda") == Device("cuda", 0)
    assert parse_device("cuda:1") == Device("cuda", 1)
    with pytest.raises(DeviceError, match=r"'cuda:2' does not exist: found 2"):
        parse_device("cuda:2")


@pytest.mark.parametrize("spec", ["", "gpu", "cuda:", "cuda:-1", "cuda:0 ", "CPU", "auto:0", "cuda:1.5"])
def test_malformed_device_is_a_parameter_error(spec):
    with pytest.raises(ParameterError, match="expected auto, cpu, cuda or cuda:n"):
        parse_device(spec)


@pytest.mark.parametrize("device", [Device("cpu"), Device("cuda", 0), Device("cuda", 1)])
def test_text_of_a_device_parses_back(device, monkeypatch):
    pretend_cupy(monkeypatch, 2)
    assert parse_device(str(device)) == device


@pytest.mark.parametrize(("count", "text"), [(0, "NumPy on the CPU"), (1, "cuda:0")])
def test_auto_says_its_choice_once(count, text, monkeypatch, caplog):
    pretend_cupy(monkeypatch, count)
    with caplog.at_level(logging.INFO, logger="headrace"):
        for _ in range(3):
            parse_device("auto")
        parse_device("cpu")
    [record] = caplog.records
    assert record.levelno == logging.INFO
    assert text in record.message


def test_array_module_of_host_arrays_is_numpy(no_cupy):
    assert array_module() is np
    assert array_module(np.ones(3), 2.0, [1, 2]) is np


def test_array_module_of_device_arrays_is_cupy(monkeypatch):
    fake = pretend_cupy(monkeypatch, 1)
    assert array_module(FakeArray(), 2.0, np.float32(3)) is fake


def test_mixed_memories_are_refused(monkeypatch):
    pretend_cupy(monkeypatch, 1)
    with pytest.raises(DeviceError, match=r"GPU, host.*to_device"):
        array_module(FakeArray(), np.ones(3))


def test_copies_to_the_host():
    array = np.arange(6, dtype=">f4").reshape(2, 3)
    assert to_host(array) is array
    assert to_device(array, Device("cpu")) is array
    assert to_host([1, 2]).tolist() == [1, 2]
    assert to_host(FakeArray()).tolist() == [0, 1, 2]
    assert to_device(FakeArray(), Device("cpu")).tolist() == [0, 1, 2]


def test_copy_to_a_missing_device_names_what_is_missing(no_cupy):
    with pytest.raises(DeviceError, match="CuPy cannot be imported"):
        to_device(np.ones(3), Device("cuda"))


def test_importing_the_backend_does_not_import_cupy():
    code = "import headrace.gpu.backend, sys; sys.exit('cupy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.gpu
def test_round_trip_through_a_real_device():
    device = parse_device("cuda")
    host = np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32)
    there = to_device(host, device)
    assert array_module(there).__name__ == "cupy"
    assert to_device(there, device) is there
    np.testing.assert_array_equal(to_host(there), host)
    np.testing.assert_array_equal(to_host(there + there), host + host)


@pytest.mark.gpu
def test_every_real_device_takes_arrays():
    for index in range(gpu_count()):
        there = to_device(np.arange(4), parse_device(f"cuda:{index}"))
        assert there.device.id == index
