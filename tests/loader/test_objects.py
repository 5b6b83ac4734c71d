"""Objects of a store (`s3://`) as the loader reads them.

What their copies in files give, in one version, or a line that says why not.
"""

import errno
import io
import os
import struct
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import pytest
import torch
from PIL import Image

from forebay.loader import (
    ArrowRows,
    DirectSource,
    Extent,
    FixedRows,
    LoaderError,
    ParquetRows,
    RecordShards,
    Source,
    TarShards,
    TokenFile,
)
from forebay.loader._paths import look_up
from forebay.torch import DataLoader, ImageFolder
from tests.loader.data import same, served, write_records
from tests.loader.node import LoaderNode, a_node, point_to
from tests.views.conftest import bucket, moto  # noqa: F401 # fixtures of these tests, too
from tests.views.store import BUCKET, KEY, SECRET, BucketStore

ROOT = f"s3://{BUCKET}/p"
MIB = 1 << 20
OPTIONS: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 3, "num_workers": 2, "report": False}


class PutStore(Protocol):
    """A store that objects can be put into."""

    def put(self, key: str, content: bytes, /) -> object: ...


SomeStore = TypeVar("SomeStore", bound=PutStore)


@dataclass
class FilesAndCopies(Generic[SomeStore]):
    """A directory, and a store with the same content below a prefix."""

    node: LoaderNode
    store: SomeStore

    @property
    def dir(self) -> Path:
        return self.node.root / "p"

    def put(self, files: Mapping[str, bytes]) -> None:
        for name, content in files.items():
            path = self.dir / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            self.store.put(f"p/{name}", content)


class FilesAndObjects(FilesAndCopies[BucketStore]):
    """A directory, and a bucket with the same content below a prefix."""

    @property
    def bucket(self) -> BucketStore:
        return self.store


