"""Ctrl-C, and what a handler of a signal raises, are the program's, wherever in our code the signal has come."""

import signal
from types import CodeType

__all__ = ["is_the_program_s"]


def is_the_program_s(error: BaseException) -> bool:
    """Whether it ends more than our work; or a handler of a signal has raised it, or what that has called."""
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
    """Of a function, a method, what `functools.partial` made of one, or an object that can be called."""
    handler = getattr(handler, "func", handler)
    function = getattr(handler, "__func__", handler)
    if callable(handler) and not hasattr(function, "__code__"):
        function = type(handler).__call__
    code = getattr(function, "__code__", None)
    return code if isinstance(code, CodeType) else None
