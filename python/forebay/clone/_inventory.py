"""The inventory: every part of a training job's state, described once, without framework and without pickle."""

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from forebay import _core
from forebay.clone._adapter import Adapter, Component, Memory, adapter_of
from forebay.clone._capture import Capture, reserve
from forebay.clone._dealt import left_out
from forebay.clone._errors import CloneError, DamagedError, DifferenceError, MissingError
from forebay.clone._manifest import VALUE, Entry, Layout, Manifest, Placement, offsets
from forebay.clone._parts import Part, Parts
from forebay.clone._ranks import Ranks, ranks_of
from forebay.clone._shared import Storage
from forebay.clone._values import Path, decode, spelled
from forebay.clone._window import Remote

__all__ = ["KINDS", "NOT_GIVEN", "Inventory", "inventory"]

KINDS = ("model", "optimizer", "scheduler", "scaler", "ema", "loader", "counters")
"""What `inventory` must be given, or told that there is none of."""

GENERATORS = "generators"
"""The first part of their paths."""
GRADIENTS = "gradients"
"""The last part of the paths of a model's."""

NAMED_MAX = 5
"""Entries that one message names."""
PACK_BYTES = 64 << 20
"""So many are copied in one call, or one entry: of tensors of accelerators there are copies meanwhile."""


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
        MissingError: a kind is not given; or none is declared, but there is one.
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


