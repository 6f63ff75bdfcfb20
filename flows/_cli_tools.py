"""``headrace bench``, ``deploy`` and ``completion``."""

import os
import subprocess
import sys
from importlib.resources import as_file, files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from headrace.storage.errors import ParameterError, ServiceError


def bench(
    flow: str,
    /,
    *,
    json_file: Annotated[Path | None, Parameter(name="--json", help="write the figures as a JSON list")] = None,
    only: Annotated[str | None, Parameter(help="only figures whose names contain this text")] = None,
    size: Annotated[Literal["small", "full"], Parameter(help="small: seconds; full: the evidence")] = "full",
) -> None:
    """Measure what a flow promises: required and measured side by side; exit status 3 on a miss.

    Parameters
    ----------
    flow
        Name of the flow.
    """
    from headrace.flows import benchmarks

    figures = benchmarks.measure(flow, size=size, only=only)
    print(benchmarks.table(figures))
    if json_file is not None:
        benchmarks.write(json_file, figures)
    benchmarks.check(figures)


Pool = Annotated[str | None, Parameter(help="work pool for all deployments, instead of those in the file")]
CreatePool = Annotated[bool, Parameter(help="create the work pool, for processes, where it is missing", negative=())]
Preset = Annotated[str | None, Parameter(help="job variables for Kubernetes, by name")]
DeployOut = Annotated[Path, Parameter(name="--out", help="folder of the run folders, as the workers see it")]
DeployFile = Annotated[Path | None, Parameter(help="another prefect.yaml than the one of the package")]


def deploy(
    *,
    pool: Pool = None,
    create_pool: CreatePool = False,
    preset: Preset = None,
    out: DeployOut = Path("runs"),
    file: DeployFile = None,
) -> None:
    """Create the scheduled deployments of deployments/prefect.yaml in the configured Prefect API."""
    from headrace.flows._launch import configured_api
    from headrace.flows._prefect_server import check_api

    api = configured_api()
    if api is None:
        raise ServiceError(
            "No Prefect API is configured (PREFECT_API_URL and the active profile name none); expected a server to "
            "deploy to.\nStart one (prefect server start) and point at it: "
            "prefect config set PREFECT_API_URL=http://127.0.0.1:4200/api"
        )
    check_api(api)
    if file is not None and not file.is_file():
        raise ParameterError(f"There is no file {str(file)!r}; expected a prefect.yaml.")
    variables = job_variables(preset) if preset is not None else {}
    with as_file(files("headrace.deployments") / "prefect.yaml") as packaged:
        apply(file or packaged, api, pool, variables, create_pool=create_pool, out=out.absolute())


def job_variables(preset: str) -> dict[str, Any]:
    """Job variables of a Kubernetes preset.

    Raises
    ------
    ParameterError
        There is no such preset.
    """
    import yaml

    text = (files("headrace.deployments") / "kubernetes" / "job-variables.yaml").read_text(encoding="utf-8")
    presets = yaml.safe_load(text)
    if preset not in presets:
        raise ParameterError(f"There is no preset {preset!r}; expected one of: {', '.join(presets)}.")
    return dict(presets[preset])


def apply(path: Path, api: str, pool: str | None, variables: dict[str, Any], *, create_pool: bool, out: Path) -> None:
    """Hand a deployment file to Prefect, with another pool and more job variables where asked for.

    Raises
    ------
    ServiceError
        Prefect refused it; says why.
    """
    import yaml

    from headrace.flows._prefect_server import QUIET

    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    for each in content["deployments"]:  # Prefect ignores such options together with --all
        place = each.setdefault("work_pool", {})
        jobs = {**place.get("job_variables", {}), **variables}
        each["work_pool"] = {**place, "name": pool or place.get("name", "local"), "job_variables": jobs}
    pools = {each["work_pool"]["name"] for each in content["deployments"]}
    environment = {**os.environ, **QUIET, "PREFECT_API_URL": api, "HEADRACE_OUT": str(out), "PYTHONSAFEPATH": "1"}
    for name in sorted(pools):
        provide_pool(name, api, environment, create=create_pool)
    with TemporaryDirectory(prefix="headrace-deploy-") as folder:
        merged = Path(folder, "prefect.yaml")
        merged.write_text(yaml.safe_dump(content), encoding="utf-8")
        done = prefect(["deploy", "--prefect-file", str(merged), "--all"], environment)
    refuse(done, f"the deployments of {path.name} cannot be created")
    names = ", ".join(f"{each['entrypoint'].rpartition('.')[2]}/{each['name']}" for each in content["deployments"])
    print(f"Deployed {names} to {api}. Start a worker: prefect worker start --pool {min(pools)}")


def provide_pool(name: str, api: str, environment: dict[str, str], *, create: bool) -> None:
    """Raise unless a work pool is there, or create it.

    Raises
    ------
    ServiceError
        It is missing.
    """
    if prefect(["work-pool", "inspect", name], environment).returncode == 0:
        return
    if not create:
        raise ServiceError(
            f"{api} has no work pool {name!r}; expected one for the deployments. Add --create-pool, or create it: "
            f"prefect work-pool create {name} --type process"
        )
    made = prefect(["work-pool", "create", name, "--type", "process"], environment)
    refuse(made, f"work pool {name!r} cannot be created")


def prefect(arguments: list[str], environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    """Run Prefect's command line without prompts."""
    command = [sys.executable, "-P", "-m", "prefect", "--no-prompt", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def refuse(done: "subprocess.CompletedProcess[str]", what: str) -> None:
    """Raise when a Prefect command failed, with the last lines it said.

    Raises
    ------
    ServiceError
        The command failed.
    """
    if done.returncode == 0:
        return
    words = " ".join((done.stdout + done.stderr).split())
    raise ServiceError(f"{what} (Prefect says: {words[-300:]}); expected success. Correct the file or the server.")


def completion_command(app: App) -> App:
    """``headrace completion``: print or install the completion script of a shell."""
    group = App(name="completion", help="Shell completion of commands, flows and options.")
    shells = Literal["bash", "zsh", "fish"]

    @group.command(name="show")
    def show(shell: shells, /) -> None:
        """Print the completion script of a shell."""
        print(app.generate_completion(prog_name="headrace", shell=shell))

    @group.command(name="install")
    def install(shell: shells | None = None, /) -> None:
        """Install completion for a shell; the current one by default."""
        install_completion(app, shell)

    return group


def install_completion(app: App, shell: Literal["bash", "zsh", "fish"] | None = None) -> None:
    """Install completion and say where.

    Raises
    ------
    ParameterError
        The current shell is not known.
    """
    from cyclopts.completion import ShellDetectionError

    try:
        path = app.install_completion(shell=shell)
    except ShellDetectionError as error:
        raise ParameterError(
            "The current shell cannot be told; expected bash, zsh or fish. Name it: headrace completion install bash"
        ) from error
    print(f"Installed {path}. It works in new shells.")
