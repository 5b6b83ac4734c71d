"""A clone on probation: it takes some steps with its parent's data, and exists only if every entry is the same on both sides then."""

import contextlib
import hashlib
import re
from dataclasses import dataclass, replace

from forebay import _core
from forebay.clone import _offer
from forebay.clone._errors import CloneError
from forebay.clone._inventory import Inventory
from forebay.clone._resume import Asked, Resumed, waited
from forebay.clone._source import REASON_MAX

__all__ = ["Probation", "steps_of"]

SHADOW = re.compile("shadow:([1-9][0-9]*)")
STEPS_MAX = 1000
"""As crates/agent/src/limits.rs has it."""


def steps_of(verify: str) -> int:
    """How many steps of probation `verify` asks for; 0 for `digest`.

    Raises:
        ValueError: it is neither that nor `shadow:N`.
    """
    found = SHADOW.fullmatch(verify) if isinstance(verify, str) else None
    steps = int(found[1]) if found and len(found[1]) <= len(str(STEPS_MAX)) else 0
    if verify != "digest" and not 1 <= steps <= STEPS_MAX:
        raise ValueError(f"verify={verify!r}: write 'digest', or 'shadow:N' for a comparison after N more steps, 1 to {STEPS_MAX}")
    return steps


@dataclass
class Probation:
    """One rank's, from the end of its loading until it has taken its last step.

    Attributes:
        loaded: what it is so far; no change has been made.
        asked: what for.
        taking: its connection to the fork agent, which is its lease.
        inventory: of its state.
        wait_s: for how long it waits, after its last step, for its parent and its other ranks.
        left: steps.
    """

    loaded: Resumed
    asked: Asked
    taking: _core.Taking
    inventory: Inventory
    wait_s: float
    left: int

    def point(self, epoch: int, step: int) -> Resumed | None:
        """At the end of each step. Gives what has become of the clone, after the last one.

        Raises:
            CloneError: it is none. Its objects have the state of a clone that never was: end the process.
        """
        self.left -= 1
        if self.left > 0:
            return None
        try:
            digest = self._compared(epoch, step)
        except OSError as error:
            raise CloneError(f"no clone of {self.asked.job}: {error}") from error
        lineage = replace(
            self.loaded.lineage, epoch=epoch, step=step, digest=digest, changes=self.asked.changes, verified=f"shadow:{self.asked.shadow}"
        )
        return replace(self.loaded, lineage=lineage, course=self.loaded.course.existing())

    def _compared(self, epoch: int, step: int) -> str:
        """Says what this rank has, and waits until all have the same as their parents'; gives the digest of that."""
        manifest = self.inventory.manifest()
        header = _offer.Header(self.asked.job, self.inventory.rank[0], epoch, step)
        late = f"{self.asked.job} or the clone's other ranks did not come to step {step} in {self.wait_s:g} s"
        try:
            secret = self.asked.secret.read_bytes()
        except FileNotFoundError:
            # The fork is over by now: the agent says why.
            waited(lambda seconds: self.taking.exists(seconds) or None, self.wait_s, late)
            raise
        with _offer.described(secret, header, manifest) as text:
            try:
                # What can't be changed is no reason to say first that all is well.
                for changed, value in self.asked.changes.items():
                    self.inventory.change(changed, value)
            except Exception as error:
                with contextlib.suppress(ConnectionError):
                    self.taking.failed(str(error)[:REASON_MAX])
                raise
            self.taking.repeated(text)
        waited(lambda seconds: self.taking.exists(seconds) or None, self.wait_s, late)
        return hashlib.sha256(manifest.to_json()).hexdigest()
