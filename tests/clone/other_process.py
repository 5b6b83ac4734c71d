"""Another process: builds a job of its own, loads the state that it is given, trains five steps, and reports.

Usage: python -m tests.clone.other_process DESCRIPTOR < MANIFEST
"""

import json
import sys

from forebay import clone
from tests.clone.jobs import full

made = full(99)
state = made.inventory()
with clone.Capture(clone.Manifest.from_json(sys.stdin.buffer.read()), int(sys.argv[1])) as capture:
    state.load(capture)
for _ in range(5):
    made.step()
json.dump({"losses": made.losses, "manifest": state.manifest().to_json().decode()}, sys.stdout)
