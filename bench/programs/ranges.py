"""One side of a pair of processes, one of which takes ranges of memory from the other by another library.

`ranges.py serve WAY ADDRESS PORT LENGTH REQUESTERS` has the memory; `ranges.py ask WAY ADDRESS PORT LENGTH REQUESTERS
SECONDS DIRECTORY` takes it. WAY is gloo, mpi, nixl or mooncake; both sides are one program of MPI, whose first rank
serves. The directory is one that both see. Each prints a line of JSON with its CPU seconds; the asker also has the
number of ranges and the seconds.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

POLL_S = 0.01
WAIT_S = 60.0
TAKES, ENDS = 1, 0


def waited_for(path: Path) -> str:
    """Returns the content of a file that the other side writes."""
    until = time.monotonic() + WAIT_S
    while not path.exists():
        if time.monotonic() > until:
            raise TimeoutError(f"{path.name} did not come")
        time.sleep(POLL_S)
    return path.read_text()


def leave(path: Path, text: str) -> None:
    """Writes a file that the other side waits for."""
    partial = path.with_suffix(".partial")
    partial.write_text(text)
    partial.replace(path)


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Runs work(0), work(1) and so on at the same time."""
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def measured(requesters: int, seconds: float, take: Callable[[int], None]) -> dict[str, Any]:
    """Has each requester take ranges for some seconds; returns their number, the time, and the CPU of this process."""
    counts = [0] * requesters
    for number in range(requesters):
        take(number)
    began, cpu = time.monotonic(), time.process_time()

    def go_on(number: int) -> None:
        while time.monotonic() < began + seconds:
            take(number)
            counts[number] += 1

    in_threads(requesters, go_on)
    return {"ranges": sum(counts), "seconds": time.monotonic() - began, "cpu_s": time.process_time() - cpu}


def by_messages(
    given: argparse.Namespace, send: Callable[[Any, int], None], receive: Callable[[Any, int], None], room: Callable[[int], Any]
) -> dict[str, Any]:
    """Sends a range for each byte that asks for one: a requester and its server have a tag of their own."""
    if given.side == "serve":
        content = room(given.length)
        began: list[float] = []

        def serve(number: int) -> None:
            asked = room(1)
            while True:
                receive(asked, number)
                began.append(time.process_time())
                if int(asked[0]) == ENDS:
                    return
                send(content, number)

        in_threads(given.requesters, serve)
        return {"cpu_s": time.process_time() - began[0]}
    asks, ends = room(1), room(1)
    asks[0], ends[0] = TAKES, ENDS
    rooms = [room(given.length) for _ in range(given.requesters)]

    def take(number: int) -> None:
        send(asks, number)
        receive(rooms[number], number)

    found = measured(given.requesters, given.seconds, take)
    for number in range(given.requesters):
        send(ends, number)
    return found


def gloo(given: argparse.Namespace) -> dict[str, Any]:
    """By send and recv of torch.distributed."""
    import torch
    from torch import distributed as dist

    rank = int(given.side == "ask")
    dist.init_process_group("gloo", init_method=f"tcp://{given.address}:{given.port}", rank=rank, world_size=2)

    def send(tensor: torch.Tensor, tag: int) -> None:
        dist.send(tensor, 1 - rank, tag=tag)

    def receive(tensor: torch.Tensor, tag: int) -> None:
        dist.recv(tensor, 1 - rank, tag=tag)

    found = by_messages(given, send, receive, lambda count: torch.zeros(count, dtype=torch.uint8))
    dist.barrier()
    return found


def mpi(given: argparse.Namespace) -> dict[str, Any]:
    """By Send and Recv of mpi4py, whose first rank serves."""
    import mpi4py

    mpi4py.rc.thread_level = "multiple"
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    given.side = "ask" if world.rank else "serve"
    found = by_messages(
        given,
        lambda content, tag: world.Send(content, 1 - world.rank, tag),
        lambda content, tag: world.Recv(content, 1 - world.rank, tag),
        bytearray,
    )
    world.Barrier()
    return found


