"""A rank's proxies and certificates hold for what is read for it, by itself or by another job's agent.

Bad ones are said in one line.
"""

import base64
import contextlib
import os
import select
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from forebay.loader import DirectSource, Extent
from forebay.torch import DataLoader
from tests.loader.data import served
from tests.loader.node import a_node, point_to
from tests.loader.test_objects import OPTIONS, ROOT, FilesAndObjects, Objects, both, read
from tests.support import LONG_S
from tests.views.conftest import bucket, moto, new_backend
from tests.views.store import BucketStore, QuietServer, serve
from tests.views.test_https import certified

__all__ = ["both", "bucket", "moto"]  # Fixtures of these tests, too.

CONTENT = bytes(range(200))
EXTENTS = [Extent(f"{ROOT}/a", at, 10) for at in range(0, 200, 10)]
# Nobody but the proxy knows where that is.
NOWHERE = "http://store.invalid"


@dataclass
class Proxy:
    """A proxy that leads whoever asks for a connection to the store, wherever that was to be."""

    store: BucketStore
    wants: str | None = None
    port: int = 0
    asked: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            def do_CONNECT(self) -> None:
                proxy.asked.append(self.path)
                said = self.headers.get("Proxy-Authorization", "").removeprefix("Basic ")
                if proxy.wants is not None and base64.b64decode(said).decode() != proxy.wants:
                    self.send_error(407)
                    return
                with socket.create_connection(("127.0.0.1", proxy.store.port)) as store:
                    self.send_response(200)
                    self.end_headers()
                    relay(self.connection, store)
                self.close_connection = True

            def log_message(self, *_: object) -> None:
                """Says nothing."""

        return Handler


def relay(one: socket.socket, other: socket.socket) -> None:
    """Until one of them has nothing more to say."""
    while True:
        for ready in select.select([one, other], [], [])[0]:
            if not (data := ready.recv(1 << 16)):
                return
            (other if ready is one else one).sendall(data)


@pytest.fixture
def proxy(both: FilesAndObjects) -> Iterator[Proxy]:
    both.bucket.put("p/a", CONTENT)
    made = Proxy(both.bucket)
    server = QuietServer(("127.0.0.1", 0), made.handler())
    made.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield made
    server.shutdown()
    thread.join(LONG_S)
    server.server_close()


def surroundings(monkeypatch: pytest.MonkeyPatch, variables: Mapping[str, str]) -> None:
    """Sets the network's environment variables to these, and removes all others."""
    for name in [name for name in os.environ if name.upper().endswith("_PROXY") or name.startswith("SSL_CERT")]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def an_agent(both: FilesAndObjects, monkeypatch: pytest.MonkeyPatch, variables: Mapping[str, str]) -> DataLoader:
    """A loader agent, started by a job with another environment. It stays as long as this loader."""
    with monkeypatch.context() as patch:
        surroundings(patch, variables)
        loader = DataLoader(Objects([Extent(str(both.node.path(1)))] * 4), **OPTIONS, cache="ram=1M")
        list(loader)
    return loader


