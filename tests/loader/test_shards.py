"""Samples in shards: what is found in them, that an index is of its shard alone, and what is refused."""

import io
import os
import pwd
import tarfile
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forebay import _say
from forebay.loader import ArrowRows, Extent, FixedRows, LoaderError, ParquetRows, RecordShards, TarShards, TokenFile
from forebay.loader._index import masked_crc32c
from forebay.loader.dataset import is_located
from tests.loader.data import write_records

LONG = "far/" * 40 + "away"


def write_tar(path: Path, members: list[tuple[str, bytes]], format: int = tarfile.USTAR_FORMAT) -> Path:
    with tarfile.open(path, "w", format=format) as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def fields(found: Mapping[str, memoryview], rng: object) -> dict[str, bytes]:
    return {name: bytes(data) for name, data in found.items()}


def content(record: memoryview, rng: object) -> bytes:
    return bytes(record)


def sample(dataset: Any, number: int) -> Any:  # noqa: ANN401
    """Read as a source reads it."""
    extent = dataset.locate(number)
    with Path(extent.path).open("rb") as file:
        file.seek(extent.offset)
        data = file.read(extent.length)
    assert len(data) == extent.length
    return dataset.decode(memoryview(data), number, None)


def samples(dataset: Any) -> list[Any]:  # noqa: ANN401
    return [sample(dataset, number) for number in range(len(dataset))]


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_tar_members_of_one_name_are_a_sample(format: int, tmp_path: Path) -> None:
    long = LONG if format != tarfile.USTAR_FORMAT else "near"
    members = [
        ("__header__/meta.txt", b"no sample's"),
        ("a/000.jpg", b"j" * 1000),
        ("a/000.CLS", b"3"),
        ("a/001.jpg", b""),
        ("a/001.seg.png", b"s" * 513),
        ("b/001.jpg", b"another folder's"),
        ("readme", b"has no dot"),
        (".hidden", b"has no name"),
        (f"{long}.jpg", b"x" * 512),
        (f"{long}.cls", b"7"),
    ]
    path = write_tar(tmp_path / "shard.tar", members, format)
    dataset = TarShards([path], fields, index=tmp_path / "kept")
    assert is_located(dataset)
    assert samples(dataset) == [
        {"jpg": b"j" * 1000, "cls": b"3"},
        {"jpg": b"", "seg.png": b"s" * 513},
        {"jpg": b"another folder's"},
        {"jpg": b"x" * 512, "cls": b"7"},
    ]
    assert [dataset.key(number) for number in range(4)] == ["a/000", "a/001", "b/001", long]


def test_directories_and_links_are_no_samples(tmp_path: Path) -> None:
    path = tmp_path / "shard.tar"
    with tarfile.open(path, "w") as tar:
        for name, kind in (("a.d", tarfile.DIRTYPE), ("a.lnk", tarfile.SYMTYPE), ("a.hard", tarfile.LNKTYPE)):
            member = tarfile.TarInfo(name)
            member.type = kind
            tar.addfile(member)
        member = tarfile.TarInfo("a.txt")
        member.size = 2
        tar.addfile(member, io.BytesIO(b"ab"))
    assert samples(TarShards([path], fields, index=tmp_path / "kept")) == [{"txt": b"ab"}]


def test_records_are_samples(tmp_path: Path) -> None:
    contents = [b"", b"one", b"x" * 70_000, b"last"]
    dataset = RecordShards([write_records(tmp_path / "a.tfrecord", contents)], content, index=tmp_path / "kept")
    assert is_located(dataset)
    assert samples(dataset) == contents


def test_check_sums_are_crc32c() -> None:
    # Of the nine digits it is 0xe3069283; TFRecord files turn it and add a number.
    crc = 0xE3069283
    assert masked_crc32c(b"123456789") == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def test_shards_are_numbered_through(tmp_path: Path) -> None:
    paths = [write_records(tmp_path / f"{number}", [b"%d" % number] * number) for number in (0, 2, 1, 0, 3)]
    dataset = RecordShards([str(path) for path in paths], content, index=tmp_path / "kept")
    assert samples(dataset) == [b"2", b"2", b"1", b"3", b"3", b"3"]
    assert dataset.locate(2) == Extent(str(paths[2]), 0, 13)
    for wrong in (-1, 6):
        with pytest.raises(IndexError, match=f"sample {wrong}: there are 6"):
            dataset.locate(wrong)


