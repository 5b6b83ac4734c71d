"""Ways to bring a state from the ranks of a source to those of a clone, other than Forebay's: messages, and files.

A state is a list of named tensors. Rank i of the source and rank i of the clone belong together; both halves are one
world to MPI, the source's ranks first. Each way does what its library does best: messages are received where the
tensors lie, files are in memory and are mapped, or read into place.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import h5py
import numpy as np
import torch
import torch.distributed as dist
from mpi4py import MPI
from safetensors import safe_open
from safetensors.torch import save_file
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import AsyncSaveResponse, async_save, save
from torch.distributed.distributed_c10d import ProcessGroupGloo

from forebay import _core

State = list[tuple[str, torch.Tensor]]
MESSAGE_S = 300.0
LOOK_EVERY_S = 0.001
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.process_vm_readv.restype = ctypes.c_ssize_t
# linux/prctl.h
PR_SET_PTRACER, PR_SET_PTRACER_ANY = 0x59616D61, 2 ** (8 * ctypes.sizeof(ctypes.c_ulong)) - 1


class Transfer(Protocol):
    """One of them. Made on both sides."""

    # Whether who takes waits for a word that all is written; else it waits for the first message.
    waits_for_word: bool

    def clear(self) -> None:
        """On every rank of the source, some steps before: removes what was written last."""

    def give(self, state: State, done: Callable[[], None]) -> None:
        """On a rank of the source: calls `done` when its part is done, and returns when training may go on."""

    def take(self, state: State) -> None:
        """On a rank of the clone."""


class Message:
    """A way that leaves nothing behind."""

    waits_for_word = False

    def __init__(self, other: int) -> None:
        """`other`: the rank, in MPI, at the other end."""
        self._other = other

    def clear(self) -> None:
        """See `Transfer`."""


class Buffers(Message):
    """mpi4py, `Send` and `Recv`: a message a tensor, out of its memory and into it."""

    def give(self, state: State, done: Callable[[], None]) -> None:
        """See `Transfer`."""
        for number, (_, tensor) in enumerate(state):
            MPI.COMM_WORLD.Send(flat(tensor), self._other, number)
        done()

    def take(self, state: State) -> None:
        """See `Transfer`."""
        for number, (_, tensor) in enumerate(state):
            MPI.COMM_WORLD.Recv(flat(tensor), self._other, number)


class Pickled(Message):
    """mpi4py, `send` and `recv`, as the paper has it: a dictionary of arrays, pickled."""

    def give(self, state: State, done: Callable[[], None]) -> None:
        """See `Transfer`."""
        MPI.COMM_WORLD.send({name: flat(tensor) for name, tensor in state}, self._other)
        done()

    def take(self, state: State) -> None:
        """See `Transfer`."""
        arrays = MPI.COMM_WORLD.recv(source=self._other)
        for name, tensor in state:
            flat(tensor)[:] = arrays[name]


class Gloo(Message):
    """gloo, point to point, in a group of its own: all tensors at once."""

    def __init__(self, group: ProcessGroupGloo, other: int) -> None:
        """`other`: the rank, in the group, at the other end."""
        super().__init__(other)
        # Its stub does not know that it sends.
        self._group: Any = group

    def give(self, state: State, done: Callable[[], None]) -> None:
        """See `Transfer`."""
        sent = [self._group.send([tensor.detach().view(-1)], self._other, number) for number, (_, tensor) in enumerate(state)]
        for work in sent:
            work.wait(timedelta(seconds=MESSAGE_S))
        done()

    def take(self, state: State) -> None:
        """See `Transfer`."""
        received = [self._group.recv([tensor.detach().view(-1)], self._other, number) for number, (_, tensor) in enumerate(state)]
        for work in received:
            work.wait(timedelta(seconds=MESSAGE_S))


class FileTransfer:
    """A file that rank 0 writes and all ranks of the clone read."""

    waits_for_word = True

    def __init__(self, place: Path, rank: int) -> None:
        self._file = place / type(self).__name__
        self._rank = rank

    def clear(self) -> None:
        """See `Transfer`."""
        if self._rank == 0:
            self._file.unlink(missing_ok=True)

    def give(self, state: State, done: Callable[[], None]) -> None:
        """See `Transfer`."""
        if self._rank == 0:
            self.write({name: tensor.detach() for name, tensor in state})
        done()

    def take(self, state: State) -> None:
        """See `Transfer`."""
        self.read(state)

    def write(self, tensors: dict[str, torch.Tensor]) -> None:
        """All of it."""
        raise NotImplementedError

    def read(self, state: State) -> None:
        """Into place."""
        raise NotImplementedError


class TorchSave(FileTransfer):
    """torch.save, and torch.load of a mapped file."""

    def write(self, tensors: dict[str, torch.Tensor]) -> None:
        """See `FileTransfer`."""
        torch.save(tensors, self._file)

    def read(self, state: State) -> None:
        """See `FileTransfer`."""
        mapped = torch.load(self._file, mmap=True, weights_only=True)
        copy_into(state, mapped.__getitem__)


class Safetensors(FileTransfer):
    """safetensors, read by its lazy interface."""

    def write(self, tensors: dict[str, torch.Tensor]) -> None:
        """See `FileTransfer`."""
        save_file(tensors, self._file)

    def read(self, state: State) -> None:
        """See `FileTransfer`."""
        with safe_open(self._file, framework="pt") as opened:
            copy_into(state, opened.get_tensor)


class Hdf5(FileTransfer):
    """h5py, a dataset a tensor, read straight into place."""

    def write(self, tensors: dict[str, torch.Tensor]) -> None:
        """See `FileTransfer`."""
        with h5py.File(self._file, "w") as opened:
            for name, tensor in tensors.items():
                opened.create_dataset(name, data=flat(tensor))

    def read(self, state: State) -> None:
        """See `FileTransfer`."""
        with h5py.File(self._file, "r") as opened:
            for name, tensor in state:
                opened[name].read_direct(flat(tensor))


class Checkpoint:
    """torch.distributed.checkpoint: all ranks of the source write, all of the clone read."""

    waits_for_word = True

    def __init__(self, place: Path, rank: int) -> None:
        self._dir = place / type(self).__name__
        self._rank = rank

    def give(self, state: State, done: Callable[[], None]) -> None:
        """See `Transfer`."""
        save({name: tensor.detach() for name, tensor in state}, checkpoint_id=str(self._dir))
        done()

    def take(self, state: State) -> None:
        """See `Transfer`."""
        load({name: tensor.detach() for name, tensor in state}, checkpoint_id=str(self._dir))

    def clear(self) -> None:
        """See `Transfer`."""
        if self._rank == 0:
            shutil.rmtree(self._dir, ignore_errors=True)


class CheckpointAsync(Checkpoint):
    """The same, written while training goes on, in a group of its own."""

    def __init__(self, place: Path, rank: int) -> None:
        super().__init__(place, rank)
        self._group: Any = dist.new_group(backend="gloo")

    def give(self, state: State, done: Callable[[], None]) -> None:
        """See `Transfer`."""
        tensors = {name: tensor.detach() for name, tensor in state}
        saved = async_save(tensors, checkpoint_id=str(self._dir), process_group=self._group)
        upload: Any = saved.upload_completion if isinstance(saved, AsyncSaveResponse) else saved

        def finish(future: Any) -> None:  # noqa: ANN401  (a concurrent future)
            # What went wrong goes to standard error, and nobody is told that it is done.
            future.result()
            done()

        upload.add_done_callback(finish)


class ProcessMemory:
    """process_vm_readv: a rank of the clone reads the memory of the source's, which waits for that."""

    waits_for_word = True

    def __init__(self, place: Path, rank: int, other: int) -> None:
        """`rank` in its own half, `other` in MPI at the other end."""
        self._place = place
        self._rank = rank
        self._other = other

    def clear(self) -> None:
        """See `Transfer`."""

    def give(self, state: State, done: Callable[[], None]) -> None:
        """See `Transfer`."""
        # Else Yama lets only ancestors of a process read its memory.
        LIBC.prctl(PR_SET_PTRACER, ctypes.c_ulong(PR_SET_PTRACER_ANY))
        leave(self._place / f"addresses-{self._rank}", [os.getpid(), *(tensor.data_ptr() for _, tensor in state)])
        done()
        MPI.COMM_WORLD.Recv(np.empty(0), self._other)

    def take(self, state: State) -> None:
        """See `Transfer`."""
        pid, *addresses = fetch(self._place / f"addresses-{self._rank}")
        for (_, tensor), address in zip(state, addresses, strict=True):
            read_memory(pid, address, tensor.data_ptr(), tensor.numel() * tensor.element_size())
        MPI.COMM_WORLD.Send(np.empty(0), self._other)


