"""Tensors whose bytes the processor can't read in order: they pass piece by piece through memory of its own.

A GPU reads and writes pinned memory by itself, tens of gigabytes a second, while the previous piece is digested; other
memory is handed to it page by page. Two parts of pinned memory are used alternately.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch

from forebay.clone._adapter import TensorPiece
from forebay.clone._manifest import Layout
from forebay.torch._tensors import is_dense, local_part

__all__ = ["PART_BYTES", "Gpu", "cuts", "inward", "outward"]

PART_BYTES = 32 << 20
"""Bytes of a part of pinned memory, of which there are two. Torch keeps them for later, and for pinned batches."""
SMALL_BYTES = 64 << 10
"""Smaller tensors are packed on the GPU: asking it for a copy takes longer than the copy."""
TOGETHER_BYTES = 4 << 20
"""Bytes of small tensors that are packed at a time; the GPU needs as much memory for it."""
ALIGNED_BYTES, END_BYTES = 1024, 2048
"""Multiple of bytes at which a tensor is cut, and least bytes of its last piece: see `_core.Pieces`."""
CUT_FROM_BYTES = 1 << 20


class Gpu:
    """A GPU, and memory that it reads and writes by itself."""

    TYPE = "cuda"

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def wait(self) -> None:
        """Blocks until all is done that the program has queued, in any stream."""
        torch.cuda.synchronize(self._device)

    def pinned(self, length: int) -> torch.Tensor:
        """Returns uninitialised pinned memory of `length` bytes."""
        return torch.empty(length, dtype=torch.uint8, device="cpu", pin_memory=True)

    def event(self) -> torch.cuda.Event:
        """Returns an event, which `record` sets."""
        return torch.cuda.Event()

    def record(self, event: torch.cuda.Event) -> None:
        """Sets an event once all is done that was queued by now in the current stream."""
        event.record(torch.cuda.current_stream(self._device))


def outward(tensors: Sequence[torch.Tensor]) -> Iterator[list[TensorPiece]]:
    """See `Adapter.outward`."""
    locals_ = [local_part(tensor) for tensor in tensors]
    gpus = _gpus(locals_)
    for gpu in gpus.values():
        gpu.wait()
    direct: dict[torch.device, list[_Staged]] = {}
    for number, local in enumerate(locals_):
        if local.device in gpus and _is_direct(local):
            direct.setdefault(local.device, []).append(_Staged(number, local))
    for device, staged in direct.items():
        yield from _Through(gpus[device], staged).outward()
    # One at a time, for a copy is made of each.
    for number, local in enumerate(locals_):
        if local.device in gpus and _is_direct(local):
            continue
        if not is_dense(tuple(local.shape), local.stride()):
            local = local.contiguous()
        local = local.resolve_conj().resolve_neg()
        if local.device in gpus:
            yield from _Through(gpus[local.device], [_Staged(number, local)]).outward()
        else:
            there = local.cpu()
            yield [TensorPiece(number, 0, there.data_ptr(), _length(there))]


def inward(tensors: Sequence[torch.Tensor], layouts: Sequence[Layout]) -> Iterator[list[TensorPiece]]:
    """See `Adapter.inward`."""
    locals_ = [local_part(tensor) for tensor in tensors]
    gpus = _gpus(locals_)
    for gpu in gpus.values():
        gpu.wait()
    direct: dict[torch.device, list[_Staged]] = {}
    for number, (local, layout) in enumerate(zip(locals_, layouts, strict=True)):
        if _is_direct(local) and local.device in gpus:
            direct.setdefault(local.device, []).append(_Staged(number, local))
            continue
        is_there = _is_direct(local) and local.device.type == "cpu"
        target = local if is_there else torch.empty_strided(layout.shape, layout.strides, dtype=local.dtype, device="cpu")
        yield [TensorPiece(number, 0, target.data_ptr(), _length(target))]
        if not is_there:
            local.copy_(target)
    for device, staged in direct.items():
        yield from _Through(gpus[device], staged).inward()
    # The program may go on in streams of its own.
    for gpu in gpus.values():
        gpu.wait()


def _gpus(tensors: Iterable[torch.Tensor]) -> dict[torch.device, Gpu]:
    return {device: Gpu(device) for device in {tensor.device for tensor in tensors} if device.type == Gpu.TYPE}


def _is_direct(tensor: torch.Tensor) -> bool:
    """Returns whether its bytes are in the processor's memory, in order."""
    return is_dense(tuple(tensor.shape), tensor.stride()) and not tensor.is_conj() and not tensor.is_neg()


