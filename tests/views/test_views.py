"""The contents of an object store become a directory of whole files, and stay up to date."""

import datetime
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.views.conftest import Views, held
from tests.views.store import BUCKET, IDENTITY, TOKEN

MIB = 1 << 20
NAMES = ["plain", "a/b/c", "blanks and + and %2B and %", "ünï/\u2603.jpg", "quo'te\"s&<x>", "semi;colon=1/x?y#z", "~tilde/-_.!*()"]


def large(size: int) -> bytes:
    return random.Random(size).randbytes(size)  # noqa: S311 # content


def test_every_object_is_a_file(views: Views) -> None:
    # Two parts and a bit, so that it comes in three.
    objects = {name: name.encode() * 10 for name in NAMES} | {"empty": b"", "large": large(17 * MIB)}
    views.put(objects)
    views.bucket.put("other/x", b"not below the prefix")
    views.bucket.put("plain", b"nor this")
    said = views.fetch()
    assert views.held() == objects
    total = len(objects)
    assert said.startswith(f"{views.address} at {views.dir}: {total} files, ")
    assert f"; {total} fetched (" in said
    assert {path.name for path in views.dir.iterdir()} == {name.split("/")[0] for name in objects}, "nothing of ours is among them"
    ranges = {asked.range for asked in views.bucket.asked if asked.key == "p/large"}
    assert ranges == {f"bytes=0-{8 * MIB - 1}", f"bytes={8 * MIB}-{16 * MIB - 1}", f"bytes={16 * MIB}-{17 * MIB - 1}"}


def test_files_are_their_owners_and_as_old_as_their_objects(views: Views) -> None:
    views.put({"a/x": b"x"})
    views.fetch()
    (stored,) = views.bucket.backend.list_objects(views.bucket.backend.head_bucket(BUCKET), None, None, None, None)[0]
    modified = stored.last_modified.replace(tzinfo=datetime.UTC, microsecond=0).timestamp()
    file = (views.dir / "a/x").stat()
    assert (oct(file.st_mode & 0o777), int(file.st_mtime)) == ("0o400", int(modified))
    modes = {oct(path.stat().st_mode & 0o777) for path in (views.dir, views.dir / "a", views.state)}
    assert modes == {"0o700"}


def test_only_what_changed_is_fetched(views: Views) -> None:
    views.put({"same": b"1", "changed": b"1", "gone/deep/file": b"1", "gone/other": b"1", "kind": b"1"})
    views.fetch()
    views.bucket.gets()
    (views.dir / "gone/mine").write_text("somebody else's")
    inode = (views.dir / "same").stat().st_ino
    assert f"{views.address} at {views.dir}: 5 files, 5 B\n" == views.fetch()
    assert views.bucket.gets() == [], "nothing changed, so nothing was asked for but the listing"
    for name in ("gone/deep/file", "gone/other", "kind"):
        views.bucket.delete(f"p/{name}")
    views.put({"changed": b"22", "new": b"3", "kind/is/directory": b"4"})
    said = views.fetch()
    assert views.bucket.gets() == ["p/changed", "p/kind/is/directory", "p/new"]
    expected = {"same": b"1", "changed": b"22", "new": b"3", "kind/is/directory": b"4", "gone/mine": b"somebody else's"}
    assert views.held() == expected
    assert (views.dir / "same").stat().st_ino == inode
    assert not (views.dir / "gone/deep").exists()
    assert "; 3 fetched (" in said
    assert "; 3 removed: " in said
    views.bucket.delete("p/kind/is/directory")
    views.put({"kind": b"5"})
    views.fetch()
    assert (views.dir / "kind").read_bytes() == b"5"


def test_objects_of_directories_make_directories(views: Views) -> None:
    views.put({"": b"", "train/": b"", "train/n01/": b"", "train/n02/x": b"x"})
    views.fetch()
    assert sorted(str(path.relative_to(views.dir)) for path in views.dir.rglob("*")) == ["train", "train/n01", "train/n02", "train/n02/x"]
    views.bucket.delete("p/train/n01/")
    views.put({"test/": b""})
    views.fetch()
    assert sorted(path.name for path in views.dir.rglob("*")) == ["n02", "test", "train", "x"]
    assert views.desk.type("view", "--remove", views.dir).returncode == 0
    assert not views.dir.exists()


