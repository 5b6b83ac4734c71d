"""Waits until the agent of this environment has nothing to do.

Every file that was opened before has its copy, or is refused one.

A script; or text to put before that of a program, which then calls `wait_until_idle()`. Where it is known how many
files were handed over, that number says so: what is on its way to a busy agent is not yet counted there.
"""

import json
import os
import socket
import sys
import time
from pathlib import Path

IDLE_S_MAX = 120


def wait_until_idle(handed_over: int = 0) -> None:
    """Opens nothing under the source."""
    (agent,) = Path(os.environ["FOREBAY_RUNTIME_DIR"]).glob("*/control.sock")
    deadline = time.monotonic() + IDLE_S_MAX
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(str(agent))
        while time.monotonic() < deadline:
            connection.send(b'{"request": "status"}')
            status = json.loads(connection.recv(1 << 16))
            if status["handed_over"] >= handed_over and not status["in_flight"] and not status["adopting"]:
                return
            time.sleep(0.02)
    sys.exit(f"the agent is at work after {IDLE_S_MAX} s: {status}")


if __name__ == "__main__":
    wait_until_idle(*map(int, sys.argv[1:]))
