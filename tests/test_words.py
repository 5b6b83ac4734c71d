"""Plain words: each rule is a function from a file to complaints, and each is shown to complain."""

import ast
import io
import re
import tokenize
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.test_tidy import ROOT, files

PROSE_COLUMNS_MAX = 120
FILES_A_TYPE_MAX = 2
GLOSSARY_WORDS_MAX = 12

Rule = Callable[[str, str], Iterator[str]]
# Beginnings of paths that are still to be rewritten, by rule.
NOT_YET: dict[str, tuple[str, ...]] = {
    "riddles": (),
    "long_prose": (),
    "banned_phrases": (),
    "house_words": (
        # `aside` is a public name: an argument, an attribute, a key of records.
        "python/forebay/clone/_events.py",
        "python/forebay/clone/_session.py",
        "python/forebay/clone/_source.py",
    ),
    "scattered_types": (),
}

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
RIDDLE = re.compile(r"(?:What|Whether|Of|So many|So much|As many|How many|How much|Who|Whom|Whose)\b")

COMPARED = "(?:long|bett|larg|small|slow|fast|high|low|lat|new|old|oth)er|more|less|worse|different"
# Phrases that a reader of English stumbles over, with what to write.
PHRASES = {
    r"\bsuch an? one\b": "one, or name the thing",
    r"\bhang(?:s|ing)? on\b": "depends on; or: hangs in, blocks",
    r"\bin vain\b": "wasted, without result",
    r"\bby turns\b": "alternately",
    r"\blet(?:s|ting)? go\b": "release",
    r"\banew\b": "again, rebuilt",
    r"\b(?:is|are|was|were|be|been) of (?:no |any |little )?use\b": "useful",
    rf"(?<![Tt]here )\bis no (?!{COMPARED})": "is not a, invalid, missing",
    r"(?<![Tt]here )\bis none\b(?! of)": "is missing, is not one",
    r"\b(?:by|of|for|after) so many\b": "by N",
}

# House words that are gone, with the field's own. What is left of them is defined in docs/glossary.md.
REPLACED = {
    r"doors?": "preload library",
    r"clerks?": "event loop, tiering state",
    r"hand-overs?|handovers?": "descriptor handoff",
    r"adopt(?:s|ed|ing|ion|ions)?": "recover, warm start",
    r"void stamps?": "invalidation epoch",
    r"boards?": "request ring",
    r"probation": "shadow verification",
    r"vouch(?:es|ed|ing)?": "validate",
    r"ledgers?": "event log",
    r"outlines?": "schema",
    r"takers?": "receiver",
    r"withh(?:old|olds|eld|olding)": "abort",
    r"(?<!set )aside": "copy-on-write buffer",
    r"lying|lain|(?<=where )(?:it|they) (?:lies|lie)": "is located at, layout",
}
GONE = re.compile(rf"(?i)(?<![\w-])(?:{'|'.join(REPLACED)})(?![\w-])")
# Types that bear a word of the house.
REPLACED_TYPE = re.compile(r"Clerk|Door(?!bell)|HandOver|Board(?![a-z])|Probation|Ledger|Taker|Vouch|^(?:Ask|Tell|Told)$")


class Prose(NamedTuple):
    """Consecutive lines of a comment, docstring or paragraph, with the number of the first."""

    number: int
    lines: tuple[str, ...]
    is_doc: bool

    @property
    def text(self) -> str:
        """All lines in a row, without code, addresses and the marks of comments."""
        lines = (re.sub(r"^\s*(?://[/!]?|#+:?)\s?", "", line) for line in self.lines)
        return re.sub(r"`[^`]*`|\]\([^)]*\)|https?://\S+", " ", " ".join(line.strip() for line in lines))


def blocks(numbered: list[tuple[int, str]], is_doc: Callable[[str], bool]) -> Iterator[Prose]:
    """Joins lines whose numbers follow each other, and that are of one kind."""
    block: list[tuple[int, str]] = []
    for number, line in numbered:
        if block and (number != block[-1][0] + 1 or is_doc(line) != is_doc(block[-1][1])):
            yield Prose(block[0][0], tuple(text for _, text in block), is_doc(block[0][1]))
            block = []
        block.append((number, line))
    if block:
        yield Prose(block[0][0], tuple(text for _, text in block), is_doc(block[0][1]))


