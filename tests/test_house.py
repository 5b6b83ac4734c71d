"""The house: crates depend on each other as docs/architecture.md says, and files import each other in no circles."""

import ast
import json
import re
import subprocess
from collections.abc import Collection, Iterable, Iterator
from itertools import takewhile
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
    """Lists arrows of the workspace that the table does not allow, and crates missing from either of the two."""
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
    assert allowed["agent"] == {"policy", "contract", "state", "store", "objects", "peers"}
    assert allowed["state"] == {"contract"}
    assert allowed["settings"] == {"policy", "contract", "store", "objects", "agent"}
    assert allowed["sim"] == allowed["peers"] == {"policy"}
    natively = {"images", "digest", "tensorflow"}
    assert allowed["python"] == {"policy", "contract", "state", "store", "agent", "settings", "objects", "peers", *natively}
    assert allowed["tensorflow"] == {"digest"}
    assert allowed["objects"] == allowed["images"] == allowed["digest"] == set()
    assert allowed["cli"] == {"policy", "contract", "store", "agent", "settings", "sim", "objects"}


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


# Module path within a crate or package -> module paths that its file imports from.
Imports = dict[tuple[str, ...], set[tuple[str, ...]]]

# Crates, and the Python package `forebay`, with import circles over more than two files, and the size of the largest.
# They leave this table when their last circle is gone.
CIRCLES_LEFT: dict[str, int] = {}


def imported_paths(tree: str, prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield each path of a Rust `use` tree, such as `crate::{a::B, c}`."""
    depth, start = 0, 0
    items = []
    for at, char in enumerate(tree + ","):
        depth += {"{": 1, "}": -1}.get(char, 0)
        if char == "," and depth == 0:
            items.append(tree[start:at].strip())
            start = at + 1
    for item in filter(None, items):
        head, brace, rest = item.partition("{")
        names = tuple(name.split(" as ")[0].strip() for name in head.split("::") if name.strip())
        if brace:
            yield from imported_paths(rest[: rest.rindex("}")], prefix + names)
        else:
            yield prefix + names


def imports_of(module: tuple[str, ...], text: str, modules: Collection[tuple[str, ...]]) -> set[tuple[str, ...]]:
    """Return the modules of the same crate that a file imports from; a module's parents and children are left out."""
    text = re.sub(r"//[^\n]*", "", text)
    paths = [path for use in re.findall(r"\buse ((?:crate|super|self)::[^;]+);", text) for path in imported_paths(use)]
    paths += [tuple(path.split("::")) for path in re.findall(r"(?<![\w:])((?:crate|super)(?:::\w+)+)", text)]
    found = set()
    for path in paths:
        base = {"crate": (), "self": module, "super": module}[path[0]]
        ups = len(list(takewhile("super".__eq__, path)))
        target = base[: len(base) - ups] + path[max(ups, 1) :]
        while target not in modules:
            target = target[:-1]
        common = min(len(target), len(module))
        if target[:common] != module[:common]:
            found.add(target)
    return found


def imports_in(crate: Path) -> Imports:
    """Read the imports between all files of a crate."""
    modules: dict[tuple[str, ...], Path] = {}
    for path in (crate / "src").rglob("*.rs"):
        parts = path.relative_to(crate / "src").with_suffix("").parts
        modules[parts[:-1] if parts[-1] in ("lib", "main", "mod") else parts] = path
    return {module: imports_of(module, path.read_text(), modules) for module, path in modules.items()}


def python_targets(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, ...]]:
    """Yield the dotted paths that Python code imports when it runs; those under `TYPE_CHECKING` are for types alone."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((*node.module.split("."), alias.name) for alias in node.names)
        elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            yield from python_targets(node.orelse)
        else:
            yield from python_targets(ast.iter_child_nodes(node))


def python_imports_of(module: tuple[str, ...], text: str, modules: Collection[tuple[str, ...]]) -> set[tuple[str, ...]]:
    """Return the modules of the same package that a Python file imports, also in functions; as `imports_of` does."""
    found = set()
    for target in python_targets([ast.parse(text)]):
        while target and target not in modules:
            target = target[:-1]
        if target and target[: len(module)] != module[: len(target)]:
            found.add(target)
    return found


def python_imports_in(package: Path) -> Imports:
    """Read the imports between all modules of a Python package."""
    modules: dict[tuple[str, ...], Path] = {}
    for path in package.rglob("*.py"):
        parts = path.relative_to(package.parent).with_suffix("").parts
        modules[parts[:-1] if parts[-1] == "__init__" else parts] = path
    return {module: python_imports_of(module, path.read_text(), modules) for module, path in modules.items()}


def circles(imports: Imports) -> list[list[str]]:
    """Return the import circles over more than two files, each as the sorted names of its modules."""
    reached: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
    for module in imports:
        seen: set[tuple[str, ...]] = set()
        left = list(imports[module])
        while left:
            if (target := left.pop()) not in seen:
                seen.add(target)
                left += imports[target]
        reached[module] = seen
    found = {frozenset(other for other in reached[module] if module in reached[other]) for module in imports}
    return sorted(sorted("::".join(module) for module in circle) for circle in found if len(circle) > 2)


@pytest.mark.parametrize("crate", sorted((ROOT / "crates").iterdir()), ids=lambda crate: crate.name)
def test_files_of_a_crate_import_in_one_direction(crate: Path) -> None:
    found = circles(imports_in(crate))
    assert max(map(len, found), default=0) <= CIRCLES_LEFT.get(crate.name, 2), found


def test_modules_of_the_python_package_import_in_one_direction() -> None:
    imports = python_imports_in(ROOT / "python/forebay")
    assert ("forebay", "loader", "source") in imports["forebay", "torch", "_keyed"]
    found = circles(imports)
    assert max(map(len, found), default=0) <= CIRCLES_LEFT.get("forebay", 2), found


def test_a_circle_of_python_imports_is_found() -> None:
    texts = {
        ("p",): "",
        ("p", "one"): "import sys\nfrom p.two import A\nfrom p import host",
        ("p", "two"): "def f():\n    import p.three",
        ("p", "three"): "if TYPE_CHECKING:\n    from p.host import B\nelse:\n    from p import one",
        ("p", "host"): "from p import __version__\nfrom p.host.lock import C",
        ("p", "host", "lock"): "from p import host",
    }
    imports = {module: python_imports_of(module, text, texts) for module, text in texts.items()}
    assert imports["p", "one"] == {("p", "two"), ("p", "host")}
    assert circles(imports) == [["p::one", "p::three", "p::two"]]
    assert circles({**imports, ("p", "three"): set()}) == []


def test_a_circle_of_imports_is_found() -> None:
    texts = {
        ("one",): "use crate::{two::{A, B}, host::lock};",
        ("two",): "fn f() { crate::three::g() }",
        ("three",): "use super::one::C; // use crate::host::lock;",
        ("host",): "pub(crate) mod lock;",
        ("host", "lock"): "use super::Guard;",
    }
    imports = {module: imports_of(module, text, texts) for module, text in texts.items()}
    assert imports[("one",)] == {("two",), ("host", "lock")}
    assert circles(imports) == [["one", "three", "two"]]
    assert circles({**imports, ("three",): set()}) == []
