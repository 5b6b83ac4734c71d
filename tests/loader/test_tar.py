"""Tar files as GNU tar, Python and others write them.

Names and bytes are those that Python's tarfile and GNU tar read.
"""

import io
import os
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from forebay import _say
from forebay.loader import LoaderError, TarShards
from tests.loader.test_shards import fields, samples, write_tar

BLOCK = 4096
# Runs of bytes and holes of a file: which of its blocks have something.
HOLES = {
    "a.front": [5],
    "a.back": [0, 9],
    "a.many": list(range(0, 80, 2)),
    "b.none": [],
    "b.whole": [0, 1, 2],
    "b.few": [1, 2, 7],
}


def write_sparse(path: Path, blocks: list[int]) -> None:
    with path.open("wb") as file:
        for block in blocks:
            file.seek(block * BLOCK)
            file.write(bytes([block % 251 + 1]) * BLOCK)
        file.truncate((max(blocks, default=3) + 2) * BLOCK)


def reference(path: Path) -> dict[str, dict[str, bytes]]:
    """Samples as Python reads them."""
    found: dict[str, dict[str, bytes]] = {}
    with tarfile.open(path) as tar:
        for member in tar:
            if member.isreg() and (file := tar.extractfile(member)) is not None:
                folder, _, name = member.name.rpartition("/")
                stem, _, field = name.partition(".")
                found.setdefault(f"{folder}/{stem}" if folder else stem, {})[field.lower()] = file.read()
    return found


def opened(path: Path) -> TarShards:
    """Twice, so that an index that was kept is read, too."""
    TarShards(path, fields, index=path.parent / "kept")
    return TarShards(path, fields, index=path.parent / "kept")


def read(path: Path) -> dict[str, dict[str, bytes]]:
    dataset = opened(path)
    found = samples(dataset)
    assert [dataset[number] for number in range(len(dataset))] == found
    return {dataset.key(number): one for number, one in enumerate(found)}


WAYS = {
    "gnu": ["--format=gnu"],
    "oldgnu": ["--format=oldgnu"],
    **{f"pax {version}": ["--format=posix", f"--sparse-version={version}"] for version in ("0.0", "0.1", "1.0")},
    "pax 1.0 with long names": ["--format=posix", "--transform", "s,^," + "far/" * 40 + ","],
    "gnu with long names": ["--format=gnu", "--transform", "s,^," + "far/" * 40 + ","],
}


@pytest.mark.parametrize("way", WAYS)
def test_sparse_files_are_read_with_their_holes(way: str, tmp_path: Path) -> None:
    for name, blocks in HOLES.items():
        write_sparse(tmp_path / name, blocks)
    path = tmp_path / "shard.tar"
    subprocess.run(["tar", "--sparse", "--hole-detection=raw", *WAYS[way], "-cf", path, *HOLES], cwd=tmp_path, check=True)
    with tarfile.open(path) as tar:
        assert sum(member.issparse() for member in tar) >= 4
    assert path.stat().st_size < sum((tmp_path / name).stat().st_size for name in HOLES)
    found = read(path)
    assert found == reference(path)
    assert {f"{key.rpartition('/')[2]}.{name}": len(one) for key, given in found.items() for name, one in given.items()} == {
        name: (tmp_path / name).stat().st_size for name in HOLES
    }
    assert all(one == (tmp_path / f"{key[-1]}.{name}").read_bytes() for key, given in found.items() for name, one in given.items())


def header(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(tarfile.USTAR_FORMAT)


def padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % 512)


def extended(said: dict[str, str], kind: bytes = tarfile.XHDTYPE) -> bytes:
    """A header that says something of the next member, or of all."""
    records = b""
    for name, value in said.items():
        line = f" {name}={value}\n".encode()
        length = len(line) + 1
        while len(str(length)) + len(line) != length:
            length += 1
        records += str(length).encode() + line
    return header("PaxHeaders/x", len(records), kind) + padded(records)


def archive(path: Path, *parts: bytes) -> Path:
    path.write_bytes(b"".join(parts) + bytes(1024))
    return path


