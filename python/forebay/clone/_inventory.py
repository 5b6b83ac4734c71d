"""The inventory: every part of a training job's state, described once, without framework and without pickle."""

import contextlib
import importlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from forebay import _core
from forebay.clone._adapter import Adapter, BeforeStep, Component, adapter_of, is_keras
from forebay.clone._boxes import in_boxes, is_sharded
from forebay.clone._capture import Capture, reserve
from forebay.clone._dealt import left_out
from forebay.clone._early import EarlyCopies
from forebay.clone._errors import CloneError, DamagedError, DifferenceError, MissingError
from forebay.clone._filling import LoadPlan, VerifiedTensors, by_component, fill, make, memory_of, put, put_component, some, text_of
from forebay.clone._manifest import CapturedSection, Layout, Manifest, Placement, Section, firsts_of, starts_of
from forebay.clone._parts import ComponentCache, ComponentState
from forebay.clone._ranks import Ranks, ranks_here, ranks_of
from forebay.clone._read_lease import ParentTensors
from forebay.clone._shared import Storage
from forebay.clone._values import Path, spelled

__all__ = ["KINDS", "NOT_GIVEN", "CaptureForm", "Inventory", "StateSchema", "Survey", "inventory"]

KINDS = ("model", "optimizer", "scheduler", "scaler", "ema", "loader", "counters")
"""Kinds of state that `inventory` must be given, or that must be declared absent."""

GENERATORS = "generators"
"""First part of the paths of generators."""
GRADIENTS = "gradients"
"""Last part of the path of a model's gradients."""


class _NotGiven:
    def __repr__(self) -> str:
        return "<not given>"


NOT_GIVEN = _NotGiven()


def inventory(
    *,
    model: object = NOT_GIVEN,
    optimizer: object = NOT_GIVEN,
    scheduler: object = NOT_GIVEN,
    scaler: object = NOT_GIVEN,
    ema: object = NOT_GIVEN,
    loader: object = NOT_GIVEN,
    counters: object = NOT_GIVEN,
    generators: Mapping[str, object] | None = None,
    others: Mapping[str, object] | None = None,
    ranks: str | None = None,
) -> "Inventory":
    """Describes a training job's state.

    Each kind is one object, a dictionary of objects by name, or None: there is none. A kind that is not mentioned is
    refused: what is forgotten here would not be missed before a fork's results differ.

    Args:
        model: modules; wrappers such as DDP's are looked through.
        optimizer: optimizers of the model's parameters.
        scheduler: learning-rate schedulers.
        scaler: gradient scalers.
        ema: averaged models: modules, objects with `state_dict` and `load_state_dict`, or dictionaries of tensors.
        loader: data loaders with `state_dict` and `load_state_dict`.
        counters: a dictionary of numbers that the program counts by, such as `{"epoch": 3, "step": 1200}`; it is
            changed in place.
        generators: random-number generators of the program's own, by name. Those of the process are always included:
            torch's of the processor and each device, NumPy's global one, Python's.
        others: anything else with `state_dict` and `load_state_dict`, or a dictionary, by name; for instance metrics.
        ranks: by default those of `torch.distributed`, or this process alone. A program that sums its gradients by
            mpi4py says `mpi`: then they are those of `MPI.COMM_WORLD`.

    Raises:
        ValueError: `ranks` is invalid.
        MissingError: a kind is not given; or none is declared, but there is one; or an optimizer trains what no given
            module has.
        UndescribableError: the type of an object is unknown; or a model of Keras is not built yet.
        CloneError: the ranks are to be MPI's, and the program does not use it.

    The kinds of state, and their classes, are those of "Life of a fork" in docs/architecture.md.
    """
    given = {
        "model": model,
        "optimizer": optimizer,
        "scheduler": scheduler,
        "scaler": scaler,
        "ema": ema,
        "loader": loader,
        "counters": counters,
    }
    missing = [kind for kind in KINDS if given[kind] is NOT_GIVEN]
    if missing:
        none = ", ".join(f"{kind}=None" for kind in missing)
        raise MissingError(f"{' and '.join(missing)} not given: pass what the job uses, or, where it has none, {none}")
    if is_keras(model):
        loop = importlib.import_module("forebay.keras._loop")
        made: Inventory = loop.loop_inventory({**given, "others": dict(others or {})}, generators or {}, ranks)
        return made
    objects = {kind: _by_name(kind, value) for kind, value in given.items()}
    objects["others"] = dict(others or {})
    if not objects["model"]:
        raise MissingError("model=None: without a model there is no state to fork")
    adapter = adapter_of(next(iter(objects["model"].values())))
    adapter.check(objects)
    components = [component for kind, named in objects.items() for component in adapter.components(kind, named)]
    absent = tuple(kind for kind in KINDS if not objects[kind])
    return Inventory(adapter, ranks_of(ranks, adapter), objects, [*components, *adapter.process(generators or {})], absent)