class _Item(NamedTuple):
    """One entry, and what its bytes are: a text, or a tensor's, at an address if they lie there."""

    entry: Entry
    content: Any
    address: int | None
    is_steady: bool


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
        self._absent = absent

    def manifest(self, only: Placement | None = None) -> Manifest:
        """Every entry of the state as it is now, with its digest. Reads all of it.

        Args:
            only: entries that ranks hold so; others are neither named nor read.

        Raises:
            UndescribableError: the state holds a value of a type that is not known.
        """
        items = [item for item in _items(self._parts()) if only in (None, item.entry.placement)]
        return self._manifest([(item.entry, self._digest(item)) for item in items])

    def capture(self, memory: Callable[[int], _core.Reserved] = reserve, storage: Storage | None = None) -> Capture:
        """Copies the state as it is now, and digests it, in one pass. Nothing may change the state meanwhile.

        Args:
            memory: gives at least so many bytes of it.
            storage: shared storage; steady tensors that lie in it are not copied, but only named.

        Raises:
            UndescribableError: the state holds a value of a type that is not known.
            CloneError: there is no memory for the copy.
        """
        items = _items(self._parts(), storage)
        *starts, end = offsets([item.entry.copied for item in items])
        reserved = memory(end)
        digests = self._pack(items, starts, reserved)
        manifest = self._manifest([(item.entry, digest) for item, digest in zip(items, digests, strict=True)])
        return Capture(manifest, reserved.seal(end), tuple(item.content for item in items if item.entry.place))

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
            survey: made before; nothing has changed since.
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
        parts = self.survey() if survey is None else survey
        is_dealt = capture.manifest.ranks != self.rank[1] and len(others) + 1 == capture.manifest.ranks
        self._check_job(capture.manifest, is_dealt=is_dealt)
        found = _by_component(capture.manifest, parts)
        left: set[str] = set()
        if is_dealt:
            portable = {name: part.component.portable for name, part in parts.items()}
            left = left_out([capture.manifest, *others], self.rank[1], portable, is_seeded=is_seeded)
            found = {name: entries for name, entries in found.items() if name not in left}
        offsets_by_path = {entry.path: offset for entry, offset in capture.manifest.offsets()}
        texts = {name: _text(capture, entries[0], offsets_by_path[name]) for name, entries in found.items()}
        for name, entries in found.items():
            self._check_layouts(entries, texts[name], parts[name])
        received = [self._received(texts[name], entries, parts[name], empty or self._adapter.empty) for name, entries in found.items()]
        digests, filled = self._fill([fill for _, fills in received for fill in fills], capture, offsets_by_path, remote)
        for tree, name in zip((tree for tree, _ in received), found, strict=True):
            put = parts[name].component.put
            if put is not None:
                put(tree)
        manifest = capture.manifest.read(digests)
        after = self._manifest_after(filled)
        if wrong := [path for path in manifest.differences(after) if not any(f"{path}/".startswith(f"{name}/") for name in left)]:
            raise DamagedError(f"not as it was captured after loading: {_named(wrong)}: does its load_state_dict set all of it?")
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
        for part in self._described.of(component for component in self._components if component.steady):
            for entry, tensor in zip(part.entries[1:], part.tensors, strict=True):
                found.setdefault(id(tensor), (entry.path, tensor))
        return dict(found.values())

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

    def _manifest_after(self, filled: "Mapping[int, _Filled]") -> Manifest:
        """Every entry with its digest. A steady tensor that lies where it was digested, unwritten since, is not read once more."""
        items = _items(self._parts())
        return self._manifest([(item.entry, self._digest(item, filled.get(id(item.content)))) for item in items])

    def _digest(self, item: _Item, filled: "_Filled | None" = None) -> str:
        if filled is not None and item.is_steady and filled.tensor is item.content:
            is_same = (item.address, self._adapter.version(item.content)) == (filled.address, filled.version)
            if is_same:
                return filled.digest
        memory = self._memory(item)
        return _core.digest(memory.address, memory.length)

    def _memory(self, item: _Item) -> Memory:
        if isinstance(item.content, bytes):
            return _memory(item.content)
        if item.address is not None:
            return Memory(item.address, item.entry.length, item.content)
        return self._adapter.memory(item.content)

    def _pack(self, items: list[_Item], starts: list[int], reserved: _core.Reserved) -> list[str]:
        """Copies items to where they are to be, and gives their digests; of those that have a place no copy, and nothing."""
        digests = [""] * len(items)
        numbers: list[int] = []
        batch: list[tuple[int, int, int]] = []
        owners: list[object] = []
        left = PACK_BYTES

        def flush() -> None:
            for number, digest in zip(numbers, _core.pack(reserved.address, reserved.length, batch), strict=True):
                digests[number] = digest
            for one in (numbers, batch, owners):
                one.clear()

        for number, item in enumerate(items):
            if item.entry.place is not None:
                continue
            memory = self._memory(item)
            numbers.append(number)
            batch.append((memory.address, memory.length, starts[number]))
            owners.append(memory.owner)
            left -= memory.length
            if left <= 0:
                flush()
                left = PACK_BYTES
        flush()
        return digests

    def _manifest(self, digested: list[tuple[Entry, str]]) -> Manifest:
        entries = tuple([entry if entry.place else Entry(*entry[:4], digest) for entry, digest in digested])
        rank, ranks = self.rank
        return Manifest(self._adapter.framework(), rank, ranks, self._absent, entries)

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

    def _fill(
        self, fills: list[tuple[Any, Entry]], capture: Capture, starts: Mapping[str, int], remote: Remote | None
    ) -> tuple[dict[str, str], "dict[int, _Filled]"]:
        """Fills tensors; gives the digests of their entries by path, and what is known of tensors that were filled where they lie."""
        digests: dict[str, str] = {}
        filled: dict[int, _Filled] = {}

        def note(tensor: Any, entry: Entry, address: int | None, digest: str) -> None:  # noqa: ANN401
            digests[entry.path] = digest
            if address is not None:
                filled[id(tensor)] = _Filled(tensor, address, self._adapter.version(tensor), digest)

        batch: list[tuple[Any, Entry, Memory]] = []
        # Those that lie where they lay come first: the parent's next step comes.
        for tensor, entry in sorted(fills, key=lambda fill: fill[1].place is None):
            lies = self._adapter.lying(tensor) if entry.place is None else None
            if lies is not None:
                batch.append((tensor, entry, lies))
                continue
            reading = _Reading(capture, entry, starts[entry.path], remote)
            in_place = self._adapter.fill(tensor, entry.layout, reading)
            note(tensor, entry, reading.address if in_place else None, reading.digest)
        # At once: the interpreter's lock is let go of each time, and there are thousands.
        read = _read(capture, [(starts[entry.path], lies.address, lies.length) for _, entry, lies in batch])
        for (tensor, entry, lies), digest in zip(batch, read, strict=True):
            _verify(entry, digest)
            note(tensor, entry, lies.address, digest)
        return digests, filled

    def _received(
        self, text: bytes, entries: list[Entry], part: Part, empty: Callable[[Layout], Any]
    ) -> tuple[object, list[tuple[Any, Entry]]]:
        """A component's containers, and the tensors in them that are to be filled: its own where they are alike, else new ones."""
        own = {entry.path: (tensor, entry.layout) for entry, tensor in zip(part.entries[1:], part.tensors, strict=True)}
        if part.component.put is None:
            # They are alike.
            return None, [(own[entry.path][0], entry) for entry in entries[1:]]
        by_path = {entry.path: entry for entry in entries[1:]}
        fills: list[tuple[Any, Entry]] = []

        def tensor(path: Path) -> object:
            entry = by_path.pop(spelled(path))
            mine, layout = own.get(entry.path, (None, None))
            made = empty if entry.place else self._adapter.empty
            fills.append((mine if layout == entry.layout else made(entry.layout), entry))
            return fills[-1][0]

        tree = decode(text, part.component.path, tensor)
        if by_path:
            raise DamagedError(f"{entries[0].path} does not mention {_named(list(by_path))}")
        return tree, fills


