"""Where arrays live and which library computes on them.

A kernel takes its array module from its arguments (``xp = array_module(a, b)``), never from a global setting, so the
same call serves NumPy on the host and CuPy on a GPU. Only ``to_device`` and ``to_host`` move data. Without CuPy, or
without a driver, everything here imports and works on NumPy.
"""

import logging
import re
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, Literal, TypeAlias

import numpy as np

from headrace.storage.errors import DeviceError, ParameterError

__all__ = ["Array", "Device", "array_module", "gpu_count", "has_gpu", "parse_device", "to_device", "to_host"]

logger = logging.getLogger(__name__)

Array: TypeAlias = Any
"""``numpy.ndarray`` or ``cupy.ndarray``; CuPy has no type information."""


@dataclass(frozen=True)
class Device:
    """A place to compute: ``Device("cpu")`` or the CUDA device ``Device("cuda", n)``."""

    kind: Literal["cpu", "cuda"]
    index: int = 0

    def __str__(self) -> str:
        return self.kind if self.kind == "cpu" else f"{self.kind}:{self.index}"


def gpu_count() -> int:
    """Return how many CUDA devices can be used; 0 without CuPy and 0 without a driver."""
    return _count_or_reason()[0]


def has_gpu() -> bool:
    """Tell whether there is CuPy, a driver and a device."""
    return gpu_count() > 0


def parse_device(spec: str = "auto") -> Device:
    """Turn ``auto``, ``cpu``, ``cuda`` or ``cuda:n`` into a device that exists.

    Parameters
    ----------
    spec : {"auto", "cpu", "cuda", "cuda:n"}
        ``auto`` takes ``cuda:0`` where a GPU can be used and the CPU elsewhere, and says which in one INFO line
        per process. ``cuda`` is ``cuda:0``.

    Returns
    -------
    Device
        A device that can be used now.

    Raises
    ------
    ParameterError
        ``spec`` has none of the forms above.
    DeviceError
        A CUDA device was asked for and cannot be used; names what is missing.
    """
    match = re.fullmatch(r"auto|cpu|cuda(?::(\d+))?", spec)
    if match is None:
        raise ParameterError(
            f"device={spec!r} is not a device: expected auto, cpu, cuda or cuda:n; choose one of them."
        )
    if spec == "cpu":
        return Device("cpu")
    count, reason = _count_or_reason()
    if spec == "auto":
        _announce(f"device=auto: using {'cuda:0' if count else f'NumPy on the CPU ({reason})'}")
        return Device("cuda") if count else Device("cpu")
    if count == 0:
        raise DeviceError(
            f"device={spec!r} cannot be used: {reason}. Expected CuPy and a working NVIDIA driver: "
            "install 'headrace[gpu]' on a machine with a GPU, or use device=cpu."
        )
    index = int(match[1] or 0)
    if index >= count:
        raise DeviceError(
            f"device={spec!r} does not exist: found {count} CUDA device(s), 0 to {count - 1}; choose one."
        )
    return Device("cuda", index)


def array_module(*arrays: Array) -> ModuleType:
    """Return the library that computes on these arrays: ``cupy`` when they are CuPy arrays, ``numpy`` otherwise.

    Parameters
    ----------
    *arrays : array or number
        NumPy arrays, CuPy arrays, numbers or anything ``numpy.asarray`` takes. Numbers fit both libraries.

    Returns
    -------
    module
        ``numpy`` or ``cupy``. CuPy is never imported for an argument that is none of its arrays.

    Raises
    ------
    DeviceError
        Host and device arrays are mixed: a silent copy would hide the cost.
    """
    on_gpu = [_is_cupy(array) for array in arrays if not np.isscalar(array)]
    if not any(on_gpu):
        return np
    if not all(on_gpu):
        places = ", ".join("GPU" if here else "host" for here in on_gpu)
        raise DeviceError(f"arrays lie in different memories ({places}), expected one; move them with to_device.")
    return import_module("cupy")


def to_host(array: Array) -> np.ndarray[Any, Any]:
    """Return the array in host memory.

    Parameters
    ----------
    array : array
        Any shape and dtype. A NumPy array comes back as it is, without a copy.

    Returns
    -------
    numpy.ndarray
        Same shape, dtype and values.
    """
    return array.get() if _is_cupy(array) else np.asarray(array)


def to_device(array: Array, device: Device) -> Array:
    """Return the array in the memory of a device.

    Parameters
    ----------
    array : array
        Any shape and dtype, in any memory. What lies on the device already comes back without a copy.
    device : Device
        From ``parse_device``.

    Returns
    -------
    array
        ``numpy.ndarray`` for the CPU, ``cupy.ndarray`` for a GPU; same shape, dtype and values.

    Raises
    ------
    DeviceError
        The device cannot be used; names what is missing.
    """
    if device.kind == "cpu":
        return to_host(array)
    parse_device(str(device))
    cupy = import_module("cupy")
    with cupy.cuda.Device(device.index):
        return cupy.asarray(array)


def _is_cupy(array: object) -> bool:
    """Tell a CuPy array by its type's name, without importing CuPy."""
    return type(array).__module__.partition(".")[0] == "cupy"


def _count_or_reason() -> tuple[int, str]:
    """Count the usable CUDA devices; when there are none, say why."""
    try:
        cupy = import_module("cupy")
    except ImportError as error:
        return 0, f"CuPy cannot be imported: {error}"
    try:
        count = int(cupy.cuda.runtime.getDeviceCount())
    except Exception as error:  # noqa: BLE001 - CuPy raises its own classes, and the answer is the same: no GPU
        return 0, f"CuPy finds no usable NVIDIA driver: {error}"
    return count, "" if count else "the NVIDIA driver reports no device"


@cache
def _announce(line: str) -> None:
    """Log a line once per process: units of work ask for their device again and again."""
    logger.info(line)
