"""`--libraries`: shared libraries under a source come from copies, and are otherwise what they were."""

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import Place, in_a_file, library, settle

ON = {"FOREBAY_LIBRARIES": "1"}
INNER = """
#define _GNU_SOURCE
#include <dlfcn.h>
int version(void) { return VERSION; }
const char *inner_name(void) { static Dl_info info; dladdr((void *)inner_name, &info); return info.dli_fname; }
"""
OUTER = """
#define _GNU_SOURCE
#include <dlfcn.h>
int version(void);
static int calls;
int outer_version(void) { return version(); }
int count(void) { return ++calls; }
const char *outer_name(void) { static Dl_info info; dladdr((void *)outer_name, &info); return info.dli_fname; }
"""
# Loads a library by path, and says what it got.
LOAD = """
import ctypes, json, sys
outer = ctypes.CDLL(sys.argv[1])
inner = ctypes.CDLL("libinner.so")
for function in (outer.outer_name, inner.inner_name):
    function.restype = ctypes.c_char_p
maps = [line.split(None, 5)[-1].strip() for line in open("/proc/self/maps") if "/" in line]
again = [ctypes.CDLL(name).count() for name in sys.argv[1:]]
import os
# The loader says nothing of a library that it had already: the next question ends it.
try: ctypes.CDLL("absent.so")
except OSError: pass
places = os.walk(os.environ["FOREBAY_RUNTIME_DIR"])
mirrors = [os.path.join(place, name) for place, _, names in places for name in names if name.endswith(".so")]
told = {"links": mirrors, "descriptors": len(os.listdir("/proc/self/fd")), "version": outer.outer_version(),
        "names": [outer.outer_name().decode(), inner.inner_name().decode()], "maps": sorted(set(maps)), "counts": again}
json.dump(told, sys.stdout)
"""
# Is linked with the library, and loads it once more by path.
LINKED = """
#include <dlfcn.h>
#include <stdio.h>
int count(void);
int main(int argc, char **argv) {
    void *again = dlopen(argv[1], RTLD_NOW);
    int (*counted)(void) = again ? (int (*)(void))dlsym(again, "count") : 0;
    if (!counted) { puts(dlerror()); return 1; }
    count();
    printf("%d\\n", counted());
    return 0;
}
"""


def compiled(out: Path, text: str, *words: str | Path) -> Path:
    out.parent.mkdir(parents=True, exist_ok=True)
    unit = out.with_suffix(".c")
    unit.write_text(text)
    subprocess.run(["cc", "-o", out, unit, *words, "-ldl"], check=True)
    unit.unlink()
    return out


def make_libraries(place: Place, version: int = 1) -> Path:
    """Makes a library that finds another one by `$ORIGIN`."""
    env = place.source / "env"
    inner = compiled(env / "deps/libinner.so", INNER, "-shared", "-fPIC", "-Wl,-soname,libinner.so", f"-DVERSION={version}")
    run_path = "-Wl,-rpath,$ORIGIN/../nowhere:$ORIGIN/../deps,--enable-new-dtags"
    outer = compiled(env / "lib/libouter.so", OUTER, "-shared", "-fPIC", "-Wl,-soname,libouter.so", run_path, inner)
    settle(env / "lib", env / "deps", outer, inner)
    return outer


@pytest.fixture
def libraries(place: Place) -> Path:
    return make_libraries(place)


def loaded(place: Place, *names: Path | str, freshness: str = "immutable") -> dict[str, Any]:
    ran = place.run(sys.executable, "-c", LOAD, *names, environment=ON, freshness=freshness)
    found: dict[str, Any] = json.loads(ran.out)
    return found


def of_source(place: Place, found: dict[str, Any]) -> list[str]:
    return [name for name in found["maps"] if name.startswith(f"{place.source}/")]


def of_tier(place: Place, found: dict[str, Any]) -> list[str]:
    return [name for name in found["maps"] if name.startswith(f"{place.tier}/")]


def warm(place: Place, program: Sequence[str | Path]) -> None:
    place.run(*program, environment=ON)
    place.idle()


def test_a_second_program_maps_copies_and_sees_the_names_of_the_source(place: Place, libraries: Path) -> None:
    with place.worker():
        first = loaded(place, libraries)
        place.idle()
        second = loaded(place, libraries, f"{libraries.parent}/../lib/libouter.so")
    assert len(of_source(place, first)) == 2
    assert of_tier(place, first) == []
    assert of_source(place, second) == [], "nothing is mapped from the source"
    assert len(of_tier(place, second)) == 2
    assert second["names"] == first["names"]
    assert [Path(name).resolve() for name in second["names"]] == [libraries, place.source / "env/deps/libinner.so"]
    assert second["counts"] == [1, 2], "another spelling is the same library"
    assert second["links"] == [], "no link is left"
    assert second["descriptors"] == first["descriptors"], "no descriptor is left"


