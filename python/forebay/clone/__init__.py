"""Forking a training job while it trains.

Another program goes on from its state, bit for bit, and the job does not notice.

    import forebay.clone as clone

    s = clone.session(model=model, optimizer=optimizer, scheduler=scheduler, scaler=None, ema=None, loader=None)
    step = s.resumed["step"] if s.resumed else 0            # a clone begins where its parent was
    while step < 1000:
        train_step()
        step += 1
        s.point(epoch=0, step=step)

    $ forebay clone JOB --set lr=0.01 -- torchrun --nproc-per-node 2 train.py       # while JOB trains

Below that, `inventory(...)` describes a state; its `capture()` copies it into sealed memory, and its `load()` sets
another process's state to it, every entry checked by its digest. No state is pickled, and loading one runs no code of
the other process. Experimental: names may change until forks are whole.
"""

from forebay.clone._capture import Capture
from forebay.clone._errors import CloneError, DamagedError, DifferenceError, MissingError, UndescribableError
from forebay.clone._inventory import KINDS, Inventory, inventory
from forebay.clone._manifest import Entry, Layout, Manifest, Placement
from forebay.clone._resume import Lineage
from forebay.clone._session import Session, session
from forebay.clone._source import Fork

__all__ = [
    "KINDS",
    "Capture",
    "CloneError",
    "DamagedError",
    "DifferenceError",
    "Entry",
    "Fork",
    "Inventory",
    "Layout",
    "Lineage",
    "Manifest",
    "MissingError",
    "Placement",
    "Session",
    "UndescribableError",
    "inventory",
    "session",
]