def test_sizes_and_names_are_those_of_extended_headers(tmp_path: Path) -> None:
    path = archive(
        tmp_path / "shard.tar",
        extended({"comment": "of all"}, tarfile.XGLTYPE),
        extended({"size": "700", "path": "größe/a.jpg"}),
        header("cut", 0),
        padded(b"j" * 700),
        extended({"path": "größe/a.cls"}),
        header("cut too", 1),
        padded(b"3"),
        header("b.jpg", 2),
        padded(b"bb"),
        # One that says what its member says, and one for a member that belongs to no sample.
        extended({"size": "3"}),
        header("b.cls", 3),
        padded(b"two"),
        extended({"size": "0", "path": "c.d/"}),
        header("x", 0, tarfile.DIRTYPE),
        header("d.txt", 4),
        padded(b"last"),
    )
    wanted = {"größe/a": {"jpg": b"j" * 700, "cls": b"3"}, "b": {"jpg": b"bb", "cls": b"two"}, "d": {"txt": b"last"}}
    assert read(path) == reference(path) == wanted


@pytest.mark.parametrize("order", [("size", "GNU.sparse.realsize"), ("GNU.sparse.realsize", "size")])
def test_a_sparse_file_whose_size_in_the_archive_is_said_by_an_extended_header(order: tuple[str, str], tmp_path: Path) -> None:
    # As GNU tar writes one of more than 8 GiB. Python's tarfile takes one size for the other here, so GNU tar says what
    # is right.
    sparse_map = padded(b"3\n512\n512\n2048\n512\n4096\n0\n")
    data = sparse_map + b"x" * 512 + b"y" * 512
    sizes = {"size": str(len(data)), "GNU.sparse.realsize": "4096"}
    said = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "a.jpg", **{name: sizes[name] for name in order}}
    path = archive(tmp_path / "shard.tar", extended(said), header("GNUSparseFile.0/a.jpg", 0), data, header("a.cls", 1), padded(b"3"))
    wanted = bytes(512) + b"x" * 512 + bytes(1024) + b"y" * 512 + bytes(1536)
    assert read(path) == {"a": {"jpg": wanted, "cls": b"3"}}
    given = subprocess.run(["tar", "-xOf", path, "a.jpg"], capture_output=True, check=True).stdout
    assert given == wanted


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_a_file_of_more_than_8_gib_has_its_size_elsewhere(
    format: Any,  # noqa: ANN401  (a literal)
    tmp_path: Path,
) -> None:
    # A hole of the file system's: none of it is written or read.
    path, size = tmp_path / "shard.tar", (9 << 30) + 5
    with path.open("wb") as file:
        info = tarfile.TarInfo("a.bin")
        info.size = size
        file.write(info.tobuf(format))
        start = file.tell()
        file.seek(-(-(start + size) // 512) * 512)
        file.write(header("b.txt", 3) + padded(b"end") + bytes(1024))
    dataset = opened(path)
    extent = dataset.locate(0)
    assert (len(dataset), extent.offset, extent.length) == (2, start - 512, size + 512)
    assert dataset[1] == {"txt": b"end"}


def test_another_file_is_found_out_by_a_sparse_file_too(tmp_path: Path) -> None:
    for other, blocks in (("old", [0, 9]), ("new", [3, 4])):
        write_sparse(tmp_path / "a.jpg", blocks)
        command = ["tar", "--sparse", "--hole-detection=raw", "--format=posix", "-cf", f"{other}.tar", "a.jpg"]
        subprocess.run(command, cwd=tmp_path, check=True)
    dataset = opened(tmp_path / "old.tar")
    content = (tmp_path / "new.tar").read_bytes()
    (tmp_path / "old.tar").write_bytes(content.ljust((tmp_path / "old.tar").stat().st_size, b"\0"))
    with pytest.raises(LoaderError, match=r"old.tar is not the file that was indexed"):
        samples(dataset)


def test_a_sparse_file_that_was_cut_or_has_a_map_that_can_not_be_is_refused(tmp_path: Path) -> None:
    write_sparse(tmp_path / "a.jpg", [0, 5, 9])
    path = tmp_path / "shard.tar"
    subprocess.run(["tar", "--sparse", "--hole-detection=raw", "--format=posix", "-cf", path, "a.jpg"], cwd=tmp_path, check=True)
    whole = path.read_bytes()
    for length in (len(whole) - 10240, 2 * 512 + 700, 9000):
        path.write_bytes(whole[:length])
        with pytest.raises(LoaderError, match=r"shard.tar.*: it was cut"):
            opened(path)
    said = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "a.jpg", "GNU.sparse.realsize": "4096"}
    for wrong, told in (
        (b"1\n0\n9999\n", "the map of the sparse file a.jpg does not fit"),
        (b"2\n512\n512\n0\n512\n", "the map of the sparse file a.jpg does not fit"),
        (b"x\n", "a header can't be read"),
        (b"-1\n", "the map of the sparse file a.jpg does not fit"),
    ):
        archive(path, extended(said), header("GNUSparseFile.0/a.jpg", 1024), padded(wrong), b"x" * 512)
        with pytest.raises(LoaderError, match=rf"shard.tar.*({told})"):
            opened(path)


def test_a_header_with_a_negative_size_ends_nothing_and_hangs_nothing(tmp_path: Path) -> None:
    info = bytearray(header("a.txt", 0))
    info[124:136] = b"\xff" * 10 + b"\xfc\x00"
    info[148:156] = b"%06o\0 " % (sum(info[:148]) + sum(info[156:]) + 8 * 32)
    path = archive(tmp_path / "shard.tar", bytes(info))
    with pytest.raises(LoaderError, match=r"shard.tar"):
        opened(path)


def test_a_volume_of_an_archive_is_refused(tmp_path: Path) -> None:
    path = archive(tmp_path / "shard.tar", header("a.txt", 512, b"M"), bytes(512), header("b.txt", 1), padded(b"b"))
    with pytest.raises(LoaderError, match=r"shard.tar begins within a.txt, as the volumes of one archive do"):
        opened(path)
    (tmp_path / "big.txt").write_bytes(os.urandom(30 << 10))
    command = ["tar", "-cM", "--tape-length=20", "-f", "one.tar", "-f", "two.tar", "big.txt"]
    subprocess.run(command, cwd=tmp_path, check=True)
    for name, wrong in (("one.tar", "it was cut, or goes on in another volume"), ("two.tar", "begins within big.txt")):
        with pytest.raises(LoaderError, match=wrong):
            opened(tmp_path / name)


def test_links_and_another_archive_are_left_out_with_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_say, "_said", set())
    (tmp_path / "a.jpg").write_bytes(b"one")
    os.link(tmp_path / "a.jpg", tmp_path / "b.jpg")
    (tmp_path / "c.jpg").symlink_to("a.jpg")
    for number in range(2):
        subprocess.run(["tar", "-cf", f"{number}.tar", "a.jpg", "b.jpg", "c.jpg"], cwd=tmp_path, check=True)
        assert read(tmp_path / f"{number}.tar") == {"a": {"jpg": b"one"}}
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"forebay: {tmp_path}/0.tar: b.jpg is a link, and links are left out of samples, as WebDataset leaves them out")
    write_tar(tmp_path / "x.tar", [("x.txt", b"x")])
    both = tmp_path / "both.tar"
    both.write_bytes((tmp_path / "x.tar").read_bytes() + (tmp_path / "0.tar").read_bytes())
    assert read(both) == reference(both) == {"x": {"txt": b"x"}}
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"forebay: {both}: another archive begins at byte 10240, after the first one's end, and is left out")


def test_an_archive_without_an_end_is_taken_for_one_that_was_cut(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "shard.tar", [("a.txt", b"a"), ("b.txt", b"b")])
    path.write_bytes(path.read_bytes()[: 4 * 512])
    with pytest.raises(LoaderError, match="no end mark at byte 2048: it was cut"):
        opened(path)
    # One block is enough, as for GNU tar.
    path.write_bytes(path.read_bytes() + bytes(512))
    assert read(path) == {"a": {"txt": b"a"}, "b": {"txt": b"b"}}


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("name", ["ü.jpg", "n" * 98 + ".jpg", "f" * 90 + "/" + "n" * 90 + ".jpg", "\udce9.jpg", "blank s.JPG"])
def test_names_are_those_that_python_reads(name: str, format: int, tmp_path: Path) -> None:
    path = tmp_path / "shard.tar"
    with tarfile.open(path, "w", format=format) as tar:
        info: Any = tarfile.TarInfo(name)
        info.size = 3
        try:
            tar.addfile(info, io.BytesIO(b"abc"))
        except ValueError:
            assert format == tarfile.USTAR_FORMAT
            return
    assert read(path) == reference(path)
