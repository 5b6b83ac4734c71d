"""The house: no crate of ours uses another that the table in docs/architecture.md does not allow it."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]

Arrows = dict[str, set[str]]


def allowed_arrows(architecture: str) -> Arrows:
    """The table "crate | what it is | may use", as directory name -> directory names."""
    rows = re.findall(r"^\| `(?:crates|testbed)/(\w+)` \|.*\| ([^|]+) \|$", architecture, re.MULTILINE)
    names = {name for name, _ in rows}
    allowed: Arrows = {}
    for name, uses in rows:
        if uses == "nothing of ours":
            allowed[name] = set()
        elif match := re.fullmatch(r"all but (.+)", uses):
            # The test bed is not of the product: "all" is the crates.
            allowed[name] = names - {name, "slowfs"} - set(match[1].split(", "))
        else:
            allowed[name] = set(uses.split(", "))
    return allowed


def drawn_arrows(metadata: dict[str, Any]) -> Arrows:
    """Dependencies between members of the workspace, of every kind (also build and dev)."""
    members = {package["name"]: Path(package["manifest_path"]).parent.name for package in metadata["packages"]}
    return {
        members[package["name"]]: {members[dep["name"]] for dep in package["dependencies"] if dep["name"] in members}
        for package in metadata["packages"]
    }


def wrong_arrows(drawn: Arrows, allowed: Arrows) -> list[str]:
    """What the workspace draws and the table does not allow, and crates that the table does not know or that are gone."""
    wrong = [f"{user} -> {used}" for user in drawn for used in drawn[user] - allowed.get(user, set())]
    wrong += [f"{name} is not in the table" for name in drawn.keys() - allowed.keys()]
    wrong += [f"{name} is in the table only" for name in allowed.keys() - drawn.keys()]
    return sorted(wrong)


@pytest.fixture(scope="module")
def allowed() -> Arrows:
    return allowed_arrows((ROOT / "docs/architecture.md").read_text())


def test_arrows_are_those_of_the_house(allowed: Arrows) -> None:
    command = ["cargo", "metadata", "--format-version=1", "--no-deps", "--locked"]
    metadata = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert wrong_arrows(drawn_arrows(json.loads(metadata)), allowed) == []


def test_the_table_is_read_rightly(allowed: Arrows) -> None:
    assert allowed["policy"] == allowed["contract"] == allowed["slowfs"] == set()
    assert allowed["preload"] == {"contract"}
    assert allowed["agent"] == {"policy", "contract", "store", "objects"}
    assert allowed["sim"] == allowed["peers"] == {"policy"}
    assert allowed["python"] == {"policy", "contract", "store", "agent", "objects", "images", "digest"}
    assert allowed["objects"] == allowed["images"] == allowed["digest"] == set()
    assert allowed["cli"] == {"policy", "contract", "store", "agent", "sim", "objects"}


def test_the_table_has_no_circle(allowed: Arrows) -> None:
    left = dict(allowed)
    while free := [name for name, uses in left.items() if not uses & left.keys()]:
        for name in free:
            del left[name]
    assert not left


@pytest.mark.parametrize(
    ("user", "used"),
    [("preload", "policy"), ("store", "agent"), ("agent", "images"), ("policy", "contract"), ("cli", "slowfs")],
)
def test_an_arrow_too_many_is_seen(allowed: Arrows, user: str, used: str) -> None:
    drawn = {**allowed, user: allowed[user] | {used}}
    assert wrong_arrows(drawn, allowed) == [f"{user} -> {used}"]


def test_a_new_and_a_lost_crate_are_seen(allowed: Arrows) -> None:
    drawn = {**allowed, "cellar": {"policy"}}
    del drawn["agent"]
    assert wrong_arrows(drawn, allowed) == ["agent is in the table only", "cellar -> policy", "cellar is not in the table"]
