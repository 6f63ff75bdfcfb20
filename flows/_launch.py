"""Choose the engine, run a flow with it. Prefect is looked for without importing it."""

import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.flows._base import COMMAND, FlowParams, Notify, Report, ignore
from headrace.flows._catalog import load_flow
from headrace.storage.errors import ParameterError

ENGINES = ("auto", "local", "prefect")
API_VARIABLE = "PREFECT_API_URL"


def configured_api(environment: Mapping[str, str] | None = None, folder: Path | None = None) -> str | None:
    """Address of the Prefect API that Prefect itself would use from here, or None.

    Looks where Prefect looks, in its order: the environment, ``.env``, ``prefect.toml`` and ``pyproject.toml`` of the
    working directory, then the active profile.
    """
    environment = os.environ if environment is None else environment
    folder = Path.cwd() if folder is None else folder
    project = _read_toml(folder / "pyproject.toml").get("tool", {}).get("prefect", {})
    candidates = (
        environment.get(API_VARIABLE),
        _from_env_file(folder / ".env"),
        _read_toml(folder / "prefect.toml").get("api", {}).get("url"),
        project.get("api", {}).get("url"),
        _from_profile(environment),
    )
    return next((str(url) for url in candidates if url), None)


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return {}  # no such file, or not for us to complain about: Prefect reads it again if it is used


def _from_env_file(path: Path) -> str | None:
    if not path.is_file():
        return None
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        name, _, value = line.strip().removeprefix("export ").partition("=")
        if name.strip() == API_VARIABLE:
            return value.strip().strip("'\"")
    return None


def _from_profile(environment: Mapping[str, str]) -> str | None:
    home = Path(environment.get("PREFECT_HOME") or Path.home() / ".prefect").expanduser()
    content = _read_toml(Path(environment.get("PREFECT_PROFILES_PATH") or home / "profiles.toml").expanduser())
    active = environment.get("PREFECT_PROFILE") or content.get("active")
    profile = content.get("profiles", {}).get(active, {})
    return profile.get(API_VARIABLE)


def choose_engine(asked: str) -> tuple[str, str | None]:
    """Engine to use and the Prefect API it talks to (None: a server of its own).

    Raises
    ------
    ParameterError
        ``asked`` is no engine.
    """
    if asked not in ENGINES:
        raise ParameterError(f"engine {asked!r} is unknown; expected one of: {', '.join(ENGINES)}.")
    api = configured_api() if asked != "local" else None
    return ("prefect" if asked == "prefect" or api else "local"), api


def launch(
    flow: str,
    params: FlowParams,
    *,
    engine: str = "auto",
    notify: Notify = ignore,
    command: Sequence[str] = (),
) -> Report:
    """Run a flow and return its report.

    Parameters
    ----------
    flow
        Name of the flow.
    params
        Its parameters; ``params.executor`` says where units run.
    engine
        ``auto`` uses Prefect when an API is configured; ``local`` never does; ``prefect`` always does, with a server
        of its own when none is configured.
    notify
        Called with the progress.
    command
        Command line, for the provenance of the run.

    Raises
    ------
    ServiceError
        The Prefect API or the Dask scheduler does not answer.
    HeadraceError
        Whatever the flow found wrong.
    """
    chosen, api = choose_engine(engine)
    token = COMMAND.set(tuple(command))
    try:
        if chosen == "prefect":
            from headrace.flows import _prefect

            return _prefect.run_flow(flow, params, api, notify)
        return run_locally(flow, params, notify)
    finally:
        COMMAND.reset(token)


def run_locally(flow: str, params: FlowParams, notify: Notify = ignore) -> Report:
    """Run a flow in this process, with the executor that ``params`` names, without Prefect."""
    from headrace.flows._executors import open_executor

    module = load_flow(flow)
    with open_executor(params.executor, module.plan(params).units) as submit:
        report: Report = module.run(params, submit, notify)
    return report
