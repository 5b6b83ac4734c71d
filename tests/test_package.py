"""The wheel, installed into an empty virtual environment, is whole.

Command, library, Python package, bill of materials.
"""

import json
import os
import re
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

ROOT = Path(__file__).parents[1]
UV = ROOT / "scripts/uv.sh"
LIBRARY = "lib/forebay/libforebay_preload.so"


@dataclass(frozen=True)
class Installed:
    """A wheel and the virtual environment that holds it and nothing else."""

    wheel: Path
    prefix: Path

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        """Runs a program of the environment as a user would who has never heard of this repository."""
        state = self.prefix.parent / "state"
        env = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY")} | {"XDG_STATE_HOME": str(state)}
        program = self.prefix / "bin" / command[0]
        return subprocess.run([program, *command[1:]], cwd=self.prefix, env=env, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Installs as the Makefile does, into an empty environment."""
    place = tmp_path_factory.mktemp("package")
    for arguments in (["build", "--wheel", "--out-dir", str(place)], ["venv", "--python", sys.executable, str(place / "venv")]):
        subprocess.run([UV, "--quiet", *arguments], cwd=ROOT, check=True)
    (wheel,) = place.glob("forebay-*.whl")
    install = ["pip", "install", "--python", str(place / "venv/bin/python"), "--no-index", str(wheel)]
    subprocess.run([UV, "--quiet", *install], cwd=ROOT, check=True)
    return Installed(wheel, place / "venv")


def workspace_version() -> str:
    found = re.search(r'^\[workspace\.package\]\nversion = "(.+)"$', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)
    assert found
    return found[1]


def test_one_version_everywhere(installed: Installed) -> None:
    version = workspace_version()
    assert installed.wheel.name.startswith(f"forebay-{version}-cp311-abi3-")
    assert installed.run("forebay", "--version").stdout == f"forebay {version}\n"
    assert installed.run("python", "-m", "forebay", "--version").stdout == f"forebay {version}\n"
    assert installed.run("python", "-c", "import forebay; print(forebay.__version__)").stdout == f"{version}\n"


def test_the_wheel_holds_its_parts_and_no_more(installed: Installed) -> None:
    with zipfile.ZipFile(installed.wheel) as wheel:
        names = {re.sub(r"^forebay-[^/]+\.", "", name) for name in wheel.namelist()}
        metadata = next(wheel.read(name).decode() for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    manual = {name for name in names if name.startswith("data/data/share/man/man1/forebay")}
    assert {"data/data/share/man/man1/forebay.1", "data/data/share/man/man1/forebay-run.1"} <= manual
    assert {name for name in names - manual if not name.startswith("dist-info/")} == {
        "forebay/__init__.py",
        "forebay/__main__.py",
        "forebay/_core.abi3.so",
        "forebay/_core.pyi",
        "forebay/_first_step.py",
        "forebay/_launcher.py",
        "forebay/_run_events.py",
        "forebay/_off.py",
        "forebay/_say.py",
        *(
            f"forebay/{part}/{path.name}"
            for part in ("clone", "keras", "loader", "torch")
            for path in (ROOT / "python/forebay" / part).glob("*.py")
        ),
        "forebay/accelerate.py",
        "forebay/dali.py",
        "forebay/datasets.py",
        "forebay/lightning.py",
        "forebay/preprocess.py",
        "forebay/py.typed",
        "forebay/transformers.py",
        f"data/data/{LIBRARY}",
        "data/data/lib/forebay/libforebay_audit.so",
        "data/data/share/bash-completion/completions/forebay",
        "data/data/share/fish/vendor_completions.d/forebay.fish",
        "data/data/share/zsh/site-functions/_forebay",
        "data/scripts/forebay",
    }
    assert {"dist-info/licenses/LICENSE", "dist-info/licenses/licenses/libjpeg-turbo.md"} <= names
    assert "Requires-Dist" not in metadata


def test_python_knows_where_the_parts_lie(installed: Installed) -> None:
    told = installed.run("python", "-c", "import forebay; print(forebay.command(), forebay.preload_library())").stdout.split()
    assert told == [str(installed.prefix / "bin/forebay"), str(installed.prefix / LIBRARY)]


def test_the_command_finds_its_library(installed: Installed, tmp_path: Path) -> None:
    source, tier = tmp_path / "source", tmp_path / "tier"
    source.mkdir()
    tier.mkdir()
    run = installed.run("forebay", "run", "--quiet", "--source", source, "--tier", f"{tier}=1M", "--", "printenv", "LD_PRELOAD")
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.strip().split(":")[-1] == str(installed.prefix / LIBRARY)


def test_programs_run_by_it(installed: Installed, tmp_path: Path) -> None:
    """Without options, whatever file systems this machine has; and with a source."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source/file").write_text("from the source\n")
    (tmp_path / "tier").mkdir()
    alone = installed.run("forebay", "run", "--tier", f"{tmp_path / 'tier'}=1M", "--", "true")
    assert alone.returncode == 0, alone.stderr
    where: list[str | Path] = ["--source", tmp_path / "source", "--tier", f"{tmp_path / 'tier'}=1M"]
    served = installed.run("forebay", "run", *where, "--", "cat", tmp_path / "source/file")
    assert (served.returncode, served.stdout) == (0, "from the source\n")
    assert "1 open under the sources" in served.stderr
    assert installed.run("forebay", "clean", "--tier", tmp_path / "tier").returncode == 0


