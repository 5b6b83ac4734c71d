"""Where a view may be, and what is never touched."""

import os
from pathlib import Path

import pytest

from tests import support
from tests.views.conftest import Views, held
from tests.views.store import BUCKET

MEMORY = Path("/dev/shm")  # noqa: S108


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["view"], "s3://BUCKET/PREFIX"),
        (["view", "s3://data"], "DIR"),
        (["view", "/data", "view"], "'/data' is not an address"),
        (["view", "s3://", "view"], "names no bucket"),
        (["view", "s3://data/../x", "view"], "'..' in its prefix"),
        (["view", "s3://data/p", "nowhere/view"], "mkdir -p "),
        (["view", "s3://data/p", "source/file/view"], "source/file"),
        (["view", "s3://data/p", "source/file"], "is a link or a file"),
        (["view", "s3://data/p", "link"], "is a link or a file"),
        (["view", "s3://data/p", "source"], "is not empty, and not a view"),
        (["view", "s3://data/p", "open/view"], "chmod +t"),
        (["view", "s3://data/p", "/proc/view"], "/proc"),
        (["view", "s3://data/p", "/"], "name a directory in another one"),
        (["view", "--size", "much", "s3://data/p", "view"], "--size: invalid size 'much'"),
        (["view", "--remove", "source"], "is not a view"),
        (["view", "--remove", "nowhere/x"], "is not a view"),
        (["view", "--remove", "source", "s3://data/p"], "--remove"),
        (["run", "--view", "s3://data/p", "--", "touch", "ran"], "--view: s3://data/p names no directory; write s3://BUCKET/PREFIX=DIR"),
        (["run", "--view", "data=view", "--", "touch", "ran"], "--view: 'data' is not an address"),
        (["run", "--view", "s3://data/p=source", "--", "touch", "ran"], "--view: "),
        (["run", "--view", "s3://data/p=v", "--view", "s3://data/q=v/w", "--", "touch", "ran"], "lie in each other"),
        (["run", "--view", "s3://data/p=v", "--view", "s3://data/q=v", "--", "touch", "ran"], "lie in each other"),
    ],
    ids=lambda value: " ".join(value[:5]) if isinstance(value, list) else "",
)
def test_bad_input(views: Views, words: list[str], names: str) -> None:
    views.put({"a": b"1"})
    (views.desk.root / "link").symlink_to(views.desk.source)
    (views.desk.root / "open").mkdir()
    (views.desk.root / "open").chmod(0o777)
    before = sorted(views.desk.root.rglob("*"))
    assert names in views.refuse(*words)
    assert sorted(views.desk.root.rglob("*")) == before, "nothing was made"


def test_it_must_fit(views: Views) -> None:
    views.put({"a": b"1" * 600, "b": b"1" * 600})
    line = views.refuse("view", "--size", "1K", views.address, views.dir)
    assert "has 1200 bytes, more than the 1024" in line
    assert views.bucket.gets() == []
    assert not views.state.exists()
    views.fetch("--size", "2K")
    views.put({"c": b"1" * 1000})
    assert "has 2200 bytes, more than the 2048" in views.refuse("view", "--size", "2K", views.address, views.dir)
    assert len(views.held()) == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount a small file system")
def test_it_must_fit_onto_its_disk(views: Views) -> None:
    views.put({"a": b"1" * 600_000, "b": b"1" * 600_000})
    small = views.desk.root / "small"
    small.mkdir()
    mount = f'mount -t tmpfs -o size=1M none {small}; "$@"; ls -A {small}'
    views.desk.prefix = ("unshare", "--mount", "bash", "-c", mount, "small")
    done = views.desk.type("view", views.address, small / "view", env=views.environment())
    assert done.stdout == ""
    assert "5 % of its disk kept free, and " in done.stderr
    assert "needs 1204224 in 2; name a directory on a larger disk" in done.stderr
    assert views.bucket.gets() == []


def test_another_bucket_does_not_take_its_place(views: Views) -> None:
    views.put({"a": b"1"})
    views.bucket.put("q/b", b"2")
    views.fetch()
    line = views.refuse("view", f"s3://{BUCKET}/q", views.dir)
    assert f"is a view of {views.address}; name another directory, or remove it: forebay view --remove {views.dir}" in line
    assert views.held() == {"a": b"1"}


def test_an_empty_directory_may_be_there(views: Views) -> None:
    views.put({"a": b"1"})
    views.dir.mkdir()
    views.fetch()
    assert views.held() == {"a": b"1"}


def test_a_view_that_was_deleted_by_hand_comes_back(views: Views) -> None:
    views.put({"a/b": b"1"})
    views.fetch()
    support.remove_tree(views.dir)
    views.fetch()
    assert views.held() == {"a/b": b"1"}


def test_s02_links_in_a_view_lead_nowhere(views: Views) -> None:
    elsewhere = views.desk.root / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "x").write_text("precious")
    views.put({"train/x": b"1", "y": b"1"})
    views.fetch()
    support.remove_tree(views.dir / "train")
    (views.dir / "train").symlink_to(elsewhere)
    line = views.refuse(status=1)
    assert f"{views.dir}/train: " in line
    views.bucket.delete("p/train/x")
    views.fetch()
    assert views.desk.type("view", "--remove", views.dir).returncode == 0
    assert held(elsewhere) == {"x": b"precious"}


def test_s02_a_directory_that_others_prepared(views: Views) -> None:
    views.put({"a": b"1"})
    views.state.mkdir()
    views.state.chmod(0o777)
    assert "is not this user's alone" in views.refuse()
    views.state.rmdir()
    views.state.symlink_to(views.desk.source)
    assert ".view.forebay-view" in views.refuse()
    assert held(views.desk.source) == {"file": b"content"}


def test_a_damaged_manifest_is_said(views: Views) -> None:
    views.put({"a": b"1"})
    views.fetch()
    (views.state / "manifest").write_text("{}\n")
    assert "manifest is damaged" in views.refuse()
    assert views.held() == {"a": b"1"}


def test_a_place_in_memory(views: Views) -> None:
    views.put({"a": b"1"})
    place = MEMORY / views.desk.root.name
    place.mkdir()
    try:
        assert views.desk.type("view", views.address, place / "view", env=views.environment()).returncode == 0
        assert held(place / "view") == {"a": b"1"}
        assert views.desk.type("view", "--remove", place / "view").returncode == 0
    finally:
        support.remove_tree(place)
