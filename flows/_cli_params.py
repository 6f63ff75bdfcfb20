"""Command-line options made from a flow's ``Params``, and parameters made from options, files and presets."""

import types
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from enum import Enum
from inspect import Parameter as Argument
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from cyclopts import Parameter
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from headrace.flows._base import FlowParams
from headrace.storage.errors import ParameterError, SourceError

SEQUENCES = (list, tuple, set, frozenset, Sequence)
SHOWN_ERRORS = 3
METAVARS: dict[Any, str] = {int: "INT", float: "FLOAT", Path: "PATH"}


class Option:
    """One field of ``Params`` as an option; a field of a nested model is spelled ``--block.size``."""

    def __init__(self, path: tuple[str, ...], field: FieldInfo) -> None:
        self.path, self.field = path, field
        kinds = [kind for kind in members(field.annotation) if kind is not type(None)]
        self.optional = len(kinds) < len(members(field.annotation))
        self.kind = kinds[0] if len(kinds) == 1 else str
        self.base = get_origin(self.kind) or self.kind

    @property
    def name(self) -> str:
        """Spelling on the command line, without the dashes in front."""
        return ".".join(self.path).replace("_", "-")

    @property
    def argument(self) -> str:
        """Name as an argument of a Python function."""
        return "__".join(self.path)

    @property
    def choices(self) -> tuple[str, ...]:
        """Allowed texts, where they can be listed."""
        if self.base is Literal and all(isinstance(value, str) for value in get_args(self.kind)):
            return get_args(self.kind)
        if isinstance(self.kind, type) and issubclass(self.kind, Enum):
            return tuple(str(member.value) for member in self.kind)
        return ()

    @property
    def is_sequence(self) -> bool:
        """Whether the field takes several values, ``--names a,b`` or ``--names a --names b``."""
        return self.base in SEQUENCES

    @property
    def is_mapping(self) -> bool:
        """Whether the field takes names with values, ``--select x=0:10``."""
        return self.base is dict

    @property
    def default(self) -> str:
        """The default as a user would type it."""
        value = self.field.get_default(call_default_factory=True)
        if value is None:
            return "none"
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, Enum):
            return str(value.value)
        if isinstance(value, dict):
            return ",".join(f"{name}={each}" for name, each in value.items()) or "none"
        if isinstance(value, tuple | list | set | frozenset):
            return ",".join(map(str, value)) or "none"
        return str(value) or "none"

    @property
    def limits(self) -> str:
        """Range of a number, ``> 0, <= 1``."""
        signs = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
        found = [(sign, getattr(rule, name, None)) for rule in self.field.metadata for name, sign in signs.items()]
        return ", ".join(f"{sign} {value}" for sign, value in found if value is not None)

    @property
    def help(self) -> str:
        """Description, allowed values, range and default."""
        notes = []
        if self.choices:
            notes.append("one of " + ", ".join(self.choices))
        elif self.limits:
            notes.append(self.limits)
        if self.default != "none" or "default" not in (self.field.description or ""):
            notes.append(f"default {self.default}")
        return f"{self.field.description} ({'; '.join(notes)})" if notes else str(self.field.description)

    @property
    def annotation(self) -> Any:
        """Type of the function argument: mostly text, which pydantic converts, and explains when it cannot."""
        kind: Any = str
        if self.base is bool:
            kind = bool
        elif self.is_sequence or self.is_mapping:
            kind = list[str]
        elif self.choices and not self.optional:
            kind = Literal[self.choices]
        return Annotated[
            kind | None,
            Parameter(
                name=f"--{self.name}",
                help=self.help,
                group="Common options" if self.path[0] in FlowParams.model_fields else "Parameters",
                metavar=METAVARS.get(self.kind),
                show_default=False,
                show_choices=False,
                negative=f"--no-{self.name}" if self.base is bool else (),
                allow_leading_hyphen=True,
            ),
        ]

    def value(self, given: Any) -> Any:
        """What pydantic gets for what was typed."""
        if self.is_sequence and isinstance(given, list):
            return [part.strip() for text in given for part in text.split(",") if part.strip()]
        if self.is_mapping and isinstance(given, list):
            return {name: text for part in given for name, _, text in [part.partition("=")]}
        if self.optional and given in {"none", "null"}:
            return None
        return given


def members(annotation: Any) -> tuple[Any, ...]:
    """Types of a union, or the one type."""
    return get_args(annotation) if get_origin(annotation) in {Union, types.UnionType} else (annotation,)