class _Staged:
    """A tensor on a GPU.

    Attributes:
        number: number of the tensor.
        bytes: its elements as bytes, in the order of its memory.
        length: number of bytes.
    """

    def __init__(self, number: int, tensor: torch.Tensor) -> None:
        self.number = number
        self.bytes = tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
        self.length = self.bytes.numel()


class _Cut(NamedTuple):
    """Bytes `start` to `start + length` of a tensor, at offset `at` of a part."""

    staged: int
    start: int
    length: int
    at: int


def cuts(lengths: Iterable[int], part_bytes: int = PART_BYTES) -> Iterator[list[_Cut]]:
    """Yields for each part the cuts of tensors of these lengths that go through it."""
    part: list[_Cut] = []
    at = 0
    for number, length in enumerate(lengths):
        start = 0
        while True:
            left, room = length - start, part_bytes - at
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


class _Part(NamedTuple):
    """Cuts of tensors that fill one part of pinned memory."""

    cuts: list[_Cut]
    of: Sequence[_Staged]
    is_together: bool

    @property
    def length(self) -> int:
        last = self.cuts[-1]
        return last.at + last.length

    def there(self, cut: _Cut) -> torch.Tensor:
        """Returns the bytes of a cut on the GPU."""
        return self.of[cut.staged].bytes[cut.start : cut.start + cut.length]

    def to(self, pinned: torch.Tensor) -> None:
        if self.is_together:
            pinned[: self.length].copy_(torch.cat([self.of[cut.staged].bytes for cut in self.cuts]), non_blocking=True)
            return
        for cut in self.cuts:
            pinned[cut.at : cut.at + cut.length].copy_(self.there(cut), non_blocking=True)

    def from_(self, pinned: torch.Tensor) -> None:
        if self.is_together:
            targets = [self.of[cut.staged].bytes for cut in self.cuts]
            there = pinned[: self.length].to(targets[0].device, non_blocking=True)
            torch._foreach_copy_(targets, list(there.split([cut.length for cut in self.cuts])))
            return
        for cut in self.cuts:
            self.there(cut).copy_(pinned[cut.at : cut.at + cut.length], non_blocking=True)

    def pieces(self, pinned: torch.Tensor) -> list[TensorPiece]:
        address = pinned.data_ptr()
        return [TensorPiece(self.of[cut.staged].number, cut.start, address + cut.at, cut.length) for cut in self.cuts]


class _Through:
    """Tensors of one GPU that pass through pinned memory."""

    def __init__(self, gpu: Gpu, staged: Sequence[_Staged]) -> None:
        self._gpu = gpu
        small = [one for one in staged if one.length < SMALL_BYTES]
        large = [one for one in staged if one.length >= SMALL_BYTES]
        self._parts = [_Part(part, small, True) for part in cuts((one.length for one in small), TOGETHER_BYTES)]
        self._parts += [_Part(part, large, False) for part in cuts(one.length for one in large)]
        length = max(part.length for part in self._parts)
        self._turns = [(gpu.pinned(length), gpu.event()) for _ in self._parts[:2]]

    def outward(self) -> Iterator[list[TensorPiece]]:
        coming: tuple[torch.cuda.Event, list[TensorPiece]] | None = None
        for turn, part in enumerate(self._parts):
            pinned, event = self._turns[turn % 2]
            part.to(pinned)
            self._gpu.record(event)
            if coming is not None:
                coming[0].synchronize()
                yield coming[1]
            coming = event, part.pieces(pinned)
        if coming is not None:
            coming[0].synchronize()
            yield coming[1]

    def inward(self) -> Iterator[list[TensorPiece]]:
        for turn, part in enumerate(self._parts):
            pinned, event = self._turns[turn % 2]
            event.synchronize()
            yield part.pieces(pinned)
            part.from_(pinned)
            self._gpu.record(event)


def _length(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
