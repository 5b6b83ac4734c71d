"""Forebay: `forebay run -- python train.py` serves a program's data from local disk.

This package locates its two installed parts: the command and the library that it preloads. `forebay profile` runs
`forebay.preprocess` to measure a Python function; `forebay.clone` describes and copies a training job's state;
`forebay.torch` has the data loader.
"""

from importlib import metadata
from pathlib import Path

__all__ = ["__version__", "command", "preload_library"]

__version__: str = metadata.version("forebay")


def command() -> Path:
    """Returns the path of the command `forebay` of this installation.

    Raises:
        FileNotFoundError: the installation is damaged.
    """
    return _installed("forebay", "bin")


def preload_library() -> Path:
    """Returns the path of the library that the command brings into programs by LD_PRELOAD.

    Raises:
        FileNotFoundError: the installation is damaged.
    """
    return _installed("libforebay_preload.so", "forebay")


def _installed(name: str, directory: str) -> Path:
    # The installer's own list holds under every scheme: virtual environment, user, prefix, target.
    for entry in metadata.files("forebay") or []:
        if entry.name == name:
            path = Path(str(entry.locate())).resolve()
            if path.parent.name == directory and path.is_file():
                return path
    raise FileNotFoundError(f"forebay's {directory}/{name} is not installed: reinstall the package")
