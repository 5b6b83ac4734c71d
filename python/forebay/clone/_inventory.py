"""The inventory: every part of a training job's state, described once, without framework and without pickle."""

import ctypes
import functools
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from forebay import _core
from forebay.clone._adapter import Adapter, Component, Memory, adapter_of
from forebay.clone._capture import Capture, reserve
from forebay.clone._errors import DamagedError, DifferenceError, MissingError
from forebay.clone._manifest import VALUE, Entry, Layout, Manifest, Placement, offsets
from forebay.clone._values import Path, decode, encode, spelled

__all__ = ["KINDS", "NOT_GIVEN", "Inventory", "inventory"]

KINDS = ("model", "optimizer", "scheduler", "scaler", "ema", "loader", "counters")
"""What `inventory` must be given, or told that there is none of."""

GENERATORS = "generators"
"""The first part of their paths."""

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

    Raises:
        MissingError: a kind is not given; or none is declared, but there is one.
        UndescribableError: of an object nothing is known.

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
    return Inventory(adapter, objects, [*components, *adapter.process(generators or {})], absent)


def _by_name(kind: str, value: object) -> dict[str, object]:
    """Objects of one kind by name, `""` where there is one without; a dictionary of plain values and tensors is one object."""
    if value is None:
        return {}
    if type(value) is dict and kind != "counters" and value and all(hasattr(item, "state_dict") for item in value.values()):
        return value
    return {"": value}


