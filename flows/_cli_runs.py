"""``headrace runs`` and ``report``: what earlier runs left."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from headrace.flows._cli_flows import Json, emit

Out = Annotated[Path, Parameter(name="--out", help="folder that holds the run folders")]
OUT = Path("runs")


def list_all(*, out: Out = OUT, as_json: Json = False) -> None:
    """List runs, the oldest first: flow, key, status, start, seconds, size."""
    from headrace.flows._text import columns, size
    from headrace.storage.listing import list_runs

    runs = list_runs(out)
    rows = [(r.flow, r.key, r.status, r.started, seconds(r.seconds), size(r.bytes)) for r in runs]
    text = columns(("flow", "key", "status", "started", "seconds", "size"), rows) if rows else f"No runs in {out}."
    emit([asdict(run) for run in runs], text, as_json)


def seconds(value: float | None) -> str:
    """Seconds of a run, empty while it has none."""
    return "" if value is None else f"{value:.1f}"


def show_one(run: str, /, *, out: Out = OUT, as_json: Json = False) -> None:
    """Show the record of a run: parameters, status, versions, times.

    Parameters
    ----------
    run
        Key, unique beginning of a key, folder, or `last`.
    """
    import yaml

    from headrace.storage.files import read_json
    from headrace.storage.listing import find_run

    found = find_run(out, run)
    record = {"path": str(found.path), **read_json(found.path / "run.json"), "status": found.status}
    emit(record, yaml.safe_dump(record, sort_keys=False, default_flow_style=None, width=120).rstrip(), as_json)


def remove(*runs: str, out: Out = OUT, as_json: Json = False) -> None:
    """Delete runs with everything in their folders.

    Parameters
    ----------
    runs
        Keys, unique beginnings of keys, folders, or `last`.
    """
    from headrace.storage.errors import ParameterError, RunLockedError
    from headrace.storage.runs import find_run, remove_run

    if not runs:
        raise ParameterError("No run is named; expected at least one key. `headrace runs list` shows them.")
    found = [find_run(out, run) for run in runs]
    for info in found:
        if info.status == "running":
            raise RunLockedError(f"Run {info.key} is running; expected one that has ended. Stop it first (Ctrl-C).")
    for info in found:
        remove_run(info.path)
    emit([str(info.path) for info in found], "\n".join(f"removed {info.path}" for info in found), as_json)


def report(
    run: str,
    /,
    *,
    show_page: Annotated[bool, Parameter(name="--open", help="open the report in the browser", negative=())] = False,
    out: Out = OUT,
    as_json: Json = False,
) -> None:
    """Show the report of a run.

    Parameters
    ----------
    run
        Key, unique beginning of a key, folder, or `last`.
    """
    from headrace.flows._text import cell
    from headrace.storage.errors import SourceError
    from headrace.storage.files import read_json
    from headrace.storage.listing import find_run

    found = find_run(out, run)
    if not (found.path / "report.json").is_file():
        raise SourceError(
            f"Run {found.key} has no report yet (status {found.status}); expected a complete run. "
            "Resume it with the command in `headrace runs show`."
        )
    content: dict[str, Any] = read_json(found.path / "report.json")
    page = found.path / "report.html"
    metrics = content.get("metrics", {})
    width = max(map(len, metrics), default=0)
    lines = [str(content.get("title", found.key)), ""]
    lines += [f"  {name:<{width}}  {cell(value)}" for name, value in metrics.items()]
    lines += ["", f"report  {page}"] if page.is_file() else []
    emit(content, "\n".join(lines), as_json)
    if show_page:
        if not page.is_file():
            raise SourceError(f"Run {found.key} has no page {page}; expected one. Its flow writes report.json only.")
        import webbrowser

        webbrowser.open(page.absolute().as_uri())
