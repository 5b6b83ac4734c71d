"""Views of buckets of Google (`gs://`) and containers of Azure (`az://`): what holds of S3 holds of them."""

import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.cli.conftest import Desk
from tests.views.clouds import ACCOUNT_KEY, IDENTITY, MODIFIED_S, SHARED, TOKEN, AzureServer, Cloud, GoogleServer, serve_cloud
from tests.views.conftest import held
from tests.views.store import ReceivedRequest, StoreAnswer

MIB = 1 << 20


@dataclass
class Mirror:
    """A desk beside a cloud."""

    desk: Desk
    cloud: Cloud

    @property
    def address(self) -> str:
        return f"{self.cloud.root}/p"

    @property
    def dir(self) -> Path:
        return self.desk.root / "view"

    @property
    def state(self) -> Path:
        return self.desk.root / ".view.forebay-view"

    def put(self, objects: dict[str, bytes]) -> None:
        self.cloud.put_all({f"p/{name}": content for name, content in objects.items()})

    def fetch(self, env: dict[str, str] | None = None) -> str:
        done = self.desk.type("view", self.address, self.dir, env=self.cloud.environment if env is None else env)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    def refuse(self, address: str | None = None, *, status: int = 2, env: dict[str, str] | None = None) -> str:
        words = ("view", address or self.address, self.dir)
        return self.desk.refuse(*words, status=status, env=self.cloud.environment if env is None else env)


@pytest.fixture(params=["gs", "az"])
def mirror(desk: Desk, request: pytest.FixtureRequest) -> Iterator[Mirror]:
    with serve_cloud(request.param) as cloud:
        yield Mirror(desk, cloud)


def test_p17_every_object_is_a_file_and_only_what_changed_is_fetched(mirror: Mirror) -> None:
    objects = {f"{number}/a b+c%ü&<.jpg": bytes([number]) * number for number in range(8)} | {"one": b"1", " x ": b"2"}
    mirror.put(objects)
    mirror.cloud.put("q/another", b"no")
    mirror.fetch()
    assert held(mirror.dir) == objects
    assert (mirror.dir / "one").stat().st_mtime_ns // 10**9 == MODIFIED_S
    mirror.cloud.gets()
    mirror.put({"one": b"2"})
    mirror.cloud.delete("p/1/a b+c%ü&<.jpg")
    del objects["1/a b+c%ü&<.jpg"]
    mirror.fetch()
    assert held(mirror.dir) == objects | {"one": b"2"}
    assert mirror.cloud.gets() == ["p/one"]


def test_p17_what_has_no_place_is_left_out_and_told(mirror: Mirror) -> None:
    mirror.put({"a": b"1", "b//c": b"2", "../d": b"3", "dir/": b"", "e\x01": b"4"})
    said = mirror.fetch()
    assert held(mirror.dir) == {"a": b"1", "e\x01": b"4"}
    assert (mirror.dir / "dir").is_dir()
    assert "has an empty name in its path" in said
    assert "has '.' or '..' in its path" in said


def test_p17_parts_are_never_of_two_versions(mirror: Mirror) -> None:
    mirror.put({"a": b"\xff" * (20 * MIB), "b": b"1"})
    left = [1]

    def behave(asked: ReceivedRequest, forward: Callable[[], StoreAnswer]) -> StoreAnswer | None:
        if asked.range and not asked.range.startswith("bytes=0-") and left[0]:
            left[0] = 0
            mirror.cloud.put("p/a", b"\1" * (20 * MIB))
        return forward()

    mirror.cloud.behave = behave
    mirror.fetch()
    assert held(mirror.dir) == {"a": b"\1" * (20 * MIB), "b": b"1"}


def test_f04_a_connection_that_breaks_goes_on_where_it_stopped(mirror: Mirror) -> None:
    mirror.put({"a": bytes(range(250)) * 4})
    mirror.cloud.behave = lambda asked, forward: replace(forward(), sent=100) if asked.key else forward()
    mirror.fetch()
    asked = [one.range for one in mirror.cloud.asked if one.key]
    assert asked == [None, *(f"bytes={at}-999" for at in range(100, 1000, 100))]


def test_p17_a_listing_that_is_cut_is_not_taken_for_whole(mirror: Mirror) -> None:
    mirror.put({"a": b"1"})
    mirror.fetch()
    mirror.cloud.cut = 30
    assert "its listing can't be read: is this an endpoint of " in mirror.refuse()
    assert held(mirror.dir) == {"a": b"1"}


def test_an_empty_object_and_a_whole_bucket(mirror: Mirror) -> None:
    mirror.cloud.put_all({"a": b"", "b/c": b"1"})
    done = mirror.desk.type("view", mirror.cloud.root, mirror.dir, env=mirror.cloud.environment)
    assert done.returncode == 0, done.stderr
    assert held(mirror.dir) == {"a": b"", "b/c": b"1"}


def test_a_bucket_or_a_prefix_that_is_not_there(mirror: Mirror) -> None:
    mirror.put({"a": b"1"})
    assert "has no objects; check the prefix" in mirror.refuse(f"{mirror.cloud.root}/nothing")
    line = mirror.refuse(f"{mirror.cloud.scheme}://nowhere/p")
    assert "there is no such " in line
    assert not mirror.state.exists()


def test_without_credentials_the_mend_is_named(mirror: Mirror) -> None:
    mirror.put({"a": b"1"})
    alone = {**mirror.cloud.place, "AZURE_POD_IDENTITY_AUTHORITY_HOST": "http://127.0.0.1:1"}
    line = mirror.refuse(env=alone)
    mend = {"gs": "set GOOGLE_APPLICATION_CREDENTIALS", "az": "set AZURE_STORAGE_KEY, "}[mirror.cloud.scheme]
    assert ", and no credentials were found; " in line
    assert mend in line
    mirror.cloud.public = True
    mirror.fetch(env=alone)
    assert held(mirror.dir) == {"a": b"1"}