@dataclass
class _Part:
    """A component as it is now: its values written down, and its tensors."""

    component: Component
    text: bytes = b""
    tensors: dict[Path, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Item:
    """One entry to be: its bytes are a text or a tensor's."""

    path: str
    placement: Placement
    layout: Layout
    length: int
    bytes: Callable[[], Memory | bytes]


class Inventory:
    """The parts of a job's state in this process. Made by `inventory`."""

    def __init__(
        self, adapter: Adapter, objects: Mapping[str, Mapping[str, object]], components: list[Component], absent: tuple[str, ...]
    ) -> None:
        self._adapter = adapter
        self._objects = objects
        self._components = components
        self._absent = absent

    def manifest(self) -> Manifest:
        """Every entry of the state as it is now, with its digest. Reads all of it.

        Raises:
            UndescribableError: the state holds a value of a type that is not known.
        """
        return self._manifest([(item, _digest(item.bytes())) for item in self._items(self._parts())])

    def capture(self, memory: Callable[[int], _core.Reserved] = reserve) -> Capture:
        """Copies the state as it is now, and digests it, in one pass. Nothing may change the state meanwhile.

        Args:
            memory: gives at least so many bytes of it.

        Raises:
            UndescribableError: the state holds a value of a type that is not known.
            CloneError: there is no memory for the copy.
        """
        items = self._items(self._parts())
        *starts, end = offsets([item.length for item in items])
        reserved = memory(end)
        address = reserved.address
        digests = [_copy(item.bytes(), address + start) for item, start in zip(items, starts, strict=True)]
        manifest = self._manifest(list(zip(items, digests, strict=True)))
        return Capture(manifest, reserved.seal(end))

    def load(self, capture: Capture) -> None:
        """Sets this process's state to a captured one, and checks the digest of every entry: of what arrived, and of what was made of it.

        All that can be refused is refused before anything is changed. Nothing that is read can run code.

        Args:
            capture: a state of a job with the same model and the same kinds.

        Raises:
            DifferenceError: the captured state is of another job. Nothing has been changed.
            DamagedError: an entry is not what its digest says, or an object did not take its state back. The objects of this inventory
                are in no defined state: end the process.
        """
        parts = {spelled(part.component.path): part for part in self._parts()}
        self._check_job(capture.manifest)
        found = _by_component(capture.manifest, parts)
        offsets_by_path = {entry.path: offset for entry, offset in capture.manifest.offsets()}
        texts = {name: _text(capture, entries[0], offsets_by_path[name]) for name, entries in found.items()}
        for name, entries in found.items():
            self._check_layouts(entries, texts[name], parts[name])
        received = [self._received(texts[name], entries, parts[name]) for name, entries in found.items()]
        for _, fills in received:
            for tensor, entry in fills:
                self._adapter.fill(tensor, entry.layout, _Reading(capture, entry, offsets_by_path[entry.path]))
        for tree, name in zip((tree for tree, _ in received), found, strict=True):
            put = parts[name].component.put
            if put is not None:
                put(tree)
        if wrong := capture.manifest.differences(self.manifest()):
            raise DamagedError(f"not as it was captured after loading: {_named(wrong)}: does its load_state_dict set all of it?")

    @property
    def rank(self) -> tuple[int, int]:
        """This process's rank, and how many there are."""
        return self._adapter.rank()

    def length(self) -> int:
        """Bytes that a capture would have now.

        Raises:
            UndescribableError: the state holds a value of a type that is not known.
        """
        *_, end = offsets([item.length for item in self._items(self._parts())])
        return end

    @property
    def adapter(self) -> Adapter:
        """What knows the framework."""
        return self._adapter

    def steady(self) -> dict[str, Any]:
        """The tensors that nothing but an optimizer's step changes, by path; one that stands twice, once.

        Raises:
            UndescribableError: the state holds a value of a type that is not known.
        """
        found: dict[int, tuple[str, Any]] = {}

        def note(path: Path, value: object) -> bool:
            if is_tensor := self._adapter.is_tensor(value):
                found.setdefault(id(value), (spelled(path), value))
            return is_tensor

        for component in self._components:
            if component.steady:
                encode(component.get(), component.path, note)
        return dict(found.values())

    def on_step(self, call: Callable[[], None]) -> Callable[[], None]:
        """Has a function called after each update by an optimizer; gives what ends that."""
        return self._adapter.on_step(self._objects, call)

    def change(self, name: str, value: float) -> None:
        """Sets a number in all groups of the optimizers that have it (`lr`: also where schedules begin), or with `seed` the generators.

        Raises:
            DifferenceError: there is nothing of that name.
        """
        self._adapter.change(self._objects, name, value)

    def generators(self) -> dict[str, Any]:
        """The states of all generators, by path."""
        return {spelled(component.path): component.get() for component in self._components if component.path[0] == GENERATORS}

    def set_generators(self, states: Mapping[str, Any]) -> None:
        """Sets the generators to such states."""
        for component in self._components:
            if component.path[0] == GENERATORS and component.put is not None:
                component.put(states[spelled(component.path)])

    def shared_number(self) -> int:
        """A random number below 2^31, the same in all ranks; every rank has to ask."""
        return self._adapter.shared_number()

    def _parts(self) -> list[_Part]:
        return [self._part(component) for component in self._components]

    def _part(self, component: Component) -> _Part:
        part = _Part(component)

        def note(path: Path, value: object) -> bool:
            tensor = self._adapter.layout(value, path) is not None
            if tensor:
                part.tensors[path] = value
            return tensor

        part.text = encode(component.get(), component.path, note)
        return part

    def _items(self, parts: list[_Part]) -> list[_Item]:
        return [item for part in parts for item in self._items_of(part)]

    def _items_of(self, part: _Part) -> Iterator[_Item]:
        component, text = part.component, part.text
        layout = Layout(VALUE, (len(text),), (1,), "cpu")
        yield _Item(spelled(component.path), component.placement, layout, len(text), lambda: text)
        for path, tensor in part.tensors.items():
            placement = Placement.SHARDED if self._adapter.is_sharded(tensor) else component.placement
            layout = self._layout(tensor, path)
            yield _Item(spelled(path), placement, layout, self._adapter.length(layout), functools.partial(self._adapter.memory, tensor))

    def _layout(self, tensor: object, path: Path) -> Layout:
        layout = self._adapter.layout(tensor, path)
        assert layout is not None
        return layout

    def _manifest(self, digested: list[tuple[_Item, str]]) -> Manifest:
        entries = tuple(Entry(item.path, item.placement, item.layout, item.length, digest) for item, digest in digested)
        rank, ranks = self._adapter.rank()
        return Manifest(self._adapter.framework(), rank, ranks, self._absent, entries)

    def _check_job(self, manifest: Manifest) -> None:
        """Framework, ranks and kinds are the same."""
        rank, ranks = self._adapter.rank()
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

    def _check_layouts(self, entries: list[Entry], text: bytes, part: _Part) -> None:
        """Every entry's bytes are as many as its layout says; what can only be written in place has its place."""
        for entry in entries[1:]:
            if entry.length != self._adapter.length(entry.layout):
                raise DamagedError(f"{entry.path}: {entry.length} bytes are no {entry.layout}")
        if part.component.put is not None:
            return
        theirs = {entry.path: entry.layout for entry in entries[1:]}
        ours = {spelled(path): self._layout(tensor, path) for path, tensor in part.tensors.items()}
        for path in {**theirs, **ours}:
            if theirs.get(path) != ours.get(path):
                there, here = theirs.get(path, "nothing"), ours.get(path, "nothing")
                raise DifferenceError(f"{path} differs: {there} where the state was captured, {here} here")
        if text != part.text:
            there, here = _shortened(text), _shortened(part.text)
            raise DifferenceError(f"{entries[0].path} differs: {there} where the state was captured, {here} here")

    def _received(self, text: bytes, entries: list[Entry], part: _Part) -> tuple[object, list[tuple[Any, Entry]]]:
        """A component's containers, and the tensors in them that are to be filled: its own where they are alike, else new ones."""
        own = {spelled(path): tensor for path, tensor in part.tensors.items()}
        by_path = {entry.path: entry for entry in entries[1:]}
        fills: list[tuple[Any, Entry]] = []

        def tensor(path: Path) -> object:
            entry = by_path.pop(spelled(path))
            mine = own.get(entry.path)
            alike = mine is not None and self._layout(mine, path) == entry.layout
            fills.append((mine if alike else self._adapter.empty(entry.layout), entry))
            return fills[-1][0]

        tree = decode(text, part.component.path, tensor)
        if by_path:
            raise DamagedError(f"{entries[0].path} does not mention {_named(list(by_path))}")
        return tree, fills


@dataclass(frozen=True)
class _Reading:
    """Fills memory with an entry's bytes."""

    capture: Capture
    entry: Entry
    offset: int

    def __call__(self, memory: Memory) -> None:
        try:
            digest = _core.read_and_digest(self.capture.descriptor, self.offset, memory.address, memory.length)
        except OSError as error:
            raise DamagedError(f"{self.entry.path}: can't be read: {error}") from error
        _verify(self.entry, digest)


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


def _text(capture: Capture, entry: Entry, offset: int) -> bytes:
    text = os.pread(capture.descriptor, entry.length, offset)
    _verify(entry, _digest(text))
    return text


def _digest(content: Memory | bytes) -> str:
    if isinstance(content, bytes):
        content = _memory(content)
    return _core.digest(content.address, content.length)


def _copy(content: Memory | bytes, target: int) -> str:
    if isinstance(content, bytes):
        content = _memory(content)
    return _core.copy_and_digest(content.address, target, content.length)


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
