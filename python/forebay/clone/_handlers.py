"""Exceptions of the program: Ctrl-C and those that a signal handler raises, wherever in our code the signal came."""

import signal
from types import CodeType

__all__ = ["is_the_program_s"]


def is_the_program_s(error: BaseException) -> bool:
    """Returns whether the error is not an `Exception`, or comes from a signal handler."""
    if not isinstance(error, Exception):
        return True
    handlers = {code for number in signal.valid_signals() if (code := _code(signal.getsignal(number))) is not None}
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in handlers:
            return True
        trace = trace.tb_next
    return False


def _code(handler: object) -> CodeType | None:
    """Returns the code of a function, a method, a `functools.partial` or a callable object; None if it has none."""
    handler = getattr(handler, "func", handler)
    function = getattr(handler, "__func__", handler)
    if callable(handler) and not hasattr(function, "__code__"):
        function = type(handler).__call__
    code = getattr(function, "__code__", None)
    return code if isinstance(code, CodeType) else None