def test_s07_credentials_that_are_wrong_are_not_told(mirror: Mirror) -> None:
    mirror.put({"a": b"1"})
    wrong = {"gs": {"CLOUDSDK_AUTH_ACCESS_TOKEN": "b64secret"}, "az": {"AZURE_STORAGE_KEY": "YjY0c2VjcmV0"}}[mirror.cloud.scheme]
    line = mirror.refuse(env=mirror.cloud.environment | wrong)
    assert "; check the credentials and their rights" in line
    assert not any(secret in line for secret in wrong.values())
    if mirror.cloud.scheme == "gs":
        line = mirror.refuse(env=mirror.cloud.environment | {"CLOUDSDK_AUTH_ACCESS_TOKEN": "b64\nsecret"})
        assert "a token, can't stand in a request; check the credentials" in line


@pytest.fixture
def google(desk: Desk) -> Iterator[tuple[Mirror, GoogleServer]]:
    with serve_cloud("gs") as cloud:
        assert isinstance(cloud, GoogleServer)
        yield Mirror(desk, cloud), cloud


@pytest.fixture
def azure(desk: Desk) -> Iterator[tuple[Mirror, AzureServer]]:
    with serve_cloud("az") as cloud:
        assert isinstance(cloud, AzureServer)
        yield Mirror(desk, cloud), cloud


@pytest.mark.parametrize("kind", ["service account", "person"])
def test_files_of_googles_credentials(google: tuple[Mirror, GoogleServer], kind: str, tmp_path: Path) -> None:
    mirror, cloud = google
    mirror.put({"a": b"1"})
    file = tmp_path / "credentials.json"
    file.write_text(json.dumps(cloud.service_account() if kind == "service account" else cloud.person()))
    mirror.fetch(env={**cloud.place, "GOOGLE_APPLICATION_CREDENTIALS": str(file)})
    assert held(mirror.dir) == {"a": b"1"}
    assert cloud.lent == ({} if kind == "service account" else {"/token": "POST"})


def test_a_person_who_has_logged_out_is_told(google: tuple[Mirror, GoogleServer], tmp_path: Path) -> None:
    mirror, cloud = google
    mirror.put({"a": b"1"})
    file = tmp_path / "credentials.json"
    file.write_text(json.dumps({**cloud.person(), "refresh_token": "old"}))
    line = mirror.refuse(env={**cloud.place, "GOOGLE_APPLICATION_CREDENTIALS": str(file)})
    assert f"{cloud.url}/token lends no credentials: 400 Bad Request: " in line
    assert "invalid_grant" in line


def test_what_google_keeps_compressed_comes_as_it_is(google: tuple[Mirror, GoogleServer]) -> None:
    mirror, cloud = google
    content = gzip.compress(b"text" * 100)
    cloud.put("p/a.gz", content, is_compressed=True)
    mirror.fetch()
    assert held(mirror.dir) == {"a.gz": content}


@pytest.mark.parametrize("kind", ["connection string", "shared access", "secret", "federated", "machine"])
def test_credentials_of_azure(azure: tuple[Mirror, AzureServer], kind: str, tmp_path: Path) -> None:
    mirror, cloud = azure
    mirror.put({"a b": b"1"})
    identity = tmp_path / "identity"
    identity.write_text(f"{IDENTITY}\n")
    application = {"AZURE_CLIENT_ID": "c", "AZURE_TENANT_ID": "tenant", "AZURE_AUTHORITY_HOST": cloud.url}
    text = cloud.place["AZURE_STORAGE_CONNECTION_STRING"]
    env = {
        "connection string": {"AZURE_STORAGE_CONNECTION_STRING": f"{text};AccountKey={ACCOUNT_KEY}"},
        "shared access": {"AZURE_STORAGE_SAS_TOKEN": f"?{SHARED}"},
        "secret": {**application, "AZURE_CLIENT_SECRET": "s"},
        "federated": {**application, "AZURE_FEDERATED_TOKEN_FILE": str(identity)},
        "machine": {"AZURE_POD_IDENTITY_AUTHORITY_HOST": cloud.url},
    }[kind]
    mirror.fetch(env={**cloud.place, **env})
    assert held(mirror.dir) == {"a b": b"1"}
    services = {
        "secret": "/tenant/oauth2/v2.0/token",
        "federated": "/tenant/oauth2/v2.0/token",
        "machine": "/metadata/identity/oauth2/token",
    }
    assert list(cloud.lent) == ([services[kind]] if kind in services else [])


def test_a_run_has_views_of_several_stores(desk: Desk) -> None:
    with serve_cloud("gs") as one, serve_cloud("az") as other:
        one.put("p/a", b"1")
        other.put("p/b", b"2")
        views = f"{one.root}/p={desk.root}/one:{other.root}/p={desk.root}/other"
        env = {**one.environment, **other.environment, "FOREBAY_VIEW": views}
        done = desk.type("run", "--", "cat", desk.root / "one/a", desk.root / "other/b", env=env)
        assert done.stdout == "12", done.stderr


def test_s07_keys_of_all_stores_are_told_to_nobody(mirror: Mirror) -> None:
    mirror.put({"a": b"1"})
    mirror.cloud.behave = lambda *_: StoreAnswer(500, {}, TOKEN.encode())
    line = mirror.refuse()
    kept = [path.read_bytes() for path in mirror.desk.root.rglob("*") if path.is_file()]
    assert not any(secret in line for secret in (TOKEN, ACCOUNT_KEY))
    assert not any(secret.encode() in text for text in kept for secret in (TOKEN, ACCOUNT_KEY))
