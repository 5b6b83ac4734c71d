"""A state for another number of ranks than it was taken of.

What all ranks held alike is each rank's of the clone. The rest is dealt where that can be done, and else refused by
name: generators by a seed, buffers under DDP as DDP deals them (rank 0's, at the next forward pass), a loader's place
by the loader, sharded tensors by what each rank holds of them (`_boxes.py`).
"""

from collections.abc import Collection, Mapping, Sequence

from forebay.clone._errors import DifferenceError
from forebay.clone._manifest import Manifest, Placement

__all__ = ["PLACE", "left_out"]

PLACE = "forebay"
"""Name, among the others of a state, of the position in `Session.batches`. The session handles it itself."""
SEEDED = "generators/process"
"""Path of the component that a seed replaces."""


def left_out(
    manifests: Sequence[Manifest], ranks: int, portable: Mapping[str, bool], *, is_seeded: bool, boxes: Collection[str] = ()
) -> set[str]:
    """Returns the components that a rank of such a clone does not load, since it rebuilds them.

    It loads all others as rank 0 had them.

    Args:
        manifests: of all ranks of the parent, in their order.
        ranks: of the clone.
        portable: by path of the component, true if a state that all ranks hold alike is valid for any number of ranks.
        is_seeded: generators are seeded afterwards.
        boxes: paths of the components that tell which part of sharded tensors a rank holds.

    Raises:
        DifferenceError: an entry can't be distributed; it is named.
    """
    first, *others = manifests
    digests = [{entry.path: entry.digest for entry in manifest.entries} for manifest in manifests]
    alone = {path for some in digests for path in some if any(path not in held for held in digests)}
    differing = {entry.path for entry in first.entries if any(held.get(entry.path) != entry.digest for held in digests)}
    there = f"{len(manifests)} rank{'s' if others else ''}, this clone {ranks}"
    left = set()
    for path, placement in {**dict.fromkeys(alone, Placement.PER_RANK), **{entry.path: entry.placement for entry in first.entries}}.items():
        name = _component(path, portable)
        is_alike = path not in differing and path not in alone
        if (placement is Placement.LEADING and path not in alone) or placement is Placement.SHARDED:
            continue
        if name in boxes:
            left.add(name)
            continue
        if placement is Placement.REPLICATED:
            if not is_alike:
                raise DifferenceError(f"{path} is not the same in all ranks of its parent")
        elif name == SEEDED and is_seeded:
            left.add(name)
        elif name == SEEDED and (not is_alike or not others):
            raise DifferenceError(
                f"{path} is each rank's own, and its parent has {there}: add --set seed=N, which gives each rank a seed of its own"
            )
        elif not is_alike or not portable[name] or (not others and _is_own(name)):
            raise DifferenceError(f"{path} is each rank's own, and its parent has {there}: {_mend(name)}")
    return left


def _component(path: str, names: Collection[str]) -> str:
    """Returns the component of an entry: the longest path that it begins with."""
    found = [name for name in names if f"{path}/".startswith(f"{name}/")]
    if not found:
        raise DifferenceError(f"the captured state has {path}, for which there is no place here")
    return max(found, key=len)


def _is_own(name: str) -> bool:
    """Returns whether ranks would most likely differ in it, though the parent had a single one."""
    kind, _, rest = name.partition("/")
    return kind == "generators" or (kind == "others" and rest.partition("/")[0] != PLACE)


def _mend(name: str) -> str:
    kind, _, rest = name.partition("/")
    if kind == "loader":
        return "a forebay.torch.DataLoader's place is good for any number of ranks; or start the clone with as many"
    if (kind, rest.partition("/")[0]) == ("others", PLACE):
        return "fork it between epochs, or give session() a forebay.torch.DataLoader"
    return "start the clone with as many"
