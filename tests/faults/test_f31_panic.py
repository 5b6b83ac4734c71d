"""F31: no panic path is left in the library: the link fails if there is one."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests import support


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which what the library depends on is compiled once."""
    return tmp_path_factory.mktemp("target")


@pytest.mark.parametrize(("line", "links"), [("let byte = bytes.get(at).copied().unwrap_or(0);", True), ("let byte = bytes[at];", False)])
def test_f31_a_panic_path_fails_the_link(tmp_path: Path, target: Path, line: str, links: bool) -> None:
    """The library as it is, with one more function.

    With a checked access it links, with one that may panic it does not.
    """
    crates = support.ROOT / "crates"
    shutil.copytree(crates / "preload", tmp_path / "preload")
    body = f'let bytes = env!("PATH").as_bytes(); {line} byte'
    added = f'#[unsafe(no_mangle)] extern "C" fn added(at: usize) -> u8 {{ {body} }}\n'
    lib = tmp_path / "preload/src/lib.rs"
    lib.write_text(lib.read_text() + added)
    root = (support.ROOT / "Cargo.toml").read_text()
    root = re.sub(r"^(default-)?members = .*$", "", root, flags=re.MULTILINE).replace("[workspace]", '[workspace]\nmembers = ["preload"]')
    (tmp_path / "Cargo.toml").write_text(root.replace('path = "crates/', f'path = "{crates}/'))
    shutil.copy(support.ROOT / "Cargo.lock", tmp_path)
    build = subprocess.run(
        ["cargo", "build", "--offline", "--quiet", "--profile", "preload", "-p", "forebay-preload", "--target-dir", target],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (build.returncode == 0) == links, build.stderr
    assert links or "forebay_preload_has_a_panic_path" in build.stderr
