"""Manifests as nobody has written them."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any

from forebay import clone
from forebay.clone._manifest import DIGEST_BYTES, CapturedSection, EntryKind, Section


def with_digests(manifest: clone.Manifest, digests: Mapping[str, bytes]) -> clone.Manifest:
    """Other digests of the entries at these paths."""
    found = bytearray(manifest.digests)
    for number, entry in enumerate(manifest.entries):
        if entry.path in digests:
            found[number * DIGEST_BYTES : (number + 1) * DIGEST_BYTES] = digests[entry.path]
    return dataclasses.replace(manifest, digests=bytes(found))


def with_kinds(manifest: clone.Manifest, change: Callable[[str, EntryKind], EntryKind]) -> clone.Manifest:
    """Other kinds of entries, by their paths."""

    def changed(held: CapturedSection) -> CapturedSection:
        section = held.section
        kinds = tuple(change(path, kind) for path, kind in zip(section.paths, section.kinds, strict=True))
        return CapturedSection(Section(section.paths, kinds), held.places)

    return dataclasses.replace(manifest, held=tuple(map(changed, manifest.held)))


def only(manifest: clone.Manifest, is_kept: Callable[[str], bool]) -> clone.Manifest:
    """The sections of these names alone."""
    kept = [at for at, held in enumerate(manifest.held) if is_kept(held.section.paths[0])]
    digests = (manifest.digests[manifest.firsts[at] * DIGEST_BYTES : manifest.firsts[at + 1] * DIGEST_BYTES] for at in kept)
    return dataclasses.replace(manifest, held=tuple(manifest.held[at] for at in kept), digests=b"".join(digests))


class Written:
    """A manifest as it is written down, to be changed.

    Attributes:
        head: its first line.
        sections: of each what its first line has.
        places: and its second.
    """

    def __init__(self, text: bytes) -> None:
        self.head, *lines = map(json.loads, text.split(b"\n"))
        self.sections: list[Any] = lines[::2]
        self.places: list[Any] = lines[1::2]

    def keep(self, count: int) -> None:
        """Keeps a number of sections, though there are digests of all."""
        del self.sections[count:], self.places[count:]

    def text(self) -> bytes:
        """Returns the manifest's text as it is now."""
        lines = (line for both in zip(self.sections, self.places, strict=True) for line in both)
        return b"\n".join(json.dumps(line).encode() for line in (self.head, *lines))