def test_listings_of_many_pages(views: Views) -> None:
    objects = {f"{number % 7}/{number}": str(number).encode() for number in range(1100)}
    views.put(objects)
    views.fetch("--quiet")
    assert views.held() == objects
    assert len([asked for asked in views.bucket.asked if asked.key is None]) == 2


def test_a_whole_bucket(views: Views) -> None:
    views.bucket.put_all({"a": b"1", "p/b": b"2"})
    assert views.desk.type("view", f"s3://{BUCKET}", views.dir, env=views.environment()).returncode == 0
    assert views.held() == {"a": b"1", "p/b": b"2"}


def test_what_has_no_place_is_left_out_and_told(views: Views) -> None:
    outside = held(views.desk.root)
    odd = ["../x", "a/../../x", "/etc/x", "a//b", ".", "a/./b", "n" * 256, "file/below/", "zero\0byte"]
    views.put({name: b"odd" for name in odd} | {"both": b"file", "both/below": b"1", "good": b"2"})
    done = views.desk.type("view", views.address, views.dir, env=views.environment())
    assert done.returncode == 0, done.stderr
    assert views.held() == {"both/below": b"1", "good": b"2"}
    assert "; 10 objects left out" in done.stdout
    for words in (
        "has '.' or '..' in its path",
        "has an empty name",
        "has too long a name",
        "has the name of a directory",
        "ends with '/'",
    ):
        assert words in done.stderr, done.stderr
    assert views.bucket.gets() == ["p/both/below", "p/good"]
    now = {name: content for name, content in held(views.desk.root).items() if not name.startswith(("view/", ".view.forebay-view/"))}
    assert now == outside


def test_what_was_altered_here_is_fetched_anew(views: Views) -> None:
    views.put({"cut": b"12345678", "flipped": b"12345678", "replaced": b"1", "removed": b"1", "same": b"1"})
    views.fetch()
    views.bucket.gets()
    flipped = views.dir / "flipped"
    times = flipped.stat()
    for name in ("cut", "flipped"):
        (views.dir / name).chmod(0o600)
    (views.dir / "cut").write_bytes(b"1234")
    flipped.write_bytes(b"12345679")
    os.utime(flipped, ns=(times.st_atime_ns, times.st_mtime_ns))
    (views.dir / "removed").unlink()
    (views.dir / "replaced").unlink()
    (views.dir / "replaced").symlink_to("/etc/passwd")
    assert "; 3 of them because they were altered or removed here" in views.fetch()
    assert views.bucket.gets() == ["p/cut", "p/removed", "p/replaced"]
    assert flipped.read_bytes() == b"12345679", "neither size nor time tell"
    assert "; 1 of them because" in views.fetch("--verify")
    assert views.bucket.gets() == ["p/flipped"]
    assert views.held() == {"cut": b"12345678", "flipped": b"12345678", "replaced": b"1", "removed": b"1", "same": b"1"}
    assert not (views.dir / "replaced").is_symlink()


def test_altered_files_of_objects_that_are_gone_stay(views: Views) -> None:
    views.put({"a": b"1", "b": b"1"})
    views.fetch()
    (views.dir / "a").chmod(0o600)
    (views.dir / "a").write_bytes(b"precious")
    views.bucket.delete("p/a")
    assert "; 1 left though " in views.fetch()
    assert views.held() == {"a": b"precious", "b": b"1"}


def test_a_view_is_removed(views: Views) -> None:
    views.put({"a/x": b"1", "a/y": b"2", "z": b"3"})
    views.fetch()
    done = views.desk.type("view", "--remove", views.dir)
    assert (done.returncode, done.stdout) == (0, f"{views.dir}: 3 files removed, 3 B freed\n")
    assert not views.dir.exists()
    assert not views.state.exists()
    views.fetch()
    (views.dir / "a/mine").write_text("mine")
    assert "; what else lies there was left" in views.desk.type("view", "--remove", views.dir).stdout
    assert views.held() == {"a/mine": b"mine"}


