"""Options made from pydantic models, and what is said about values that do not fit."""

from enum import Enum
from pathlib import Path
from typing import Literal

import pytest
from cyclopts import App
from pydantic import BaseModel, Field, field_validator

from headrace.flows._base import FlowParams
from headrace.flows._catalog import FLOWS, load_flow
from headrace.flows._cli_flows import RESERVED
from headrace.flows._cli_params import arguments, build_params, options, parse_override, read_config
from headrace.storage.errors import ParameterError, SourceError


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Block(BaseModel, extra="forbid"):
    size: int = Field(default=8, gt=0, description="points per side")
    overlap: float = Field(default=0.0, ge=0, le=0.5, description="shared part")


class Params(FlowParams):
    bound: float = Field(default=1e-3, gt=0, description="largest error")
    mode: Literal["abs", "rel"] = Field(default="abs", description="meaning of bound")
    colour: Colour = Field(default=Colour.RED, description="colour of the curve")
    names: tuple[str, ...] = Field(default=(), description="variables")
    shape: tuple[int, int] = Field(default=(4, 4), description="grid")
    limit: int | None = Field(default=None, ge=1, description="most frames")
    parts: dict[str, str] = Field(default_factory=dict, description="parts of dimensions")
    check: bool = Field(default=True, description="verify")
    block: Block = Field(default=Block(), description="blocks")

    @field_validator("names")
    @classmethod
    def _no_blanks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if any(" " in name for name in value):
            raise ValueError("no blanks are allowed")
        return value

    @classmethod
    def smoke(cls) -> "Params":
        return cls(bound=0.5, block=Block(size=2))


def typed(*words: str) -> Params:
    """Parameters of a command line."""
    app, found = App(), []

    def command(**given: object) -> None:
        found.append(build_params(Params, given=given))

    from inspect import Signature

    command.__signature__ = Signature(arguments(Params))  # type: ignore[attr-defined]
    app.default(command)
    app(list(words), exit_on_error=False, print_error=False, result_action="return_value")
    return found[0]  # type: ignore[return-value]


def test_nothing_typed_gives_the_defaults() -> None:
    assert typed() == Params()


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        (["--bound", "1e-2"], "bound", 0.01),
        (["--bound=1e-2"], "bound", 0.01),
        (["--mode", "rel"], "mode", "rel"),
        (["--colour", "blue"], "colour", Colour.BLUE),
        (["--names", "u,v"], "names", ("u", "v")),
        (["--names", "u", "--names", "v"], "names", ("u", "v")),
        (["--shape", "16,32"], "shape", (16, 32)),
        (["--limit", "9"], "limit", 9),
        (["--limit", "none"], "limit", None),
        (["--parts", "x=0:10", "--parts", "y=5"], "parts", {"x": "0:10", "y": "5"}),
        (["--no-check"], "check", False),
        (["--fresh"], "fresh", True),
        (["--block.size", "3"], "block", Block(size=3)),
        (["--out", "elsewhere"], "out", Path("elsewhere")),
        (["--seed", "7"], "seed", 7),
    ],
)
def test_options_become_values(words: list[str], field: str, value: object) -> None:
    assert getattr(typed(*words), field) == value


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--bound", "0"], r"--bound is '0'; expected a value greater than 0\."),
        (["--bound", "x"], "--bound is 'x'; expected a valid number"),
        (["--limit", "0"], "--limit is '0'; expected a value greater than or equal to 1"),
        (["--shape", "1,2,3"], "--shape is .*at most 2 items"),
        (["--shape", "1,x"], "--shape is 'x'; expected a valid integer"),
        (["--block.overlap", "0.9"], "--block.overlap is '0.9'; expected a value less than or equal to 0.5"),
        (["--names", "a b"], "names: no blanks are allowed"),
        (["--device", "gpu"], "--device is 'gpu'; expected .*cuda"),
    ],
)
def test_bad_values_are_named_with_what_is_expected(words: list[str], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        typed(*words)


def test_later_sources_win(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"bound": 0.25, "block": {"overlap": 0.25}}')
    smoke = build_params(Params, smoke=True)
    assert (smoke.bound, smoke.block) == (0.5, Block(size=2))
    merged = build_params(Params, smoke=True, config=config)
    assert (merged.bound, merged.block) == (0.25, Block(size=2, overlap=0.25))
    merged = build_params(Params, smoke=True, config=config, overrides=["block.size=5", "bound=1e-1"])
    assert (merged.bound, merged.block) == (0.1, Block(size=5, overlap=0.25))
    merged = build_params(Params, config=config, overrides=["bound=1e-1"], given={"bound": "1"})
    assert merged.bound == 1.0


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("bound=1e-3", {"bound": "1e-3"}),
        ("block.size=4", {"block": {"size": 4}}),
        ("names=[u, v]", {"names": ["u", "v"]}),
        ("limit=null", {"limit": None}),
        ("time-dim=t", {"time_dim": "t"}),
        ("note=a=b", {"note": "a=b"}),
    ],
)
def test_overrides_are_read_as_yaml(text: str, value: dict[str, object]) -> None:
    assert parse_override(text) == value


@pytest.mark.parametrize("text", ["bound", "=3", "a..b=1"])
def test_overrides_without_a_name_are_refused(text: str) -> None:
    with pytest.raises(ParameterError, match="expected NAME=VALUE"):
        parse_override(text)


@pytest.mark.parametrize("content", ["- 1\n- 2\n", "just text", "a: [1\n", b"\xff\xfe\x00"])
def test_unreadable_config_files_are_refused(content: str | bytes, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ParameterError, match=r"config\.yaml .*expected"):
        read_config(path)


def test_a_missing_config_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"gone\.yaml"):
        read_config(tmp_path / "gone.yaml")
    with pytest.raises(SourceError, match="expected the YAML or JSON file"):
        read_config(tmp_path)


def test_an_empty_config_file_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").touch()
    assert build_params(Params, config=tmp_path / "empty.yaml") == Params()


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ParameterError, match=r"no parameter 'block\.siz'; did you mean 'block\.size'"):
        build_params(Params, overrides=["block.siz=3"])


def test_help_says_choices_limits_and_default() -> None:
    texts = {option.name: option.help for option in options(Params)}
    assert texts["bound"] == "largest error (> 0; default 0.001)"
    assert texts["mode"] == "meaning of bound (one of abs, rel; default abs)"
    assert texts["colour"] == "colour of the curve (one of red, blue; default red)"
    assert texts["block.overlap"] == "shared part (>= 0, <= 0.5; default 0.0)"
    assert texts["shape"] == "grid (default 4,4)"
    assert texts["check"] == "verify (default yes)"


@pytest.mark.parametrize("flow", FLOWS)
def test_no_flow_has_parameters_named_like_our_own_options(flow: str) -> None:
    assert not set(load_flow(flow).Params.model_fields) & set(RESERVED)
