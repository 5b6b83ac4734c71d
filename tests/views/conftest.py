"""One S3 server for all tests, and a desk to type commands at for each."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Desk, desk  # noqa: F401 # a fixture of these tests, too
from tests.views import store
from tests.views.store import BUCKET, BucketStore


@pytest.fixture(scope="session")
def moto() -> Iterator[tuple[str, int]]:
    """A server that keeps objects in memory, on a port that the kernel chooses."""
    server_of_moto = pytest.importorskip("moto.server", reason="needs moto: uv sync --group stores")
    server = server_of_moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    yield server.get_host_and_port()
    server.stop()


def new_backend() -> Any:  # noqa: ANN401 # moto's own
    """An empty bucket in moto."""
    models = pytest.importorskip("moto.s3.models", reason="needs moto: uv sync --group stores")
    backend = models.s3_backends["123456789012"]["aws"]
    backend.reset()
    backend.create_bucket(BUCKET, "us-east-1")
    return backend


@pytest.fixture
def bucket(moto: tuple[str, int]) -> Iterator[BucketStore]:
    """A store with an empty bucket."""
    with store.serve(moto, new_backend()) as made:
        yield made


@dataclass
class Views:
    """A desk beside a store."""

    desk: Desk
    bucket: BucketStore
    prefix: str = "p"

    @property
    def address(self) -> str:
        return f"s3://{BUCKET}/{self.prefix}"

    @property
    def dir(self) -> Path:
        return self.desk.root / "view"

    @property
    def state(self) -> Path:
        return self.desk.root / ".view.forebay-view"

    def put(self, objects: dict[str, bytes]) -> None:
        """Puts objects below the prefix."""
        self.bucket.put_all({f"{self.prefix}/{name}": content for name, content in objects.items()})

    def environment(self, env: Mapping[str, str] | None = None) -> dict[str, str]:
        return {**self.bucket.environment, **(env or {})}

    def fetch(self, *words: str | Path, env: Mapping[str, str] | None = None) -> str:
        """`forebay view` of the prefix into `dir`; gives what it says at the end."""
        done = self.desk.type("view", *words, self.address, self.dir, env=self.environment(env))
        assert done.returncode == 0, done.stderr
        return done.stdout

    def refuse(self, *words: str | Path, status: int = 2, env: Mapping[str, str] | None = None) -> str:
        """The one line that `forebay view` is refused with, or fails with."""
        typed = words or ("view", self.address, self.dir)
        return self.desk.refuse(*typed, status=status, env=self.environment(env))

    def held(self) -> dict[str, bytes]:
        """All files of the view."""
        return held(self.dir)


def held(root: Path) -> dict[str, bytes]:
    """All files below a directory."""
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file() and not path.is_symlink()}


@pytest.fixture
def views(desk: Desk, bucket: BucketStore) -> Views:  # noqa: F811 # a fixture
    """Views can be fetched here."""
    return Views(desk, bucket)
