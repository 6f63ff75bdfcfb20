"""``headrace doctor``: what is installed, what works, what can be reached."""

import os
import platform
import sys
import tempfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from headrace.flows._cli_flows import Json, emit
from headrace.storage.errors import HeadraceError, UnitError

PACKAGES = ("headrace", "numpy", "xarray", "zarr", "hdf5plugin", "pcodec", "dask", "distributed", "prefect", "cyclopts")
OPTIONAL = ("cupy-cuda13x", "dask-cuda", "dask-jobqueue", "mpi4py", "torch")


def versions() -> dict[str, str]:
    """Versions of what headrace stands on; ``missing`` for optional packages that are not installed."""
    found = {"python": platform.python_version()}
    for name in (*PACKAGES, *OPTIONAL):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "missing"
    return found


def machine() -> str:
    """Processor, cores and system."""
    from headrace.flows._executors import cpu_count

    return f"{cpu_count()} of {os.cpu_count()} cores, {platform.system()} {platform.release()}, {platform.machine()}"


def devices() -> str:
    """Device that ``auto`` takes, and how many GPUs there are."""
    from headrace.gpu.backend import gpu_count, parse_device

    return f"auto is {parse_device('auto')}; {gpu_count()} CUDA devices can be used"


def round_trip() -> str:
    """Write a field through the space-time codec into a Zarr store, read it back and check the bound.

    Raises
    ------
    UnitError
        A value came back farther off than the bound.
    """
    import numpy as np
    import zarr

    from headrace.storage.codecs.spacetime import SpaceTimeCodec

    x = np.linspace(0, 4, 64, dtype=np.float32)
    frames = np.stack([np.sin(x[:, None] + 0.1 * step) * np.cos(x) for step in range(8)])
    bound = 1e-3
    codec = SpaceTimeCodec("abs", bound)
    with tempfile.TemporaryDirectory(prefix="headrace-doctor-") as folder:
        zarr.create_array(folder, data=frames, chunks=frames.shape, serializer=codec, compressors=None)
        back: Any = zarr.open_array(folder, mode="r")[:]
        size = sum(file.stat().st_size for file in Path(folder, "c").rglob("*") if file.is_file())
    worst = float(np.abs(np.asarray(back, dtype=np.float64) - frames).max())
    if not worst <= bound:
        raise UnitError(f"a value came back {worst:.3g} off; expected at most {bound:g}. Reinstall hdf5plugin, pcodec.")
    return f"the bound {bound:g} holds, {frames.nbytes / size:.0f} times smaller"


def prefect_api() -> str:
    """Address of the configured Prefect API, when it answers.

    Raises
    ------
    ServiceError
        One is configured and does not answer.
    """
    from headrace.flows._launch import configured_api
    from headrace.flows._prefect_server import check_api

    api = configured_api()
    if api is None:
        return "none configured; flows run without a server"
    check_api(api)
    return f"{api} answers"


def dask_scheduler() -> str:
    """Address of the configured Dask scheduler, when it answers.

    Raises
    ------
    ServiceError
        One is configured and does not answer.
    """
    address = os.environ.get("DASK_SCHEDULER_ADDRESS")
    if address is None:
        return "none configured; units run on this machine"
    from headrace.flows._dask import check_reachable

    check_reachable(address)
    return f"{address} answers"


CHECKS: dict[str, Callable[[], str]] = {
    "machine": machine,
    "devices": devices,
    "store round trip": round_trip,
    "Prefect API": prefect_api,
    "Dask scheduler": dask_scheduler,
}


def doctor(*, as_json: Json = False) -> None:
    """Show versions, devices, a store round trip, and whether servers can be reached; exit status 3 if one fails."""
    found: dict[str, Any] = {"versions": versions(), "executable": sys.executable, "checks": {}}
    for name, check in CHECKS.items():
        try:
            result = {"ok": True, "found": check()}
        except HeadraceError as error:
            result = {"ok": False, "found": str(error)}
        except Exception as error:  # noqa: BLE001 - a doctor reports what is broken and goes on
            result = {"ok": False, "found": f"{type(error).__name__}: {error}"}
        found["checks"][name] = result
    lines = [f"{name:<18}{version}" for name, version in found["versions"].items()]
    lines += [
        "",
        *(f"{'ok' if each['ok'] else 'FAILED':<8}{name}: {each['found']}" for name, each in found["checks"].items()),
    ]
    emit(found, "\n".join(lines), as_json)
    failed = [name for name, each in found["checks"].items() if not each["ok"]]
    if failed:
        raise UnitError(f"{len(failed)} of {len(CHECKS)} checks failed: {', '.join(failed)}.")
