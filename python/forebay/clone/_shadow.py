"""Shadow verification: a clone takes some steps with its parent's data.

Exists only if every entry is then equal on both sides.
"""

import contextlib
import hashlib
import re
from dataclasses import dataclass, replace

from forebay import _core
from forebay.clone import _description
from forebay.clone._errors import CloneError
from forebay.clone._inventory import Inventory
from forebay.clone._resume import CloneRequest, Resumed, waited
from forebay.clone._source import REASON_MAX

__all__ = ["ShadowVerification", "shadow_steps"]

SHADOW = re.compile("shadow:([1-9][0-9]*)")
STEPS_MAX = 1000
"""Largest number of steps; equals `FORK_SHADOW_MAX` in crates/agent/src/forks/limits.rs."""


def shadow_steps(verify: str) -> int:
    """Returns the number of steps of shadow verification; 0 for `digest`.

    Raises:
        ValueError: `verify` is neither `digest` nor `shadow:N`.
    """
    found = SHADOW.fullmatch(verify) if isinstance(verify, str) else None
    steps = int(found[1]) if found and len(found[1]) <= len(str(STEPS_MAX)) else 0
    if verify != "digest" and not 1 <= steps <= STEPS_MAX:
        raise ValueError(f"verify={verify!r}: write 'digest', or 'shadow:N' for a comparison after N more steps, 1 to {STEPS_MAX}")
    return steps


@dataclass
class ShadowVerification:
    """The verification of one rank, from the end of its loading until its last step.

    Attributes:
        loaded: the clone as it was loaded, without changes.
        asked: the request of `forebay clone`.
        taking: its connection to the fork agent, which is its lease.
        inventory: inventory of its state.
        wait_s: seconds that it waits, after its last step, for its parent and its other ranks.
        left: remaining steps.
    """

    loaded: Resumed
    asked: CloneRequest
    taking: _core.Taking
    inventory: Inventory
    wait_s: float
    left: int

    def point(self, epoch: int, step: int) -> Resumed | None:
        """Counts the end of a step; after the last one, returns the verified clone.

        Raises:
            CloneError: the verification failed. The objects have the state of a clone that does not exist: end the
                process.
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
        """Sends this rank's digests, waits until all ranks equal their parents'.

        Returns the digest of the manifest.
        """
        manifest = self.inventory.manifest()
        header = _description.StateHeader(self.asked.job, self.inventory.rank[0], epoch, step)
        late = f"{self.asked.job} or the clone's other ranks did not come to step {step} in {self.wait_s:g} s"
        try:
            secret = self.asked.secret.read_bytes()
        except FileNotFoundError:
            # The fork is over: the agent gives the reason.
            waited(lambda seconds: self.taking.exists(seconds) or None, self.wait_s, late)
            raise
        with _description.described(secret, header, manifest) as text:
            try:
                # First, so that a change that fails is not reported after a success.
                for changed, value in self.asked.changes.items():
                    self.inventory.change(changed, value)
            except Exception as error:
                with contextlib.suppress(ConnectionError):
                    self.taking.failed(str(error)[:REASON_MAX])
                raise
            self.taking.repeated(text)
        waited(lambda seconds: self.taking.exists(seconds) or None, self.wait_s, late)
        return hashlib.sha256(manifest.to_json()).hexdigest()