@pytest.fixture(params=["tar", "records"])
def shard(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Callable[[], Any], Callable[[list[bytes]], Path]]:
    """A shard, what opens it, and what writes it again."""
    path, kept = tmp_path / "shard", tmp_path / "kept"
    if request.param == "tar":

        def write(contents: list[bytes]) -> Path:
            return write_tar(path, [(f"{number}.x", content) for number, content in enumerate(contents)])

        return write([b"one", b"three"]), lambda: TarShards([path], fields, index=kept), write

    def write_again(contents: list[bytes]) -> Path:
        return write_records(path, contents)

    return write_again([b"one", b"three"]), lambda: RecordShards([path], content, index=kept), write_again


Shard = tuple[Path, Callable[[], Any], Callable[[list[bytes]], Path]]


def test_an_index_is_made_once(shard: Shard, tmp_path: Path) -> None:
    path, opened, _ = shard
    first = samples(opened())
    kept = list((tmp_path / "kept").iterdir())
    assert len(kept) == 1
    assert kept[0].parent.stat().st_mode & 0o777 == 0o700
    # What looks at the shard itself would stumble over this: it has the same size and time.
    found, whole = path.stat(), path.read_bytes()
    path.write_bytes(b"\xff" * len(whole))
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
    again = opened()
    path.write_bytes(whole)
    assert samples(again) == first


def test_a_shard_that_changed_is_indexed_anew(shard: Shard) -> None:
    _, opened, write = shard
    before = opened()
    write([b"three", b"one", b"two"])
    assert len(opened()) == 3
    # What is being trained with is told.
    with pytest.raises(LoaderError, match="shard is not the file that was indexed"):
        samples(before)


@pytest.mark.parametrize(
    "damage", [lambda kept: kept[:-1], lambda kept: b"[]\n", lambda kept: b"", lambda kept: kept.replace(b'"version": 2', b'"version": 1')]
)
def test_an_index_that_is_damaged_or_of_another_version_is_made_anew(
    damage: Callable[[bytes], bytes], shard: Shard, tmp_path: Path
) -> None:
    _, opened, _ = shard
    wanted = samples(opened())
    (kept,) = (tmp_path / "kept").iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(damage(whole))
    assert samples(opened()) == wanted
    assert kept.read_bytes() == whole


def test_where_nothing_can_be_kept_nothing_is(shard: Shard, tmp_path: Path) -> None:
    _, opened, _ = shard
    (tmp_path / "kept").write_text("in the way of a directory")
    assert len(samples(opened())) == 2


def test_indices_are_kept_in_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    RecordShards([write_records(tmp_path / "a", [b"x"])], content)
    assert len(list((tmp_path / "cache/forebay/shards").iterdir())) == 1


def test_a_shard_that_was_cut_is_refused(shard: Shard) -> None:
    path, opened, _ = shard
    whole = path.read_bytes()
    # Within the second sample's content.
    end = whole.index(b"three") + 2
    path.write_bytes(whole[:end])
    with pytest.raises(LoaderError, match=f"shard ends at byte {end}, and its .*: it was cut|it was cut, or is not a plain tar file"):
        opened()
    path.write_bytes(whole[: whole.index(b"three") - 5])
    with pytest.raises(LoaderError, match="it was cut"):
        opened()


@pytest.mark.parametrize("first", [b"\x1f\x8b\x08" + bytes(600), b"no shard at all" * 50])
def test_other_files_are_refused(first: bytes, shard: Shard) -> None:
    path, opened, _ = shard
    path.write_bytes(first)
    with pytest.raises(LoaderError, match=r"is not a plain tar file \(a compressed one|no record begins at byte 0"):
        opened()
    path.unlink()
    with pytest.raises(FileNotFoundError):
        opened()


def test_a_member_that_comes_twice_is_refused(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "shard.tar", [("a.jpg", b"1"), ("a.JPG", b"2")])
    with pytest.raises(LoaderError, match=r"shard\.tar has a\.JPG twice in one sample"):
        TarShards([path], fields, index=tmp_path / "kept")


@pytest.mark.parametrize("dtype", ["uint16", "int32"])
def test_tokens_come_in_windows(dtype: str, tmp_path: Path) -> None:
    np.arange(11, dtype=dtype).tofile(tmp_path / "tokens")
    dataset = TokenFile(tmp_path / "tokens", 4, dtype)
    assert is_located(dataset)
    found = samples(dataset)
    assert [(these.tolist(), following.tolist()) for these, following in found] == [
        ([0, 1, 2, 3], [1, 2, 3, 4]),
        ([4, 5, 6, 7], [5, 6, 7, 8]),
    ]
    assert found[0][0].dtype == dtype
    with pytest.raises(IndexError, match="window 2: there are 2"):
        dataset.locate(2)