class ByteSpan(ctypes.Structure):
    """A `struct iovec`."""

    _fields_ = (("address", ctypes.c_void_p), ("length", ctypes.c_size_t))


def read_memory(pid: int, source: int, target: int, length: int) -> None:
    """Copies memory of another process.

    Raises:
        OSError: that is not allowed, or not all of it is there.
    """
    at = 0
    while at < length:
        here, there = ByteSpan(target + at, length - at), ByteSpan(source + at, length - at)
        read = LIBC.process_vm_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
        if read <= 0:
            raise OSError(ctypes.get_errno(), "process_vm_readv")
        at += read


def flat(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Returns its elements in a row, in place."""
    array: np.ndarray[Any, Any] = tensor.detach().view(-1).numpy()
    return array


def copy_into(state: State, of: Callable[[str], torch.Tensor]) -> None:
    """Each tensor from another one."""
    for name, tensor in state:
        tensor.detach().copy_(of(name))


def digests(state: State) -> list[str]:
    """XXH3-128 of each tensor, by the function that Forebay's own go through."""
    return [_core.digest(tensor.data_ptr(), tensor.numel() * tensor.element_size()) for _, tensor in state]


def wrong_digests(sent: list[str], state: State) -> int:
    """Returns the number of tensors that differ from those that were sent."""
    return sum(one != other for one, other in zip(sent, digests(state), strict=True))


def leave(file: Path, content: list[Any]) -> None:
    """Leaves something for a rank at the other end; it is there at once or not at all."""
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps(content))
    partial.replace(file)


def fetch(file: Path) -> list[Any]:
    """Reads the values that another process left in a file, and waits for it.

    Raises:
        TimeoutError: nothing is left.
    """
    deadline = time.monotonic() + MESSAGE_S
    while not file.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{file.name} was not left in {MESSAGE_S:.0f} s")
        time.sleep(LOOK_EVERY_S)
    content: list[Any] = json.loads(file.read_text())
    file.unlink()
    return content


def ways(place: Path, rank: int, other: int, group: ProcessGroupGloo) -> dict[str, Transfer]:
    """All of them. Every rank has to ask.

    `rank` is that in its own half, `other` that of the other end in MPI and in `group`.
    """
    return {
        "mpi4py Send": Buffers(other),
        "gloo": Gloo(group, other),
        "torch.save": TorchSave(place, rank),
        "safetensors": Safetensors(place, rank),
        "HDF5": Hdf5(place, rank),
        "DCP": Checkpoint(place, rank),
        "DCP async": CheckpointAsync(place, rank),
        "mpi4py pickled": Pickled(other),
        "process_vm_readv": ProcessMemory(place, rank, other),
    }
