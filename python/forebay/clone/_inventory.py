"""The inventory: every part of a training job's state, described once, without framework and without pickle."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from forebay import _core
from forebay.clone._adapter import Adapter, Component, adapter_of
from forebay.clone._capture import Capture, reserve
from forebay.clone._dealt import left_out
from forebay.clone._errors import CloneError, DamagedError, DifferenceError, MissingError
from forebay.clone._filling import Made, Settled, fill, make, memory_of, put, some, text_of
from forebay.clone._manifest import Held, Layout, Manifest, Placement, Section, firsts_of, starts_of
from forebay.clone._parts import Part, Parts
from forebay.clone._ranks import Ranks, ranks_of
from forebay.clone._shared import Storage
from forebay.clone._values import Path, spelled
from forebay.clone._window import Remote

__all__ = ["KINDS", "NOT_GIVEN", "Inventory", "Outline", "Survey", "inventory"]

KINDS = ("model", "optimizer", "scheduler", "scaler", "ema", "loader", "counters")
"""What `inventory` must be given, or told that there is none of."""

GENERATORS = "generators"
"""The first part of their paths."""
GRADIENTS = "gradients"
"""The last part of the paths of a model's."""


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

    Each kind is one object, a dictionary of objects by name, or None: there is none. A kind that is not mentioned is refused: what is
    forgotten here would not be missed before a fork's results differ.

    Args:
        model: modules; wrappers such as DDP's are looked through.
        optimizer: optimizers of the model's parameters.
        scheduler: learning-rate schedulers.
        scaler: gradient scalers.
        ema: averaged models: modules, objects with `state_dict` and `load_state_dict`, or dictionaries of tensors.
        loader: data loaders with `state_dict` and `load_state_dict`.
        counters: a dictionary of numbers that the program counts by, such as `{"epoch": 3, "step": 1200}`; it is changed in place.
        generators: random-number generators of the program's own, by name. Those of the process are always included: torch's of the
            processor and each device, NumPy's global one, Python's.
        others: anything else with `state_dict` and `load_state_dict`, or a dictionary, by name; for instance metrics.
        ranks: by default those of `torch.distributed`, or this process alone. A program that sums its gradients by mpi4py says `mpi`: then
            they are those of `MPI.COMM_WORLD`.

    Raises:
        ValueError: `ranks` makes no sense.
        MissingError: a kind is not given; or none is declared, but there is one; or an optimizer trains what no given module has.
        UndescribableError: of an object nothing is known.
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
    """Objects of one kind by name, `""` where there is one without; a dictionary of plain values and tensors is one object."""
    if value is None:
        return {}
    if type(value) is dict and kind != "counters" and value and all(hasattr(item, "state_dict") for item in value.values()):
        return value
    return {"": value}


class _Form(NamedTuple):
    """A part as a capture has it, as long as neither the part nor the shared storage is another.

    Attributes:
        section: the part's.
        addresses: the part's.
        version: the storage's.
        held: the same, with the places of tensors that stay where they are.
        spans: the tensors that are copied and lie somewhere.
        asked: the numbers of others that are copied.
    """

    section: Section
    addresses: Sequence[int | None]
    version: int
    held: Held
    spans: _core.Spans
    asked: list[int]

    @classmethod
    def made(cls, part: Part, storage: Storage | None) -> "_Form":
        """Of a part as it is now."""
        paths, kinds = part.section.paths, part.section.kinds
        places = {}
        if storage is not None and part.component.steady:
            for number, address in enumerate(part.addresses, 1):
                if place := storage.stays(paths[number], address, kinds[number].length):
                    places[number] = place
        held = Held(part.section, places) if places else part.section.whole
        copied = [(number, address) for number, address in enumerate(part.addresses, 1) if number not in places]
        spans = [(number, address, kinds[number].length, held.starts[number]) for number, address in copied if address is not None]
        asked = [number for number, address in copied if address is None]
        return cls(part.section, part.addresses, storage.version if storage else -1, held, _core.Spans(spans), asked)

    def is_of(self, part: Part, storage: Storage | None) -> bool:
        """Whether it still holds."""
        is_same = self.section is part.section and self.addresses is part.addresses
        return is_same and self.version == (storage.version if storage else -1)


Survey = dict[str, Part]
"""The components of a state as they are here, by path."""

