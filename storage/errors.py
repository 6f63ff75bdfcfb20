"""Every error headrace raises for a user, in one tree.

::

    HeadraceError
    +-- ParameterError        (ValueError)         a parameter is missing, malformed or out of range
    |   +-- ShapeError                             two arrays, or an array and its declaration, disagree
    |   +-- IncompatibleRunError                   the run folder was written with other parameters
    +-- SourceError           (FileNotFoundError)  an input path, variable or axis is not there
    +-- RunExistsError        (FileExistsError)    the output place is taken by something else
    +-- RunLockedError        (BlockingIOError)    another live process is writing this run
    +-- MissingExtraError     (ImportError)        an optional dependency is needed and absent
    +-- DeviceError           (RuntimeError)       the device asked for does not exist
    +-- ServiceError          (ConnectionError)    a server or scheduler does not answer
    +-- StoreError            (OSError)            bytes at rest are damaged or cannot be written
    +-- ConvergenceError      (ArithmeticError)    an iteration left the finite numbers
    +-- UnitError             (RuntimeError)       units of work failed; the run can be resumed

A message has three parts: what was found (with the value), what was expected, what to do.
``exit_status`` is what the command line returns: 2 for input a user can correct, 3 for work that failed.
"""


class HeadraceError(Exception):
    """Base of all errors meant to be read by a user."""

    exit_status = 2

    def __str__(self) -> str:
        return " ".join(str(part) for part in self.args)


class ParameterError(HeadraceError, ValueError):
    """A parameter is missing, malformed or out of range."""


class ShapeError(ParameterError):
    """Two arrays, or an array and its declaration, disagree in shape, dtype or alignment."""


class IncompatibleRunError(ParameterError):
    """A run folder exists with other parameters, inputs or format than asked for."""


class SourceError(HeadraceError, FileNotFoundError):
    """An input path, variable or axis is not there."""


class RunExistsError(HeadraceError, FileExistsError):
    """The output place is taken by something that is not the run asked for."""


class RunLockedError(HeadraceError, BlockingIOError):
    """Another live process holds the run folder."""


class MissingExtraError(HeadraceError, ImportError):
    """An optional dependency is needed and absent; the message names the extra to install."""


class DeviceError(HeadraceError, RuntimeError):
    """The device asked for does not exist or cannot be used."""


class ServiceError(HeadraceError, ConnectionError):
    """A Prefect server or a Dask scheduler does not answer at the address given."""


class StoreError(HeadraceError, OSError):
    """Bytes at rest are damaged, foreign or cannot be written; names the array and the chunk."""

    exit_status = 3


class ConvergenceError(HeadraceError, ArithmeticError):
    """An iteration left the finite numbers; names the step."""

    exit_status = 3


class UnitError(HeadraceError, RuntimeError):
    """Units of work failed. What finished is kept, and the same command resumes the run."""

    exit_status = 3