@pytest.fixture
def both(bucket: BucketStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[FilesAndObjects]:  # noqa: F811 # a fixture
    with a_node(monkeypatch) as node:
        point_to(monkeypatch, bucket.environment)
        yield FilesAndObjects(node, bucket)


class Objects:
    """A sample of each extent, as a list of its bytes."""

    def __init__(self, extents: list[Extent]) -> None:
        self.extents_of = extents

    def __len__(self) -> int:
        return len(self.extents_of)

    def locate(self, i: int, /) -> Extent:
        return self.extents_of[i]

    def decode(self, data: memoryview, i: int, rng: object, /) -> torch.Tensor:
        return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def read(source: Source, extents: list[Extent]) -> list[bytes]:
    source.register(None, extents.__getitem__)
    request = source.request(list(range(len(extents))), 0)
    found = [bytes(request.read(place)) for place in range(len(extents))]
    request.release()
    return found


def picture(colour: int) -> bytes:
    held = io.BytesIO()
    Image.new("RGB", (3, 2), (colour, 0, 255 - colour)).save(held, "PNG")
    return held.getvalue()


def as_tensor(image: Any, rng: torch.Generator) -> torch.Tensor:  # noqa: ANN401
    return torch.from_numpy(np.array(image)) + torch.randint(0, 5, (), generator=rng, dtype=torch.uint8)


def drawn(image: Any) -> torch.Tensor:  # noqa: ANN401
    return torch.from_numpy(np.array(image)) + torch.randint(0, 5, (), dtype=torch.uint8)


FOLDER = {
    name: picture(20 * number)
    for number, name in enumerate(["b/2.png", "b/10.PNG", "b/deep/er/1.png", "a/x+y z.png", "a/Y.png", "c d/ü#?%.png", "c d/.hidden.png"])
}


def test_ranges_of_objects_are_read(both: FilesAndObjects, source: Source) -> None:
    content = bytes(at % 251 for at in range(5000))
    both.put({"whole": content, "empty": b"", "day=1/x+y #?%.bin": content[::-1]})
    whole, empty, odd = (f"{ROOT}/{name}" for name in ("whole", "empty", "day=1/x+y #?%.bin"))
    mark = look_up(whole).mark
    extents = {
        Extent(whole): content,
        Extent(whole, 0, None, mark): content,
        Extent(whole, 10): content[10:],
        Extent(whole, 10, 20): content[10:30],
        Extent(whole, 4990, 10, mark): content[4990:],
        Extent(whole, 10, 0): b"",
        Extent(whole, 5000): b"",
        Extent(whole, 5000, 0, mark): b"",
        Extent(empty): b"",
        Extent(odd, 1, 4998): content[::-1][1:4999],
    }
    assert read(source, list(extents)) == list(extents.values())


def test_a_long_range_is_asked_for_in_parts(both: FilesAndObjects) -> None:
    content = os.urandom(MIB) * 65
    both.bucket.put("p/long", content)
    assert read(DirectSource(), [Extent(f"{ROOT}/long", 5)]) == [content[5:]]
    asked = [one.range for one in both.bucket.asked if one.key == "p/long"]
    assert asked == [f"bytes=5-{5 + 64 * MIB - 1}", f"bytes={5 + 64 * MIB}-{65 * MIB - 1}"]


def test_a_folder_is_what_its_copy_is(both: FilesAndObjects) -> None:
    both.put(FOLDER | {"b/notes.txt": b"no image", "loose.png": b"no class"})
    both.bucket.put("p/a/", b"")
    both.bucket.put("pq/other/1.png", picture(7))
    ours, theirs = ImageFolder(f"{ROOT}/", as_tensor), ImageFolder(both.dir, as_tensor)
    assert (ours.classes, ours.targets) == (theirs.classes, theirs.targets)
    assert [path.removeprefix(ROOT) for path, _ in ours.samples] == [path.removeprefix(str(both.dir)) for path, _ in theirs.samples]
    assert ours[3][1] == theirs[3][1]
    both.bucket.gets()
    assert same(DataLoader(ours, **OPTIONS), DataLoader(theirs, **OPTIONS)) == 2
    # Those of the last batch, and the first again to fill it.
    assert set(both.bucket.gets()) == {f"p/{name}" for name in FOLDER}


def test_worker_processes_have_connections_of_their_own(both: FilesAndObjects) -> None:
    both.put(FOLDER)
    ours, theirs = ImageFolder(ROOT, drawn), ImageFolder(both.dir, drawn)
    assert same(DataLoader(ours, **OPTIONS), DataLoader(theirs, **OPTIONS)) == 2
    assert same(DataLoader(ours, **OPTIONS), DataLoader(theirs, **OPTIONS)) == 2


def tar(members: Mapping[str, bytes]) -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as made:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            made.addfile(member, io.BytesIO(content))
    return held.getvalue()


def copied(fields: Mapping[str, memoryview], rng: object) -> list[bytes]:
    return [bytes(data) for _, data in sorted(fields.items())]


def kinds(both: FilesAndObjects) -> dict[str, Callable[[str, Path], Any]]:
    """Each kind of dataset of a root, with a directory for its index."""
    import pyarrow
    import pyarrow.parquet

    sizes = [0, 100, 3000, 17, 2 * MIB]
    write_records(both.node.root / "made", [os.urandom(size) for size in sizes])
    table = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"id": list(range(20)), "text": [f"row {n}" for n in range(20)]}), table, row_group_size=8)
    numpys = io.BytesIO()
    np.save(numpys, np.arange(101, dtype=np.int32))
    both.put(
        {
            "a.tar": tar({f"{number:03}.{field}": os.urandom(size) for number, size in enumerate(sizes) for field in ("jpg", "cls")}),
            "a.records": (both.node.root / "made").read_bytes(),
            "tokens": np.arange(101, dtype=np.uint16).tobytes(),
            "tokens.npy": numpys.getvalue(),
            "m.bin": np.arange(101, dtype=np.int32).tobytes(),
            "m.idx": struct.pack("<9sQBQQi", b"MMIDIDX\0\0", 1, 4, 1, 2, 101) + struct.pack("<3q", 0, 0, 1),
            "rows": os.urandom(160),
            "a.parquet": table.getvalue(),
        }
    )
    return {
        "a.tar": lambda root, index: TarShards([f"{root}/a.tar"], copied, index=index),
        "a.records": lambda root, index: RecordShards(f"{root}/a.records", lambda record, rng: bytes(record), index=index),
        "tokens": lambda root, _: TokenFile(f"{root}/tokens", 10),
        "tokens.npy": lambda root, _: TokenFile([f"{root}/tokens.npy"], 10),
        "m.bin": lambda root, _: TokenFile(f"{root}/m.bin", 10),
        "rows": lambda root, _: FixedRows(f"{root}/rows", 16),
        "a.parquet": lambda root, _: ParquetRows([f"{root}/a.parquet"], lambda row, rng: dict(row)),
    }


def decoded(dataset: Any) -> list[str]:  # noqa: ANN401
    extents = [dataset.locate(number) for number in range(len(dataset))]
    return [repr(dataset.decode(memoryview(data), number, None)) for number, data in enumerate(read(DirectSource(), extents))]