def _serving() -> Iterator[float]:
    """Yields once the asker may begin; then waits for the end of standard input."""
    began = time.process_time()
    sys.stdin.read()
    yield time.process_time() - began


def mooncake(given: argparse.Namespace) -> dict[str, Any]:
    """By reads of Mooncake's transfer engine over TCP."""
    from mooncake.engine import TransferEngine

    engine = TransferEngine()
    own = given.address if given.side == "serve" else given.own
    if engine.initialize(own, "P2PHANDSHAKE", "tcp", "") != 0:
        raise RuntimeError("Mooncake's engine does not start")
    memory = ctypes.create_string_buffer(given.length * given.requesters)
    start = ctypes.addressof(memory)
    if engine.register_memory(start, len(memory)) != 0:
        raise RuntimeError("Mooncake takes no memory")
    if given.side == "serve":
        leave(given.directory / "mooncake", json.dumps([f"{own}:{engine.get_rpc_port()}", start]))
        (cpu_s,) = _serving()
        return {"cpu_s": cpu_s}
    there, theirs = json.loads(waited_for(given.directory / "mooncake"))

    def take(number: int) -> None:
        if engine.transfer_sync_read(there, start + number * given.length, theirs, given.length) != 0:
            raise RuntimeError("Mooncake's read failed")

    return measured(given.requesters, given.seconds, take)


def nixl(given: argparse.Namespace) -> dict[str, Any]:
    """By reads of NIXL over UCX and TCP: all requesters' reads are under way in one thread."""
    os.environ.setdefault("UCX_TLS", "tcp")
    import numpy as np
    from nixl_cu12._api import nixl_agent, nixl_agent_config

    agent = nixl_agent(given.side, nixl_agent_config(backends=["UCX"]))
    memory = np.zeros(given.length * given.requesters, dtype=np.uint8)
    agent.register_memory([(memory.ctypes.data, memory.nbytes, 0, "")], "DRAM")
    if given.side == "serve":
        leave(given.directory / "nixl", json.dumps([agent.get_agent_metadata().hex(), memory.ctypes.data]))
        (cpu_s,) = _serving()
        return {"cpu_s": cpu_s}
    metadata, theirs = json.loads(waited_for(given.directory / "nixl"))
    there = agent.add_remote_agent(bytes.fromhex(metadata))
    reads = []
    for number in range(given.requesters):
        here = agent.get_xfer_descs([(memory.ctypes.data + number * given.length, given.length, 0)], "DRAM")
        remote = agent.get_xfer_descs([(theirs, given.length, 0)], "DRAM")
        reads.append(agent.initialize_xfer("READ", here, remote, there))

    def end(states: list[str]) -> None:
        while any(state == "PROC" for state in states):
            states[:] = [agent.check_xfer_state(read) if state == "PROC" else state for read, state in zip(reads, states, strict=True)]

    end([agent.transfer(read) for read in reads])
    count, began, cpu = 0, time.monotonic(), time.process_time()
    states = [agent.transfer(read) for read in reads]
    while time.monotonic() < began + given.seconds:
        for read in reads:
            state = agent.check_xfer_state(read)
            if state == "DONE":
                count += 1
                agent.transfer(read)
            elif state != "PROC":
                raise RuntimeError(f"NIXL's read ended as {state}")
    found = {"ranges": count, "seconds": time.monotonic() - began, "cpu_s": time.process_time() - cpu}
    end(states)
    return found


WAYS = {"gloo": gloo, "mpi": mpi, "mooncake": mooncake, "nixl": nixl}


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("side", choices=["serve", "ask"])
    parser.add_argument("way", choices=sorted(WAYS))
    parser.add_argument("address", help="the server's")
    parser.add_argument("port", type=int)
    parser.add_argument("own", help="this side's address")
    parser.add_argument("length", type=int)
    parser.add_argument("requesters", type=int)
    parser.add_argument("seconds", type=float)
    parser.add_argument("directory", type=Path)
    given = parser.parse_args()
    found = WAYS[given.way](given)
    os.write(1, (json.dumps({"side": given.side, **found}) + "\n").encode())
    # Their threads may not end by themselves.
    os._exit(0)


if __name__ == "__main__":
    main()