def _by_name(kind: str, value: object) -> dict[str, object]:
    """Returns objects of one kind by name, `""` for a single one.

    A dictionary of plain values and tensors is one object.
    """
    if value is None:
        return {}
    if type(value) is dict and kind != "counters" and value and all(hasattr(item, "state_dict") for item in value.values()):
        return value
    return {"": value}


class CaptureForm(NamedTuple):
    """The way in which a capture holds a part, valid as long as neither the part nor the shared storage changes.

    Attributes:
        section: section of the part.
        addresses: addresses of the part's tensors.
        version: version of the storage.
        held: the section with the places of tensors that are not copied.
        spans: tensors with an address that are copied.
        asked: numbers of the tensors without an address, which are copied, too.
    """

    section: Section
    addresses: Sequence[int | None]
    version: int
    held: CapturedSection
    spans: _core.Spans
    asked: list[int]

    @classmethod
    def made(cls, part: ComponentState, storage: Storage | None) -> "CaptureForm":
        """Builds the form of a part as it is now."""
        paths, kinds = part.section.paths, part.section.kinds
        places = {}
        if storage is not None and part.component.steady:
            for number, address in enumerate(part.addresses, 1):
                if place := storage.stays(paths[number], address, kinds[number].length):
                    places[number] = place
        held = CapturedSection(part.section, places) if places else part.section.whole
        spans = _copied_spans(part, held, places)
        asked = [number for number, address in enumerate(part.addresses, 1) if address is None and number not in places]
        return cls(part.section, part.addresses, storage.version if storage else -1, held, spans, asked)

    def without(self, part: ComponentState, numbers: Collection[int]) -> "CaptureForm":
        """Returns the form where tensors with these numbers are in the capture's memory already."""
        return self._replace(spans=_copied_spans(part, self.held, {*self.held.places, *numbers}))

    def is_of(self, part: ComponentState, storage: Storage | None) -> bool:
        """Returns whether the form is still valid."""
        is_same = self.section is part.section and self.addresses is part.addresses
        return is_same and self.version == (storage.version if storage else -1)


def _copied_spans(part: ComponentState, held: CapturedSection, others: Collection[int]) -> _core.Spans:
    """Returns the spans of the tensors that have an address, but for others."""
    located = [(number, address) for number, address in enumerate(part.addresses, 1) if address is not None and number not in others]
    return _core.Spans([(number, address, part.section.kinds[number].length, held.starts[number]) for number, address in located])


Survey = dict[str, ComponentState]
"""Components of this process's state, by path."""

StateSchema = Sequence[tuple[CapturedSection, bytes]]
"""The expected form of a state: each section, and the values of those that a clone can prepare for; else nothing."""