@pytest.mark.parametrize("kind", ["a.tar", "a.records", "tokens", "tokens.npy", "m.bin", "rows", "a.parquet"])
def test_each_kind_of_dataset_is_what_its_copy_is(both: FilesAndObjects, kind: str) -> None:
    make = kinds(both)[kind]
    index = both.node.root / "index"
    ours, theirs = make(ROOT, index), make(str(both.dir), index)
    wanted = decoded(theirs)
    assert decoded(ours) == wanted
    if index.exists():
        both.bucket.gets()
        assert decoded(make(ROOT, index)) == wanted
        assert len(both.bucket.gets()) == 1 + len(wanted), "its index was kept: its version is asked for, and its samples"
    # Whatever is there now is not what was looked through.
    both.bucket.put(f"p/{kind}", (both.dir / kind).read_bytes()[::-1])
    with pytest.raises(OSError, match="it has changed since it was listed or first read; start again with its present version") as caught:
        decoded(ours)
    assert (caught.value.errno, caught.value.filename) == (errno.ESTALE, f"{ROOT}/{kind}")


@pytest.mark.parametrize("cache", [None, "ram=1M", "{node}/cache=64M"])
def test_f05_a_cache_keeps_objects_and_an_object_that_has_changed_is_refused(both: FilesAndObjects, cache: str | None) -> None:
    both.put(FOLDER)
    theirs = list(DataLoader(ImageFolder(both.dir, as_tensor), **OPTIONS))
    ours = ImageFolder(ROOT, as_tensor)
    chosen: dict[str, Any] = {} if cache is None else {"cache": cache.format(node=both.node.root), "hedge_budget": 0.0}
    loader = DataLoader(ours, **OPTIONS, **chosen)
    both.bucket.gets()
    for _ in range(2):
        loader.set_epoch(0)
        assert same(loader, theirs) == 2
    asked = both.bucket.gets()
    assert set(asked) == {f"p/{name}" for name in FOLDER}
    if cache is not None:
        assert served(loader).figures()["from_source"] > 0, "the agent reads objects itself"
        assert served(loader).lost is None
    if cache == "ram=1M":
        assert len(asked) < 2 * len(FOLDER), "the second epoch has them from memory"
    both.bucket.put("p/a/Y.png", picture(99))
    fresh = DataLoader(ours, **OPTIONS)
    with pytest.raises(OSError, match=r"sample \d+: it has changed since it was listed.*p/a/Y\.png"):
        list(fresh)


def test_what_lies_on_a_disk_serves_the_next_job_without_a_question(both: FilesAndObjects) -> None:
    both.put(FOLDER)
    theirs = list(DataLoader(ImageFolder(both.dir, as_tensor), **OPTIONS))
    cache: dict[str, Any] = {"cache": f"{both.node.cache}=64M", "hedge_budget": 0.0}
    dataset = ImageFolder(ROOT, as_tensor)
    # What was not written yet when a job ended is asked for by the next one.
    for _ in range(10):
        both.bucket.gets()
        loader = DataLoader(dataset, **OPTIONS, **cache)
        for _ in range(3):
            loader.set_epoch(0)
            assert same(loader, theirs) == 2
        if not (asked := both.bucket.gets()):
            break
    assert asked == []
    assert served(loader).figures()["left_by_others"] >= len(FOLDER)
    del loader
    both.bucket.put("p/a/Y.png", picture(99))
    list(DataLoader(ImageFolder(ROOT, as_tensor), **OPTIONS, **cache))
    assert set(both.bucket.gets()) == {"p/a/Y.png"}, "only what has changed is read again"


