"""A session: a training job that can be forked while it trains, and the same program as a clone."""

import atexit
import functools
import operator
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TypeVar

from forebay._first_step import tell_first_batch, tell_first_step
from forebay._off import is_off
from forebay._say import say
from forebay.clone._adapter import Changing
from forebay.clone._dealt import PLACE
from forebay.clone._errors import CloneError, RefusedError
from forebay.clone._events import ForkEvents, tell
from forebay.clone._given import check_given
from forebay.clone._handlers import is_the_program_s
from forebay.clone._inventory import NOT_GIVEN, Inventory, inventory
from forebay.clone._loaders import Loaders
from forebay.clone._position import LoaderPosition
from forebay.clone._resume import CloneRequest, Lineage, Resumed, resume, warm_up
from forebay.clone._shadow import ShadowVerification, shadow_steps
from forebay.clone._shared import Arena
from forebay.clone._source import Fork, ForkSource, Limits

__all__ = ["Session", "SessionState", "open_session", "session"]

# As crates/contract/src/env.rs has them.
CLONE = "FOREBAY_CLONE"
JOB = "FOREBAY_JOB"
# Where schedulers put a job's id, and its number among those of that id; 0 means that there is no such number.
SCHEDULERS = (("SLURM_JOB_ID", "SLURM_STEP_ID"), ("PBS_JOBID", ""), ("LSB_JOBID", "LSB_JOBINDEX"))
MEMBERS_END = 1 << 31
"""From here on Slurm numbers steps of its own, as an interactive one."""
NOT_IN_NAMES = re.compile("[^A-Za-z0-9_-]+")
FORKS_KEPT = 100

Batch = TypeVar("Batch")


