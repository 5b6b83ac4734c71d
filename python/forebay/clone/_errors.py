"""Errors of forks. Each message names the entry and the mend."""


class CloneError(RuntimeError):
    """A state could not be described, taken or loaded; the base of all errors of `forebay.clone`."""


class RefusedError(CloneError):
    """The fork agent does not take this job on: another trains under its name, or the name can't be one."""


class MissingError(CloneError):
    """A kind of state was not given, and not declared absent either."""


class UndescribableError(CloneError):
    """Something in the state has a type that is not known, so it would have to be pickled, which is never done."""


class DifferenceError(CloneError):
    """The state is of another job: other names, shapes, types, framework or kinds. Nothing has been loaded."""


class DamagedError(CloneError):
    """A state that differs from what was sent.

    Objects that were being loaded are in no defined state: end the process.
    """