def test_s07_an_agent_of_another_job_is_told_what_leads_to_the_store_and_keeps_it(
    both: FilesAndObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    both.put(FOLDER)
    with monkeypatch.context() as patch:
        for name in both.bucket.environment:
            if name != "NO_PROXY":
                patch.delenv(name)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        other = DataLoader(ImageFolder(both.dir, as_tensor), **OPTIONS, cache="ram=1M")
        theirs = list(other)
    loader = DataLoader(ImageFolder(ROOT, as_tensor), **OPTIONS, cache=f"{both.node.cache}=64M")
    assert same(loader, theirs) == 2
    counted = served(loader).figures()
    assert (counted["from_source"] >= len(FOLDER), served(loader).lost) == (True, None)
    environment = Path(f"/proc/{both.node.agent()}/environ").read_bytes()
    assert SECRET.encode() not in environment, "it was started by a job without"
    for path in both.node.root.rglob("*"):
        if path.is_file() and not path.is_relative_to(both.dir):
            content = path.read_bytes()
            assert SECRET.encode() not in content, path
            assert KEY.encode() not in content, path


def test_f05_a_store_that_knows_no_conditions_is_found_out(both: FilesAndObjects) -> None:
    both.bucket.forgets_conditions = True
    both.put({"a": b"1" * 100})
    mark = look_up(f"{ROOT}/a").mark
    both.bucket.put("p/a", b"2" * 100)
    with pytest.raises(OSError, match="it has changed"):
        read(DirectSource(), [Extent(f"{ROOT}/a", 0, 10, mark)])


NO_KEYS = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_EC2_METADATA_DISABLED": "true"}


@pytest.mark.parametrize(
    ("path", "variables", "kind", "words"),
    [
        (f"{ROOT}/missing", {}, FileNotFoundError, f"there is no such object: '{ROOT}/missing'"),
        ("s3://nowhere/x", {}, OSError, "there is no such bucket; check its name and the endpoint: 's3://nowhere/x'"),
        (
            f"{ROOT}/a",
            NO_KEYS,
            PermissionError,
            "no credentials were found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or",
        ),
        (f"{ROOT}/a", {"AWS_SECRET_ACCESS_KEY": "wrong"}, PermissionError, "check the credentials and their rights"),
        (f"{ROOT}/a", {"AWS_ACCESS_KEY_ID": ""}, ValueError, "set both, or none"),
        (f"{ROOT}/a", {"AWS_SHARED_CREDENTIALS_FILE": "/"}, IsADirectoryError, "Is a directory"),
        (f"{ROOT}/a", {"AWS_REGION": "us-east-1"}, OSError, "set AWS_REGION=eu-test-1"),
        (f"{ROOT}/a", {"AWS_ENDPOINT_URL": "nonsense"}, ValueError, "write https://HOST or http://HOST:PORT"),
        (f"s3://{BUCKET}", {}, ValueError, "names no object; write s3://BUCKET/KEY"),
        (f"{ROOT}/x/../a", {}, ValueError, "has an empty name, '.' or '..' in its key"),
    ],
)
def test_what_can_not_be_had_is_said_in_one_line(
    both: FilesAndObjects, path: str, variables: dict[str, str], kind: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    both.put({"a": b"1" * 100})
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(kind) as caught:
        TokenFile(path, 3)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(kind) as failed:
        list(DataLoader(Objects([Extent(path)]), report=False))
    assert words in str(failed.value)
    assert SECRET not in str(failed.value)


def test_an_endpoint_where_nobody_answers_is_named(both: FilesAndObjects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(OSError, match=r"refused.*; the endpoint is http://127.0.0.1:1"):
        ImageFolder(ROOT)


def test_an_object_that_ends_early_is_named(both: FilesAndObjects, source: Source) -> None:
    both.put({"a": b"1" * 100})
    for extent in (Extent(f"{ROOT}/a", 90, 20), Extent(f"{ROOT}/a", 200, 20), Extent(f"{ROOT}/a", 101)):
        with pytest.raises(EOFError, match=f"{ROOT}/a ends before byte"):
            read(source, [extent])


def test_what_is_no_folder_is_refused(both: FilesAndObjects) -> None:
    both.put({"a/1.png": picture(1), "b/1.txt": b"no image"})
    with pytest.raises(FileNotFoundError, match=r"in b$"):
        ImageFolder(ROOT)
    with pytest.raises(FileNotFoundError, match="no class is here"):
        ImageFolder(f"{ROOT}/nothing")
    with pytest.raises(OSError, match="there is no such bucket"):
        ImageFolder("s3://nowhere/p")
    with pytest.raises(ValueError, match="write s3://BUCKET/PREFIX"):
        ImageFolder("s3://")
    both.bucket.put("p/a//2.png", picture(2))
    with pytest.raises(LoaderError, match=r"p/a//2\.png can't be read by its key"):
        ImageFolder(ROOT)
    both.bucket.put("p//2.png", picture(2))
    with pytest.raises(LoaderError, match="p/ can't be read by its key"):
        ImageFolder(ROOT)


def test_paths_that_are_no_addresses_any_more_are_refused(both: FilesAndObjects) -> None:
    for make in (ImageFolder, lambda path: TokenFile(path, 3), lambda path: FixedRows(path, 3), lambda path: TarShards([path], copied)):
        with pytest.raises(ValueError, match="takes a slash out of an address; give it as text, 's3://data/p'"):
            make(Path(ROOT))
    with pytest.raises(ValueError, match=f"{ROOT}/a: an Arrow file is looked through in memory; give files"):
        ArrowRows([f"{ROOT}/a"], lambda row, rng: row)
