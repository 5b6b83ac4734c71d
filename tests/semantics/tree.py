"""The tree that most tests begin with."""

import random
from pathlib import Path

SIZES = {"a": 10_000, "b": 50_000, "big": 600_000, "empty": 0, "d/x": 3_000, "d/y": 4_000, "e/x": 3_000, "hard": 7_000}
# Name: what it links to.
SYMBOLIC = {"to_a": "a", "to_d": "d", "to_to_a": "to_a", "through": "to_d/x", "d/across": "../e/x"}
HARD = {"harder": "hard"}


# Put before a program's text: what a call gives a child that has become a user who owns nothing, as text.
AS_ANOTHER = """
def as_another(call):
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
        os.write(w, repr(call()).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(w)
    return os.read(r, 1 << 16).decode()
"""


def content(name: str) -> bytes:
    """Returns the contents of a file of this name, in any directory."""
    return random.Random(name).randbytes(SIZES[name])  # noqa: S311


def grow(root: Path) -> None:
    for name, _ in SIZES.items():
        path = root / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content(name))
    for name, target in SYMBOLIC.items():
        (root / name).symlink_to(target)
    for name, target in HARD.items():
        (root / name).hardlink_to(root / target)
