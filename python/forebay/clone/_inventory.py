"""The inventory: every part of a training job's state, described once, without framework and without pickle."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from forebay import _core
from forebay.clone._adapter import Adapter, Component, Memory, adapter_of
from forebay.clone._capture import Capture, reserve
from forebay.clone._dealt import left_out
from forebay.clone._errors import DamagedError, DifferenceError, MissingError
from forebay.clone._filling import Fill, Filled, fill, memory_of, text_of
from forebay.clone._manifest import VALUE, Entry, Layout, Manifest, Placement, offsets
from forebay.clone._parts import Part, Parts
from forebay.clone._ranks import Ranks, ranks_of
from forebay.clone._shared import Storage
from forebay.clone._values import Path, decode, spelled
from forebay.clone._window import Remote

__all__ = ["KINDS", "NOT_GIVEN", "Inventory", "inventory", "some"]

KINDS = ("model", "optimizer", "scheduler", "scaler", "ema", "loader", "counters")
"""What `inventory` must be given, or told that there is none of."""

GENERATORS = "generators"
"""The first part of their paths."""
GRADIENTS = "gradients"
"""The last part of the paths of a model's."""

NAMED_MAX = 5
"""Entries that one message names."""


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
        of: the part's entries.
        version: the storage's.
        entries: the same, those that stay where they are with their places.
        copied: how many bytes of each are copied.
        known: of the tensors that are copied and lie somewhere, the entry's number, address and length.
        asked: the numbers of others that are copied.
        in_place: the numbers of those that are not.
    """

    of: Sequence[Entry]
    version: int
    entries: list[Entry]
    copied: list[int]
    known: list[tuple[int, int, int]]
    asked: list[int]
    in_place: list[int]

    @classmethod
    def made(cls, part: Part, storage: Storage | None) -> "_Form":
        """Of a part as it is now."""
        found = cls(part.entries, storage.version if storage else -1, [part.entries[0]], [part.entries[0].length], [], [], [])
        for number, (entry, address) in enumerate(zip(part.entries[1:], part.addresses, strict=True), 1):
            if storage is not None and part.component.steady and (place := storage.stays(entry.path, address, entry.length)):
                entry = Entry(*entry[:5], place)
                found.in_place.append(number)
            elif address is not None:
                found.known.append((number, address, entry.length))
            else:
                found.asked.append(number)
            found.entries.append(entry)
            found.copied.append(entry.copied)
        return found

    def is_of(self, part: Part, storage: Storage | None) -> bool:
        """Whether it still holds."""
        return self.of is part.entries and self.version == (storage.version if storage else -1)


Survey = dict[str, Part]
"""The components of a state as they are here, by path."""


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
        self._components = components
        self._described = Parts(adapter)
        self._forms: dict[Path, _Form] = {}
        self._absent = absent

    def manifest(self, only: Placement | None = None) -> Manifest:
        """Every entry of the state as it is now, with its digest. Reads all of it.

        Args:
            only: entries that ranks hold so; others are neither named nor read.

        Raises:
            UndescribableError: the state holds a value of a type that is not known.
        """
        return self._digested(self._parts(), only)

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
        *starts, end = offsets([length for form in forms for length in form.copied])
        reserved = memory(end)
        digests = self._pack(parts, forms, starts, reserved)
        entries = [entry for form in forms for entry in form.entries]
        in_place = tuple(part.tensors[number - 1] for part, form in zip(parts, forms, strict=True) for number in form.in_place)
        return Capture(self._manifest(entries, digests), reserved.seal(end), in_place)

    def survey(self) -> Survey:
        """What there is to load a state to. Made while the state is waited for, it need not be made when it has come."""
        return {part.entries[0].path: part for part in self._parts()}

    def load(
        self,
        capture: Capture,
        remote: Remote | None = None,
        survey: Survey | None = None,
        others: Sequence[Manifest] = (),
        *,
        is_seeded: bool = False,
        empty: Callable[[Layout], Any] | None = None,
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
            found = {name: entries for name, entries in found.items() if name not in left}
        offsets_by_path = {entry.path: offset for entry, offset in capture.manifest.offsets()}
        texts = {name: text_of(capture, entries[0], offsets_by_path[name]) for name, entries in found.items()}
        for name, entries in found.items():
            self._check_layouts(entries, texts[name], parts[name])
        received = [self._received(texts[name], entries, parts[name], empty or self._adapter.empty) for name, entries in found.items()]
        digests, filled = fill(self._adapter, [one for _, fills in received for one in fills], capture, offsets_by_path, remote)
        for (tree, fills), name in zip(received, found, strict=True):
            component = parts[name].component
            if component.put is not None:
                if component.steady:
                    self._expect(component, texts[name], tree, fills)
                component.put(tree)
        manifest = capture.manifest.read(digests)
        after = self._digested(self._parts(), filled=filled)
        if wrong := [path for path in manifest.differences(after) if not any(f"{path}/".startswith(f"{name}/") for name in left)]:
            raise DamagedError(f"not as it was captured after loading: {some(wrong)}: does its load_state_dict set all of it?")
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
        *_, end = offsets([entry.length for part in self._parts() for entry in part.entries])
        return end

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
            for entry, tensor in zip(part.entries[1:], part.tensors, strict=True):
                found.setdefault(id(tensor), (entry.path, tensor))
        return dict(found.values())

    def steady_entries(self) -> list[Sequence[Entry]]:
        """The entries of these tensors by component: the very same objects as long as no tensor is another or lies elsewhere.

        Raises:
            UndescribableError: as `steady`.
        """
        return [part.entries for part in self._steady_parts()]

    def _steady_parts(self) -> list[Part]:
        return self._described.of(component for component in self._components if component.steady)

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
        form = self._forms.get(part.component.path)
        if form is None or not form.is_of(part, storage):
            form = self._forms[part.component.path] = _Form.made(part, storage)
        return form

    def _digested(self, parts: list[Part], only: Placement | None = None, filled: "Mapping[int, Filled] | None" = None) -> Manifest:
        """A manifest of parts as they are. A steady tensor that lies where it was digested, unwritten since, is not read once more."""
        entries: list[Entry] = []
        digests: list[str] = []
        lying: list[tuple[int, Memory]] = []
        # Each with its number among the entries.
        others: list[tuple[int, Any]] = []
        for part in parts:
            contents = zip(part.entries, (part.text, *part.tensors), (None, *part.addresses), strict=True)
            for entry, content, address in contents:
                if only not in (None, entry.placement):
                    continue
                known = filled.get(id(content)) if filled and part.component.steady else None
                entries.append(entry)
                if known is not None and known.is_still(content, address, self._adapter):
                    digests.append(known.digest)
                    continue
                digests.append("")
                if address is None and content is not part.text:
                    others.append((len(digests) - 1, content))
                else:
                    lying.append((len(digests) - 1, memory_of(content) if address is None else Memory(address, entry.length, content)))
        pieces = _core.Pieces([entries[number].length for number, _ in others])
        # First, for it waits for what a GPU still writes.
        for batch in self._adapter.outward([tensor for _, tensor in others]):
            pieces.see([(piece.number, piece.address, piece.length) for piece in batch])
        found = _core.digests([(memory.address, memory.length) for _, memory in lying])
        for (number, _), digest in zip((*lying, *others), (*found, *pieces.digests()), strict=True):
            digests[number] = digest
        return self._manifest(entries, digests)

    def _pack(self, parts: list[Part], forms: list[_Form], starts: list[int], reserved: _core.Reserved) -> list[str]:
        """Copies what is copied to where it is to be, and gives its digests; of what has a place no copy, and nothing."""
        digests = [""] * len(starts)
        # An entry's number, address and length.
        lying: list[tuple[int, int, int]] = []
        others: list[tuple[int, int, Any]] = []
        first = 0
        for part, form in zip(parts, forms, strict=True):
            text = memory_of(part.text)
            lying.append((first, text.address, text.length))
            lying += [(first + number, address, length) for number, address, length in form.known]
            others += [(first + number, form.copied[number], part.tensors[number - 1]) for number in form.asked]
            first += len(form.entries)
        pieces = _core.Pieces([length for _, length, _ in others])
        targets = [reserved.address + starts[number] for number, _, _ in others]
        # First, for it waits for what a GPU still writes.
        for batch in self._adapter.outward([tensor for _, _, tensor in others]):
            pieces.copy([(piece.number, piece.address, piece.length, targets[piece.number] + piece.start) for piece in batch])
        found = _core.pack(reserved.address, reserved.length, [(address, length, starts[number]) for number, address, length in lying])
        for (number, _, _), digest in zip((*lying, *others), (*found, *pieces.digests()), strict=True):
            digests[number] = digest
        return digests

    def _manifest(self, entries: list[Entry], digests: list[str]) -> Manifest:
        digested = [entry if entry.place else Entry(*entry[:4], digest) for entry, digest in zip(entries, digests, strict=True)]
        rank, ranks = self.rank
        return Manifest(self._adapter.framework(), rank, ranks, self._absent, tuple(digested))

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

    def _check_layouts(self, entries: list[Entry], text: bytes, part: Part) -> None:
        """Every entry's bytes are as many as its layout says; what can only be written in place has its place."""
        for entry in entries[1:]:
            if entry.length != self._adapter.length(entry.layout):
                raise DamagedError(f"{entry.path}: {entry.length} bytes are no {entry.layout}")
        if part.component.put is not None:
            return
        theirs = {entry.path: entry.layout for entry in entries[1:]}
        ours = {entry.path: entry.layout for entry in part.entries[1:]}
        for path in {**theirs, **ours}:
            if theirs.get(path) != ours.get(path):
                there, here = theirs.get(path, "nothing"), ours.get(path, "nothing")
                raise DifferenceError(f"{path} differs: {there} where the state was captured, {here} here")
        if text != part.text:
            there, here = _shortened(text), _shortened(part.text)
            raise DifferenceError(f"{entries[0].path} differs: {there} where the state was captured, {here} here")

    def _expect(self, component: Component, text: bytes, tree: object, fills: "list[Fill]") -> None:
        """What it will give when it is set to a tree. Then it is only compared with that: to describe thousands of tensors takes long."""
        entries = [Entry(fill.entry.path, fill.entry.placement, fill.entry.layout, fill.entry.length, "") for fill in fills]
        if any(entry.placement is not component.placement for entry in entries):
            return
        values = Entry(spelled(component.path), component.placement, Layout(VALUE, (len(text),), (1,), "cpu"), len(text), "")
        tensors, addresses = [fill.tensor for fill in fills], [fill.address for fill in fills]
        self._described.expect(Part(component, text, (values, *entries), tensors, addresses), tree)

    def _received(self, text: bytes, entries: list[Entry], part: Part, empty: Callable[[Layout], Any]) -> "tuple[object, list[Fill]]":
        """A component's containers, and the tensors in them that are to be filled: its own where they are alike, else new ones."""
        mine = zip(part.entries[1:], part.tensors, part.addresses, strict=True)
        own = {entry.path: (entry.layout, tensor, address) for entry, tensor, address in mine}
        if part.component.put is None:
            # They are alike.
            return None, [Fill(*own[entry.path][1:], entry) for entry in entries[1:]]
        by_path = {entry.path: entry for entry in entries[1:]}
        fills: list[Fill] = []

        def tensor(path: Path) -> object:
            entry = by_path.pop(spelled(path))
            layout, found, address = own.get(entry.path, (None, None, None))
            if layout != entry.layout:
                found = (empty if entry.place else self._adapter.empty)(entry.layout)
                # Of one that was just made nothing need be asked.
                address = self._adapter.begin(found) if entry.layout.device == "cpu" else None
            fills.append(Fill(found, address, entry))
            return found

        tree = decode(text, part.component.path, tensor)
        if by_path:
            raise DamagedError(f"{entries[0].path} does not mention {some(list(by_path))}")
        return tree, fills


def _by_component(manifest: Manifest, parts: Mapping[str, object]) -> dict[str, list[Entry]]:
    """The entries of each component; the first of each are its values."""
    found: dict[str, list[Entry]] = {}
    name = inside = ""
    for entry in manifest.entries:
        if entry.path in parts:
            name, inside = entry.path, f"{entry.path}/"
            found[name] = []
        elif not name or not entry.path.startswith(inside):
            raise DifferenceError(f"the captured state has {entry.path}, for which there is no place here")
        if (entry.layout.dtype == VALUE) != (entry.path == name):
            raise DamagedError(f"{entry.path}: values and tensors have changed places")
        found[name].append(entry)
    if lacking := [name for name in parts if name not in found]:
        raise DifferenceError(f"the captured state lacks {some(lacking)}")
    return found


def some(paths: Sequence[str]) -> str:
    """The first of these, and how many more there are."""
    more = len(paths) - NAMED_MAX
    return ", ".join(paths[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


def _shortened(text: bytes) -> str:
    return text.decode(errors="replace") if len(text) <= 200 else f"{text[:200].decode(errors='replace')}..."