def python_prose(text: str) -> Iterator[Prose]:
    lines = text.split("\n")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, Documented) and ast.get_docstring(node, clean=False) is not None:
            first, last = node.body[0].lineno, node.body[0].end_lineno or node.body[0].lineno
            yield Prose(first, tuple(lines[first - 1 : last]), is_doc=True)
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    whole = [(token.start[0], token.line) for token in tokens if token.type == tokenize.COMMENT and token.line.lstrip().startswith("#")]
    yield from blocks([(number, line.rstrip("\n")) for number, line in whole], lambda _: False)


def marked_prose(text: str, mark: str) -> Iterator[Prose]:
    numbered = [(number, line) for number, line in enumerate(text.split("\n"), 1) if re.match(rf"\s*{mark}", line)]
    yield from blocks(numbered, lambda line: bool(re.match(r"\s*//[/!]", line)))


def markdown_prose(text: str) -> Iterator[Prose]:
    is_code, numbered = False, []
    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code and line.strip() and not line.startswith("    "):
            numbered.append((number, line))
    yield from blocks(numbered, lambda line: line.startswith("|"))


@cache
def prose(path: str, text: str) -> tuple[Prose, ...]:
    """Comments, docstrings and paragraphs of a file.

    In Markdown a table counts as doc, so that its width can be told apart.
    """
    if path.endswith(".md"):
        return tuple(markdown_prose(text))
    if path.endswith((".py", ".pyi")):
        return tuple(python_prose(text))
    if path.endswith((".rs", ".c")):
        return tuple(marked_prose(text, "//"))
    return tuple(marked_prose(text, "#")) if path.endswith((".sh", ".toml")) or Path(path).name == "Makefile" else ()


def riddles(path: str, text: str) -> Iterator[str]:
    """Doc comments that open with a question's word, so that their subject is a clause and not a thing."""
    if path.endswith((".py", ".rs")):
        for part in prose(path, text):
            opening = part.text.lstrip(' rf"')
            if part.is_doc and (match := RIDDLE.match(opening)):
                yield f"{path}:{part.number}: opens with {match[0]!r}; name the thing, or say first what the caller gets"


def long_prose(path: str, text: str) -> Iterator[str]:
    """Lines of prose that are too wide; tables and long addresses may be."""
    for part in prose(path, text):
        for number, line in enumerate(part.lines, part.number):
            is_table = path.endswith(".md") and line.startswith("|")
            if len(line) > PROSE_COLUMNS_MAX and not is_table and not re.search(r"https?://\S{60}", line):
                yield f"{path}:{number}: {len(line)} columns of prose; the most is {PROSE_COLUMNS_MAX}"


def banned_phrases(path: str, text: str) -> Iterator[str]:
    """Phrases of PHRASES, in prose and in messages, also where a line ends within one."""
    if path == "tests/test_words.py":
        return
    lines = [re.sub(r"^\s*(?://[/!]?|#+:?)?\s*", "", line) for line in text.split("\n")]
    begins = list(accumulate((len(line) + 1 for line in lines), initial=0))
    joined = " ".join(lines)
    for phrase, instead in PHRASES.items():
        for match in re.finditer(phrase, joined):
            yield f"{path}:{bisect_right(begins, match.start())}: {match[0]!r}; write: {instead}"


def house_words(path: str, text: str) -> Iterator[str]:
    """Words of REPLACED in prose, and in names of types."""
    for part in prose(path, text):
        for match in GONE.finditer(part.text):
            instead = next(new for word, new in REPLACED.items() if re.search(rf"(?i)(?<![\w-])(?:{word})(?![\w-])", part.text))
            yield f"{path}:{part.number}: {match[0]!r} is a word that is gone; write: {instead}"
    for name in types(path, text):
        if REPLACED_TYPE.search(name):
            yield f"{path}: type {name}: bears a word that is gone"


def types(path: str, text: str) -> set[str]:
    """Names of the types that a file defines, except for types that a trait demands of those that implement it."""
    if path.endswith(".rs"):
        return set(
            re.findall(r"^(?:\s*(?:pub(?:\([^)]*\))? )?(?:struct|enum|trait|union)|(?:pub(?:\([^)]*\))? )?type) (\w+)", text, re.MULTILINE)
        )
    return set(re.findall(r"^class (\w+)", text, re.MULTILINE)) if path.endswith(".py") else set()


