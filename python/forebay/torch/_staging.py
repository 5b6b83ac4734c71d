"""Tensors whose bytes don't lie where the processor finds them in order: these pass through memory of its own, piece by piece.

A GPU reads and writes pinned memory by itself, tens of gigabytes a second, while what came before is digested; memory that was not pinned
it is handed page by page. Two parts of it take turns.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch

from forebay.clone._adapter import Piece
from forebay.clone._manifest import Layout
from forebay.torch._tensors import is_dense, local_part

__all__ = ["PART_BYTES", "cuts", "inward", "outward"]

PART_BYTES = 32 << 20
"""Pinned, twice. Torch keeps it for the next time, and for pinned batches."""
SMALL_BYTES = 64 << 10
"""Tensors with less are brought together on the GPU: to ask it for a copy takes longer than the copy."""
ALIGNED_BYTES, END_BYTES = 1024, 2048
"""Where a tensor is cut, and so many of its bytes at least are in its last piece: see `_core.Pieces`."""
CUT_FROM_BYTES = 1 << 20


def outward(tensors: Sequence[torch.Tensor]) -> Iterator[list[Piece]]:
    """See `Adapter.outward`."""
    on_gpus: dict[torch.device, list[_Staged]] = {}
    for number, tensor in enumerate(tensors):
        local = local_part(tensor).resolve_conj().resolve_neg()
        if not is_dense(tuple(local.shape), local.stride()):
            local = local.contiguous()
        if local.device.type == "cuda":
            on_gpus.setdefault(local.device, []).append(_Staged(number, local))
        else:
            there = local.cpu()
            yield [Piece(number, 0, there.data_ptr(), _length(there))]
    for device, staged in on_gpus.items():
        yield from _Through(device, staged).outward()


def inward(tensors: Sequence[torch.Tensor], layouts: Sequence[Layout]) -> Iterator[list[Piece]]:
    """See `Adapter.inward`."""
    on_gpus: dict[torch.device, list[_Staged]] = {}
    for number, (tensor, layout) in enumerate(zip(tensors, layouts, strict=True)):
        local = local_part(tensor)
        is_direct = is_dense(tuple(local.shape), local.stride()) and not local.is_conj() and not local.is_neg()
        if is_direct and local.device.type == "cuda":
            on_gpus.setdefault(local.device, []).append(_Staged(number, local))
            continue
        is_there = is_direct and local.device.type == "cpu"
        target = local if is_there else torch.empty_strided(layout.shape, layout.strides, dtype=local.dtype)
        yield [Piece(number, 0, target.data_ptr(), _length(target))]
        if not is_there:
            local.copy_(target)
    for device, staged in on_gpus.items():
        yield from _Through(device, staged).inward()


class _Staged:
    """A tensor of a GPU's.

    Attributes:
        number: its own.
        bytes: its elements as they lie there.
    """

    def __init__(self, number: int, tensor: torch.Tensor) -> None:
        self.number = number
        self.bytes = tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


class _Cut(NamedTuple):
    """Bytes `start` to `start + length` of a tensor, `at` so many bytes of a part."""

    staged: int
    start: int
    length: int
    at: int


def cuts(lengths: Iterable[int]) -> Iterator[list[_Cut]]:
    """Which bytes of tensors of such lengths go through one part after the other."""
    part: list[_Cut] = []
    at = 0
    for number, length in enumerate(lengths):
        start = 0
        while True:
            left, room = length - start, PART_BYTES - at
            if left <= room:
                part.append(_Cut(number, start, left, at))
                at += left
                break
            if room >= CUT_FROM_BYTES:
                cut = min(room, left - END_BYTES) // ALIGNED_BYTES * ALIGNED_BYTES
                part.append(_Cut(number, start, cut, at))
                start += cut
            yield part
            part, at = [], 0
    if part:
        yield part


class _Through:
    """The tensors of one GPU, on their way through pinned memory."""

    def __init__(self, device: torch.device, staged: Sequence[_Staged]) -> None:
        self._device = device
        small = [one for one in staged if one.bytes.numel() < SMALL_BYTES]
        large = [one for one in staged if one.bytes.numel() >= SMALL_BYTES]
        self._plans = [(some, part) for some in (small, large) for part in cuts(one.bytes.numel() for one in some)]
        length = max(part[-1].at + part[-1].length for _, part in self._plans)
        self._turns = [(torch.empty(length, dtype=torch.uint8, pin_memory=True), torch.cuda.Event()) for _ in self._plans[:2]]

    def outward(self) -> Iterator[list[Piece]]:
        # The program may have queued work in streams of its own.
        torch.cuda.synchronize(self._device)
        coming: tuple[torch.cuda.Event, list[Piece]] | None = None
        for turn, (some, part) in enumerate(self._plans):
            pinned, event = self._turns[turn % 2]
            if some[0].bytes.numel() < SMALL_BYTES:
                end = part[-1].at + part[-1].length
                pinned[:end].copy_(torch.cat([some[cut.staged].bytes for cut in part]), non_blocking=True)
            else:
                for cut in part:
                    there = some[cut.staged].bytes[cut.start : cut.start + cut.length]
                    pinned[cut.at : cut.at + cut.length].copy_(there, non_blocking=True)
            event.record(torch.cuda.current_stream(self._device))
            if coming is not None:
                coming[0].synchronize()
                yield coming[1]
            coming = event, _pieces(pinned, some, part)
        if coming is not None:
            coming[0].synchronize()
            yield coming[1]

    def inward(self) -> Iterator[list[Piece]]:
        torch.cuda.synchronize(self._device)
        for turn, (some, part) in enumerate(self._plans):
            pinned, event = self._turns[turn % 2]
            event.synchronize()
            yield _pieces(pinned, some, part)
            if some[0].bytes.numel() < SMALL_BYTES:
                end = part[-1].at + part[-1].length
                together = pinned[:end].to(self._device, non_blocking=True)
                torch._foreach_copy_([some[cut.staged].bytes for cut in part], list(together.split([cut.length for cut in part])))
            else:
                for cut in part:
                    there = some[cut.staged].bytes[cut.start : cut.start + cut.length]
                    there.copy_(pinned[cut.at : cut.at + cut.length], non_blocking=True)
            event.record(torch.cuda.current_stream(self._device))
        # And may go on in streams of its own.
        torch.cuda.synchronize(self._device)


def _pieces(pinned: torch.Tensor, some: Sequence[_Staged], part: Iterable[_Cut]) -> list[Piece]:
    address = pinned.data_ptr()
    return [Piece(some[cut.staged].number, cut.start, address + cut.at, cut.length) for cut in part]


def _length(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