Outline = Sequence[tuple[Held, bytes]]
"""How a state will most likely be held, section by section, and the values of those that can be made ready for; else nothing."""


class Inventory:
    """The parts of a job's state in this process. Made by `inventory`."""

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
        self._described = Parts(adapter)
        # Apart: with shared storage, and without.
        self._forms: dict[tuple[Path, bool], _Form] = {}
        self._absent = absent

    def manifest(self, *, alike: bool = False) -> Manifest:
        """Every entry of the state as it is now, with its digest. Reads all of it.

        Args:
            alike: only what all ranks hold alike; all else is neither named nor read.

        Raises:
            UndescribableError: the state holds a value of a type that is not known.
        """
        parts = self._parts()
        return self._digested([some for part in parts if (some := _replicated(part))] if alike else parts)

    def capture(self, memory: Callable[[int], _core.Reserved] = reserve, storage: Storage | None = None) -> Capture:
        """Copies the state as it is now, and digests it, in one pass. Nothing may change the state meanwhile.

        Args:
            memory: gives at least so many bytes of it.
            storage: shared storage; steady tensors that lie in it are not copied, but only named.

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

    def outline(self, storage: Storage) -> Outline:
        """How captures will hold the state as long as it stays what it is.

        Raises:
            UndescribableError: the state holds a value of a type that is not known.
        """
        parts = self._parts()
        return [
            (self._form(part, storage).held, part.text if part.component.steady and part.component.put is not None else b"")
            for part in parts
        ]

    def survey(self) -> Survey:
        """What there is to load a state to. Made while the state is waited for, it need not be made when it has come."""
        return {part.section.paths[0]: part for part in self._parts()}

    def get_ready(self, outline: Outline, survey: Survey, empty: Callable[[Layout], Any]) -> dict[str, Made]:
        """Makes what a state is to be loaded to, while it is waited for; by path. Nothing is changed by that.

        Args:
            outline: how it will be held.
            survey: what there is to load it to.
            empty: see `load`.
        """
        ready = {}
        for held, text in outline:
            part = survey.get(held.section.paths[0])
            if part is None or (part.component.put is not None and not text):
                continue
            # What can't be loaded is said when it has come.
            with contextlib.suppress(CloneError):
                made = make(self._adapter, self._described, part, held, text or part.text, empty)
                ready[made.name] = made
        return ready

    def load(
        self,
        capture: Capture,
        remote: Remote | None = None,
        survey: Survey | None = None,
        others: Sequence[Manifest] = (),
        *,
        is_seeded: bool = False,
        empty: Callable[[Layout], Any] | None = None,
        ready: Mapping[str, Made] | None = None,
    ) -> Manifest:
        """Sets this process's state to a captured one, and checks the digest of every entry: of what arrived, and of what was made of it.

        All that can be refused is refused before anything is changed. Nothing that is read can run code.

        Args:
            capture: a state of a job with the same model and the same kinds.
            remote: reads what the capture does not hold.
            survey: made before.
            others: where the state was taken of another number of ranks, and the captured one is rank 0's: the manifests of the others.
                What all held alike is loaded, and what can't be dealt is refused.
            is_seeded: the generators are seeded afterwards.
            empty: makes the tensors that are missing here and lie in shared memory there; by default the adapter does.
            ready: what was made before of components that come as they were expected to.

        Returns:
            The state's manifest, in which every entry has its digest.

        Raises:
            DifferenceError: the captured state is of another job. Nothing has been changed.
            CloneError: what the capture does not hold could not be read. The objects are in no defined state then: end the process.
            DamagedError: an entry is not what its digest says, or an object did not take its state back. The objects of this inventory
                are in no defined state: end the process.
        """
        # They may have been moved while the state was waited for, and are filled by their addresses.
        parts = survey if survey is not None and all(map(self._described.stands, survey.values())) else self.survey()
        is_dealt = capture.manifest.ranks != self.rank[1] and len(others) + 1 == capture.manifest.ranks
        self._check_job(capture.manifest, is_dealt=is_dealt)
        found = _by_component(capture.manifest, parts)
        left: set[str] = set()
        if is_dealt:
            portable = {name: part.component.portable for name, part in parts.items()}
            left = left_out([capture.manifest, *others], self.rank[1], portable, is_seeded=is_seeded)
            found = {name: at for name, at in found.items() if name not in left}
        held = capture.manifest.held
        texts = {name: text_of(capture, at) for name, at in found.items()}
        made = []
        for name, at in found.items():
            one = (ready or {}).get(name)
            if one is None or not one.is_of(parts[name], held[at], texts[name]):
                one = make(self._adapter, self._described, parts[name], held[at], texts[name], empty or self._adapter.empty, one)
            made.append(one)
        digests, settled = fill(self._adapter, made, list(found.values()), capture, remote)
        for one in made:
            component = one.part.component
            if component.put is not None and not one.is_there:
                if one.expected is not None:
                    self._described.expect(component.path, one.expected)
                _put(component, one.tree)
        manifest = capture.manifest.read(digests)
        after = self._digested(self._parts(), settled)
        if wrong := [path for path in manifest.differences(after) if not any(f"{path}/".startswith(f"{name}/") for name in left)]:
            asked = "does its load_state_dict set all of it, or does it share memory with another?"
            raise DamagedError(f"not as it was captured after loading: {some(wrong)}: {asked}")
        return manifest

    @property
    def rank(self) -> tuple[int, int]:
        """This process's rank, and how many there are."""
        return self._ranks.rank()

    def length(self) -> int:
        """Bytes that a capture would have now.

        Raises:
            UndescribableError: the state holds a value of a type that is not known.
        """
        return starts_of([part.section.whole for part in self._parts()])[-1]

    @property
    def adapter(self) -> Adapter:
        """What knows the framework."""
        return self._adapter

    def steady(self) -> dict[str, Any]:
        """The tensors that should stay as they are from a point to the next step, by path; one that stands twice, once.

        Raises:
            UndescribableError: the state holds a value of a type that is not known.
        """
        found: dict[int, tuple[str, Any]] = {}
        for part in self._steady_parts():
            for path, tensor in zip(part.section.paths[1:], part.tensors, strict=True):
                found.setdefault(id(tensor), (path, tensor))
        return dict(found.values())

    def steady_sections(self) -> list[Section]:
        """The sections of these tensors: the very same objects as long as no tensor is another or lies elsewhere.

        Raises:
            UndescribableError: as `steady`.
        """
        return [part.section for part in self._steady_parts()]

    def last_steady_sections(self) -> list[Section | None]:
        """The same when these tensors were described last; None of a component that has to be described anew in any case."""
        return [self._described.last(component.path) for component in self._steady]

    def steady_lie_still(self) -> bool:
        """Whether the tensors that there were then are there, and lie where they lay. There may be others, too, by now."""
        return all(self._described.lie_still(component.path) for component in self._steady)

    def _steady_parts(self) -> list[Part]:
        return self._described.of(self._steady)

    def on_step(self, before: Callable[[], None], after: Callable[[], None]) -> Callable[[], None]:
        """Has functions called before and after each update by an optimizer; gives what ends that."""
        return self._adapter.on_step(self._objects, before, after)

    def change(self, name: str, value: float) -> None:
        """Sets a number in all groups of the optimizers that have it (`lr`: also where schedules begin), or with `seed` the generators.

        Raises:
            DifferenceError: there is nothing of that name.
        """
        self._adapter.change(self._objects, name, value, self.rank[0])

    def generators(self) -> dict[str, Any]:
        """The states of all generators, by path."""
        return {spelled(component.path): component.get() for component in self._components if component.path[0] == GENERATORS}

    def set_generators(self, states: Mapping[str, Any]) -> None:
        """Sets the generators to such states."""
        for component in self._components:
            if component.path[0] == GENERATORS and component.put is not None:
                component.put(states[spelled(component.path)])

    @contextlib.contextmanager
    def gradients_kept(self) -> Iterator[None]:
        """Afterwards the gradients are those from before."""
        components = [component for component in self._components if component.path[0] == "model" and component.path[-1] == GRADIENTS]
        before = [component.get() for component in components]
        try:
            yield
        finally:
            for component, gradients in zip(components, before, strict=True):
                if component.put is not None:
                    component.put(gradients)

    def shared_number(self) -> int:
        """A random number below 2^31, the same in all ranks; every rank has to ask."""
        return self._ranks.shared_number()

    def _parts(self) -> list[Part]:
        return self._described.of(self._components)

    def _form(self, part: Part, storage: Storage | None) -> _Form:
        key = (part.component.path, storage is not None)
        form = self._forms.get(key)
        if form is None or not form.is_of(part, storage):
            form = self._forms[key] = _Form.made(part, storage)
        return form

    def _digested(self, parts: list[Part], settled: Mapping[str, Settled] | None = None) -> Manifest:
        """A manifest of parts as they are. Steady tensors that lie where they were digested, unwritten since, are not read once more."""
        held = [part.section.whole for part in parts]
        firsts = firsts_of(held)
        forms = [self._form(part, None) for part in parts]
        known = [
            one if (one := (settled or {}).get(part.section.paths[0])) and one.is_still(part, self._adapter) else None for part in parts
        ]
        spans = [(one.lying if one else form.spans, 0, first) for one, form, first in zip(known, forms, firsts, strict=False)]
        asked = [
            (first + number, part.section.kinds[number].length, part.tensors[number - 1])
            for part, form, first in zip(parts, forms, firsts, strict=False)
            for number in form.asked
        ]
        pieces = _core.Pieces([length for _, length, _ in asked])
        # First, for it waits for what a GPU still writes.
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

    def _pack(self, parts: list[Part], forms: list[_Form], reserved: _core.Reserved) -> bytearray:
        """Copies what is copied to where it is to be, and gives its digests; of what has a place no copy, and nothing."""
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
        # First, for it waits for what a GPU still writes.
        for batch in self._adapter.outward([tensor for _, _, tensor, _ in asked]):
            pieces.copy([(piece.number, piece.address, piece.length, asked[piece.number][3] + piece.start) for piece in batch])
        digests = bytearray(_core.pack(reserved.address, reserved.length, firsts[-1], [*texts, *spans]))
        for (number, _, _, _), digest in zip(asked, pieces.digests(), strict=True):
            put(digests, number, digest)
        return digests

    def _manifest(self, held: list[Held], digests: bytearray) -> Manifest:
        rank, ranks = self.rank
        return Manifest(self._adapter.framework(), rank, ranks, self._absent, tuple(held), bytes(digests))

    def _check_job(self, manifest: Manifest, *, is_dealt: bool) -> None:
        """Framework, ranks (if it is not dealt to others) and kinds are the same."""
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
    """Returns the component with a `get` after which the job's generators are as they were: nothing here may change what the job draws."""

    def get() -> object:
        before = [(one.put, one.get()) for one in generators]
        try:
            return component.get()
        finally:
            for put, states in before:
                if put is not None:
                    put(states)

    return replace(component, get=get)


