"""`forebay doctor`: explains, measures, and leaves nothing behind."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests import support
from tests.cli.conftest import Desk


def tree(root: Path) -> list[str]:
    return sorted(str(path) for path in root.rglob("*"))


def test_it_explains_what_a_run_would_do(desk: Desk) -> None:
    before = tree(desk.root)
    words = ["doctor", "--source", "source", "--tier", "tier=1G", "--freshness", "immutable", "--", sys.executable]
    done = desk.type(*words, env={"LD_PRELOAD": "libm.so.6"})
    assert (done.returncode, done.stderr) == (0, "")
    for said in (
        f"{desk.source} (",
        f"{desk.tier} (",
        "up to 1 GiB",
        "named by --tier",
        "immutable (--freshness)",
        ": covered",
        "libm.so.6",
    ):
        assert said in done.stdout, done.stdout
    assert "none is running" in done.stdout
    assert "gain" in done.stdout
    assert tree(desk.root) == before
    assert not list(desk.runtime.iterdir())


def test_f13_ram_is_explained_and_not_made(desk: Desk) -> None:
    env = {"FOREBAY_RUNTIME_DIR": f"/dev/shm/{desk.root.name}"}  # noqa: S108
    words = ["doctor", "--source", "source", "--tier", "tier=1G", "--ram", "1M"]
    done = desk.type(*words, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert "tiers       RAM (tmpfs), up to 1 MiB; asked for by --ram" in done.stdout
    assert "go when its last run ends" in done.stdout
    assert f"            {desk.tier} (" in done.stdout
    assert not Path(env["FOREBAY_RUNTIME_DIR"]).exists()
    told = json.loads(desk.type(*words, "--json", env=env).stdout)
    assert [tier["ram"] for tier in told["tiers"]] == [True, False]
    assert told["settings"]["ram"] == {"value": "1048576B", "origin": "--ram"}
    assert 0 < told["memory_free_bytes"] <= told["memory_bytes"]


def test_json_says_the_same(desk: Desk) -> None:
    for number in range(10):
        (desk.source / str(number)).write_bytes(os.urandom(100_000))

    def measured() -> dict[str, Any]:
        done = desk.type("doctor", "--json", "--source", "source", "--tier", "tier=1G", "--", "true")
        told: dict[str, Any] = json.loads(done.stdout)
        return told if told["gain"].get("files") == 11 else {}

    # A slow disk cuts it short.
    found = support.wait_until(measured, "a measurement of all files")
    assert found["schema"] == 1
    assert found["sources"][0]["dir"] == str(desk.source)
    assert found["tiers"][0]["quota_bytes"] == 1 << 30
    assert found["program"]["covered"] is True
    assert found["gain"]["bytes"] == 1_000_007
    assert found["gain"]["ratio"] > 0


def test_programs_that_are_not_covered_say_why(desk: Desk) -> None:
    text = "#include <stdio.h>\nint main(void) { return 0; }\n"
    subprocess.run(["cc", "-static", "-xc", "-", "-o", desk.root / "static"], input=text, text=True, check=True)
    done = desk.type("doctor", "--source", "source", "--tier", "tier=1G", "--", "./static")
    assert done.returncode == 0
    assert "not covered: it is linked statically" in done.stdout
    done = desk.type("doctor", "--source", "source", "--tier", "tier=1G", "--", "no-such-program")
    assert done.returncode == 127
    assert "no-such-program: command not found" in done.stdout


def test_an_empty_source_is_no_fault(desk: Desk) -> None:
    (desk.source / "file").unlink()
    done = desk.type("doctor", "--source", "source", "--tier", "tier=1G")
    assert done.returncode == 0
    assert "no file to read" in done.stdout


def test_bad_input_is_refused_as_by_a_run(desk: Desk) -> None:
    assert "does not exist" in desk.refuse("doctor", "--source", "nowhere")
    assert "missing unit in" in desk.refuse("doctor", "--tier", "tier=5")


def test_it_says_when_all_is_switched_off(desk: Desk) -> None:
    assert "FOREBAY=off" in desk.type("doctor", "--source", "source", "--tier", "tier=1G", env={"FOREBAY": "off"}).stdout
