"""F24: other libraries that are preloaded, or patch tables, or must come first.

In any order each does its work, and so does the preload library.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.preload.covered import CoveredSource
from tests.support import Ran, Word

pytest_plugins = ["tests.preload.fixtures"]

# An allocator; what swallows fsync, and hooks open for that; what hooks open, read and kin to make them fail on
# request.
PACKAGED = {"libjemalloc.so.2": "libjemalloc2", "libeatmydata.so": "libeatmydata1", "fiu_posix_preload.so": "fiu-utils"}
CLOCK = {"libfaketime.so.1": "libfaketime"}
ORDERS = {"before the preload library": "$1:$LD_PRELOAD", "after the preload library": "$LD_PRELOAD:$1"}
SANITIZERS = ["address", "undefined", "address,undefined"]

order = pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
READS = 100  # by each way, in beside.c


def packaged(name: str) -> Path:
    found = [path for pattern in ("lib*/*", "lib*/*/*", "lib*", "lib*/*/*/*") for path in Path("/usr").glob(f"{pattern}/{name}")]
    return found[0] if found else pytest.skip(f"no {name} here: apt-get install {(PACKAGED | CLOCK)[name]}")


def beside(covered: CoveredSource, other: Word, order: str, **env: str) -> Ran:
    """Runs a program that checks each answer, with `other` preloaded too."""
    program = covered.compile("beside")
    ran = covered.run("sh", "-c", f'LD_PRELOAD="{order}" exec "$2"', "sh", other, program, env=env)
    assert (ran.status, ran.out) == (0, b"well\n"), ran.err.decode()
    assert ran.hits >= 4 * READS
    return ran


@order
@pytest.mark.parametrize("name", PACKAGED)
def test_f24_libraries_that_others_made(covered: CoveredSource, name: str, order: str) -> None:
    beside(covered, packaged(name), order)


@order
def test_f24_all_of_them_at_once(covered: CoveredSource, order: str) -> None:
    beside(covered, ":".join(str(packaged(name)) for name in PACKAGED), order)


@order
@pytest.mark.parametrize("offset", ["-1y", "+1y"])
def test_f24_another_time_makes_no_copy_older_or_younger(covered: CoveredSource, order: str, offset: str) -> None:
    """How long a copy may stand in goes by the machine's clock, whatever clock the program believes in."""
    script = f'LD_PRELOAD="{order}" FAKETIME={offset} exec "$2" f1'
    ran = covered.run("sh", "-c", script, "sh", packaged("libfaketime.so.1"), covered.compile("beside"), freshness="ttl=60")
    assert (ran.status, ran.out) == (0, b"well\n"), ran.err.decode()
    assert ran.hits >= 1


@order
@pytest.mark.parametrize("binding", [{}, {"LD_BIND_NOW": "1"}], ids=["lazy", "at once"])
def test_f24_a_tracer_that_stands_before_open(covered: CoveredSource, tmp_path: Path, order: str, binding: dict[str, str]) -> None:
    """Before the preload library it sees every call; after it, those that go on to the system."""
    mark = tmp_path / "mark"
    beside(covered, covered.compile("tracer", "-shared", "-fPIC", "-ldl"), order, TRACER_MARK=str(mark), **binding)
    opens, fopens, stats = map(int, mark.read_text().split())
    assert stats >= READS
    if order == ORDERS["before the preload library"]:
        assert opens > READS
        assert fopens >= READS
    else:
        assert opens >= 1


@order
@pytest.mark.parametrize("linking", ["-Wl,-z,lazy", "-Wl,-z,now"])
def test_f24_a_tracer_that_patches_the_programs_table(covered: CoveredSource, tmp_path: Path, order: str, linking: str) -> None:
    mark, program = tmp_path / "mark", covered.compile("beside", linking)
    patcher = covered.compile("patcher", "-shared", "-fPIC", "-ldl")
    ran = covered.run("sh", "-c", f'LD_PRELOAD="{order}" exec "$2"', "sh", patcher, program, env={"TRACER_MARK": str(mark)})
    assert (ran.status, ran.out) == (0, b"well\n"), ran.err.decode()
    assert int(mark.read_text().split()[0]) > READS
    assert ran.hits >= 4 * READS


@pytest.mark.parametrize("words", [["eatmydata"], ["fakeroot"], ["fiu-run", "-x"]], ids=" ".join)
def test_f24_in_front_of_forebay_run(covered: CoveredSource, words: list[str]) -> None:
    """Libraries that such a command preloads come before ours, and are kept."""
    wrapper = shutil.which(words[0]) or pytest.skip(f"no {words[0]} here")
    place, program = covered.place, covered.compile("beside")
    environment = {**place.environment(), "COVERED_TIER": str(covered.tier)}
    for what, said in ([program], "well\n"), (["printenv", "LD_PRELOAD"], "libforebay_preload.so\n"):
        record = place.record_path()
        done = subprocess.run(
            [wrapper, *words[1:], *place.words(what, record, freshness="immutable")],
            env=environment,
            cwd=covered.source,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout.endswith(said)) == (0, True), done.stdout + done.stderr
    first = done.stdout.replace(" ", ":").split(":")[0]
    assert any(name in first for name in ("eatmydata", "fakeroot", "fiu")), done.stdout


@pytest.mark.parametrize(("words", "is_covered"), [(["eatmydata"], True), (["fakeroot"], True), (["fiu-run", "-x"], False)])
def test_f24_started_by_forebay_run(covered: CoveredSource, words: list[str], is_covered: bool) -> None:
    """fiu-run drops what was preloaded before: its program runs as it would without the preload library."""
    if not shutil.which(words[0]):
        pytest.skip(f"no {words[0]} here")
    ran = covered.run(*words, covered.compile("plain"), "f1", "f2", check=True)
    assert ran.out == b"file 1\nfile 2\n"
    assert (ran.hits >= 2) == is_covered, ran.record


@pytest.mark.parametrize("kinds", SANITIZERS)
@pytest.mark.parametrize("starter", [[], ["sh", "-c", '"$0"']], ids=["itself", "by a shell"])
def test_f24_programs_with_sanitizers(covered: CoveredSource, kinds: str, starter: list[str]) -> None:
    """AddressSanitizer refuses to come after another library, unless it is told that it may."""
    ran = covered.run(*starter, covered.compile("beside", f"-fsanitize={kinds}"))
    assert (ran.status, ran.out) == (0, b"well\n"), ran.err.decode()
    assert ran.hits >= 4 * READS


@order
def test_f24_the_address_sanitizer_preloaded(covered: CoveredSource, order: str) -> None:
    """As one does for a module of an interpreter."""
    said = subprocess.run(["cc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True).stdout.strip()
    beside(covered, Path(said).resolve(), order)


def test_f24_the_address_sanitizer_finds_what_it_finds(covered: CoveredSource) -> None:
    program = covered.compile("overflow", "-fsanitize=address")
    alone = subprocess.run([program], env={"ASAN_OPTIONS": "exitcode=33"}, capture_output=True, check=False)
    ran = covered.run(program, env={"ASAN_OPTIONS": "exitcode=33"})
    assert ran.status == alone.returncode == 33, ran.err.decode()
    assert b"heap-buffer-overflow" in ran.err
    assert b"heap-buffer-overflow" in alone.stderr


def test_f24_what_the_user_says_of_the_order_stands(covered: CoveredSource) -> None:
    program = covered.compile("overflow", "-fsanitize=address")
    ran = covered.run(program, env={"ASAN_OPTIONS": "exitcode=33:verify_asan_link_order=1"})
    assert b"ASan runtime does not come first" in ran.err
