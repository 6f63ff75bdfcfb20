"""``headrace list``, ``show``, ``plan`` and ``run``."""

import json
import shlex
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from inspect import Parameter as Argument
from inspect import Signature
from pathlib import Path
from textwrap import fill
from types import ModuleType
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from headrace.flows._catalog import FLOWS, command_name, find_flow, load_flow, summary

Json = Annotated[bool, Parameter(name="--json", help="print one JSON document", negative=())]

RESERVED = ("config", "set", "smoke", "engine", "json", "dry_run", "print_script", "debug")
"""Options of every flow that are no parameters; no ``Params`` may have a field of such a name."""


def emit(value: Any, text: str, as_json: bool) -> None:
    """Print a result: the value as JSON, or the text for people."""
    print(json.dumps(value, indent=2, default=str) if as_json else text)


def list_flows(*, as_json: Json = False) -> None:
    """List the flows with a line about each."""
    found = {command_name(flow): summary(flow) for flow in FLOWS}
    width = max(map(len, found), default=0)
    emit(
        [{"name": name, "summary": text} for name, text in found.items()],
        "\n".join(f"{name:<{width}}  {text}" for name, text in found.items()) or "There are no flows.",
        as_json,
    )


def show(flow: str, /, *, as_json: Json = False) -> None:
    """Describe a flow and its parameters.

    Parameters
    ----------
    flow
        Name of the flow.
    """
    from headrace.flows._cli_params import options

    module = load_flow(flow)
    rows = [(f"--{option.name}", option.help) for option in options(module.Params)]
    width = max(len(name) for name, _ in rows) + 2
    text = [(module.__doc__ or "").strip(), ""]
    text += [fill(f"{name:<{width}}{about}", 100, subsequent_indent=" " * width) for name, about in rows]
    emit(
        {
            "name": command_name(find_flow(flow)),
            "description": (module.__doc__ or "").strip(),
            "parameters": module.Params.model_json_schema(),
        },
        "\n".join(text),
        as_json,
    )


def extra_option(name: str, kind: Any, default: Any, text: str) -> Argument:
    """An option that is no parameter of the flow."""
    spelled = Parameter(
        name="--" + name.replace("_", "-"),
        help=text,
        negative=(),
        show_default=False,
        show_choices=False,
        group="Common options",
    )
    return Argument(name, Argument.KEYWORD_ONLY, default=default, annotation=Annotated[kind, spelled])


COMMON = (
    extra_option("config", Path | None, None, "YAML or JSON file with parameters, or the run.json of an earlier run"),
    extra_option("set", list[str] | None, None, "one parameter as NAME=VALUE, the value in YAML; may be repeated"),
    extra_option("smoke", bool, False, "parameters of a run of seconds that touches every step"),
    extra_option("json", bool, False, "print one JSON document"),
)
RUN_ONLY = (
    extra_option(
        "engine",
        Literal["auto", "local", "prefect"],
        "auto",
        "auto (Prefect when an API is configured), local, or prefect (with its own server when none is)",
    ),
    extra_option("dry_run", bool, False, "only show the plan, like `headrace plan`"),
    extra_option("print_script", bool, False, "only print the batch script of --executor slurm:PRESET"),
)


def flow_command(flow: str, action: Callable[..., None], extra: Collection[Argument]) -> Callable[..., None]:
    """A command whose options are the parameters of a flow and some more."""
    from headrace.flows._cli_params import arguments

    module = load_flow(flow)

    def command(**given: Any) -> None:
        action(flow, module, {**{each.name: each.default for each in extra}, **given})

    command.__name__ = flow
    command.__doc__ = module.__doc__
    command.__signature__ = Signature(  # type: ignore[attr-defined]
        [*arguments(module.Params), *extra]
    )
    command.__annotations__ = {name: each.annotation for name, each in command.__signature__.parameters.items()}  # type: ignore[attr-defined]
    return command


def flow_group(name: Literal["plan", "run"], loaded: Collection[str]) -> App:
    """``headrace run`` or ``headrace plan``: a command per flow, with options for those loaded."""
    extra: tuple[Argument, ...] = COMMON if name == "plan" else (*COMMON, *RUN_ONLY)
    action = plan_flow if name == "plan" else run_flow
    group = App(name=name, help="Show what a run would do, without doing it." if name == "plan" else "Run a flow.")
    for flow in FLOWS:
        if flow in loaded:
            command = flow_command(flow, action, extra)
            group.command(command, name=command_name(flow), help=unwrapped(command.__doc__ or ""))
        else:
            group.command(App(name=command_name(flow), help=summary(flow)))
    return group


def unwrapped(text: str) -> str:
    """Paragraphs of one line each, for whoever wraps them to a terminal."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.strip().split("\n\n"))


def params_from(module: ModuleType, given: dict[str, Any]) -> Any:
    """Parameters of a flow from what was typed."""
    from headrace.flows._cli_params import build_params

    typed = {name: value for name, value in given.items() if name not in RESERVED}
    return build_params(
        module.Params, smoke=given["smoke"], config=given["config"], overrides=given["set"] or (), given=typed
    )


def plan_flow(flow: str, module: ModuleType, given: dict[str, Any]) -> None:
    """Show what a run would do."""
    from headrace.flows._text import size

    plan = module.plan(params_from(module, given))
    rows = [
        ("units of work", str(plan.units)),
        ("input", size(plan.bytes_in)),
        ("output", size(plan.bytes_out)),
        ("peak memory", size(plan.peak_memory)),
        ("device", plan.device),
        *plan.details.items(),
    ]
    width = max(len(name) for name, _ in rows)
    lines = [f"{command_name(flow)}: nothing has been run", ""]
    lines += [f"  {name:<{width}}  {value}" for name, value in rows]
    lines += ["", plan.template] if plan.template else []
    emit(asdict(plan), "\n".join(lines), given["json"])


def run_flow(flow: str, module: ModuleType, given: dict[str, Any]) -> None:
    """Run a flow and print what came out."""
    params = params_from(module, given)
    if given["dry_run"]:
        plan_flow(flow, module, given)
        return
    if given["print_script"]:
        print(batch_script(params.executor))
        return
    from headrace.flows._launch import launch
    from headrace.flows._progress import show_progress
    from headrace.flows._text import plain

    command = ("headrace", *sys.argv[1:])
    with show_progress(command_name(flow)) as notify:
        report = launch(flow, params, engine=given["engine"], notify=notify, command=command)
    emit(
        {
            "flow": command_name(flow),
            "key": report.path.name,
            "path": str(report.path),
            "title": report.title,
            "metrics": report.metrics,
            "provenance": report.provenance,
        },
        plain(report),
        given["json"],
    )


def batch_script(executor: str) -> str:
    """Batch script of ``slurm:PRESET``.

    Raises
    ------
    ParameterError
        Another executor has none.
    """
    from headrace.storage.errors import ParameterError

    kind, _, preset = executor.partition(":")
    if kind != "slurm":
        raise ParameterError(f"--print-script with executor {executor!r}; only --executor slurm:PRESET has a script.")
    from headrace.flows._dask import slurm_script

    return slurm_script(preset)


def resume_command(words: Sequence[str]) -> str:
    """The command line that resumes a run: the same, without ``--fresh``."""
    return shlex.join(["headrace", *(word for word in words if word != "--fresh")])