@pytest.mark.parametrize("where", ["variables", "profile", "machine", "identity", "identity of a profile"])
def test_credentials_come_from_where_other_tools_have_them(views: Views, where: str) -> None:
    views.put({"a": b"1"})
    env = views.environment()
    if where != "variables":
        del env["AWS_ACCESS_KEY_ID"], env["AWS_SECRET_ACCESS_KEY"]
    if where == "profile":
        place = views.desk.home / ".aws"
        place.mkdir()
        keys = views.bucket.environment
        profile = f"aws_access_key_id = {keys['AWS_ACCESS_KEY_ID']}\naws_secret_access_key = {keys['AWS_SECRET_ACCESS_KEY']}\n"
        (place / "credentials").write_text(f"[default]\naws_access_key_id = x\naws_secret_access_key = y\n[mine]\n{profile}")
        env["AWS_PROFILE"] = "mine"
    if where == "machine":
        views.bucket.lent_token = TOKEN
        env["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = views.bucket.url
    if where.startswith("identity"):
        views.bucket.lent_token = TOKEN
        token = views.desk.home / "identity"
        token.write_text(f"{IDENTITY}\n")
        env |= {
            "AWS_ENDPOINT_URL_STS": views.bucket.url,
            "AWS_WEB_IDENTITY_TOKEN_FILE": str(token),
            "AWS_ROLE_ARN": "arn:aws:iam::1:role/r",
        }
    if where == "identity of a profile":
        config = f"[default]\nrole_arn = {env.pop('AWS_ROLE_ARN')}\nweb_identity_token_file = {env.pop('AWS_WEB_IDENTITY_TOKEN_FILE')}\n"
        (views.desk.home / "config").write_text(config)
        env["AWS_CONFIG_FILE"] = str(views.desk.home / "config")
    done = views.desk.type("view", views.address, views.dir, env=env)
    assert done.returncode == 0, done.stderr
    assert views.held() == {"a": b"1"}
    asked = {"Action": "AssumeRoleWithWebIdentity", "Version": "2011-06-15", "RoleArn": "arn:aws:iam::1:role/r"}
    asked |= {"RoleSessionName": "forebay", "WebIdentityToken": IDENTITY}
    assert views.bucket.identities == ([asked] if where.startswith("identity") else [])


def test_a_web_identity_is_read_again_when_its_keys_end(views: Views) -> None:
    views.put({f"{number}": b"1" for number in range(3)})
    views.bucket.lent_token = TOKEN
    token = views.desk.home / "identity"
    token.write_text(IDENTITY)
    env = {name: value for name, value in views.bucket.environment.items() if not name.startswith("AWS_S") and name != "AWS_ACCESS_KEY_ID"}
    env |= {"AWS_ENDPOINT_URL_STS": views.bucket.url, "AWS_WEB_IDENTITY_TOKEN_FILE": str(token), "AWS_ROLE_ARN": "r"}
    views.bucket.lent_until = "2020-01-01T00:00:00Z"
    done = views.desk.type("view", views.address, views.dir, env=env)
    assert done.returncode == 0, done.stderr
    # For the listing, and each object.
    assert len(views.bucket.identities) == 4
    token.write_text("old")
    line = views.desk.refuse("view", views.address, views.dir, env=env)
    assert f"{views.bucket.url}/ lends no credentials: 400 Bad Request: " in line
    assert "InvalidIdentityToken" in line
    assert len(views.bucket.identities) == 5, "what is refused is not asked again"


def test_a_public_bucket_needs_none(views: Views) -> None:
    views.put({"a b": b"1"})
    views.bucket.public = True
    env = {"AWS_ENDPOINT_URL": views.bucket.url, "AWS_EC2_METADATA_DISABLED": "true"}
    done = views.desk.type("view", views.address, views.dir, env=env)
    assert done.returncode == 0, done.stderr
    assert views.held() == {"a b": b"1"}


def test_any_program_reads_it(views: Views) -> None:
    """A static program, too: nothing is preloaded."""
    views.put({f"class{number % 2}/{number}.jpg": bytes([number]) for number in range(10)})
    views.fetch()
    script = "import pathlib, sys; print(sum(p.read_bytes()[0] for p in pathlib.Path(sys.argv[1]).rglob('*.jpg')))"
    done = subprocess.run([sys.executable, "-c", script, str(views.dir)], capture_output=True, text=True, check=True)
    assert done.stdout == "45\n"


def test_views_in_directories_that_are_links(views: Views, tmp_path: Path) -> None:
    views.put({"a": b"1"})
    (views.desk.root / "link").symlink_to(tmp_path)
    done = views.desk.type("view", views.address, "link/data", env=views.environment())
    assert done.returncode == 0, done.stderr
    assert held(tmp_path / "data") == {"a": b"1"}
    assert views.desk.type("view", "--remove", "link/data").returncode == 0
    assert list(tmp_path.iterdir()) == []
