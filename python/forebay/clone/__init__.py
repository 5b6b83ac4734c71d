"""Forking a training job: the inventory of its state, and captures that another process can load.

    import forebay.clone as clone

    counters = {"epoch": 0, "step": 0}
    state = clone.inventory(
        model=model, optimizer=optimizer, scheduler=scheduler, scaler=None, ema=None, loader=None, counters=counters
    )
    with state.capture() as capture:        # in the original, at the end of a step
        ...                                 # capture.manifest, capture.descriptor: pass them to the other process
    state.load(clone.Capture(manifest, descriptor))     # there: every entry is checked by its digest

No state is pickled, and loading one runs no code of the other process. Experimental: the names may change until forks are whole.
"""

from forebay.clone._capture import Capture
from forebay.clone._errors import CloneError, DamagedError, DifferenceError, MissingError, UndescribableError
from forebay.clone._inventory import KINDS, Inventory, inventory
from forebay.clone._manifest import Entry, Layout, Manifest, Placement

__all__ = [
    "KINDS",
    "Capture",
    "CloneError",
    "DamagedError",
    "DifferenceError",
    "Entry",
    "Inventory",
    "Layout",
    "Manifest",
    "MissingError",
    "Placement",
    "UndescribableError",
    "inventory",
]
