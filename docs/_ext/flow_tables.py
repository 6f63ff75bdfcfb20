"""Tables of the documentation that are made from the code: parameters of a flow, errors and exit statuses."""

from collections.abc import Iterator

from headrace.flows._base import FlowParams
from headrace.flows._catalog import load_flow
from headrace.flows._cli_params import options
from headrace.storage import errors


def params_table(flow: str) -> str:
    """Return a Markdown table of the parameters of a flow, its own first: meaning, allowed values, default."""
    rows = ["| parameter | what it is |", "|---|---|"]
    found = list(options(load_flow(flow).Params))
    for option in sorted(found, key=lambda option: option.path[0] in FlowParams.model_fields):
        help_text = " ".join(option.help.split()).replace("|", "\\|")
        rows.append(f"| `{'.'.join(option.path)}` | {help_text} |")
    return "\n".join(rows)


def error_table() -> str:
    """Return a Markdown table of the errors a user can meet, with the exit status of each."""
    rows = ["| error | also a | exit status | when |", "|---|---|---|---|"]
    for error in _tree(errors.HeadraceError):
        builtin = next((base.__name__ for base in error.__mro__ if base.__module__ == "builtins"), "")
        when = (error.__doc__ or "").partition("\n")[0]
        rows.append(f"| `{error.__name__}` | `{builtin}` | {error.exit_status} | {when} |")
    return "\n".join(rows)


def _tree(error: type[errors.HeadraceError]) -> Iterator[type[errors.HeadraceError]]:
    for child in error.__subclasses__():
        yield child
        yield from _tree(child)
