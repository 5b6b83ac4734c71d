"""The callback `forebay.keras.Fork`, which lets a Keras job be forked."""

import os
from typing import Any

import keras

from forebay._off import is_off
from forebay._say import say
from forebay.clone._early import EarlyCopies, EarlyTensors
from forebay.clone._errors import UndescribableError
from forebay.clone._given import check_given
from forebay.clone._handlers import is_the_program_s
from forebay.clone._resume import Lineage
from forebay.clone._session import JOB, Session, SessionState, open_session
from forebay.clone._shadow import shadow_steps
from forebay.clone._source import Fork, Limits
from forebay.keras._backend import Backend, backend
from forebay.keras._callbacks import stateful_callbacks
from forebay.keras._job import KerasJob
from forebay.keras._place import fit_frame

__all__ = ["ForkCallback"]


class ForkCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Lets `fit` be forked by `forebay clone` while it trains; in a clone, has `fit` go on where its parent was.

    Everything that the results depend on is carried: variables of the model, of its optimizer and of its metrics,
    generators, the place in the data, and the state of callbacks. Unlike `forebay.clone.session` it needs no list of
    them. It may stand anywhere among the callbacks. With `FOREBAY=off` it does nothing.

    Args:
        name: the name by which `forebay clone` finds the job; by default `FOREBAY_JOB`, the scheduler's id, or a random
            printed one. A clone has its parent's, numbered.
        stateless: types of callbacks whose attributes do not matter to results.
        wait_s: seconds that a clone waits for its parent's next step.
        verify: check of this job's clones, as in `forebay.clone.session`.
        early: on TensorFlow, copies variables of 64 KiB and more as soon as the step before a fork has computed them,
            not at its end. For that the step is compiled twice. Where it is impossible, one line says why, and all is
            copied from the step's end on.

    Raises:
        ValueError: an argument is invalid.
        CloneError: from `fit`: the job's state can't be carried, or a clone got no state.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        stateless: Any = (),  # noqa: ANN401
        wait_s: float = 600.0,
        verify: str = "digest",
        early: bool = False,
    ) -> None:
        super().__init__()
        check_given(job=name, warm=None, wait_s=wait_s, generators=None, others=None)
        if not isinstance(stateless, list | tuple) or not all(isinstance(one, type) for one in stateless):
            raise ValueError(f"stateless={stateless!r}: give a list of classes of callbacks, such as stateless=[MyLogger]")
        if not isinstance(early, bool):
            raise ValueError(f"early={early!r}: write True or False")
        self._name, self._stateless, self._wait_s, self._verify = name, tuple(stateless), wait_s, verify
        self._shadow, self._early = shadow_steps(verify), early
        self._session: Session | None = None
        self._is_used = False

    @property
    def lineage(self) -> Lineage | None:
        """In a clone its origin; else None."""
        return self._session.lineage if self._session else None

    @property
    def forks(self) -> list[Fork]:
        """States that were taken of this job, the last hundred, with how long training stood still for each."""
        return self._session.forks if self._session else []

    @property
    def verifying(self) -> bool:
        """True in a clone under shadow verification, which may not exist yet."""
        return self._session is not None and self._session.verifying

    def on_train_begin(self, logs: object = None) -> None:
        """Opens the job for forks, as the last of all callbacks."""
        if is_off():
            return
        if self._is_used:
            say("this job can't be forked any more: forebay.keras.Fork serves the first fit that it is given to", "refused")
            return
        self._is_used = True
        # Keras goes through this list, and comes to the new one last.
        fit_frame().f_locals["callbacks"].callbacks.append(_Points(self))


class _Points(keras.callbacks.Callback):  # type: ignore[misc]
    """The steps of a fit, seen after all other callbacks have."""

    def __init__(self, fork: ForkCallback) -> None:
        super().__init__()
        self._fork = fork
        self.set_model(fork.model)
        self._session: Session | None = None
        self._job: Any = None
        self._marks: EarlyTensors | None = None
        self._epoch, self._base = 0, 0
        # In a clone the state that it begins with, until its first step.
        self._begins_with: Any = None
        self._is_checked = False

    def on_train_begin(self, logs: object = None) -> None:
        names = fit_frame().f_locals
        self._list = names["callbacks"]
        others = [one for one in self._list.callbacks if one is not self and one is not self._fork]
        here = backend()
        place = here.place(names["epoch_iterator"])
        self._job = job = KerasJob(here, self.model, stateful_callbacks(others, self._fork._stateless), place)
        self._base = 0
        if self._fork._early:
            self._mark(here)
        try:
            self._open(here, job)
        except BaseException:
            self._close()
            raise
        if self._session is not None and self._session.resumed is not None:
            self._go_on(job)

    def _mark(self, here: Backend) -> None:
        try:
            self._marks = here.marks(self.model, self._job.by_path)
        except UndescribableError as error:
            say(f"early=True has no effect, states are copied from the step's end on: {error}", "fallback")

    def _open(self, here: Backend, job: KerasJob) -> None:
        if "FOREBAY_CLONE" in os.environ:
            job.build()
            if self._marks is not None:
                # The function with marks is compiled by now, and the one for the next steps not yet.
                self._marks.disarm()
                job.build()
        limits = Limits() if here.reads_in_place else Limits(prepare="never")
        state = SessionState(loader_has_place=True, limits=limits, shadow=self._fork._shadow)
        state.counters = job.counters
        inventory = job.inventory()
        inventory.early = EarlyCopies(self._marks) if self._marks else None
        self._session = self._fork._session = open_session(
            inventory, state, self._fork._name or os.environ.get(JOB), wait_s=self._fork._wait_s
        )

    def _go_on(self, job: Any) -> None:  # noqa: ANN401
        """Has fit go on at the parent's epoch and batch."""
        self.model._initial_epoch = job.counters["epoch"]
        batch = job.place.resumed_batch
        self._base = job.counters["step"] - batch
        if batch > 0:
            # Before that batch fit sets metrics back, and callbacks see an epoch begin.
            self._begins_with = job.snapshot(is_whole=False)

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
        if self._begins_with is not None:
            self._job.put_back(self._begins_with)
            self._begins_with = None
        elif batch > 0:
            self._point(self._epoch, self._base + batch, batch)

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        if self._session is not None:
            self._base += self._job.place.batches or 0
            if not self.model.stop_training:
                self._point(epoch + 1, self._base, 0)

    def on_train_end(self, logs: object = None) -> None:
        self.model._initial_epoch = None
        self._list.callbacks.remove(self)
        self._close()

    def _point(self, epoch: int, step: int, batch: int) -> None:
        session, job = self._session, self._job
        if session is None:
            return
        try:
            job.place.stepped()
            job.batch = batch
            if not self._is_checked:
                self._is_checked = True
                job.check()
        except Exception as error:
            if is_the_program_s(error):
                raise
            self._close()
            say(f"this job can't be forked: {error}", "refused")
            return
        session.point(epoch=epoch, step=step)

    def _close(self) -> None:
        if self._marks is not None:
            self._marks.disarm()
        if self._session is not None:
            self._session.close()
            self._session = None
