"""Programs that the preload library can't come into run untouched, and the record says so."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support import Place, settle, warm

C = """
#include <stdio.h>
int main(int n, char **v) {
    FILE *f = fopen(v[1], "rb");
    int c;
    if (!f) return 1;
    while ((c = getc(f)) != EOF) putchar(c);
    return getenv("LD_PRELOAD") == 0;
}
"""
GO = """
package main
import ("io"; "os")
func main() {
    f, err := os.Open(os.Args[1])
    if err != nil { os.Exit(1) }
    io.Copy(os.Stdout, f)
}
"""


def build_c(place: Place, *flags: str) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("needs a C compiler: apt-get install gcc")
    (place.root / "p.c").write_text("#include <stdlib.h>\n" + C)
    program = place.root / "program"
    subprocess.run(["gcc", *flags, "-o", program, place.root / "p.c"], check=True)
    return program


def build_go(place: Place) -> Path:
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin:/usr/lib/go/bin")
    if go is None:
        pytest.skip("needs Go: apt-get install golang-go")
    (place.root / "p.go").write_text(GO)
    program = place.root / "program"
    environment = {**os.environ, "CGO_ENABLED": "0", "GOCACHE": str(place.root / "go"), "GOFLAGS": "-mod=mod", "GO111MODULE": "off"}
    subprocess.run([go, "build", "-o", program, place.root / "p.go"], check=True, env=environment, cwd=place.root)
    return program


@pytest.fixture
def path(place: Place) -> Path:
    """A file that is old enough to be copied."""
    made = place.source / "a"
    made.write_bytes(os.urandom(50_000))
    settle(made)
    return made


@pytest.mark.parametrize("kind", ["static", "static-pie", "go"])
def test_not_covered(place: Place, path: Path, kind: str) -> None:
    program = build_go(place) if kind == "go" else build_c(place, f"-{kind}")
    for _ in range(2):
        ran = place.run(program, path)
        assert ran.out == path.read_bytes()
    assert ran.hits == ran.counters["processes"] == ran.counters["source_opens"] == 0
    (entry,) = ran.record["not_covered"]
    assert Path(entry["program"]).name == "program"
    assert entry["why"]
    assert b"program: " in ran.err, "and says so to whoever runs it"


def test_one_that_is_covered_is_not_in_that_list(place: Place, path: Path) -> None:
    program = build_c(place)
    with place.worker() as worker:
        warm(place, worker, path)
        ran = place.run(program, path)
    assert ran.out == path.read_bytes()
    assert ran.hits == 1
    assert ran.record["not_covered"] == []


def test_a_covered_program_s_uncovered_child_reads_the_source(place: Place, path: Path) -> None:
    program = build_c(place, "-static")
    with place.worker() as worker:
        warm(place, worker, path)
        ran = place.run("sh", "-c", '"$0" "$1" | cat - "$1"', program, path)
    assert ran.out == path.read_bytes() * 2
    assert ran.hits == 1
