"""Predictors of the next frame, found by a registered name.

An array may say in its metadata that frames are predicted by a named stepper with plain JSON parameters. The name is
looked up among the entry points of the group ``headrace.steppers`` of installed packages, and among those a program
registered itself; data never choose what code is imported.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import entry_points
from typing import Any, Protocol

from numpy.typing import NDArray

from headrace.storage.errors import ParameterError, StoreError

#: Entry point group of stepper factories.
GROUP = "headrace.steppers"
#: Record kinds that recompute a prediction: A moves the frame with the flow, S runs the solver itself.
PREDICTED = ("A", "S")


class Predictor(Protocol):
    """Advances a frame in time. The same input must give the same output, up to rounding, wherever it runs."""

    def advance(self, previous: NDArray[Any], t_previous: float, t: float) -> NDArray[Any]:
        """Predict the frame at ``t`` from the one at ``t_previous``; shape and dtype stay. May be non-finite."""


Factory = Callable[[Mapping[str, Any]], Predictor]

_registered: dict[str, Factory] = {}


@dataclass(frozen=True)
class PredictorSpec:
    """Which stepper predicts which kind of record.

    Parameters
    ----------
    kind : {"A", "S"}
    name : of the stepper, as registered
    parameters : of the stepper, as JSON text of an object; equal parameters give equal texts

    Raises
    ------
    ParameterError -- unknown kind, or text that is not a JSON object
    """

    kind: str
    name: str
    parameters: str = "{}"

    def __post_init__(self) -> None:
        if self.kind not in PREDICTED:
            raise ParameterError(f"predictor kind {self.kind!r} is unknown; expected A or S")
        try:
            value = json.loads(self.parameters)
        except ValueError as err:
            raise ParameterError(f"parameters of stepper {self.name!r} are not JSON: {err}") from err
        if not isinstance(value, dict):
            raise ParameterError(f"parameters of stepper {self.name!r} are {self.parameters!r}, expected an object")
        object.__setattr__(self, "parameters", json.dumps(value, sort_keys=True))

    @classmethod
    def of(cls, kind: str, name: str, **parameters: Any) -> "PredictorSpec":
        """Build a spec from keyword parameters, which must have a JSON form."""
        return cls(kind, name, json.dumps(parameters))

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form in an array's metadata."""
        return {"kind": self.kind, "name": self.name, "parameters": json.loads(self.parameters)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "PredictorSpec":
        """Undo ``to_dict``."""
        return cls(str(data["kind"]), str(data["name"]), json.dumps(data.get("parameters", {})))

    def load(self) -> Predictor:
        """Make the predictor.

        Raises
        ------
        StoreError -- no stepper of that name is installed or registered
        """
        return _load(self.name, self.parameters)


def register_stepper(name: str, factory: Factory) -> None:
    """Make a stepper known to this process, beside those of installed packages.

    Parameters
    ----------
    name : under which arrays refer to it
    factory : called with the parameters (a mapping of JSON values), returns a ``Predictor``
    """
    _registered[name] = factory
    _load.cache_clear()


@lru_cache(maxsize=32)
def _load(name: str, parameters: str) -> Predictor:
    factory = _registered.get(name)
    if factory is None:
        found = {point.name: point for point in entry_points(group=GROUP)}
        if name not in found:
            known = ", ".join(sorted({*found, *_registered})) or "none"
            raise StoreError(
                f"frames are predicted by the stepper {name!r}, which is not installed here (there is: {known}); "
                "install the package that brings it, call register_stepper, or restore the store where it is"
            )
        factory = found[name].load()
    predictor: Predictor = factory(json.loads(parameters))
    return predictor