class Inventory:
    """The parts of a job's state in this process. Made by `inventory`.

    Attributes:
        freezes: true if the framework never writes to a tensor that somebody holds, so that `frozen` costs no copy.
        sees_steps: true if `on_step` knows each update by an optimizer.
        early: copies tensors while the step before a fork runs, if the framework tells when they are final.
    """

    freezes = False
    sees_steps = True
    early: EarlyCopies | None = None

    def __init__(
        self,
        adapter: Adapter,
        ranks: Ranks,
        objects: Mapping[str, Mapping[str, object]],
        components: list[Component],
        absent: tuple[str, ...],
    ) -> None:
        self._adapter = adapter
        self._ranks = ranks
        self._objects = objects
        generators = [component for component in components if component.path[0] == GENERATORS]
        self._components = [_undrawn(component, generators) if component.draws else component for component in components]
        self._steady = [component for component in components if component.steady]
        self._described = ComponentCache(adapter)
        # By path, and by the use of shared storage.
        self._forms: dict[tuple[Path, bool], CaptureForm] = {}
        self._absent = absent

    def manifest(self, *, alike: bool = False) -> Manifest:
        """Returns every entry of the state as it is now, with its digest. Reads all of it.

        Args:
            alike: only the entries that all ranks hold alike; others are neither named nor read.

        Raises:
            UndescribableError: the state holds a value of a type that is not known.
        """
        parts = self._parts()
        return self._digested([some for part in parts if (some := _replicated(part))] if alike else parts)

    def capture(self, memory: Callable[[int], _core.Reserved] = reserve, storage: Storage | None = None) -> Capture:
        """Copies the state as it is now, and digests it, in one pass. Nothing may change the state meanwhile.

        Args:
            memory: allocates at least as many bytes as it is given.
            storage: shared storage; tensors in it that are unchanged between steps are named, not copied.

        Raises:
            UndescribableError: the state holds a value of a type that is not known.
            CloneError: there is no memory for the copy.
        """
        parts = self._parts()
        forms = [self._form(part, storage) for part in parts]
        held = [form.held for form in forms]
        end = starts_of(held)[-1]
        reserved = memory(end)
        digests = self._pack(parts, forms, reserved)
        in_place = tuple(part.tensors[number - 1] for part, one in zip(parts, held, strict=True) for number in one.places)
        return Capture(self._manifest(held, digests), reserved.seal(end), in_place)

    def frozen(self) -> "Inventory":
        """Returns an inventory that keeps the state as it is now, if the framework `freezes`; else this one."""
        return self

    def outline(self, storage: Storage) -> StateSchema:
        """Returns the schema of captures, valid as long as the state keeps its form.

        Raises:
            UndescribableError: the state holds a value of a type that is not known.
        """
        parts = self._parts()
        return [
            (self._form(part, storage).held, part.text if part.component.steady and part.component.put is not None else b"")
            for part in parts
        ]

    def survey(self) -> Survey:
        """Returns the components that a state can be loaded to.

        Called while a clone waits, it saves time when the state has come.
        """
        return {part.section.paths[0]: part for part in self._parts()}

    def get_ready(self, schema: StateSchema, survey: Survey, empty: Callable[[Layout], Any]) -> dict[str, LoadPlan]:
        """Makes the load plans of a state, by path, while a clone waits for it. Changes nothing.

        Args:
            schema: its expected form.
            survey: components to load it to.
            empty: see `load`.
        """
        ready = {}
        for held, text in schema:
            part = survey.get(held.section.paths[0])
            if part is None or (part.component.put is not None and not text):
                continue
            # A component that can't be loaded is reported when the state has come.
            with contextlib.suppress(CloneError):
                made = make(self._adapter, self._described, part, held, text or part.text, empty)
                ready[made.name] = made
        return ready

    def load(
        self,
        capture: Capture,
        remote: ParentTensors | None = None,
        survey: Survey | None = None,
        others: Sequence[Capture] = (),
        *,
        is_seeded: bool = False,
        empty: Callable[[Layout], Any] | None = None,
        ready: Mapping[str, LoadPlan] | None = None,
    ) -> Manifest:
        """Sets this process's state to a captured one. Checks the digest of every entry, as received and as set.

        Every refusal comes before the first change. No content of the state can run code.

        Args:
            capture: a state of a job with the same model and the same kinds.
            remote: reader of the entries that the capture does not hold.
            survey: result of an earlier `survey()`.
            others: states of the other ranks, if the state comes from another number of ranks and the captured one is
                rank 0's. Entries that all held alike are loaded, and of sharded tensors what this rank holds; an entry
                that can't be distributed is refused.
            is_seeded: the generators are seeded afterwards.
            empty: makes tensors that are missing here and are in shared memory there; by default the adapter does.
            ready: load plans that were made before, by path.

        Returns:
            The state's manifest, in which every entry has its digest.

        Raises:
            DifferenceError: the captured state is of another job. Nothing has been changed.
            CloneError: an entry that the capture does not hold could not be read. The objects are in no defined state
                then: end the process.
            DamagedError: an entry does not have its digest, or an object did not take its state back. The objects of
                this inventory are in no defined state: end the process.
        """
        # Tensors may have moved while the clone waited, and are filled by their addresses.
        parts = survey if survey is not None and all(map(self._described.stands, survey.values())) else self.survey()
        is_dealt = capture.manifest.ranks != self.rank[1] and len(others) + 1 == capture.manifest.ranks
        self._check_job(capture.manifest, is_dealt=is_dealt)
        making = (empty or self._adapter.empty, ready or {})
        if not is_dealt:
            return self._set(capture, remote, parts, set(), *making)
        portable = {name: part.component.portable for name, part in parts.items()}
        boxes = [name for name, part in parts.items() if part.component.tells_boxes]
        captures = [capture, *others]
        left = left_out([one.manifest for one in captures], self.rank[1], portable, is_seeded=is_seeded, boxes=boxes)
        if not is_sharded(capture):
            return self._set(capture, remote, parts, left, *making)
        with in_boxes(captures, parts, self._adapter, lambda length: reserve(length, self.ranks_here)) as mine:
            return self._set(mine, remote, parts, left, *making)

    def _set(
        self,
        capture: Capture,
        remote: ParentTensors | None,
        parts: Survey,
        left: Collection[str],
        empty: Callable[[Layout], Any],
        ready: Mapping[str, LoadPlan],
    ) -> Manifest:
        """Loads a state whose tensors are those that this rank holds, but for the components `left`. See `load`."""
        found = {name: at for name, at in by_component(capture.manifest, parts).items() if name not in left}
        held = capture.manifest.held
        texts = {name: text_of(capture, at) for name, at in found.items()}
        made = []
        for name, at in found.items():
            one = ready.get(name)
            if one is None or not one.is_of(parts[name], held[at], texts[name]):
                one = make(self._adapter, self._described, parts[name], held[at], texts[name], empty, one)
            made.append(one)
        digests, verified = fill(self._adapter, made, list(found.values()), capture, remote)
        for one in made:
            component = one.part.component
            if component.put is not None and not one.is_there:
                if one.expected is not None:
                    self._described.expect(component.path, one.expected)
                put_component(component, one.tree)
        manifest = capture.manifest.read(digests)
        after = self._digested(self._parts(), verified)
        if wrong := [path for path in manifest.differences(after) if not any(f"{path}/".startswith(f"{name}/") for name in left)]:
            asked = "does its load_state_dict set all of it, or does it share memory with another?"
            raise DamagedError(f"not as it was captured after loading: {some(wrong)}: {asked}")
        return manifest

    @property
    def rank(self) -> tuple[int, int]:
        """This process's rank, and the number of ranks."""
        return self._ranks.rank()

    @property
    def ranks_here(self) -> int:
        """Number of the ranks on this host."""
        return ranks_here(self.rank[1])

    def length(self) -> int:
        """Returns the bytes that a capture would have now.

        Raises:
            UndescribableError: the state holds a value of a type that is not known.
        """
        return starts_of([part.section.whole for part in self._parts()])[-1]

    @property
    def adapter(self) -> Adapter:
        """The framework."""
        return self._adapter

    def steady(self) -> dict[str, Any]:
        """Returns the tensors that are unchanged between steps, by path; one that has two paths comes once.

        Raises:
            UndescribableError: the state holds a value of a type that is not known.
        """
        found: dict[int, tuple[str, Any]] = {}
        for part in self._steady_parts():
            for path, tensor in zip(part.section.paths[1:], part.tensors, strict=True):
                found.setdefault(id(tensor), (path, tensor))
        return dict(found.values())

    def steady_sections(self) -> list[Section]:
        """Returns the sections of the tensors that are unchanged between steps.

        The very same objects until a tensor is replaced or moved.

        Raises:
            UndescribableError: as `steady`.
        """
        return [part.section for part in self._steady_parts()]

    def last_steady_sections(self) -> list[Section | None]:
        """Returns the sections that `steady_sections` returned last.

        None for a component that has to be described again in any case.
        """
        return [self._described.last(component.path) for component in self._steady]

    def steady_unmoved(self) -> bool:
        """Returns whether the tensors that were described last still exist at their addresses.

        New ones may have come.
        """
        return all(self._described.is_unmoved(component.path) for component in self._steady)

    def _steady_parts(self) -> list[ComponentState]:
        return self._described.of(self._steady)

    def on_step(self, before: BeforeStep, after: Callable[[], None]) -> Callable[[], None]:
        """Registers functions that are called before and after each update by an optimizer.

        Returns a function that removes them.
        """
        return self._adapter.on_step(self._objects, before, after)

    def change(self, name: str, value: float) -> None:
        """Sets a number in all groups of the optimizers that have it (`lr`.

        Also where schedules begin), or with `seed` the generators.

        Raises:
            DifferenceError: there is nothing of that name.
        """
        self._adapter.change(self._objects, name, value, self.rank[0])

    def generators(self) -> dict[str, Any]:
        """Returns the states of all generators, by path."""
        return {spelled(component.path): component.get() for component in self._components if component.path[0] == GENERATORS}

    def set_generators(self, states: Mapping[str, Any]) -> None:
        """Sets the generators to the states that `generators` returned."""
        for component in self._components:
            if component.path[0] == GENERATORS and component.put is not None:
                component.put(states[spelled(component.path)])

    @contextlib.contextmanager
    def gradients_kept(self) -> Iterator[None]:
        """Restores the gradients at the end of the block."""
        components = [component for component in self._components if component.path[0] == "model" and component.path[-1] == GRADIENTS]
        before = [component.get() for component in components]
        try:
            yield
        finally:
            for component, gradients in zip(components, before, strict=True):
                if component.put is not None:
                    component.put(gradients)

    def shared_number(self) -> int:
        """Returns a random number below 2^31, the same in all ranks; every rank has to call this."""
        return self._ranks.shared_number()

    def _parts(self) -> list[ComponentState]:
        return self._described.of(self._components)

    def _form(self, part: ComponentState, storage: Storage | None) -> CaptureForm:
        key = (part.component.path, storage is not None)
        form = self._forms.get(key)
        if form is None or not form.is_of(part, storage):
            form = self._forms[key] = CaptureForm.made(part, storage)
        return form

    def _digested(self, parts: list[ComponentState], verified: Mapping[str, VerifiedTensors] | None = None) -> Manifest:
        """Returns a manifest of parts as they are.

        Tensors that were verified where they are, and not written to since, are not read again.
        """
        held = [part.section.whole for part in parts]
        firsts = firsts_of(held)
        forms = [self._form(part, None) for part in parts]
        known = [
            one if (one := (verified or {}).get(part.section.paths[0])) and one.is_still(part, self._adapter) else None for part in parts
        ]
        spans = [(one.located if one else form.spans, 0, first) for one, form, first in zip(known, forms, firsts, strict=False)]
        asked = [
            (first + number, part.section.kinds[number].length, part.tensors[number - 1])
            for part, form, first in zip(parts, forms, firsts, strict=False)
            for number in form.asked
        ]
        pieces = _core.Pieces([length for _, length, _ in asked])
        # First, since it waits for pending writes of a GPU.
        for batch in self._adapter.outward([tensor for _, _, tensor in asked]):
            pieces.see([(piece.number, piece.address, piece.length) for piece in batch])
        texts = [(_span_of(part.text), 0, first) for part, first in zip(parts, firsts, strict=False)]
        digests = bytearray(_core.digests(firsts[-1], [*texts, *spans]))
        for one, first in zip(known, firsts, strict=False):
            if one is not None:
                one.put(digests, first)
        for (number, _, _), digest in zip(asked, pieces.digests(), strict=True):
            put(digests, number, digest)
        return self._manifest(held, digests)

    def _pack(self, parts: list[ComponentState], forms: list[CaptureForm], reserved: _core.Reserved) -> bytearray:
        """Copies the entries without a place to their offsets, and returns all digests.

        Those of entries with a place are nought.
        """
        held = [form.held for form in forms]
        firsts, starts = firsts_of(held), starts_of(held)
        spans = [(form.spans, start, first) for form, start, first in zip(forms, starts, firsts, strict=False)]
        texts = [(_span_of(part.text), start, first) for part, start, first in zip(parts, starts, firsts, strict=False)]
        asked = [
            (
                first + number,
                part.section.kinds[number].length,
                part.tensors[number - 1],
                reserved.address + start + form.held.starts[number],
            )
            for part, form, first, start in zip(parts, forms, firsts, starts, strict=False)
            for number in form.asked
        ]
        pieces = _core.Pieces([length for _, length, _, _ in asked])
        # First, since it waits for pending writes of a GPU.
        for batch in self._adapter.outward([tensor for _, _, tensor, _ in asked]):
            pieces.copy([(piece.number, piece.address, piece.length, asked[piece.number][3] + piece.start) for piece in batch])
        digests = bytearray(_core.pack(reserved.address, reserved.length, firsts[-1], [*texts, *spans]))
        for (number, _, _, _), digest in zip(asked, pieces.digests(), strict=True):
            put(digests, number, digest)
        return digests

    def _manifest(self, held: list[CapturedSection], digests: bytearray) -> Manifest:
        rank, ranks = self.rank
        return Manifest(self._adapter.framework(), rank, ranks, self._absent, tuple(held), bytes(digests))

    def _check_job(self, manifest: Manifest, *, is_dealt: bool) -> None:
        """Refuses a state of another framework, other kinds, or, unless it is redistributed, other ranks."""
        rank, ranks = (0, manifest.ranks) if is_dealt else self.rank
        for what, theirs, ours in (
            ("framework", manifest.framework, self._adapter.framework()),
            ("number of ranks", manifest.ranks, ranks),
            ("rank", manifest.rank, rank),
        ):
            if theirs != ours:
                raise DifferenceError(f"the {what} differs: {theirs} where the state was captured, {ours} here")
        for kind in KINDS:
            there, here = ("absent" if kind in absent else "given" for absent in (manifest.absent, self._absent))
            if there != here:
                raise DifferenceError(f"{kind} is {there} where the state was captured, and {here} here")


def _undrawn(component: Component, generators: Sequence[Component]) -> Component:
    """Returns the component with a `get` that restores the job's generators.

    Nothing here may change the numbers that the job draws.
    """

    def get() -> object:
        before = [(one.put, one.get()) for one in generators]
        try:
            return component.get()
        finally:
            for put, states in before:
                if put is not None:
                    put(states)

    return replace(component, get=get)


def _replicated(part: ComponentState) -> ComponentState | None:
    """Returns the entries of a part that all ranks hold alike; None if there are none."""
    if part.component.placement is not Placement.REPLICATED:
        return None
    numbers = [number for number, kind in enumerate(part.section.kinds) if kind.placement is Placement.REPLICATED]
    if len(numbers) == len(part.section.kinds):
        return part
    section = Section(tuple(part.section.paths[number] for number in numbers), tuple(part.section.kinds[number] for number in numbers))
    tensors, addresses = ([column[number - 1] for number in numbers[1:]] for column in (part.tensors, part.addresses))
    return ComponentState(part.component, part.text, section, tensors, addresses)


def _span_of(text: bytes) -> _core.Spans:
    """Returns the span of a section's values."""
    memory = memory_of(text)
    return _core.Spans([(0, memory.address, memory.length, 0)])