class _Reading:
    """Fills memory with an entry's bytes.

    Attributes:
        address: of the memory.
        digest: of what was written there, as it was written.
    """

    def __init__(self, capture: Capture, entry: Entry, offset: int, remote: Remote | None) -> None:
        self.address, self.digest = 0, ""
        self._capture, self._entry, self._offset, self._remote = capture, entry, offset, remote

    def __call__(self, memory: Memory) -> None:
        self.address = memory.address
        if self._entry.place is None:
            (self.digest,) = _read(self._capture, [(self._offset, memory.address, memory.length)])
            _verify(self._entry, self.digest)
        elif self._remote is None:
            raise CloneError(f"{self._entry.path} was not copied, and its job is not there to be read from")
        else:
            self.digest = self._remote.read(self._entry, memory)


@dataclass(frozen=True)
class _Filled:
    """A tensor whose bytes were digested as they were written to where it lies."""

    tensor: Any
    address: int
    version: int
    digest: str


def _items(parts: list[Part], storage: Storage | None = None) -> list[_Item]:
    """All entries, those with a place that can be read in shared storage."""
    items = []
    for part in parts:
        values, *others = part.entries
        is_steady = part.component.steady
        items.append(_Item(values, part.text, None, is_steady))
        for entry, tensor, address in zip(others, part.tensors, part.addresses, strict=True):
            if storage is not None and is_steady and (place := storage.stays(entry.path, address, entry.length)):
                entry = Entry(*entry[:5], place)
            items.append(_Item(entry, tensor, address, is_steady))
    return items


def _by_component(manifest: Manifest, parts: Mapping[str, object]) -> dict[str, list[Entry]]:
    """The entries of each component; the first of each are its values."""
    found: dict[str, list[Entry]] = {}
    name = ""
    for entry in manifest.entries:
        if entry.path in parts:
            name = entry.path
            found[name] = []
        if not name or not f"{entry.path}/".startswith(f"{name}/"):
            raise DifferenceError(f"the captured state has {entry.path}, for which there is no place here")
        if (entry.layout.dtype == VALUE) != (entry.path == name):
            raise DamagedError(f"{entry.path}: values and tensors have changed places")
        found[name].append(entry)
    if lacking := [name for name in parts if name not in found]:
        raise DifferenceError(f"the captured state lacks {_named(lacking)}")
    return found


def _read(capture: Capture, parts: list[tuple[int, int, int]]) -> list[str]:
    """Reads parts of a copy (an offset, an address, a length) to where they belong; gives their digests."""
    try:
        return _core.read_and_digest(capture.descriptor, parts)
    except OSError as error:
        raise DamagedError(f"the copy of a state can't be read: {error}") from error


def _text(capture: Capture, entry: Entry, offset: int) -> bytes:
    text = os.pread(capture.descriptor, entry.length, offset)
    memory = _memory(text)
    _verify(entry, _core.digest(memory.address, memory.length))
    return text


def _memory(text: bytes) -> Memory:
    return Memory(ctypes.cast(ctypes.c_char_p(text), ctypes.c_void_p).value or 0, len(text), text)


def _verify(entry: Entry, digest: str) -> None:
    if digest != entry.digest:
        raise DamagedError(f"{entry.path}: what arrived has the digest {digest}; sent was {entry.digest}")


def _named(paths: list[str]) -> str:
    more = len(paths) - NAMED_MAX
    return ", ".join(paths[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


def _shortened(text: bytes) -> str:
    return text.decode(errors="replace") if len(text) <= 200 else f"{text[:200].decode(errors='replace')}..."
