"""Read lazy values, and say in one way what went wrong."""

from typing import TYPE_CHECKING

import numpy as np

from headrace.storage.errors import HeadraceError, StoreError

if TYPE_CHECKING:
    import xarray as xr


def reason(error: BaseException) -> str:
    """Kind and beginning of an error's text, on one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


def load(array: "xr.DataArray | xr.Variable", name: str | None = None) -> np.ndarray:
    """Read the values of a (part of a) lazy variable.

    Parameters
    ----------
    array : what to read
    name : of the variable, for messages; by default the array's own

    Raises
    ------
    StoreError -- the bytes are damaged or cannot be read; names the variable
    """
    try:
        return np.asarray(array.values)
    except HeadraceError:
        raise
    except Exception as error:  # whatever a parser or a codec says about foreign bytes, they cannot be read
        named = name or getattr(array, "name", None)
        source = array.encoding.get("source", "its source")
        raise StoreError(
            f"variable {named!r} of {source} cannot be read: {reason(error)}; expected whole data; restore a copy of it"
        ) from error
