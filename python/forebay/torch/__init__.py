"""PyTorch: the data loader, and what forks need to know of it. Nothing else in this package imports torch."""

try:
    import torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError("forebay.torch is for PyTorch, which is not installed: pip install torch", name="torch") from None

from forebay.torch._images import ImageFolder
from forebay.torch._keyed import Keyed
from forebay.torch._loader import DataLoader
from forebay.torch._transforms import EvalCrop, Normalize, TrainCrop

__all__ = ["DataLoader", "EvalCrop", "ImageFolder", "Keyed", "Normalize", "TrainCrop"]
