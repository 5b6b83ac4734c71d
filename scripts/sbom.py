"""sbom.py OUT: writes the components of the wheel, as a CycloneDX bill of materials.

Cargo knows it: which crates are linked into each part of the wheel for this machine's kind, and which only ran while it
was built (build scripts, macros). Those have the scope "excluded". The document says nothing of the machine that it was
made on, and is the same for the same sources where SOURCE_DATE_EPOCH is set.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

ROOT = Path(__file__).parents[1]
# The crates whose binaries are in the wheel.
PARTS = {
    "forebay-cli": ComponentType.APPLICATION,
    "forebay-preload": ComponentType.LIBRARY,
    "forebay-audit": ComponentType.LIBRARY,
    "forebay-python": ComponentType.LIBRARY,
}
# The crate that brings the sources of libjpeg-turbo, in a directory of that name.
LIBJPEG_CRATE = "turbojpeg-sys"
# A line of cargo tree: depth, name, version; its path and a mark of repetition follow.
LINE = re.compile(r"(\d+)(\S+) v(\S+)")

Crate = tuple[str, str]


@dataclass
class Tree:
    """Crates, each with those that it uses."""

    uses: dict[Crate, set[Crate]] = field(default_factory=dict)

    def add(self, lines: Iterable[str]) -> None:
        """Adds the crates that `cargo tree --prefix depth` prints."""
        above: list[Crate] = []
        for depth, name, version in (found.groups() for found in map(LINE.match, lines) if found):
            crate = (name, version)
            self.uses.setdefault(crate, set())
            del above[int(depth) :]
            if above:
                self.uses[above[-1]].add(crate)
            above.append(crate)


def output(*words: str) -> str:
    """Returns a command's output."""
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def rustc() -> dict[str, str]:
    """Returns the compiler's own facts: `host` and `release` among them."""
    return dict(line.split(": ", 1) for line in output("rustc", "-vV").splitlines() if ": " in line)


def trees(host: str) -> tuple[Tree, Tree]:
    """Returns the packages linked into the parts, and those together with the ones that only ran during the build."""
    linked, built = Tree(), Tree()
    for tree, edges in ((linked, "normal,no-proc-macro"), (built, "normal,build")):
        for part in PARTS:
            words = ["cargo", "tree", "--locked", "--package", part, "--target", host, "--edges", edges, "--prefix", "depth"]
            tree.add(output(*words).splitlines())
    return linked, built


def packages(host: str) -> dict[Crate, dict[str, Any]]:
    """Returns the packages of the manifests, by name and version."""
    told = json.loads(output("cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", host))
    return {(package["name"], package["version"]): package for package in told["packages"]}


def checksums(lock: str) -> dict[Crate, str]:
    """Returns the SHA-256 of each crate that Cargo.lock pins by one."""
    found = re.findall(r'^name = "(.+)"\nversion = "(.+)"\nsource = ".+"\nchecksum = "(.+)"$', lock, re.MULTILINE)
    return {(name, version): checksum for name, version, checksum in found}


def component(crate: Crate, package: dict[str, Any], checksum: str | None, is_linked: bool) -> Component:
    """Returns a crate as the bill lists it. Our own are in no registry, and have neither address nor checksum there."""
    name, version = crate
    # The slash is an old way to write it.
    licence = (package["license"] or "").replace("/", " OR ")
    repository = package["repository"]
    return Component(
        name=name,
        version=version,
        bom_ref=f"{name}@{version}",
        type=PARTS.get(name, ComponentType.LIBRARY),
        description=" ".join((package["description"] or "").split()) or None,
        scope=ComponentScope.REQUIRED if is_linked else ComponentScope.EXCLUDED,
        licenses=[LicenseExpression(licence)] if licence else [],
        purl=PackageURL("cargo", None, name, version) if checksum else None,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=checksum)] if checksum else [],
        external_references=[ExternalReference(type=ExternalReferenceType.VCS, url=XsUri(repository))] if checksum and repository else [],
    )


def standard_library(release: str) -> Component:
    """Returns the standard library, which the compiler itself links into each part."""
    return Component(
        name="rust-std",
        version=release,
        bom_ref=f"rust-std@{release}",
        type=ComponentType.LIBRARY,
        description="The Rust standard library",
        scope=ComponentScope.REQUIRED,
        licenses=[LicenseExpression("MIT OR Apache-2.0")],
        purl=PackageURL("generic", None, "rust-std", release),
    )


def libjpeg(manifest: Path) -> Component:
    """Returns the C library that a crate contains, by its own name, under which its known faults are listed."""
    found = re.search(r"^set\(VERSION ([\d.]+)\)$", (manifest.parent / "libjpeg-turbo/CMakeLists.txt").read_text(), re.MULTILINE)
    assert found, "libjpeg-turbo says its version elsewhere now"
    return Component(
        name="libjpeg-turbo",
        version=found[1],
        bom_ref=f"libjpeg-turbo@{found[1]}",
        type=ComponentType.LIBRARY,
        description="JPEG image codec",
        scope=ComponentScope.REQUIRED,
        licenses=[LicenseExpression("IJG AND BSD-3-Clause AND Zlib")],
        purl=PackageURL("github", "libjpeg-turbo", "libjpeg-turbo", found[1]),
    )


def bill() -> Bom:
    """Returns the whole bill of materials."""
    compiler = rustc()
    linked, built = trees(compiler["host"])
    manifests, pinned = packages(compiler["host"]), checksums((ROOT / "Cargo.lock").read_text())
    std = standard_library(compiler["release"])
    listed = {crate: component(crate, manifests[crate], pinned.get(crate), crate in linked.uses) for crate in sorted(built.uses)}
    ((bringing, manifest),) = ((of, Path(manifests[crate]["manifest_path"])) for crate, of in listed.items() if crate[0] == LIBJPEG_CRATE)
    brought = [std, libjpeg(manifest)]
    version = next(version for name, version in listed if name in PARTS)
    wheel = Component(
        name="forebay",
        version=version,
        bom_ref=f"forebay@{version}",
        type=ComponentType.APPLICATION,
        licenses=[LicenseExpression("Apache-2.0")],
        purl=PackageURL("pypi", None, "forebay", version),
    )
    made = Bom(
        components=[*listed.values(), *brought], serial_number=uuid5(NAMESPACE_URL, "\n".join(refs([*listed.values(), *brought, wheel])))
    )
    made.metadata.component = wheel
    made.metadata.timestamp = datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", time.time())), UTC)
    made.register_dependency(wheel, [of for (name, _), of in listed.items() if name in PARTS])
    for crate, uses in built.uses.items():
        also = [std] if crate[0] in PARTS else [brought[-1]] if listed[crate] is bringing else []
        made.register_dependency(listed[crate], [*(listed[used] for used in sorted(uses)), *also])
    return made


def refs(components: Iterable[Component]) -> Iterator[str]:
    """Returns the names of components in the document."""
    return (str(of.bom_ref.value) for of in components)


if __name__ == "__main__":
    out = Path(sys.argv[1])
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(JsonV1Dot6(bill()).output_as_string(indent=1) + "\n")
