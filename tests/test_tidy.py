"""The repository is tidy: each rule is a plain function from a file to complaints, and each is shown to complain."""

import ast
import re
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LINES_MAX = 600
FUNCTION_LINES_MAX = 70
GENERATED = {"Cargo.lock", "uv.lock"}
# By programs of ours, such as `make plots-monarch`.
DRAWN = ".svg"
# Longer than LINES_MAX, with the reason.
LONG: dict[str, str] = {}
# The promises that docs/semantics.md makes today.
PROMISES = [f"P{n}" for n in (*range(1, 13), "14a", "14b", "14c", "14d", 15, 17)]


@cache
def files() -> dict[str, str]:
    """Text of every file that is tracked or would be, by path from the root."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found = (path for path in listing.stdout.split("\0") if path and path not in GENERATED and not path.endswith(DRAWN))
    paths = [path for path in found if (ROOT / path).is_file()]
    return {path: (ROOT / path).read_text() for path in paths}


def too_long(path: str, text: str) -> Iterator[str]:
    lines = text.count("\n")
    if lines > LINES_MAX and path not in LONG:
        yield f"{path}: {lines} lines; the most is {LINES_MAX}, unless listed here with a reason"


def long_functions(path: str, text: str) -> Iterator[str]:
    """Python's; clippy counts Rust's."""
    if not path.endswith(".py"):
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield f"{path}:{node.lineno}: {node.name} has {lines} lines; the most is {FUNCTION_LINES_MAX}"


def odd_blanks(path: str, text: str) -> Iterator[str]:
    tabs_mean_something = Path(path).name == "Makefile" or path.endswith((".go", ".mk", ".tsv"))
    for number, line in enumerate(text.split("\n"), 1):
        if "\t" in line and not tabs_mean_something:
            yield f"{path}:{number}: a tab"
        if line != line.rstrip():
            yield f"{path}:{number}: blanks at the end of a line"
    if text and not text.endswith("\n"):
        yield f"{path}: no newline at the end"


def unfinished(path: str, text: str) -> Iterator[str]:
    words = "|".join(["TO" + "DO", "FIX" + "ME", "X" + "XX", "HA" + "CK", "todo" + r"!\(", "unimplemented" + r"!\("])
    for number, line in enumerate(text.split("\n"), 1):
        if match := re.search(rf"\b(?:{words})", line):
            yield f"{path}:{number}: {match[0]}: finish it, or file it elsewhere"


def machine_paths(path: str, text: str) -> Iterator[str]:
    for number, line in enumerate(text.split("\n"), 1):
        if match := re.search(r"(?<![\w.$}*-])/(?:root|work|home/[a-z]+)/[\w.-]+", line):
            yield f"{path}:{number}: {match[0]} exists on one machine only"


def broken_links(path: str, text: str) -> Iterator[str]:
    """Links of a Markdown file to files of this repository, and to headings in them."""
    if not path.endswith(".md"):
        return
    prose = re.sub(r"^```.*?^```|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, heading = target.partition("#")
        file = (ROOT / path).parent / name
        if name and not file.exists():
            yield f"{path}: the link to {target} leads nowhere"
        elif heading and heading not in anchors(file.read_text() if name else text):
            yield f"{path}: there is no heading for {target}"


def lost_files(path: str, text: str) -> Iterator[str]:
    """Paths and names of sources, in backquotes in a Markdown file, that end the path of no file of this repository.

    An asterisk and a run of capitals (NAME.rs, test_sNN_x.py) stand for any text.
    """
    if not path.endswith(".md") or path == "CHANGELOG.md":
        return
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    for name in re.findall(r"`([\w*-][\w*./-]*\.(?:rs|pyi?|md|toml|sh|c))`", prose):
        pattern = re.sub(r"\\\*|[A-Z]{2,}", r"[^/]*", re.escape(name))
        if not re.search(rf"^(?:.*/)?{pattern}$", "\n".join(files()), re.MULTILINE):
            yield f"{path}: there is no file {name}"


def anchors(markdown: str) -> set[str]:
    """The names that a forge gives to headings."""
    headings = re.findall(r"^#+ +(.+?) *$", markdown, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


RULES: list[Callable[[str, str], Iterator[str]]] = [
    too_long,
    long_functions,
    odd_blanks,
    unfinished,
    machine_paths,
    broken_links,
    lost_files,
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_tidy(rule: Callable[[str, str], Iterator[str]]) -> None:
    assert [complaint for path, text in files().items() for complaint in rule(path, text)] == []


UNTIDY: list[tuple[Callable[[str, str], Iterator[str]], str, str]] = [
    (too_long, "a.rs", "x\n" * (LINES_MAX + 1)),
    (long_functions, "a.py", "def f():\n" + "    pass\n" * FUNCTION_LINES_MAX),
    (odd_blanks, "a.rs", "\tx\n"),
    (odd_blanks, "a.rs", "x \n"),
    (odd_blanks, "a.rs", "x"),
    (unfinished, "a.rs", "// TO" + "DO: later\n"),
    (unfinished, "a.rs", "todo" + "!()\n"),
    (machine_paths, "a.rs", "open(" + '"/ro' + 'ot/x.txt")\n'),
    (broken_links, "docs/a.md", "[x](no-such-file.md)\n"),
    (broken_links, "docs/a.md", "[x](#no-such-heading)\n# Heading\n"),
    (lost_files, "docs/a.md", "Read `cellar/lib.rs`, `test_sNN_*.py` and `NAME.rs`.\n"),
]


@pytest.mark.parametrize(("rule", "path", "text"), UNTIDY)
def test_each_rule_can_fail(rule: Callable[[str, str], Iterator[str]], path: str, text: str) -> None:
    assert len(list(rule(path, text))) == 1


def test_what_is_tidy_passes() -> None:
    text = "# A heading: here\n[x](https://example.org/root/x) [y](#a-heading-here) `[z](nowhere)`\n"
    assert [complaint for rule in RULES for complaint in rule("docs/a.md", text)] == []


def test_exceptions_are_still_needed() -> None:
    assert {path for path in LONG if files().get(path, "").count("\n") <= LINES_MAX} == set()


def test_a_program_of_all_tests_has_each_file() -> None:
    """Cargo finds files of tests by itself only where a crate has no tests/all.rs."""
    for path in (path for path in files() if re.fullmatch(r"crates/\w+/tests/all\.rs", path)):
        beside = {Path(other).parts[3].removesuffix(".rs") for other in files() if other.startswith(path.removesuffix("all.rs"))}
        assert beside - {"all", "vectors"} == set(re.findall(r"^mod (\w+);", files()[path], re.MULTILINE)), path


def test_permissions() -> None:
    """Executable is exactly what says by which program; links and odd bits there are none."""
    listing = subprocess.run(["git", "ls-files", "--stage"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    modes = {path: mode for mode, _, _, path in (line.split(maxsplit=3) for line in listing.splitlines())}
    wrong = [f"{path}: {mode}" for path, mode in modes.items() if mode not in ("100644", "100755")]
    wrong += [
        f"{path}: {mode} does not agree with its first line"
        for path, mode in modes.items()
        if path in files() and (mode == "100755") != (files()[path].startswith("#!") and not files()[path].startswith("#!["))
    ]
    assert wrong == []


def unheld_promises(semantics: str, texts: dict[str, str]) -> list[str]:
    """Lists the promises that docs/semantics.md omits, or links to no test file that bears the promise's number."""
    wrong = []
    for promise in PROMISES:
        # From the promise's heading to the next one.
        found = re.search(rf"^### {promise}\b.*?(?=^#|\Z)", semantics, re.MULTILINE | re.DOTALL)
        if not found:
            wrong.append(f"{promise}: not in docs/semantics.md")
            continue
        links = re.findall(r"\]\(\.\./([^)#\s]+\.(?:py|rs))(?:#[^)]*)?\)", found[0])
        number = re.compile(rf"(?<![A-Za-z0-9])[Pp]0?{promise[1:]}(?![0-9a-z])")
        if not any(number.search(link + texts[link]) and runs_in_ci(texts[link]) for link in links if link in texts):
            wrong.append(f"{promise}: no link to a test that bears its number")
    return wrong


