"""Tables of the documentation that are made from the code: parameters of a flow, errors and exit statuses."""

import types
import typing
from collections.abc import Iterator
from enum import Enum
from pathlib import PurePath
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from headrace.flows._catalog import load_flow
from headrace.storage import errors

BOUNDS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<=", "multiple_of": "a multiple of"}


def fields(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield every field with its dotted name, fields of sub-models included."""
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from fields(field.annotation, f"{prefix}{name}.")
        else:
            yield prefix + name, field


def params_table(flow: str) -> str:
    """Return a Markdown table of the parameters of a flow."""
    rows = ["| parameter | default | what it is |", "|---|---|---|"]
    for name, field in fields(load_flow(flow).Params):
        kind = " ".join([_type_text(field.annotation), *_bounds(field)])
        rows.append(
            f"| `{name}` | {_value_text(field.get_default(call_default_factory=True))} | {_meaning(field)} ({kind}) |"
        )
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


def _meaning(field: FieldInfo) -> str:
    return " ".join((field.description or "").split()).replace("|", "\\|")


def _bounds(field: FieldInfo) -> list[str]:
    return [
        f"{sign} {getattr(rule, name)}"
        for rule in field.metadata
        for name, sign in BOUNDS.items()
        if hasattr(rule, name)
    ]


def _value_text(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, PurePath | str):
        return f"`{value}`" if str(value) else "empty"
    return f"`{value}`"


def _type_text(annotation: Any) -> str:
    """Say a type in words: ``float``, ``one of abs, rel``, ``list of str``."""
    if annotation is type(None):
        return "none"
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return "one of " + ", ".join(str(arg) for arg in args)
    if origin in {typing.Union, types.UnionType}:
        return " or ".join(_type_text(arg) for arg in args)
    if origin is typing.Annotated:
        return _type_text(args[0])
    if origin in {list, tuple, set, frozenset}:
        return "list of " + " and ".join(dict.fromkeys(_type_text(arg) for arg in args if arg is not ...))
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return "one of " + ", ".join(str(member.value) for member in annotation)
    if isinstance(annotation, type) and issubclass(annotation, PurePath):
        return "path"
    return getattr(annotation, "__name__", str(annotation))
