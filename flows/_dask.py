"""Dask as an executor: a local cluster, a scheduler at an address, or one started through SLURM.

Imported only when Dask is used. Plain ``client.submit`` with ``pure=False``: equal arguments must not be answered from
an earlier result. Dask's own logging is kept out of the terminal; errors arrive as errors of the units.
"""

import itertools
import logging
import shutil
import socket
import subprocess
import tempfile
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import dask
import distributed

from headrace.flows._base import Pending, Submit
from headrace.flows._executors import no_interrupts, spawning
from headrace.storage.errors import MissingExtraError, ParameterError, ServiceError

if TYPE_CHECKING:
    from dask_jobqueue import SLURMCluster

logger = logging.getLogger(__name__)
T = TypeVar("T")

CONNECT_SECONDS = 5.0
WORKER_SECONDS = 60.0
LARGEST_GREETING = 1 << 20

SETTINGS = {
    "distributed.admin.large-graph-warning-threshold": "1GB",  # frames travel as arguments, and are meant to
    "distributed.comm.timeouts.connect": f"{CONNECT_SECONDS}s",
}


@contextmanager
def quiet() -> Iterator[None]:
    """Keep Dask's log and its warnings out of the terminal, unless headrace itself logs at DEBUG."""
    names = [name for name in logging.root.manager.loggerDict if name.partition(".")[0] in {"distributed", "tornado"}]
    levels = {name: logging.getLogger(name).level for name in names}
    if logging.getLogger("headrace").level != logging.DEBUG:
        for name in names:
            logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), dask.config.set(SETTINGS):
            warnings.filterwarnings("ignore", category=UserWarning, module=r"distributed\.")
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def submitter(client: distributed.Client) -> Submit:
    """``Submit`` over a client, with task names a person can read in the dashboard."""
    token, numbers = uuid.uuid4().hex[:6], itertools.count()

    def submit(fn: Callable[..., T], /, *args: Any) -> Pending[T]:
        future: Pending[T] = client.submit(fn, *args, pure=False, key=f"{fn.__name__}-{token}-{next(numbers)}")
        return future

    return submit


@contextmanager
def local_cluster(workers: int) -> Iterator[Submit]:
    """A cluster of worker processes on this machine, with its scheduler in this process."""
    folder = tempfile.mkdtemp(prefix="headrace-dask-")
    try:
        with quiet(), spawning(), dask.config.set({"temporary-directory": folder}):
            with no_interrupts():
                cluster = distributed.LocalCluster(
                    n_workers=workers,
                    threads_per_worker=1,
                    processes=True,
                    dashboard_address=None,
                    silence_logs=logging.CRITICAL,
                )
                client = distributed.Client(cluster, set_as_default=False)
            try:
                yield submitter(client)
            finally:
                with no_interrupts():
                    client.close()
                    cluster.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def external_cluster(address: str) -> Iterator[Submit]:
    """A running scheduler at ``tcp://HOST:PORT``.

    Raises
    ------
    ServiceError
        Nothing answers there, no worker appears, or the workers cannot run this version of headrace.
    """
    check_reachable(address)
    with quiet():
        with no_interrupts():
            client = connect(address)
        try:
            check_workers(client, address)
            yield submitter(client)
        finally:
            with no_interrupts():
                client.close()


def check_reachable(address: str) -> None:
    """Raise unless something that speaks like a Dask scheduler listens at the address.

    Dask's own client waits for ever for a listener that says nothing. A scheduler greets first: eight bytes that hold
    the small size of its greeting.

    Raises
    ------
    ParameterError
        The address is malformed.
    ServiceError
        Nothing listens, or something else does.
    """
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port:
        raise ParameterError(
            f"Dask address {address!r} is malformed; expected tcp://HOST:PORT. Use the address that "
            "`dask scheduler` prints when it starts."
        )
    try:
        with socket.create_connection((host, port), timeout=CONNECT_SECONDS) as connection:
            if parts.scheme == "tcp":
                greeting = connection.recv(8, socket.MSG_WAITALL)
                if len(greeting) < 8 or int.from_bytes(greeting, "little") > LARGEST_GREETING:
                    raise unreachable(address, "something else listens there")
    except TimeoutError as error:
        raise unreachable(address, f"silence for {CONNECT_SECONDS:.0f} s") from error
    except ServiceError:
        raise
    except OSError as error:
        raise unreachable(address, str(error)) from error


def unreachable(address: str, reason: str) -> ServiceError:
    """The error for a scheduler that does not answer."""
    return ServiceError(
        f"No Dask scheduler answers at {address} ({reason}); expected a running `dask scheduler`. "
        "Start one, correct the address, or use --executor dask for workers on this machine."
    )


