"""The bound against everything at hand: simulations, measured fields, torture, damage."""

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.flows.compress import Params, run
from headrace.storage.readers import load, open_dataset
from headrace.storage.selection import select
from headrace.tasks.insitu.sources import open_source

#: Files of the package iris-sample-data that have no time axis: compress refuses them, as it should.
WITHOUT_TIME = frozenset({"mesh_C4_synthetic_float.nc", "space_weather.nc"})


def violations(size: str) -> Iterator[dict[str, Any]]:
    """Count values beyond their bound in stored and re-read fields."""
    with TemporaryDirectory() as folder:
        out = Path(folder)
        frames, grid = (300, 128) if size == "full" else (40, 32)
        for name in ("kolmogorov-forced", "kolmogorov-decaying", "kdv"):
            params = Params(source=name, out=out, frames=frames, grid=None if name == "kdv" else grid, gate="all")
            yield _violation_figure(name, _simulation_errors(params))
        for path in _iris_files(size):
            yield _violation_figure(path.name, _file_errors(Params(source=str(path), out=out)))
    code = (
        "import json, sys\n"
        "from headrace.flows.benchmarks.torture import cases, violations\n"
        "print(json.dumps([v for case in cases(int(sys.argv[1])) for v in violations(case)]))"
    )
    count = 200 if size == "full" else 20
    done = subprocess.run([sys.executable, "-c", code, str(count)], capture_output=True, text=True, check=False)
    found = json.loads(done.stdout) if done.returncode == 0 else ["the process died"]
    yield _violation_figure(f"torture set of {count} fields", (len(found), count), f"exit status {done.returncode}")


def _iris_files(size: str) -> list[Path]:
    try:
        import iris_sample_data
    except ImportError:
        return []  # the extra `bench` brings it
    files = sorted(Path(iris_sample_data.path).glob("*.nc"))
    chosen = [path for path in files if path.name not in WITHOUT_TIME]
    return chosen if size == "full" else chosen[2:4]


def _violation_figure(name: str, found: tuple[int, int], note: str = "") -> dict[str, Any]:
    bad, checked = found
    return {
        "name": f"violations: {name}",
        "required": 0,
        "measured": bad,
        "ok": bad == 0 and checked > 0,
        "note": note or f"{checked:,} values compared",
    }


def _simulation_errors(params: Params) -> tuple[int, int]:
    stored = open_dataset(run(params).path / "data.zarr")
    source = open_source(params.source, frames=params.frames, grid=params.grid)
    bad = checked = 0
    for snapshot in source.snapshots():
        for name, original in snapshot.fields.items():
            decoded = load(stored[name][snapshot.index])
            bad += beyond(original, decoded, params.bound)
            checked += original.size
    return bad, checked


def _file_errors(params: Params) -> tuple[int, int]:
    stored = open_dataset(run(params).path / "data.zarr")
    original = select(open_dataset(Path(params.source)))
    bad = checked = 0
    for name in original.variables:
        before = original.dataset[name].transpose(original.time_dim, ...)
        for k in range(before.shape[0]):
            frame = load(before[k])
            bad += beyond(frame, load(stored[name][k]), params.bound)
            checked += frame.size
    return bad, checked


def beyond(original: NDArray[Any], decoded: NDArray[Any], bound: float) -> int:
    """Count values further off than ``bound`` times the frame's range, and non-finite ones that changed a bit."""
    if original.dtype.kind not in "fc":
        return int((original != decoded).sum())
    finite = np.isfinite(original)
    bits = f"u{original.dtype.itemsize}"
    changed = np.ascontiguousarray(original).view(bits) != np.ascontiguousarray(decoded).view(bits)
    values = original[finite].astype(np.float64)
    limit = bound * float(np.ptp(values)) if values.size else 0.0
    errors = np.abs(values - decoded[finite].astype(np.float64))
    return int((errors > limit).sum()) + int(changed[~finite].sum())


def mutants(size: str) -> Iterator[dict[str, Any]]:
    """Decode damaged chunks in processes of their own."""
    jobs, each = (10, 1000) if size == "full" else (2, 50)
    code = (
        "import json, sys, resource, numpy as np\n"
        "from headrace.flows.benchmarks._guarantee import mutant_chunks\n"
        "from headrace.flows.benchmarks.torture import decode_mutants\n"
        "seed, count = int(sys.argv[1]), int(sys.argv[2])\n"
        "a, b, y = mutant_chunks(seed)\n"
        "decode_mutants(a, b, 5, seed, y)\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "counts = decode_mutants(a, b, count, seed, y)\n"
        "counts['grown'] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before\n"
        "print(json.dumps(counts))"
    )

    def decode(seed: int) -> dict[str, int]:
        command = [sys.executable, "-c", code, str(seed), str(each)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        except subprocess.TimeoutExpired:
            return {"hung": 1}
        return dict(json.loads(done.stdout)) if done.returncode == 0 else {"died": 1}

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(decode, range(jobs)))
    total = {key: sum(counts.get(key, 0) for counts in found) for key in ("refused", "same", "wrong", "hung", "died")}
    grown = max(counts.get("grown", 0) for counts in found)
    yield {
        "name": f"{jobs * each} damaged chunks",
        "required": "0 wrong values, crashes, hangs",
        "measured": total["wrong"] + total["hung"] + total["died"],
        "ok": total["refused"] + total["same"] == jobs * each,
        "note": f"{total}; memory grew by at most {grown / 1024:.1f} MiB",
    }


def mutant_chunks(seed: int) -> tuple[bytes, bytes, NDArray[Any]]:
    """Two valid chunks of one array, of another mixture of codecs for every seed, and what the first decodes to."""
    from headrace.storage.codecs.groups import decode_group, encode_group
    from headrace.storage.codecs.layout import unpack
    from headrace.storage.codecs.plain import LOSSY

    field = np.cumsum(np.cumsum(np.random.default_rng(seed).standard_normal((5, 32, 40)), 1), 2).astype(np.float32)
    if seed % 2:
        field[:, :4, :5] = np.nan
    codecs = (LOSSY[seed % len(LOSSY)],)
    first, second = (
        encode_group(frames.astype(np.float32), [0.5] * 5, codecs=codecs, stream=7, index=(k, 0, 0)).payload
        for k, frames in enumerate((field, 1.1 * field[::-1]))
    )
    return first, second, decode_group(unpack(first))
