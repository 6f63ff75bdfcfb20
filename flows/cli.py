"""The command line: ``headrace COMMAND``.

Results go to stdout, progress and errors to stderr. Exit status: 0 done, 2 bad input, 3 work failed, 130 interrupted.
"""

import gc
import signal
import sys
import traceback
from collections.abc import Collection, Sequence
from types import FrameType

from cyclopts import App, CycloptsError

from headrace.flows._catalog import FLOWS
from headrace.storage.errors import HeadraceError

DONE, BAD_INPUT, FAILED, INTERRUPTED = 0, 2, 3, 130

HELP = """Streams of data into small, error-bounded Zarr stores, and more: flows that run anywhere.

`headrace list` names the flows, `headrace run FLOW --help` their options.

Any command takes --debug, which shows the traceback of an error.

Exit status: 0 done, 2 bad input, 3 work failed, 130 interrupted (resumable).
"""


def version() -> str:
    """Version of headrace."""
    from importlib.metadata import version as installed

    return installed("headrace")


def build_app(loaded: Collection[str] = ()) -> App:
    """Build the command tree.

    Parameters
    ----------
    loaded
        Module names of the flows whose options are needed; the others appear with their summary only, so that
        ``headrace --help`` imports no flow.
    """
    from headrace.flows import _cli_flows, _cli_runs, _cli_tools, _doctor

    app = App(name="headrace", help=HELP, version=version, help_format="plaintext", suppress_keyboard_interrupt=False)
    app.command(_cli_flows.list_flows, name="list")
    app.command(_cli_flows.show, name="show")
    app.command(_cli_flows.flow_group("plan", loaded))
    app.command(_cli_flows.flow_group("run", loaded))
    runs = App(name="runs", help="List, show and remove earlier runs.")
    runs.command(_cli_runs.list_all, name="list")
    runs.command(_cli_runs.show_one, name="show")
    runs.command(_cli_runs.remove, name="rm")
    app.command(runs)
    app.command(_cli_runs.report, name="report")
    if "restore" in FLOWS:
        app.command(App(name="restore", help="Write a run as NetCDF, HDF5 or Zarr: restore RUN --to FILE."))
    app.command(_cli_tools.bench, name="bench")
    app.command(_cli_tools.deploy, name="deploy")
    app.command(_doctor.doctor, name="doctor")
    app.command(_cli_tools.completion_command(app))
    return app


def flows_needed(words: Sequence[str]) -> tuple[str, ...]:
    """Flows whose options a command line needs."""
    if words[:1] == ["completion"] or "--install-completion" in words:
        return FLOWS
    if len(words) > 1 and words[0] in {"run", "plan"}:
        return (words[1].replace("-", "_"),)
    return ()


def spelled_out(words: Sequence[str]) -> list[str]:
    """``restore RUN --to FILE`` is short for ``run restore --run RUN --to FILE``."""
    if words[:1] != ["restore"]:
        return list(words)
    named = ["--run", words[1]] if len(words) > 1 and not words[1].startswith("-") else []
    return ["run", "restore", *named, *words[1 + len(named) // 2 :]]


def run_command(words: Sequence[str]) -> int:
    """Run one command line; its exit status."""
    from headrace.flows import _cli_tools

    words = spelled_out(words)
    app = build_app(flows_needed(words))
    if "--install-completion" in words:
        _cli_tools.install_completion(app)
        return DONE
    app(
        list(words),
        exit_on_error=False,
        print_error=False,
        result_action="return_value",
    )
    return DONE


def say(message: str) -> None:
    """Tell the user on stderr."""
    print(f"headrace: {message}", file=sys.stderr)


def interrupt(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001 - Python's signature
    """Treat a polite request to end, such as a batch system's, like Ctrl-C."""
    raise KeyboardInterrupt


def guarded(words: Sequence[str]) -> int:
    """Run a command line, and turn every error into a message and an exit status."""
    try:
        return run_command(words)
    except HeadraceError as error:
        say(str(error))
        return error.exit_status
    except CycloptsError as error:
        say(" ".join(str(error).split()) + f" See: headrace {' '.join(words[:2])} --help")
        return BAD_INPUT
    except MemoryError:
        say("out of memory; finished units are kept. Use fewer workers (--executor dask:1) or a larger machine.")
        return FAILED


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``headrace`` with the arguments of the process, or with these; the exit status.

    Parameters
    ----------
    arguments
        Command line without the program's name.
    """
    gc.set_threshold(50_000)  # looking for cycles after every 700 new objects takes a sixth of a short run
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    if debug:
        import logging

        words = [word for word in words if word != "--debug"]
        logging.basicConfig(level=logging.INFO)
        logging.getLogger("headrace").setLevel(logging.DEBUG)
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        return guarded(words) if not debug else run_command(words)
    except KeyboardInterrupt:
        from headrace.flows._cli_flows import resume_command

        kept = (
            f"; finished units are kept. Resume with:\n  {resume_command(words)}"
            if words[:1] in (["run"], ["restore"])
            else ""
        )
        say(f"interrupted{kept}")
        return INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()  # whoever read our output has gone, and is told nothing
        return DONE
    except Exception as error:  # noqa: BLE001 - the last place where an error can become a message
        if debug:
            traceback.print_exc()
            return getattr(error, "exit_status", BAD_INPUT if isinstance(error, CycloptsError) else FAILED)
        text = " ".join(str(error).split())
        say(f"unexpected {type(error).__name__}: {text}. This is a defect of headrace; --debug shows where.")
        return FAILED
    finally:
        signal.signal(signal.SIGTERM, before)
        if arguments is None:
            gc.freeze()  # the process ends: looking through all that was imported once more takes half a second
