"""A process that does what it is told.

Reads code and names from its standard input, executes, answers on its standard output.

Runs under the preload or without; tests drive one of each. See `Worker` in support.py.
"""

import ast
import os
import pickle
import sys
from pathlib import Path
from typing import Any


def execute(code: str, names: dict[str, Any]) -> object:
    """The value of the code's last expression; None if it does not end with one."""
    tree = ast.parse(code)
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr):
        exec(compile(tree, "<told>", "exec"), names)  # noqa: S102
        return None
    exec(compile(ast.Module(tree.body[:-1], []), "<told>", "exec"), names)  # noqa: S102
    return eval(compile(ast.Expression(last.value), "<told>", "eval"), names)  # noqa: S307


def main() -> None:
    """Serves until the input ends."""
    # What is executed, and what that starts, must not speak on the two pipes.
    told, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    kept: dict[str, Any] = {"os": os, "sys": sys, "Path": Path}
    while True:
        try:
            code, names = pickle.load(told)  # noqa: S301
        except EOFError:
            return
        kept.update(names)
        try:
            answer: tuple[str, Any] = ("value", execute(code, kept))
        except OSError as error:
            answer = ("errno", error.errno)
        except Exception as error:
            answer = ("failed", f"{type(error).__name__}: {error}")
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    main()
