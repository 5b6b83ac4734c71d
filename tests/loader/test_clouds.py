"""Objects of Google's and Azure's stores (`gs://`, `az://`) as the loader reads them.

What holds of S3 holds of them.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay.loader import Extent, LoaderError, SampleError, Source, TarShards
from forebay.loader._paths import look_up, store_variables
from forebay.torch import DataLoader, ImageFolder
from tests.loader.data import same, served
from tests.loader.node import a_node, point_to
from tests.loader.test_objects import FOLDER, OPTIONS, FilesAndCopies, as_tensor, picture, read
from tests.views.clouds import ACCOUNT_KEY, TOKEN, Cloud, serve_cloud


class CopiesInClouds(FilesAndCopies[Cloud]):
    """A directory, and a store of Google's or Azure's with the same content below a prefix."""

    @property
    def root(self) -> str:
        return f"{self.store.root}/p"


@pytest.fixture(params=["gs", "az"])
def both(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[CopiesInClouds]:
    with serve_cloud(request.param) as cloud, a_node(monkeypatch) as node:
        point_to(monkeypatch, cloud.environment)
        yield CopiesInClouds(node, cloud)


def test_ranges_of_objects_are_read(both: CopiesInClouds, source: Source) -> None:
    content = bytes(at % 251 for at in range(5000))
    both.put({"whole": content, "empty": b"", "day=1/x+y #?%.bin": content[::-1]})
    whole, empty, odd = (f"{both.root}/{name}" for name in ("whole", "empty", "day=1/x+y #?%.bin"))
    mark = look_up(whole).mark
    extents = {
        Extent(whole): content,
        Extent(whole, 0, None, mark): content,
        Extent(whole, 10, 20): content[10:30],
        Extent(whole, 4990, 10, mark): content[4990:],
        Extent(whole, 5000): b"",
        Extent(empty): b"",
        Extent(odd, 1, 4998): content[::-1][1:4999],
    }
    assert read(source, list(extents)) == list(extents.values())


def test_f05_an_object_that_has_changed_is_refused_by_name(both: CopiesInClouds, source: Source) -> None:
    both.put({"a": b"1" * 100})
    path = f"{both.root}/a"
    extent = Extent(path, 10, 20, look_up(path).mark)
    both.store.put("p/a", b"2" * 100)
    with pytest.raises(OSError, match=f"it has changed since it was listed.*{path}"):
        read(source, [extent])


def test_a_folder_is_what_its_copy_is(both: CopiesInClouds) -> None:
    both.put(FOLDER | {"b/notes.txt": b"no image"})
    both.store.put("p/a/", b"")
    both.store.put("pq/other/1.png", picture(7))
    ours, theirs = ImageFolder(f"{both.root}/", as_tensor), ImageFolder(both.dir, as_tensor)
    assert (ours.classes, ours.targets) == (theirs.classes, theirs.targets)
    assert same(DataLoader(ours, **OPTIONS), DataLoader(theirs, **OPTIONS)) == 2


def test_s07_an_agent_of_another_job_is_told_what_leads_to_the_store(both: CopiesInClouds, monkeypatch: pytest.MonkeyPatch) -> None:
    both.put(FOLDER)
    with monkeypatch.context() as patch:
        for name in both.store.environment:
            if name != "NO_PROXY":
                patch.delenv(name)
        other = DataLoader(ImageFolder(both.dir, as_tensor), **OPTIONS, cache="ram=1M")
        theirs = list(other)
    loader = DataLoader(ImageFolder(both.root, as_tensor), **OPTIONS, cache=f"{both.node.cache}=64M")
    assert same(loader, theirs) == 2
    assert (served(loader).figures()["from_source"] >= len(FOLDER), served(loader).lost) == (True, None)
    secrets = (TOKEN.encode(), ACCOUNT_KEY.encode())
    environment = Path(f"/proc/{both.node.agent()}/environ").read_bytes()
    kept = [path.read_bytes() for path in both.node.root.rglob("*") if path.is_file() and not path.is_relative_to(both.dir)]
    assert not any(secret in text for text in (environment, *kept) for secret in secrets)


def test_files_are_named_as_another_process_finds_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("AWS_WEB_IDENTITY_TOKEN_FILE", "AZURE_FEDERATED_TOKEN_FILE", "CLOUDSDK_CONFIG", "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.setenv(name, "mine/it")
        assert store_variables()[name] == str(tmp_path / "mine/it")


def test_what_can_not_be_had_is_said_in_one_line(both: CopiesInClouds, monkeypatch: pytest.MonkeyPatch) -> None:
    both.put({"a": b"1"})
    with pytest.raises(FileNotFoundError, match="there is no such object"):
        look_up(f"{both.root}/none")
    with pytest.raises(OSError, match="there is no such "):
        ImageFolder(f"{both.store.scheme}://nowhere/p")
    with pytest.raises(ValueError, match=f"give it as text, '{both.root}'"):
        ImageFolder(Path(both.root))
    both.store.put("p/a//2.png", picture(2))
    with pytest.raises(LoaderError, match=r"p/a//2\.png can't be read by its key"):
        ImageFolder(both.root)
    with pytest.raises((OSError, SampleError)):
        TarShards([f"{both.root}/none"], lambda sample, rng: sample)
    for name, value in (("CLOUDSDK_AUTH_ACCESS_TOKEN", "wrong"), ("AZURE_STORAGE_KEY", "QUJD")):
        monkeypatch.setenv(name, value)
    with pytest.raises(PermissionError, match="check the credentials and their rights"):
        look_up(f"{both.root}/a")