def runs_in_ci(text: str) -> bool:
    """Returns True if a file has a test that `make test` runs, and not only `make test-long` or `make test-gpu`."""
    functions = re.split(r"\n\n\n|\n\n(?= *(?:///|#\[))", text)
    left_out = re.compile(r"^@pytest\.mark\.(?:long|gpu)|#\[ignore", re.MULTILINE)
    return any(re.search(r"def test_|#\[test\]", function) and not left_out.search(function) for function in functions)


def test_every_promise_names_its_test() -> None:
    assert unheld_promises((ROOT / "docs/semantics.md").read_text(), files()) == []


def test_an_unheld_promise_is_seen() -> None:
    texts = {f"tests/semantics/test_p{promise[1:]:0>2}_x.py": "def test_it(): ..." for promise in PROMISES}
    lines = [f"### {promise} Title\n\ntext [test](../{path})\n" for promise, path in zip(PROMISES, texts, strict=True)]
    assert unheld_promises("\n".join(lines), texts) == []
    assert unheld_promises("\n".join(lines[1:]), texts) == ["P1: not in docs/semantics.md"]
    assert unheld_promises("\n".join([*lines[:-1], lines[-1].replace("_p17_", "_p1_")]), texts) == [
        "P17: no link to a test that bears its number"
    ]
    for text in ("", "import pytest\n\n\n@pytest.mark.long\n@pytest.mark.timeout(9)\ndef test_it(): ...\n"):
        assert unheld_promises("\n".join(lines), {**texts, "tests/semantics/test_p07_x.py": text}) == [
            "P7: no link to a test that bears its number"
        ]