def test_a_library_that_is_linked_is_loaded_once(place: Place, libraries: Path) -> None:
    """The loader maps it before the preload library has started, so it comes from the source."""
    program = compiled(place.root / "linked", LINKED, libraries, f"-Wl,-rpath,{libraries.parent}:{place.source}/env/deps")
    with place.worker():
        loaded(place, libraries)
        place.idle()
        assert of_source(place, loaded(place, libraries)) == []
        assert place.run(program, libraries, environment=ON).out == b"2\n"


def test_a_library_that_has_changed_is_loaded_as_it_is_now(place: Place, libraries: Path) -> None:
    with place.worker(freshness="on_open"):
        loaded(place, libraries, freshness="on_open")
        place.idle()
        assert loaded(place, libraries, freshness="on_open")["version"] == 1
        # As an installer does: another file under the name.
        for old in (libraries, place.source / "env/deps/libinner.so"):
            old.unlink()
        make_libraries(place, version=2)
        assert loaded(place, libraries, freshness="on_open")["version"] == 2


def test_a_tier_without_executables_is_not_used(place: Place, libraries: Path) -> None:
    with in_a_file(place.tier, place.root / "image", 64 << 20, "mkfs.ext4", "-q", options="loop,noexec"):
        with place.worker():
            loaded(place, libraries)
            place.idle()
            found = loaded(place, libraries)
        place.stop()
    assert found["version"] == 1
    assert len(of_source(place, found)) == 2


def test_what_does_not_load_fails_as_it_would(place: Place, libraries: Path) -> None:
    code = """
import ctypes, sys
for name in sys.argv[1:]:
    try: print(ctypes.CDLL(name))
    except OSError as error: print(error)
"""
    broken = place.source / "broken.so"
    broken.write_bytes(b"no library, but long enough to be looked at\n" * 100)
    settle(broken)
    names: list[str | Path] = [place.source / "absent.so", broken, libraries.parent, "absent.so", "$ORIGIN/absent.so"]
    plain = subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True, check=True).stdout
    with place.worker():
        for _ in range(2):
            assert place.run(sys.executable, "-c", code, *names, environment=ON).out.decode() == plain
            place.idle()


def test_numpy_is_imported_from_copies(place: Place) -> None:
    """Extension modules, and libraries that they find by `$ORIGIN` in a directory beside."""
    site = Path(np.__file__).parents[1]
    for name in ("numpy", "numpy.libs"):
        shutil.copytree(site / name, place.source / name, ignore=shutil.ignore_patterns("tests", "__pycache__"))
    settle(*place.source.rglob("*.so*"), *(path for path in place.source.rglob("*") if path.is_dir()))
    code = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy, json
from numpy._core import _multiarray_umath as module
maps = {line.split(None, 5)[-1].strip() for line in open("/proc/self/maps") if ".so" in line or "objects" in line}
print(json.dumps([float((numpy.ones((40, 40)) @ numpy.ones((40, 40)))[0, 0]), module.__file__, sorted(maps)]))
"""
    program: list[str | Path] = [sys.executable, "-I", "-c", code, place.source]
    with place.worker():
        warm(place, program)
        product, file, maps = json.loads(place.run(*program, environment=ON).out)
    assert product == 40
    assert Path(file).parent == place.source / "numpy/_core"
    assert [name for name in maps if name.startswith(f"{place.source}/")] == []
    assert len([name for name in maps if name.startswith(f"{place.tier}/")]) >= 4


def test_an_allocator_that_is_preloaded_finds_room_for_its_threads(place: Place, libraries: Path) -> None:
    """An audit library leaves little thread-local storage for the libraries that a program starts with."""
    jemalloc = next(Path("/usr/lib").rglob("libjemalloc.so.2"))
    with place.worker():
        environment = {**ON, "LD_PRELOAD": str(jemalloc)}
        assert json.loads(place.run(sys.executable, "-c", LOAD, libraries, environment=environment).out)["version"] == 1


def test_without_the_option_the_source_is_mapped(place: Place, libraries: Path) -> None:
    with place.worker():
        for _ in range(2):
            found = json.loads(place.run(sys.executable, "-c", LOAD, libraries).out)
            assert len(of_source(place, found)) == 2


def test_a_missing_audit_library_is_refused(place: Place, tmp_path: Path) -> None:
    alone = tmp_path / "libforebay_preload.so"
    shutil.copy(library(), alone)
    ran = place.run("true", environment={**ON, "FOREBAY_PRELOAD": str(alone)}, check=False)
    assert ran.status == 2
    assert "libforebay_audit.so" in ran.err.decode()
    assert "install forebay again" in ran.err.decode()
