"""A small run that is killed at every single change of the file system, and resumed (started by ``test_kill.py``).

One process imports everything and forks. Each child opens the run, counts its changes of the file system by an audit
hook, and kills itself before the n-th; a second child resumes. The parent compares what the two left with an
uninterrupted run and prints what differs as JSON.
"""

import contextlib
import hashlib
import importlib
import json
import os
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import xarray as xr

from headrace.storage import provenance
from headrace.storage.arrays import consolidate, create_store, grow_time, store_digest, write_chunk
from headrace.storage.runs import Run, mark_done

CHANGES = {"os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "shutil.rmtree"}
UNITS = 2
provenance.collect = dict  # it asks git, which takes longer than the job


def job(out: Path) -> None:
    """Do what a flow does: create, write chunks, grow, mark, checkpoint, finish."""
    with Run.open(out, "toy", {"n": UNITS}, inputs={}, version=1) as run:
        if run.complete:
            return
        if not run.data.exists():
            empty = xr.Dataset({"v": (("time", "x"), np.zeros((0, 4)))}, {"time": np.zeros(0), "x": np.arange(4.0)})
            create_store(run.data, empty, {"v": {"chunks": (2, 4), "compressors": None}}, {"title": "toy"})
        for unit in range(UNITS):
            if not run.is_done(f"v.{unit}"):
                write_chunk(run.data, "v", (unit, 0), np.full((2, 4), unit, "<f8").tobytes())
                mark_done(run.path, f"v.{unit}", {"unit": unit})
            grow_time(run.data, {"v": 2 * unit + 2}, {"time": np.arange(2 * unit + 2.0)})
            if unit == 0:
                run.save_checkpoint(unit, {"w": np.arange(3.0)}, {"unit": unit})
                run.drop_checkpoints(keep=run.checkpoints()[-1:])
        consolidate(run.data)
        run.drop_checkpoints(keep=())
        run.write_report({"units": len(run.markers())})
        run.finish()


def kill_before(number: int, out: Path) -> None:
    """Kill this process just before its ``number``-th change of something below ``out``."""
    left = number

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        writes = (
            event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        )
        if (writes or event in CHANGES) and str(arguments[0]).startswith(str(out)):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


def forked(out: Path, number: int = 0) -> int:
    """Run the job in a child that is killed before its ``number``-th change; its exit status, negative for a signal."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            if number:
                kill_before(number, out)
            job(out)
            status = 0
            (out / "modules.json").write_text(json.dumps(sorted(sys.modules)))
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def state(out: Path) -> dict[str, object]:
    """What must not depend on being killed: data, markers, report, and which files there are."""
    [run] = (out / "toy").iterdir()
    files = sorted(str(path.relative_to(run)) for path in run.rglob("*") if path.is_file())
    markers = hashlib.sha256(b"".join(path.read_bytes() for path in sorted((run / "done").iterdir()))).hexdigest()
    status = json.loads((run / "run.json").read_text())["status"]
    return {
        "data": store_digest(run / "data.zarr"),
        "markers": markers,
        "report": (run / "report.json").read_text(),
        "files": files,
        "status": status,
    }


def main(folder: Path) -> None:
    """Kill at the first, second, ... change until a run gets through; print the differences."""
    forked(folder / "whole")
    for name in json.loads((folder / "whole" / "modules.json").read_text()):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)  # here once, not in every child
    wanted = state(folder / "whole")
    number, wrong = 0, []
    while True:
        number += 1
        out = folder / "killed"
        killed = forked(out, number)
        resumed = forked(out)
        found = state(out) if resumed == 0 else None
        if resumed != 0 or found != wanted:
            wrong.append({"before": number, "resumed": resumed, "found": found})
        shutil.rmtree(out)
        if killed == 0:
            break
    print(json.dumps({"kills": number - 1, "wrong": wrong[:3], "wanted": wanted}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