def bill_of_materials(installed: Installed) -> tuple[str, dict[str, Any]]:
    """The wheel's only one, as text and as what it says."""
    (file,) = installed.prefix.glob("lib/python*/site-packages/forebay-*.dist-info/sboms/*")
    assert file.name == "forebay.cdx.json"
    text = file.read_text()
    return text, json.loads(text)


def test_s11_its_bill_of_materials_is_one(installed: Installed) -> None:
    text, bill = bill_of_materials(installed)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    wheel = bill["metadata"]["component"]
    assert wheel["purl"] == f"pkg:pypi/forebay@{workspace_version()}"
    (parts,) = (entry["dependsOn"] for entry in bill["dependencies"] if entry["ref"] == wheel["bom-ref"])
    crates = ("forebay-audit", "forebay-cli", "forebay-preload", "forebay-python")
    assert sorted(parts) == [f"{name}@{workspace_version()}" for name in crates]
    # Whoever takes one up follows references: each leads to a component.
    names = {component["bom-ref"] for component in bill["components"]} | {wheel["bom-ref"]}
    assert {ref for entry in bill["dependencies"] for ref in (entry["ref"], *entry.get("dependsOn", []))} == names
    assert not re.search(r"file:|/home/|/root/|" + re.escape(str(ROOT)), text), "it tells of the machine that made it"


def test_s11_crates_in_the_bill_are_those_of_the_lock_file(installed: Installed) -> None:
    _, bill = bill_of_materials(installed)
    lock = (ROOT / "Cargo.lock").read_text()
    for component in bill["components"]:
        name, version = component["name"], component["version"]
        if name == "rust-std":
            assert subprocess.run(["rustc", "--version"], capture_output=True, text=True, check=True).stdout.startswith(f"rustc {version} ")
        elif "hashes" in component:
            (checksum,) = (digest["content"] for digest in component["hashes"])
            entry = re.escape(f'name = "{name}"\nversion = "{version}"\nsource = "registry+')
            assert re.search(entry + f'[^"]+"\nchecksum = "{checksum}"', lock), component["bom-ref"]
            assert PackageURL.from_string(component["purl"]) == PackageURL("cargo", None, name, version)
        elif name == "libjpeg-turbo":
            # Brought by a crate, whose checksum is that of its sources, too.
            (brought_by,) = (entry["ref"] for entry in bill["dependencies"] if component["bom-ref"] in entry.get("dependsOn", []))
            assert re.match(r"turbojpeg-sys@", brought_by), brought_by
            assert re.fullmatch(r"3\.\d+\.\d+", version), version
        else:
            assert name.startswith("forebay-"), name
            assert version == workspace_version()
        assert component["licenses"], name


def linked_crates(binary: Path) -> set[tuple[str, str]]:
    """Names and versions of the crates from a registry whose lines the debugging information of a binary knows."""
    paths = re.findall(rb"registry/src/[^/\0]+/([\w-]+?)-(\d+\.\d+\.\d+[\w.+-]*)/", binary.read_bytes())
    return {(name.decode(), version.decode()) for name, version in paths}


def test_s11_the_bill_names_every_crate_that_is_linked(installed: Installed) -> None:
    """Held against the binaries themselves, which were not asked when it was written."""
    _, bill = bill_of_materials(installed)
    required = {(component["name"], component["version"]) for component in bill["components"] if component["scope"] == "required"}
    (native,) = installed.prefix.glob("lib/python*/site-packages/forebay/_core*.so")
    found = {part: linked_crates(part) for part in (installed.prefix / "bin/forebay", installed.prefix / LIBRARY, native)}
    assert {"clap_builder", "serde_json", "blake3"} <= {name for name, _ in found[installed.prefix / "bin/forebay"]}
    for part, crates in found.items():
        assert crates <= required, part
    # Of what only ran while it was built, nothing is linked.
    excluded = {(component["name"], component["version"]) for component in bill["components"] if component["scope"] == "excluded"}
    assert {"serde_derive", "clap_derive"} <= {name for name, _ in excluded}


def glibc_floor(binary: Path) -> tuple[int, ...]:
    """The oldest glibc that has all that a binary asks for; what it can do without (weak) does not count."""
    symbols = subprocess.run(["objdump", "-T", binary], capture_output=True, text=True, check=True).stdout
    needed = [line for line in symbols.splitlines() if "*UND*" in line and not re.search(r"^\w+ +w ", line)]
    return max(tuple(map(int, found.split("."))) for found in re.findall(r"\(GLIBC_([\d.]+)\)", "\n".join(needed)))


def test_it_runs_on_every_glibc_that_the_readme_names(installed: Installed) -> None:
    assert "-linux_" in installed.wheel.name, "its name promises no glibc"
    stated = re.search(r"glibc (\d+)\.(\d+) or later", (ROOT / "README.md").read_text())
    assert stated
    (native,) = installed.prefix.glob("lib/python*/site-packages/forebay/_core*.so")
    for part in ("bin/forebay", LIBRARY, native):
        assert (2, 2) < glibc_floor(installed.prefix / part) <= tuple(map(int, stated.groups())), part


def test_a_lost_library_is_named_before_anything_runs(installed: Installed, tmp_path: Path) -> None:
    library, aside = installed.prefix / LIBRARY, tmp_path / "aside"
    (tmp_path / "source").mkdir()
    library.rename(aside)
    try:
        run = installed.run("forebay", "run", "--source", tmp_path / "source", "--", "touch", tmp_path / "ran")
    finally:
        aside.rename(library)
    assert run.returncode == 2
    assert "libforebay_preload.so" in run.stderr
    assert not (tmp_path / "ran").exists()
