"""S3: names never become paths. Whatever a file is called, its copy has a name of ours, and it is that file's bytes."""

import os
import re

from tests.faults.harness import CORPUS, SMALL
from tests.support import Place, is_copy, read, settle, warm

ODD = [
    b"..a", b"...", b" ", b"-rf", b"a\nb", b"\xff\xfe\x01", b"%2e%2e%2f", b"*", b"a" * 255, "é".encode(), b"0123456789abcdef", b"catalogue",
    b"lease", b"\\..\\..", b"~", b"$HOME", b"\x1b[31m", b"a\tb", b'"', b"'", b".forebay", b"\xf0\x9f\x98\x80",
]  # fmt: skip
OBJECT = re.compile(r"^objects/([0-9a-f]{2})/[0-9a-f]{14}\1$")


def test_s03_odd_names(place: Place) -> None:
    directory = os.path.join(os.fsencode(place.source), b"odd\xff\n..")  # noqa: PTH118
    os.mkdir(directory)  # noqa: PTH102
    paths = {os.path.join(directory, name): name * 1000 for name in ODD}  # noqa: PTH118
    for path, content in paths.items():
        with open(path, "wb") as file:  # noqa: PTH123
            file.write(content)
    settle(place.source)
    with place.worker() as worker:
        warm(place, worker, *map(os.fsdecode, paths))
        for path, content in paths.items():
            assert read(worker, os.fsdecode(path)) == content
    place.stop()
    (root,) = place.tier.iterdir()
    found = [str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()]
    assert len([name for name in found if OBJECT.match(name)]) == len(ODD)
    assert {name for name in found if not OBJECT.match(name)} <= {"lease", "FORMAT", "catalogue"}
    # And so from the catalogue.
    with place.worker() as worker:
        assert place.idle()["adopted"] == len(ODD)
        for path, content in paths.items():
            assert is_copy(worker, os.fsdecode(path))
            assert read(worker, os.fsdecode(path)) == content


def test_s03_spellings_with_dots_lead_where_the_kernel_says(place: Place) -> None:
    inner = place.source / "inner"
    inner.mkdir()
    (inner / "file").write_bytes(b"inner" * 1000)
    elsewhere = place.root / "elsewhere"
    (elsewhere / "deep").mkdir(parents=True)
    (elsewhere / SMALL[0]).write_bytes(b"outside" * 1000)
    (place.source / "link").symlink_to(elsewhere / "deep")
    settle(place.source)
    spellings = {
        f"{place.source}/inner/../{SMALL[0]}": CORPUS[SMALL[0]],
        f"{place.source}//{SMALL[1]}": CORPUS[SMALL[1]],
        f"{place.source}/./inner/./file": b"inner" * 1000,
        # Taken out of the text, the dots would lead to the source's own file of that name.
        f"{place.source}/link/../{SMALL[0]}": b"outside" * 1000,
        f"{place.source}/../elsewhere/{SMALL[0]}": b"outside" * 1000,
        f"{place.source}/inner/../../source/{SMALL[2]}": CORPUS[SMALL[2]],
    }
    with place.worker() as worker:
        for _ in range(3):
            for path, content in spellings.items():
                assert read(worker, path) == content, path
            place.idle()
        assert is_copy(worker, f"{place.source}/inner/../{SMALL[0]}")