def connect(address: str) -> distributed.Client:
    """Connect a client to a scheduler, or say why not."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return distributed.Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ImportError, ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise unreachable(address, reason[0]) from error


def check_workers(client: distributed.Client, address: str) -> None:
    """Raise unless there are workers, with our version of headrace and of Python.

    Raises
    ------
    ServiceError
        Names the workers and the versions found.
    """
    try:
        client.wait_for_workers(1, timeout=WORKER_SECONDS)
    except TimeoutError as error:
        raise ServiceError(
            f"The Dask scheduler at {address} has no workers after {WORKER_SECONDS:.0f} s; expected at least one. "
            f"Start one: dask worker {address}"
        ) from error
    check_headrace(client.run(version, "headrace", on_error="return"), version("headrace"), address)
    check_versions(client.get_versions(), address)


def check_headrace(found: Mapping[str, object], ours: str, address: str) -> None:
    """Raise when a worker has another version of headrace, or none (what it raised stands for the version).

    Raises
    ------
    ServiceError
        Names a worker and what it has.
    """
    wrong = {worker: str(text) for worker, text in found.items() if text != ours}
    if wrong:
        worker, text = next(iter(wrong.items()))
        text = f"headrace {text}" if text[:1].isdigit() else "no headrace"
        raise ServiceError(
            f"{len(wrong)} of {len(found)} workers of the scheduler at {address} cannot run the units: {worker} has "
            f"{text}; expected headrace {ours}. Install it in the environment of the scheduler and the workers."
        )


def check_versions(versions: Any, address: str) -> None:
    """Raise when a worker's or the scheduler's Python or Dask differs so that code cannot travel.

    Raises
    ------
    ServiceError
        Names the peer, the package and both versions.
    """

    def essential(info: dict[str, Any]) -> dict[str, str]:
        python = ".".join(str(info["host"]["python"]).split(".")[:2])
        return {"Python": python, "distributed": str(info["packages"]["distributed"])}

    ours = essential(versions["client"])
    peers = {"the scheduler": versions["scheduler"], **versions["workers"]}
    for peer, info in peers.items():
        for name, theirs in essential(info).items():
            if theirs != ours[name]:
                raise ServiceError(
                    f"{peer} at {address} runs {name} {theirs}; expected {ours[name]} as here. "
                    "Use one environment for the client, the scheduler and the workers."
                )


def read_preset(name: str) -> dict[str, Any]:
    """Options of ``SLURMCluster`` from a named preset of the package or from a YAML file.

    Raises
    ------
    ParameterError
        There is no such preset or file.
    """
    import yaml

    path = Path(name)
    if path.suffix in {".yaml", ".yml"}:
        if not path.is_file():
            raise ParameterError(
                f"There is no SLURM preset file {name!r}; expected a YAML file with SLURMCluster options."
            )
        return dict(yaml.safe_load(path.read_text(encoding="utf-8")))
    presets = yaml.safe_load((files("headrace.deployments") / "slurm" / "presets.yaml").read_text(encoding="utf-8"))
    if name not in presets:
        raise ParameterError(
            f"There is no SLURM preset {name!r}; expected one of: {', '.join(presets)}. "
            "Name one of these, or a YAML file of your own: slurm:./mine.yaml"
        )
    return dict(presets[name])


def slurm(preset: str) -> "tuple[SLURMCluster, int]":
    """A cluster of SLURM jobs that has asked for no job yet, and the number of jobs its preset wants.

    Raises
    ------
    MissingExtraError
        dask-jobqueue is not installed.
    ParameterError
        Unknown preset.
    """
    options = read_preset(preset)
    try:
        from dask_jobqueue import SLURMCluster
    except ImportError as error:
        raise MissingExtraError(
            f"executor 'slurm:{preset}' needs dask-jobqueue, which is not installed. "
            "Install it: pip install 'headrace[hpc]'"
        ) from error
    jobs = int(options.pop("jobs", 1))
    scheduler = {"dashboard": False, "dashboard_address": ":0", **options.pop("scheduler_options", {})}
    return SLURMCluster(**options, scheduler_options=scheduler), jobs


def slurm_script(preset: str) -> str:
    """The batch script that ``slurm:PRESET`` would hand to ``sbatch`` for each of its jobs."""
    with quiet():
        cluster, _ = slurm(preset)
        try:
            return str(cluster.job_script())
        finally:
            cluster.close()


@contextmanager
def slurm_cluster(preset: str, units: int) -> Iterator[Submit]:
    """Workers in SLURM jobs started for this run and cancelled at its end; units wait in the queue with them.

    Raises
    ------
    ServiceError
        SLURM is not here, or refuses the batch script.
    """
    with quiet():
        with no_interrupts():
            cluster, jobs = slurm(preset)
            client = distributed.Client(cluster, set_as_default=False)
        try:
            check_batch(str(cluster.job_script()), preset)
            cluster.scale(jobs=min(jobs, units))
            yield submitter(client)
        finally:
            with no_interrupts():
                client.close()
                cluster.close()


def check_batch(script: str, preset: str) -> None:
    """Ask SLURM whether it would take a batch script: a job refused later would leave its units waiting for ever.

    Raises
    ------
    ServiceError
        SLURM is not here, or says no.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".sbatch") as file:
        file.write(script)
        file.flush()
        try:
            done = subprocess.run(["sbatch", "--test-only", file.name], capture_output=True, text=True, check=False)
        except FileNotFoundError as error:
            raise ServiceError(
                f"executor 'slurm:{preset}' found no sbatch on PATH; expected a machine that submits SLURM jobs. "
                "Run on a login node, or use --executor dask for workers on this machine."
            ) from error
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip().splitlines() or [f"status {done.returncode}"]
        raise ServiceError(
            f"SLURM refuses the batch script of preset {preset!r} ({words[-1]}); expected a job it can run. Copy the "
            "preset, set queue and account, and use it: --executor slurm:./mine.yaml (--print-script shows the script)"
        )
