"""Bad input: one clear line that names the thing and the mend, exit 2, and nothing has run."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests import support
from tests.cli.conftest import Desk

RUN = ("run", "--source", "source", "--tier", "tier=64M")
MEMORY = Path("/dev/shm")  # noqa: S108
PROGRAM = ("--", "touch", "ran")

# Words of the command line -> what its refusal must name, the mend last.
COMMAND_LINES: list[tuple[tuple[str, ...], list[str]]] = [
    (("run", "--sorce", "x", *PROGRAM), ["--sorce", "--source"]),
    (("run", "-x", *PROGRAM), ["-x", "--help"]),
    (("run", "--quiet=yes", *PROGRAM), ["quiet"]),
    (("run",), ["program", "forebay run [OPTIONS] -- PROGRAM"]),
    (("run", "--"), ["program", "forebay run [OPTIONS] -- PROGRAM"]),
    (("run", "--tier"), ["--tier", "DIR=SIZE"]),
    (("python3", "train.py"), ["python3", "forebay run -- python3"]),
    (("docter",), ["docter", "doctor"]),
    (("clean", "everything"), ["everything", "--help"]),
    (("plan",), ["no file", "forebay plan [OPTIONS] FILE"]),
    (("profile",), ["no directory", "forebay profile [OPTIONS] DIR..."]),
    (("config", "shwo"), ["shwo", "show"]),
    (("run", "--peers", "maybe", *PROGRAM), ["--peers: invalid nodes 'maybe'", "node1,node2"]),
    (("run", "--peers"), ["--peers", "HOW"]),
    (("warm", "--peers-interface"), ["--peers-interface", "NAME"]),
    (("warm",), ["PATH", "--help"]),
    (("warm", "--threads", "0", "source"), ["--threads", "1..=256"]),
    (("warm", "--source", "source", "--tier", "tier=64M", "/etc"), ["/etc", "under no source", "--source DIR"]),
    (("warm", "--source", "source", "--tier", "tier=64M", "source/nowhere"), ["source/nowhere", "does not exist"]),
    (("ls", "--tier", "nowhere"), ["--tier", "nowhere", "not a directory"]),
    (("top", "-n", "0"), ["--interval", "between 0.1 and 3600"]),
    (("top", "-n", "nan"), ["--interval", "between 0.1 and 3600"]),
    (("report", "--ouput", "x.html"), ["--ouput", "--output"]),
    (("report", "one", "two"), ["two", "--help"]),
    (("metrics", "--every", "10"), ["--every", "--write FILE"]),
    (("metrics", "--write", "x.prom", "--every", "0"), ["--every", "between 0.1 and 3600"]),
    (("metrics", "--write", "nowhere/x.prom"), ["--write", "nowhere/x.prom", "name another file"]),
    (("clone",), ["no job", "forebay clone JOB [OPTIONS] -- PROGRAM"]),
    (("clone", "trunk"), ["no program", "forebay clone JOB [OPTIONS] -- PROGRAM"]),
    (("clone", "trunk", "touch", "ran"), ["touch", "--help"]),
    (("clone", "trunk", "--at", "soon", *PROGRAM), ["--at soon", "next", "--at 1200"]),
    (("clone", "trunk", "--at=-1", *PROGRAM), ["--at -1", "next", "--at 1200"]),
    (("clone", "trunk", "--verify", "shadow", *PROGRAM), ["--verify shadow", "digest", "--verify shadow:3"]),
    (("clone", "trunk", "--set", "lr", *PROGRAM), ["--set lr", "NAME=VALUE"]),
    (("clone", "trunk", "--set", "lr=fast", *PROGRAM), ["--set lr=fast", "number"]),
    (("clone", "trunk", "--set", "seed=1.5", *PROGRAM), ["--set seed=1.5", "whole number"]),
    (("clone", "trunk", "--sets", "lr=1", *PROGRAM), ["--sets", "--set"]),
    (("clone", "trunk", *PROGRAM), ["no job 'trunk'", "forebay.clone.session"]),
    (("clone", "ls", "trunk"), ["trunk", "--help"]),
    (("completion",), ["SHELL", "--help"]),
    (("completion", "tsch"), ["tsch", "bash, elvish, fish, powershell, zsh"]),
    (("man", "nowhere"), ["nowhere", "that you can write"]),
]

SIZES = ["", "G", "200", "200X", "-5G", "1.G", "80%", "0G", "99999999P"]

TIERS: list[tuple[str, list[str]]] = [
    ("tier", ["tier", "has no size", "tier=200G"]),
    ("=64M", ["=64M", "DIR=SIZE"]),
    ("nowhere=64M", ["/nowhere", "does not exist", "mkdir -p"]),
    ("source/file=64M", ["source/file", "is not a directory"]),
    ("source=64M", ["/source", "is the source itself", "local disk"]),
    ("source/inside=64M", ["source/inside", "inside the source", "local disk"]),
    ("source/nowhere=64M", ["source/nowhere", "inside the source", "local disk"]),
    ("link=64M", ["/link", "is the source itself", "local disk"]),
    ("/proc=64M", ["/proc", "holds no files", "local disk"]),
    ("open=64M", ["/open", "everybody", "chmod +t"]),
]

SOURCES: list[tuple[str, list[str]]] = [
    ("nowhere", ["/nowhere", "does not exist", "mounted"]),
    ("source/file", ["source/file", "not a directory"]),
    ("/", ["root of everything", "below it"]),
]

FRESHNESS = ["", "ttl", "ttl=", "ttl=0", "ttl=-1", "ttl=1.5", "ttl=soon", "ttl=99999999999", "always", "Immutable"]

VARIABLES: list[tuple[dict[str, str], list[str]]] = [
    ({"FOREBAY": "of"}, ["$FOREBAY", "'of'", "on nor off"]),
    ({"FOREBAY_KEEP": "maybe"}, ["$FOREBAY_KEEP", "maybe"]),
    ({"FOREBAY_SOURCE": "nowhere"}, ["$FOREBAY_SOURCE", "nowhere"]),
    ({"FOREBAY_TIER": "tier"}, ["$FOREBAY_TIER", "tier=200G"]),
    ({"FOREBAY_RAM": "16"}, ["$FOREBAY_RAM", "'16'", "200G or 1.5TiB"]),
    ({"FOREBAY_POLICY": "mru"}, ["$FOREBAY_POLICY", "'mru'", "fill_first, lru or lru=SECONDS"]),
    ({"FOREBAY_EXCLUDE": "ok:a[b"}, ["$FOREBAY_EXCLUDE", "'a[b'", "without its ]"]),
    ({"FOREBAY_FRESHNESS": "often"}, ["$FOREBAY_FRESHNESS", "often", "ttl=SECONDS"]),
    ({"FOREBAY_CONFIG": "/nowhere/config.toml"}, ["$FOREBAY_CONFIG", "/nowhere/config.toml", "unset"]),
    ({"FOREBAY_SITE_CONFIG": "/nowhere/site.toml"}, ["$FOREBAY_SITE_CONFIG", "/nowhere/site.toml", "unset"]),
    ({"FOREBAY_PRELOAD": "/nowhere/lib.so"}, ["$FOREBAY_PRELOAD", "/nowhere/lib.so", "unset"]),
    ({"FOREBAY_RUNTIME_DIR": "/" + "x" * 90}, ["77 bytes", "FOREBAY_RUNTIME_DIR"]),
]


def named(line: str, names: list[str]) -> None:
    assert re.search(".*".join(map(re.escape, names)), line), line


@pytest.mark.parametrize(("words", "names"), COMMAND_LINES, ids=lambda value: " ".join(value))
def test_command_lines(desk: Desk, words: tuple[str, ...], names: list[str]) -> None:
    named(desk.refuse(*words), names)


@pytest.mark.parametrize("size", SIZES)
def test_sizes_without_meaning(desk: Desk, size: str) -> None:
    named(desk.refuse("run", "--tier", f"tier={size}", *PROGRAM), ["--tier", f"tier={size}", "200G or 1.5TiB"])


@pytest.mark.parametrize("size", SIZES)
def test_f13_ram_without_meaning(desk: Desk, size: str) -> None:
    named(desk.refuse(*RUN, f"--ram={size}", *PROGRAM), ["--ram"] if not size else ["--ram", size, "200G or 1.5TiB"])


def test_f13_ram_that_can_not_be(desk: Desk) -> None:
    on_disk = {"FOREBAY_RUNTIME_DIR": "/var/tmp/forebay-nowhere"}  # noqa: S108
    names = ["--ram: /var/tmp/forebay-nowhere is on ", "not in memory", "FOREBAY_RUNTIME_DIR", str(MEMORY)]
    named(desk.refuse(*RUN, "--ram", "1M", *PROGRAM, env=on_disk), names)
    in_memory = {"FOREBAY_RUNTIME_DIR": str(MEMORY / desk.root.name)}
    named(desk.refuse(*RUN, "--ram", "1000T", *PROGRAM, env=in_memory), ["--ram: 1000 TiB do not fit into", "give less"])
    tiers = []
    for number in range(8):
        (desk.root / f"t{number}").mkdir()
        tiers += ["--tier", f"t{number}=1M"]
    named(desk.refuse("run", "--source", "source", *tiers, "--ram", "1M", *PROGRAM, env=in_memory), ["--ram: with RAM", "9 tiers", "8"])


@pytest.mark.parametrize(("tier", "names"), TIERS, ids=[tier for tier, _ in TIERS])
def test_tiers(desk: Desk, tier: str, names: list[str]) -> None:
    (desk.source / "inside").mkdir()
    (desk.root / "link").symlink_to("source")
    (desk.root / "open").mkdir()
    (desk.root / "open").chmod(0o777)
    named(desk.refuse("run", "--source", "source", "--tier", tier, *PROGRAM), ["--tier", *names])


def test_a_tier_among_its_own_copies(desk: Desk) -> None:
    inside = desk.tier / f"forebay-{os.geteuid()}" / "data"
    inside.mkdir(parents=True)
    named(desk.refuse("run", "--source", inside, "--tier", "tier=64M", *PROGRAM), ["/tier", "among its copies"])


def test_a_tier_twice(desk: Desk) -> None:
    named(desk.refuse("run", "--source", "source", "--tier", "tier=1M", "--tier", "./tier/=2M", *PROGRAM), ["/tier", "twice"])


def test_too_many_tiers(desk: Desk) -> None:
    words = [word for number in range(9) for word in ("--tier", f"t{number}=1M")]
    named(desk.refuse("run", "--source", "source", *words, *PROGRAM), ["9 tiers", "8"])


def test_a_tier_that_cannot_be_written(desk: Desk) -> None:
    if os.geteuid() == 0:
        desk.root.chmod(0o755)
        done = desk.type("run", "--source", "source", "--tier", "tier=64M", *PROGRAM, uid=support.NOBODY, env={"HOME": "/nonexistent"})
        assert done.returncode == 2
        line = done.stderr
    else:
        desk.tier.chmod(0o500)
        line = desk.refuse(*RUN, *PROGRAM)
    named(line, ["--tier", "/tier", "Permission denied", "that you can write"])


def test_f13_a_tier_in_memory_beyond_the_limit(desk: Desk) -> None:
    named(desk.refuse("run", "--source", "source", "--tier", f"{MEMORY}=1000T", *PROGRAM), ["in memory", "memory", "less"])


def test_f13_a_tier_in_memory_is_told(desk: Desk) -> None:
    place = MEMORY / desk.root.name
    place.mkdir()
    try:
        done = desk.type("run", "--source", "source", "--tier", f"{place}=1M", "--", "true")
        assert done.returncode == 0
        assert "count against this job's memory" in done.stderr
        desk.type("clean", "--tier", place)
    finally:
        place.rmdir()


@pytest.mark.parametrize(("source", "names"), SOURCES, ids=[source for source, _ in SOURCES])
def test_sources(desk: Desk, source: str, names: list[str]) -> None:
    named(desk.refuse("run", "--source", source, "--tier", "tier=64M", *PROGRAM), ["--source", *names])


@pytest.mark.parametrize("policy", ["LRU", "lru=", "lru=0", "lru=-1", "lru=1.5", "lru=soon", "fill_first=1", "fifo"])
def test_policies(desk: Desk, policy: str) -> None:
    named(desk.refuse(*RUN, "--policy", policy, *PROGRAM), ["--policy", "fill_first, lru or lru=SECONDS"])


@pytest.mark.parametrize("order", ["fastest", "Speed", "", "speed=1", "given,speed"])
def test_orders_of_tiers(desk: Desk, order: str) -> None:
    named(desk.refuse(*RUN, f"--tier-order={order}", *PROGRAM), ["--tier-order", "" if not order else "write given or speed"])


@pytest.mark.parametrize("prefetch", ["on", "Idle", "", "idle=1", "always"])
def test_prefetch(desk: Desk, prefetch: str) -> None:
    named(desk.refuse(*RUN, f"--prefetch={prefetch}", *PROGRAM), ["--prefetch", "" if not prefetch else "write auto, follow, file or idle"])


@pytest.mark.parametrize("pattern", ["", "/", "[a", "a/../b", "./a", "a\\", "[\u00e9]", "x" * 4096])
def test_patterns_without_meaning(desk: Desk, pattern: str) -> None:
    line = desk.refuse(*RUN, "--exclude", pattern, *PROGRAM)
    named(line, ["--exclude: pattern", "; "])


def test_too_many_patterns(desk: Desk) -> None:
    line = desk.refuse(*RUN, *(word for _ in range(40) for word in ("--exclude", "x" * 110)), *PROGRAM)
    named(line, ["--exclude", "4440 bytes", "4096"])


@pytest.mark.parametrize("freshness", FRESHNESS)
def test_freshness(desk: Desk, freshness: str) -> None:
    line = desk.refuse(*RUN, "--freshness", freshness, *PROGRAM)
    named(line, ["--freshness"] if not freshness else ["--freshness", "ttl=SECONDS, immutable or on_open"])


@pytest.mark.parametrize(("variables", "names"), VARIABLES, ids=[next(iter(variables)) for variables, _ in VARIABLES])
def test_the_environment(desk: Desk, variables: dict[str, str], names: list[str]) -> None:
    given = [] if "FOREBAY_SOURCE" in variables else ["--source", "source"]
    given += [] if "FOREBAY_TIER" in variables else ["--tier", "tier=64M"]
    named(desk.refuse("run", *given, *PROGRAM, env=variables), names)


def test_a_library_that_is_none(desk: Desk) -> None:
    other = desk.root / "other.so"
    other.write_text("no library")
    named(desk.refuse(*RUN, *PROGRAM, env={"FOREBAY_PRELOAD": str(other)}), [str(other), "not a library", "install"])


@pytest.mark.parametrize(
    ("record", "names"), [("/nowhere/x.json", ["/nowhere", "mkdir -p /nowhere"]), ("tier", ["/tier", "is a directory", "file"])]
)
def test_a_record_that_cannot_be_written(desk: Desk, record: str, names: list[str]) -> None:
    named(desk.refuse(*RUN, "--record", record, *PROGRAM), ["--record", *names])


@pytest.mark.parametrize("squatted", ["a link", "open to others", "a file"])
def test_s2_a_runtime_directory_that_others_prepared(desk: Desk, squatted: str) -> None:
    place = desk.root / "squatted"
    if squatted == "a link":
        place.symlink_to(desk.home)
    elif squatted == "a file":
        place.write_text("")
    else:
        place.mkdir()
        place.chmod(0o777)
    named(desk.refuse(*RUN, *PROGRAM, env={"FOREBAY_RUNTIME_DIR": str(place)}), [str(place), "FOREBAY_RUNTIME_DIR"])


def test_s2_a_state_directory_that_is_a_file(desk: Desk) -> None:
    place = desk.root / "state"
    place.touch()
    message = desk.refuse(*RUN, *PROGRAM, env={"FOREBAY_STATE_DIR": str(place)})
    named(message, [str(place), "remove it, or set FOREBAY_STATE_DIR to a directory of yours"])


def test_a_tier_that_another_agent_uses(desk: Desk) -> None:
    other = desk.root / "other"
    other.mkdir()
    inner = ["run", "--source", "source", "--tier", "tier=64M", "--tier", f"{other}=1M", "--", "touch", "ran"]
    done = desk.run("-q", "--", "sh", "-c", '"$0" "$@"', support.command(), *inner)
    assert done.returncode == 2
    named(done.stderr, ["forebay: ", "in use"])
    assert not (desk.root / "ran").exists()


def test_names_that_are_hard_to_print_make_one_line(desk: Desk) -> None:
    desk.refuse("run", "--source", "no\nwhere", *PROGRAM)


def test_a_command_without_its_library(desk: Desk) -> None:
    alone = desk.root / "forebay"
    shutil.copy(support.command(), alone)
    words = [str(alone), *RUN, *PROGRAM]
    done = subprocess.run(words, cwd=desk.root, env=desk.environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    named(done.stderr, ["libforebay_preload.so", "install forebay again"])
    assert not (desk.root / "ran").exists()