@pytest.mark.parametrize(
    ("length", "window", "wrong"),
    [
        (9, 4, "has 1 bytes more than 4 tokens of uint16"),
        (8, 4, "has 4 tokens: a window of 4 needs 5"),
        (0, 1, "has 0 tokens"),
        (10, 0, "window=0: give a whole number, 1 or more"),
        (10, "4", "window='4': give a whole number, 1 or more"),
    ],
)
def test_files_that_hold_no_window_are_refused(
    length: int,
    window: Any,  # noqa: ANN401  (also none)
    wrong: str,
    tmp_path: Path,
) -> None:
    (tmp_path / "tokens").write_bytes(bytes(length))
    with pytest.raises(ValueError, match=wrong):
        TokenFile(tmp_path / "tokens", window)


def test_a_decode_that_is_no_function_is_refused(tmp_path: Path) -> None:
    shards: Any
    for shards in (TarShards, RecordShards):
        with pytest.raises(ValueError, match="decode=5: give a function"):
            shards(tmp_path / "nowhere", 5)


def test_a_type_that_tokens_can_not_have_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_bytes(bytes(64))
    for dtype in ("uint17", "O", "S", None):
        with pytest.raises(ValueError, match=f"dtype={dtype!r}: give a token's type as NumPy names it, such as uint16"):
            TokenFile(tmp_path / "tokens", 4, dtype)  # type: ignore[arg-type]


def test_where_indices_can_not_be_kept_that_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    paths = [write_tar(tmp_path / f"{number}.tar", [("0.txt", b"one")]) for number in range(3)]
    (tmp_path / "file").touch()
    kept = tmp_path / "file" / "kept"
    # Whatever has been said in this process.
    monkeypatch.setattr(_say, "_said", set())
    for _ in range(2):
        assert [sample(TarShards(paths, fields, index=kept), number) for number in range(3)] == [{"txt": b"one"}] * 3
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"forebay: index=: {kept} can't be written to (Not a directory): ")
    assert line.endswith("; give index= a directory that can be written to")
    TarShards(paths, fields, index=tmp_path / "kept")
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("home", [None, "", "relative", "/nonexistent"])
def test_a_user_without_a_home_or_a_password_entry_has_no_index_kept(
    home: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def nobody(_: int) -> None:
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
        if home is not None and not (name == "XDG_CACHE_HOME" and Path(home).is_absolute()):
            monkeypatch.setenv(name, home)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_say, "_said", set())
    if home is None:
        with pytest.raises(RuntimeError, match="Could not determine home"):
            Path.home()
    paths = [write_records(tmp_path / f"{number}", [b"one"]) for number in range(2)]
    for _ in range(2):
        assert samples(RecordShards(paths, content)) == [b"one", b"one"]
    assert sorted(tmp_path.iterdir()) == paths
    (line,) = capfd.readouterr().err.splitlines()
    assert line == (
        f"forebay: index=: user {os.getuid()} has no home directory (XDG_CACHE_HOME and HOME name none, nor does a password entry): "
        "shards are indexed again each time; give index= a directory that can be written to"
    )
    # With a directory that was given nothing is missing.
    assert samples(RecordShards(paths, content, index=tmp_path / "kept")) == [b"one", b"one"]
    assert capfd.readouterr().err == ""


def test_a_home_that_only_the_password_entry_names_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", lambda _: types.SimpleNamespace(pw_dir=str(tmp_path / "home")))
    (tmp_path / "home").mkdir()
    RecordShards([write_records(tmp_path / "a", [b"x"])], content)
    assert len(list((tmp_path / "home/.cache/forebay/shards").iterdir())) == 1


def test_one_path_may_be_given_as_it_is(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [("0.txt", b"one"), ("1.txt", b"two")])
    for given in (path, str(path), [path]):
        assert [sample(TarShards(given, fields, index=tmp_path), number) for number in range(2)] == [{"txt": b"one"}, {"txt": b"two"}]


@pytest.mark.parametrize("kind", [TarShards, RecordShards, ParquetRows, ArrowRows])
def test_no_shards_are_refused(kind: Any) -> None:  # noqa: ANN401
    with pytest.raises(ValueError, match="no shards were given: give the path of one file or more"):
        kind([], fields)


def test_a_directory_has_no_rows_or_tokens(tmp_path: Path) -> None:
    for made in (lambda: FixedRows(tmp_path, 1), lambda: TokenFile(tmp_path, 1)):
        with pytest.raises(ValueError, match="is not a regular file"):
            made()