def read_by_agent(both: FilesAndObjects) -> None:
    """Reads all extents, and finds that the agent has."""
    loader = DataLoader(Objects(EXTENTS), **OPTIONS | {"batch_size": 1, "shuffle": False}, cache=f"{both.node.cache}=64M", hedge_budget=0.0)
    assert [bytes(batch[0].tolist()) for batch in loader] == [CONTENT[at : at + 10] for at in range(0, 200, 10)]
    assert (served(loader).lost, served(loader).figures()["from_source"]) == (None, len(EXTENTS))


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
def test_what_lies_behind_a_proxy_is_read(name: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    surroundings(monkeypatch, {name: proxy.url, "AWS_ENDPOINT_URL": NOWHERE, "NO_PROXY": "127.0.0.1,.site.org"})
    assert read(DirectSource(), [Extent(f"{ROOT}/a")]) == [CONTENT]
    assert set(proxy.asked) == {"store.invalid:80"}


@pytest.mark.parametrize("excepted", ["127.0.0.1", "a.org, 127.0.0.0/8", "*"])
def test_what_is_excepted_is_read_without_the_proxy(excepted: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    surroundings(monkeypatch, {"HTTP_PROXY": proxy.url, "NO_PROXY": excepted})
    assert read(DirectSource(), [Extent(f"{ROOT}/a")]) == [CONTENT]
    assert proxy.asked == []


def test_the_agent_of_another_job_takes_the_ranks_proxy(both: FilesAndObjects, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    other = an_agent(both, monkeypatch, {})
    proxy.wants = "user:pass word"
    by = f"http://user:pass%20word@127.0.0.1:{proxy.port}"
    surroundings(monkeypatch, {"HTTP_PROXY": by, "AWS_ENDPOINT_URL": NOWHERE})
    read_by_agent(both)
    assert set(proxy.asked) == {"store.invalid:80"}
    del other


def test_the_agent_of_another_job_forgets_that_jobs_network(both: FilesAndObjects, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    other = an_agent(both, monkeypatch, {"ALL_PROXY": proxy.url, "SSL_CERT_FILE": "/nowhere", "AWS_CA_BUNDLE": "/nowhere"})
    surroundings(monkeypatch, {})
    read_by_agent(both)
    assert proxy.asked == []
    assert b"nowhere" not in Path(f"/proc/{both.node.agent()}/environ").read_bytes()
    del other


@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        ("socks5://127.0.0.1:1", ValueError, "$HTTP_PROXY: 'socks5://127.0.0.1:1' is not a proxy for HTTP; write http://HOST:PORT"),
        ("http://user:hidden@127.0.0.1:99999", ValueError, "$HTTP_PROXY: its value is not a proxy for HTTP; write http://HOST:PORT"),
        ("http://127.0.0.1:1", OSError, "refused (os error 111); the endpoint is http://store.invalid, by the proxy 127.0.0.1:1"),
        (
            "http://user:hidden@127.0.0.1:{port}",
            OSError,
            "proxy server responded 407/407; the endpoint is http://store.invalid, by the proxy",
        ),
    ],
    ids=["another kind", "no port", "nobody there", "wrong password"],
)
def test_s07_a_bad_proxy_is_named_without_its_password(
    said: str, kind: type[Exception], words: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy.wants = "user:right"
    surroundings(monkeypatch, {"HTTP_PROXY": said.format(port=proxy.port), "AWS_ENDPOINT_URL": NOWHERE, "AWS_MAX_ATTEMPTS": "1"})
    with pytest.raises(kind) as caught:
        read(DirectSource(), [Extent(f"{ROOT}/a")])
    line = str(caught.value)
    assert words in line
    assert "hidden" not in line
    assert "\n" not in line


@pytest.fixture
def secured(moto: tuple[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[FilesAndObjects, Path]]:
    """A store with a certificate, and that of its authority."""
    authority, context = certified(tmp_path)
    with contextlib.ExitStack() as stack:
        node = stack.enter_context(a_node(monkeypatch))
        made = FilesAndObjects(node, stack.enter_context(serve(moto, new_backend(), context)))
        point_to(monkeypatch, {})
        surroundings(monkeypatch, made.bucket.environment)
        made.bucket.put("p/a", CONTENT)
        yield made, authority


@pytest.mark.parametrize("name", ["AWS_CA_BUNDLE", "SSL_CERT_FILE"])
def test_the_ranks_certificates_are_believed(name: str, secured: tuple[FilesAndObjects, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    both, authority = secured
    other = an_agent(both, monkeypatch, {})
    # As it is written from the job's directory, which is not the agent's.
    monkeypatch.chdir(authority.parent)
    monkeypatch.setenv(name, authority.name)
    assert read(DirectSource(), [Extent(f"{ROOT}/a")]) == [CONTENT]
    read_by_agent(both)
    del other


def test_the_profiles_certificates_are_believed(secured: tuple[FilesAndObjects, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    both, authority = secured
    config = both.node.root / "config"
    config.write_text(f"[default]\nca_bundle = {authority}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    assert read(DirectSource(), [Extent(f"{ROOT}/a")]) == [CONTENT]


def test_a_certificate_of_another_authority_is_refused(secured: tuple[FilesAndObjects, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    both, authority = secured
    with pytest.raises(OSError, match="certificate"):
        read(DirectSource(), [Extent(f"{ROOT}/a")])
    for name, content, words in (
        ("missing.pem", None, "missing.pem"),
        ("none.pem", "", "no certificate is there"),
        ("key.pem", "", "no certificate is there"),
    ):
        bundle = both.node.root / name
        if content is not None:
            bundle.write_text(content)
        monkeypatch.setenv("AWS_CA_BUNDLE", str(bundle))
        with pytest.raises(ValueError, match=r"^\$AWS_CA_BUNDLE: ") as caught:
            read(DirectSource(), [Extent(f"{ROOT}/a")])
        assert words in str(caught.value)
        assert str(caught.value).endswith("; name a file of certificates (PEM)")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    with pytest.raises(ValueError, match=r"^\$AWS_CA_BUNDLE: "):
        read(DirectSource(), [Extent(f"{ROOT}/a")])