def _put(component: Component, value: object) -> None:
    """Sets a component, whose object may refuse it in words of its own."""
    try:
        component.put(value)  # type: ignore[misc]
    except CloneError:
        raise
    except Exception as error:
        raise DamagedError(f"{spelled(component.path)} could not be set: {type(error).__name__}: {error}") from error


def _replicated(part: Part) -> Part | None:
    """Of a part what all ranks hold alike, if they do so at all."""
    if part.component.placement is not Placement.REPLICATED:
        return None
    numbers = [number for number, kind in enumerate(part.section.kinds) if kind.placement is Placement.REPLICATED]
    if len(numbers) == len(part.section.kinds):
        return part
    section = Section(tuple(part.section.paths[number] for number in numbers), tuple(part.section.kinds[number] for number in numbers))
    tensors, addresses = ([column[number - 1] for number in numbers[1:]] for column in (part.tensors, part.addresses))
    return Part(part.component, part.text, section, tensors, addresses)


def _span_of(text: bytes) -> _core.Spans:
    """Of a section's values."""
    memory = memory_of(text)
    return _core.Spans([(0, memory.address, memory.length, 0)])


def _by_component(manifest: Manifest, parts: Mapping[str, object]) -> dict[str, int]:
    """Which section each component has."""
    found: dict[str, int] = {}
    for at, held in enumerate(manifest.held):
        name = held.section.paths[0]
        if (stranger := held.section.stranger if name in parts else name) is not None:
            raise DifferenceError(f"the captured state has {stranger}, for which there is no place here")
        if not held.section.has_values_first:
            raise DamagedError(f"{name}: values and tensors have changed places")
        found[name] = at
    if lacking := [name for name in parts if name not in found]:
        raise DifferenceError(f"the captured state lacks {some(lacking)}")
    return found