def options(model: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[Option]:
    """Every field of a model as an option, nested models included."""
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from options(field.annotation, (*path, name))
        else:
            yield Option((*path, name), field)


def arguments(model: type[FlowParams]) -> list[Argument]:
    """Keyword arguments of a command function, one per option, None when it is not given."""
    found = sorted(options(model), key=lambda option: option.path[0] in FlowParams.model_fields)
    return [Argument(o.argument, Argument.KEYWORD_ONLY, default=None, annotation=o.annotation) for o in found]


def build_params(
    model: type[FlowParams],
    *,
    smoke: bool = False,
    config: Path | None = None,
    overrides: Sequence[str] = (),
    given: Mapping[str, Any] | None = None,
) -> FlowParams:
    """Parameters from all sources; a later one wins: defaults, smoke preset, file, ``--set``, options.

    Raises
    ------
    ParameterError
        A value is not allowed, or there is no such parameter; names it and the nearest one.
    SourceError
        The file does not exist.
    """
    values: dict[str, Any] = model.smoke().model_dump(exclude_unset=True) if smoke else {}
    if config is not None:
        merge(values, read_config(config))
    for text in overrides:
        merge(values, parse_override(text))
    for option in options(model):
        if given and given.get(option.argument) is not None:
            merge(values, nest(option.path, option.value(given[option.argument])))
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise ParameterError(explain(error, model)) from None


def nest(path: Sequence[str], value: Any) -> dict[str, Any]:
    """``("a", "b"), 1`` -> ``{"a": {"b": 1}}``."""
    for name in reversed(path):
        value = {name: value}
    return dict(value)


def merge(into: dict[str, Any], values: Mapping[str, Any]) -> None:
    """Put ``values`` into a nested dictionary, over what is there."""
    for name, value in values.items():
        if isinstance(value, Mapping) and isinstance(into.get(name), dict):
            merge(into[name], value)
        else:
            into[name] = value


def read_config(path: Path) -> dict[str, Any]:
    """Parameters from a YAML or JSON file, or from the ``run.json`` of an earlier run.

    Raises
    ------
    SourceError
        There is no such file.
    ParameterError
        It holds no mapping of names to values.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, IsADirectoryError) as error:
        raise SourceError(f"There is no file {str(path)!r}; expected the YAML or JSON file of --config.") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ParameterError(f"{path} cannot be read ({reason}); expected YAML or JSON. Correct the file.") from error
    content = {} if content is None else content
    if not isinstance(content, dict):
        found = type(content).__name__
        raise ParameterError(f"{path} holds a {found}; expected names and values, such as `bound: 1e-3`.")
    if isinstance(content.get("params"), dict) and "status" in content:
        content = content["params"]
    return {str(name).replace("-", "_"): value for name, value in content.items()}


def parse_override(text: str) -> dict[str, Any]:
    """``a.b=1`` -> ``{"a": {"b": 1}}``; the value is read as YAML.

    Raises
    ------
    ParameterError
        There is no name or no ``=``.
    """
    name, equals, value = text.partition("=")
    path = name.strip().replace("-", "_").split(".")
    if not equals or not all(path):
        raise ParameterError(f"--set {text!r} names no value; expected NAME=VALUE, such as --set bound=1e-3.")
    try:
        return nest(path, yaml.safe_load(value))
    except yaml.YAMLError:
        return nest(path, value)


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """What is wrong with parameters, in at most three lines."""
    known = {option.path: option for option in options(model)}
    problems = error.errors()
    lines = [_problem(dict(problem), known) for problem in problems[:SHOWN_ERRORS]]
    if len(problems) > SHOWN_ERRORS:
        lines[-1] += f" ({len(problems) - SHOWN_ERRORS} more)"
    return "\n".join(lines)


def _problem(problem: dict[str, Any], known: Mapping[tuple[str, ...], Option]) -> str:
    place = tuple(part for part in problem["loc"] if isinstance(part, str))
    name = ".".join(map(str, problem["loc"]))
    if problem["type"] == "extra_forbidden":
        names = [".".join(path) for path in known]
        near = get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"expected one of: {', '.join(names)}."
        return f"There is no parameter {name!r}; {hint}"
    message = str(problem["msg"])
    if problem["type"] == "value_error":
        message = message.removeprefix("Value error, ")
        return message if not place or place[-1] in message else f"{name}: {message}"
    option = next((known[place[:length]] for length in range(len(place), 0, -1) if place[:length] in known), None)
    if problem["type"] == "string_pattern_mismatch" and option is not None:
        message = f"expected {option.field.description}"
    message = message.replace("Input should be greater", "Input should be a value greater")
    message = message.replace("Input should be less", "Input should be a value less").replace(
        "Input should be", "expected"
    )
    spelled = f"--{option.name}" if option is not None else name
    return f"{spelled} is {problem['input']!r}; {message.rstrip('.')}. Correct the value."
