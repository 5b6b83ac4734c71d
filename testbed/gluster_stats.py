"""The JSON of `gluster.sh stats`: link counters (argument.

JSON arrays of `ip -s -j link`) and a volume profile (standard input: XML).
"""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from typing import Any


def links(text: str) -> list[dict[str, int]]:
    """The bytes on each brick's link, from that brick's side.

    `text` holds one JSON array a brick, one after the other.
    """
    found = []
    decoder = json.JSONDecoder()
    while text := text.lstrip():
        brick, end = decoder.raw_decode(text)
        counters = brick[0]["stats64"]
        found.append({"sent_bytes": counters["tx"]["bytes"], "received_bytes": counters["rx"]["bytes"]})
        text = text[end:]
    return found


def operations(profile: str) -> list[dict[str, int]]:
    """The file operations that each brick has seen, by name, in the order of the bricks' addresses."""
    # The text comes from the gluster command on this machine.
    root = ElementTree.fromstring(profile)  # noqa: S314
    if root.findtext("opRet") != "0":
        sys.exit(f"gluster.sh: {root.findtext('opErrstr')}")
    bricks = sorted(root.iter("brick"), key=lambda brick: brick.findtext("brickName") or "")
    return [{fop.findtext("name") or "": int(fop.findtext("hits") or 0) for fop in brick.iter("fop")} for brick in bricks]


def summary(link_text: str, profile: str) -> dict[str, Any]:
    """Both, by brick and summed."""
    by_link, by_brick = links(link_text), operations(profile)
    total: Counter[str] = Counter()
    for brick in by_brick:
        total.update(brick)
    return {
        "sent_bytes": sum(link["sent_bytes"] for link in by_link),
        "received_bytes": sum(link["received_bytes"] for link in by_link),
        "operations": dict(sorted(total.items())),
        "bricks": [{**link, "operations": brick} for link, brick in zip(by_link, by_brick, strict=True)],
    }


if __name__ == "__main__":
    print(json.dumps(summary(sys.argv[1], sys.stdin.read())))