def scattered_types(texts: dict[str, str]) -> list[str]:
    """Names of types that too many files define, each its own."""
    homes: dict[str, list[str]] = defaultdict(list)
    for path, text in texts.items():
        for name in types(path, text):
            homes[name].append(path)
    wrong = {name: paths for name, paths in homes.items() if len(paths) > FILES_A_TYPE_MAX}
    return [f"{name}: defined in {', '.join(sorted(paths))}; give it a domain noun" for name, paths in sorted(wrong.items())]


RULES: list[Rule] = [riddles, long_prose, banned_phrases, house_words]


def done(rule: str) -> dict[str, str]:
    return {path: text for path, text in files().items() if not path.startswith(NOT_YET.get(rule, ()))}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_words(rule: Rule) -> None:
    assert [complaint for path, text in done(rule.__name__).items() for complaint in rule(path, text)] == []


def test_a_type_is_named_for_what_it_is() -> None:
    assert scattered_types(done("scattered_types")) == []


PUZZLING: list[tuple[Rule, str, str]] = [
    (riddles, "a.rs", "/// Wh" + "at is kept.\nfn f() {}\n"),
    (riddles, "a.rs", "//! So " + "many bytes.\n"),
    (riddles, "a.py", '"""Wh' + 'ether it is."""\n'),
    (riddles, "a.py", 'def f():\n    """O' + 'f a file.\n\n    More.\n    """\n'),
    (long_prose, "a.rs", "// " + "x" * PROSE_COLUMNS_MAX + "\n"),
    (long_prose, "a.py", '"""' + "x" * PROSE_COLUMNS_MAX + '."""\n'),
    (long_prose, "a.md", "x " * PROSE_COLUMNS_MAX + "\n"),
    (banned_phrases, "a.rs", "\"'x' is no " + 'number"\n'),
    (banned_phrases, "a.md", "It hangs\n" + "on the seed.\n"),
    *(
        (banned_phrases, "a.py", f"# {sample}\n")
        for sample in ("in " + "vain", "by " + "turns", "lets " + "go", "ane" + "w", "such a " + "one")
    ),
    *((banned_phrases, "a.py", f"# {sample}\n") for sample in ("is of " + "use", "it is " + "none", "of so " + "many")),
    (house_words, "a.md", "The cle" + "rk tells it.\n"),
    (house_words, "a.rs", "// as it was ly" + "ing\n"),
    (house_words, "a.rs", "struct Cle" + "rk;\n"),
]


@pytest.mark.parametrize(("rule", "path", "text"), PUZZLING)
def test_each_rule_can_fail(rule: Rule, path: str, text: str) -> None:
    assert len(list(rule(path, text))) == 1


PLAIN = [
    ("a.rs", '/// Offset of the copy.\n//\n// There is no copy, and there is none; it is no longer here.\nlet s = "Of all"; // What\n'),
    ("a.py", '"""Returns the doorbell, or None."""\nif x is None:\n    y = "' + "x" * PROSE_COLUMNS_MAX + '"\n'),
    (
        "a.md",
        "`session(aside=)` and [it](boards.md)\n\n```\nclerk " + "x" * PROSE_COLUMNS_MAX + "\n```\n| " + "x" * PROSE_COLUMNS_MAX + " |\n",
    ),
]


@pytest.mark.parametrize(("path", "text"), PLAIN)
def test_plain_words_pass(path: str, text: str) -> None:
    assert [complaint for rule in RULES for complaint in rule(path, text)] == []


def test_a_scattered_type_is_seen() -> None:
    texts = {"a.rs": "struct Place;\n", "b.rs": "pub(crate) enum Place {\n", "c.py": "class Place:\n", "d.py": "class Thing:\n"}
    assert scattered_types(texts) == ["Place: defined in a.rs, b.rs, c.py; give it a domain noun"]
    assert scattered_types({path: texts[path] for path in ("a.rs", "b.rs", "d.py")}) == []


def test_the_glossary_is_short_and_has_no_word_that_is_gone() -> None:
    glossary = (ROOT / "docs/glossary.md").read_text()
    words = re.findall(r"^\| (?!word |---)([\w ]+) \|", glossary, re.MULTILINE)
    assert 0 < len(words) <= GLOSSARY_WORDS_MAX
    assert [word for word in words for gone in REPLACED if re.fullmatch(gone, word)] == []