class Session:
    """A job that can be forked, or a clone. Made by `session`.

    Attributes:
        job: the name by which `forebay clone` finds it.
        resumed: in a clone the parent's counters, `{"epoch": ..., "step": ...}`; else None.
        lineage: in a clone its origin; else None.
        verifying: in a clone with `verify="shadow:N"`, as long as it has not been compared with its parent: it may
            not exist yet, so write nothing that lasts.
        forks: states that were taken of this rank, the last hundred, with how long training stood still for each.
    """

    def __init__(
        self,
        job: str,
        described: Inventory,
        state: "SessionState",
        lineage: Lineage | None,
        verification: ShadowVerification | None = None,
        *,
        forkable: bool = True,
    ) -> None:
        self.job = job
        self.lineage = lineage
        self.resumed = dict(state.counters) if lineage else None
        self.forks: list[Fork] = []
        self._inventory = described
        self._state = state
        self._verification = verification
        # The loader last given to `batches`, if the session keeps its position.
        self._loader: Iterable[object] | None = None
        self._is_resuming = lineage is not None
        self._stepped = False
        self._process = os.getpid()
        self._source: ForkSource | None = None
        self._telling = ForkEvents(job, *described.rank)
        self._remove_hook: Callable[[], None] | None = None
        self._is_forkable = forkable and not is_off()
        if self._is_forkable and verification is None:
            self._source = self._made_source()
        if self._is_forkable or verification is not None:
            self._remove_hook = described.on_step(self._before_step, self._note_step)
            atexit.register(self.close)

    @functools.cached_property
    def _loaders(self) -> Loaders:
        adapter = self._inventory.adapter
        return Loaders(adapter.access, adapter.plain())

    def _made_source(self) -> ForkSource:
        state = self._state
        return ForkSource(self.job, self._inventory, state.limits, state.shadow, state.arenas, state.agent)

    @property
    def verifying(self) -> bool:
        """True in a clone under shadow verification."""
        return self._verification is not None

    def point(self, *, epoch: int, step: int) -> None:
        """Marks the end of a step, after everything that belongs to it.

        The optimizer's update, the scheduler's, the average's.

        Costs a microsecond while nobody wants a fork. A point without an optimizer's update since the last one is in
        the middle of accumulating gradients: forks wait for the next. Any failure here is one line on standard error,
        and training goes on, unless this is a clone whose verification fails.

        Args:
            epoch: epoch as the program counts, from 0 on; a clone finds it in `resumed`.
            step: step as the program counts, from 0 on; a clone finds it in `resumed`.

        Raises:
            TypeError: one of the two is not a whole number.
            ValueError: one of the two is negative.
            CloneError: in a clone with `verify="shadow:N"`, at its Nth step: its state differs from its parent's. End
                the process.
        """
        epoch, step = operator.index(epoch), operator.index(step)
        if epoch < 0 or step < 0:
            raise ValueError(f"point(epoch={epoch}, step={step}): count both from 0 on")
        # A process that was forked from the program has a model of its own, and is not a rank.
        is_within = not self._stepped and self._inventory.sees_steps
        if is_within or os.getpid() != self._process:
            return
        tell_first_step()
        if self._stepped:
            # After a step in which not all optimizers took part.
            self._before_step(None)
        self._stepped = False
        self._state.counters.update(epoch=epoch, step=step)
        if self._verification is not None:
            self._verify(self._verification, epoch, step)
            return
        if self._source is None:
            return
        try:
            self._take(self._source, epoch, step)
            self._repeat(self._source, epoch, step)
        except Exception as error:
            if is_the_program_s(error):
                raise
            self.close()
            say(f"this job can't be forked any more: {error}", "refused")

    def _take(self, source: ForkSource, epoch: int, step: int) -> None:
        """Publishes the state, if a fork is requested for this step boundary."""
        fork: Fork | None = None
        try:
            fork = source.point(epoch, step)
        except CloneError as error:
            say(f"no fork at step {step}: {error}", "refused")
        self._telling.passed(epoch, fork)
        if fork:
            self.forks = [*self.forks[1 - FORKS_KEPT :], fork]

    def _repeat(self, source: ForkSource, epoch: int, step: int) -> None:
        """Sends the digests that shadow verifications need at this step, even if a fork at this step failed."""
        try:
            if repeated := source.repeat(epoch, step):
                forked, seconds = repeated
                self.forks = [replace(one, compared_s=seconds) if one.step in forked else one for one in self.forks]
        except CloneError as error:
            say(f"no clone at step {step}: {error}", "refused")

    def _verify(self, verification: ShadowVerification, epoch: int, step: int) -> None:
        try:
            became = verification.point(epoch, step)
        except BaseException:
            self.close()
            raise
        if became is None:
            return
        self._verification = None
        self.lineage = became.lineage
        announce(became, self._inventory.rank)
        if self._is_forkable:
            try:
                self._source = self._made_source()
            except CloneError as error:
                say(f"this clone can't be forked: {error}", "refused")

    def epochs(self, count: int) -> Iterator[int]:
        """Yields the remaining epochs: `range(count)`, in a clone from its parent's on.

        A `point()` for the epoch's last step follows each body.
        """
        for epoch in range(self._state.counters.get("epoch", 0), count):
            self._state.counters["epoch"] = epoch
            yield epoch
            # By now the epoch's own work is done, a scheduler's step too.
            if self._loader is None:
                self._state.place.clear()
            else:
                self._state.place.begin({}, self._loaders, self._loader)
            self.point(epoch=epoch + 1, step=self._state.counters.get("step", 0))
            # Also where gradients were still accumulating and the point was passed over.
            self._state.counters["epoch"] = epoch + 1

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Yields the batches of an epoch, a step each, in a clone from its parent's position on.

        A `point()` follows each batch but the last, whose `point()` is that of `epochs`. A loader that was given to
        the session restores its position by itself. With any other loader the clone has the same order of samples:
        its generators, and the state that the loader keeps from one epoch to the next (generators, counters, orders),
        are restored as they were when the epoch began; the batches that its parent has read are read and discarded. A
        loader that keeps an iterator, as with `persistent_workers=True`, can be forked in its first epoch only: in a
        later one the clone's `session` refuses it.

        Args:
            loader: has a length, and gives that many batches each time.

        Raises:
            CloneError: in a clone, the loader has fewer batches than the parent's; or it has another number of ranks,
                was forked in the middle of an epoch, and its loader does not keep its position.
        """
        asked = time.perf_counter()
        iterator = self._at_place(loader)
        # A loader without a length raises its own error.
        length = len(loader)  # type: ignore[arg-type]
        for batch in iterator:
            self._state.place.batch += 1
            self._state.counters["step"] = step = self._state.counters.get("step", 0) + 1
            tell_first_batch(asked)
            yield batch
            if self._state.place.batch < length:
                self.point(epoch=self._state.counters.get("epoch", 0), step=step)

    def _at_place(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        is_resuming, self._is_resuming = self._is_resuming, False
        had = self._state.place.batch if is_resuming else 0
        ours = self._inventory.rank[1]
        theirs = self.lineage.parent_ranks if self.lineage else ours
        is_dealt = theirs != ours
        if had > 0 and is_dealt and not self._state.loader_has_place:
            raise CloneError(
                f"its parent, of another number of ranks ({theirs}), had had {had} batches of this epoch in each: fork it between "
                "epochs, or give session() a forebay.torch.DataLoader, whose place is good for any number of ranks"
            )
        if self._state.loader_has_place:
            # Batches of other ranks do not count here: the rest of the epoch is distributed again.
            if had == 0 or is_dealt:
                self._state.place.clear()
            return iter(loader)
        if not self._inventory.sees_steps:
            raise CloneError(
                "batches(loader): the place in it can't be known with a model of Keras: give session(loader=) a loader with state_dict, or "
                "leave batches() out"
            )
        self._loader = loader
        if had == 0:
            if is_resuming:
                self._state.place.go_on(self._loaders, loader)
            self._state.place.begin(self._inventory.generators(), self._loaders, loader)
            return iter(loader)
        here = self._inventory.generators()
        iterator = self._state.place.catch_up(self._loaders, loader, self._inventory.set_generators)
        self._inventory.set_generators(here)
        return iterator

    def close(self) -> None:
        """Ends forking; a clone that has not received all of its state gets an error.

        Also runs at the process's end.
        """
        if self._remove_hook is None:
            return
        self._remove_hook()
        self._remove_hook = None
        atexit.unregister(self.close)
        self._end()

    def _end(self) -> None:
        source, self._source = self._source, None
        # Its lease ends with it, so that the other ranks learn of the end.
        self._verification = None
        self._telling.close()
        try:
            if source is not None:
                source.close()
        except Exception as error:
            say(f"the clones that were being made are given up: {error}", "refused")

    def _before_step(self, tensors: Callable[[], Changing] | None) -> bool:
        """Prepares for changes of tensors, or of all; returns whether clones go on reading others in place."""
        try:
            if self._source is not None and (closed := self._source.before_step(tensors)):
                stall_s, aside = closed
                # The list has no entry for the fork if an error came between the two.
                self.forks = [
                    *self.forks[:-1],
                    *(replace(last, stall_s=last.stall_s + stall_s, aside=aside) for last in self.forks[-1:]),
                ]
                self._telling.closed(stall_s, aside)
        except Exception as error:
            if is_the_program_s(error):
                raise
            # The optimizer iterates over its hooks: removing one now would abort its step. They do nothing from now on.
            self._end()
            say(f"this job can't be forked any more: {error}", "refused")
        return self._source is not None and self._source.is_leased

    def _note_step(self) -> None:
        self._stepped = True


class SessionState:
    """The parts of the state that a session itself adds, and its settings.

    Attributes:
        counters: the last arguments of `point`.
        place: position in the epoch, as `Session.batches` counts.
        loader_has_place: true if the state has a loader that keeps its own position.
        limits: limits of the cost of a fork.
        shadow: steps of shadow verification, unless `forebay clone` sets another number.
        arenas: in a clone, shared memory in which some of its tensors lie already.
        agent: in a clone, the directory of its fork agent.
    """

    def __init__(self, *, loader_has_place: bool, limits: Limits, shadow: int) -> None:
        self.counters: dict[str, int] = {}
        self.place = LoaderPosition()
        self.loader_has_place = loader_has_place
        self.limits = limits
        self.shadow = shadow
        self.arenas: Sequence[Arena] = ()
        self.agent: str | None = None


def session(
    *,
    model: object = NOT_GIVEN,
    optimizer: object = NOT_GIVEN,
    scheduler: object = NOT_GIVEN,
    scaler: object = NOT_GIVEN,
    ema: object = NOT_GIVEN,
    loader: object = NOT_GIVEN,
    generators: Mapping[str, object] | None = None,
    others: Mapping[str, object] | None = None,
    job: str | None = None,
    warm: Callable[[], object] | None = None,
    wait_s: float = 600.0,
    prepare: str = Limits.prepare,
    aside: int | None = Limits.aside,
    stall_s: float = Limits.stall_s,
    verify: str = "digest",
    ranks: str | None = None,
) -> Session:
    """Lets this job be forked by `forebay clone`; in a clone, waits for the parent's state and loads it.

    The same call serves both. Make it in every rank, once all objects are made and the model is wrapped, before
    training. With `FOREBAY=off` nothing can be forked. For the stalls of training see P14d in docs/semantics.md.

    Args:
        model: as for `inventory`, and so are the following: each is to be given, or to be declared absent (None).
        optimizer: see `inventory`.
        scheduler: see `inventory`.
        scaler: see `inventory`.
        ema: see `inventory`.
        loader: see `inventory`.
        generators: see `inventory`.
        others: see `inventory`.
        job: by default `FOREBAY_JOB`, the scheduler's id, or a random printed name. A clone has its parent's, numbered.
        warm: one pass forward and backward with any batch; its gradients are discarded. A clone runs it twice before it
            loads its state, so that DDP's buckets are as the parent's; else sums differ in their last bits. Needed only
            with three ranks or more under DDP.
        wait_s: seconds that a clone waits for its parent's next point, for the step after it, and for its other ranks.
        prepare: time at which parameters and optimizers' tensors of 64 KiB and more are moved into memory that clones
            can read. "start": at the first point; "fork": before the first fork, so that only a forked job pays for it,
            with one pause; "never": they stay where they are, and a fork copies all of the state at the point.
        aside: largest number of their bytes that are copied at the next step since a clone has not read them; by
            default a quarter of them, at least 64 MiB. A fork that needs more is dropped, and does not delay the step.
        stall_s: longest time of that copy in seconds, at most 3600.
        verify: check of this job's clones, unless `forebay clone --verify` says otherwise. "digest": every entry as it
            is loaded; "shadow:3": again after three equal steps of both, where the clone (`verifying`) begins.
        ranks: see `inventory`. With "mpi" all of MPI's processes have to call this: without a name they agree on one.

    Raises:
        ValueError: an argument after `loader` is invalid.
        CloneError: the state can't be described, the job's name is taken, or a clone got no state: end the process.
    """
    check_given(job=job, warm=warm, wait_s=wait_s, generators=generators, others=others)
    state = SessionState(loader_has_place=loader is not None, limits=Limits(prepare, aside, stall_s), shadow=shadow_steps(verify))
    described = inventory(
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        scaler=scaler,
        ema=ema,
        loader=loader,
        counters=state.counters,
        generators=generators,
        others={**(others or {}), PLACE: state.place},
        ranks=ranks,
    )
    return open_session(described, state, job, warm, wait_s)


def open_session(
    described: Inventory, state: "SessionState", job: str | None, warm: Callable[[], object] | None = None, wait_s: float = 600.0
) -> Session:
    """Opens the session of a job, or of a clone if `forebay clone` has started this program. See `session`."""
    _check_group(described)
    if text := os.environ.pop(CLONE, None):
        return _clone(CloneRequest.from_json(text), described, state, warm, wait_s)
    return _original(job or os.environ.get(JOB), described, state)


def _check_group(described: Inventory) -> None:
    if described.rank[1] == 1 and os.environ.get("WORLD_SIZE", "1") != "1":
        raise CloneError(
            f"WORLD_SIZE is {os.environ['WORLD_SIZE']}, and there is no process group yet: call session() after init_process_group()"
        )


def _clone(asked: CloneRequest, described: Inventory, state: SessionState, warm: Callable[[], object] | None, wait_s: float) -> Session:
    warm_up(described, warm)
    resumed = resume(asked, described, wait_s)
    state.arenas, state.agent = resumed.arenas, asked.directory
    if resumed.taking is not None:
        verification = ShadowVerification(resumed, asked, resumed.taking, described, wait_s, asked.shadow)
        return Session(resumed.name, described, state, resumed.lineage, verification)
    try:
        made = Session(resumed.name, described, state, resumed.lineage)
    except CloneError as error:
        # The other ranks already know that the clone exists.
        say(f"this clone can't be forked: {error}", "refused")
        made = Session(resumed.name, described, state, resumed.lineage, forkable=False)
    announce(resumed, described.rank)
    return made


def announce(clone: Resumed, of_ranks: tuple[int, int]) -> None:
    """Reports a new clone once, on standard error and in the record of the run that it is part of."""
    lineage, (rank, ranks) = clone.lineage, of_ranks
    tell("became", {"job": clone.name, "rank": rank, "ranks": ranks, **asdict(lineage), **asdict(clone.course)})
    if rank == 0:
        changes = "".join(f", {key}={value:.15g}" for key, value in lineage.changes.items())
        shadow = "" if lineage.verified == "digest" else f" ({lineage.verified})"
        say(f"this is {clone.name}, a clone of {lineage.parent} after step {lineage.step}{shadow}{changes}")
        if lineage.parent_ranks != ranks:
            numbers = f"its parent's number of ranks is {lineage.parent_ranks}, and its own {ranks}"
            say(f"{numbers}: its state is exact, and what it computes differs in the last bits")


def _original(name: str | None, described: Inventory, state: SessionState) -> Session:
    if name:
        return Session(name, described, state, None)
    rank, ranks = described.rank
    if derived := _of_scheduler():
        try:
            return Session(derived, described, state, None)
        except RefusedError as error:
            # The user has not chosen that name: a refusal must not end the job.
            if ranks > 1:
                # A common number would need all ranks, and those that were not refused go on.
                if rank == 0:
                    say(f"this job can't be forked: {error}", "refused")
                return Session(derived, described, state, None, forkable=False)
    made = Session(f"job-{described.shared_number():08x}", described, state, None)
    if rank == 0:
        say(f"this job is {made.job}; to fork it: forebay clone {made.job} -- PROGRAM")
    return made


def _of_scheduler() -> str | None:
    for variable, member in SCHEDULERS:
        name = NOT_IN_NAMES.sub("-", os.environ.get(variable, "").partition(".")[0]).strip("-_")
        number = os.environ.get(member, "")
        if name:
            return f"{name}-{number}" if number.isdecimal() and 0 < int(number) < MEMBERS_END else name
    return None
