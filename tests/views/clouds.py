"""Stores of Google and of Azure on loopback, as far as they are read.

Objects in memory, listings in pages, credentials that are checked.

Both are written by the descriptions of their protocols, and share nothing with what is tested.
"""

import base64
import hashlib
import hmac
import json
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from typing import Any
from urllib.parse import parse_qsl, quote, unquote
from xml.sax.saxutils import escape

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from tests.views.store import BUCKET, Behaviour, ReceivedRequest, StoreAnswer, answers

# All made up.
TOKEN = "ya29.a-token/of+google"  # noqa: S105
ACCOUNT = "forebaytest"
ACCOUNT_KEY = base64.b64encode(b"the key of an account of the test").decode()
SHARED = "sv=2023-11-03&sp=rl&sig=a%2Fsignature%2B%3D"
IDENTITY = "a-token-of-the-cluster"
PAGE = 3
MODIFIED_S = 1_767_323_045


@dataclass(frozen=True)
class CloudObject:
    """An object."""

    content: bytes
    version: int
    is_compressed: bool = False


class Cloud(ABC):
    """A store with one bucket."""

    scheme: str
    # Paths of services that lend tokens: with what each was asked.
    lent: dict[str, str]

    def __init__(self) -> None:
        self.kept: dict[str, CloudObject] = {}
        self.asked: list[ReceivedRequest] = []
        self.behave: Behaviour | None = None
        self.lent = {}
        # With this key the bucket is open to everybody.
        self.public = False
        # A listing that stops before its end: bytes that do not come.
        self.cut = 0
        self.port = 0
        self._versions = 0
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    @abstractmethod
    def environment(self) -> dict[str, str]:
        """Environment variables that lead a command here."""

    @property
    @abstractmethod
    def place(self) -> dict[str, str]:
        """The same without credentials."""

    @property
    def root(self) -> str:
        return f"{self.scheme}://{BUCKET}"

    def put(self, key: str, content: bytes, *, is_compressed: bool = False) -> None:
        with self._lock:
            self._versions += 1
            self.kept[key] = CloudObject(content, self._versions, is_compressed)

    def put_all(self, objects: Mapping[str, bytes]) -> None:
        for key, content in objects.items():
            self.put(key, content)

    def delete(self, key: str) -> None:
        del self.kept[key]

    def gets(self) -> list[str]:
        """The objects that were asked for since this was last asked."""
        with self._lock:
            keys = [asked.key for asked in self.asked if asked.key is not None]
            self.asked.clear()
        return sorted(keys)

    def listed(self, values: Mapping[str, str], token: str) -> tuple[list[str], list[str], str | None]:
        """A page of a listing: keys, folders, and where the next one begins."""
        prefix, at = values.get("prefix", ""), int(values.get(token) or 0)
        found: dict[str, bool] = {}
        for key in sorted(self.kept):
            if key.startswith(prefix):
                rest = key[len(prefix) :]
                is_below = "delimiter" in values and "/" in rest
                found[prefix + rest.partition("/")[0] + "/" if is_below else key] = is_below
        page = list(found.items())[at : at + PAGE]
        following = str(at + PAGE) if at + PAGE < len(found) else None
        return [key for key, is_folder in page if not is_folder], [key for key, is_folder in page if is_folder], following

    def ranged(self, kept: CloudObject, headers: Mapping[str, str], version: dict[str, str]) -> StoreAnswer:
        """All of an object, or the part that is asked for."""
        content = kept.content
        if "range" not in headers:
            return StoreAnswer(200, version, content)
        first, last = map(int, headers["range"].removeprefix("bytes=").split("-"))
        if first >= len(content):
            return StoreAnswer(416, {}, b"")
        last = min(last, len(content) - 1)
        return StoreAnswer(206, {**version, "content-range": f"bytes {first}-{last}/{len(content)}"}, content[first : last + 1])

    def answer(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> StoreAnswer | None:
        """Returns the answer to a request; None: the connection is closed."""
        path, _, query = target.partition("?")
        values = dict(parse_qsl(query, keep_blank_values=True))
        if (token := self.token(method, path, values, headers, dict(parse_qsl(body.decode())))) is not None:
            return token
        container, key = self.names(path)
        with self._lock:
            self.asked.append(ReceivedRequest(key, headers.get("range")))
        if why := self.forbids(target, headers, values):
            return why
        if container != BUCKET:
            return self.refuse(404, "ContainerNotFound")

        def forward() -> StoreAnswer:
            if key is None:
                page = self.page(values)
                return StoreAnswer(200, {}, page[: len(page) - self.cut])
            with self._lock:
                kept = self.kept.get(key)
            return self.refuse(404, "BlobNotFound") if kept is None else self.get(kept, values, headers)

        return self.behave(ReceivedRequest(key, headers.get("range")), forward) if self.behave else forward()

    @abstractmethod
    def names(self, path: str) -> tuple[str, str | None]:
        """The bucket and the key of a path; a listing has no key."""

    @abstractmethod
    def token(
        self, method: str, path: str, values: Mapping[str, str], headers: Mapping[str, str], form: Mapping[str, str]
    ) -> StoreAnswer | None:
        """Returns the answer of a service that lends tokens; None if the request is for another one."""

    @abstractmethod
    def forbids(self, target: str, headers: Mapping[str, str], values: Mapping[str, str]) -> StoreAnswer | None:
        """A refusal, unless whoever asks may read."""

    @abstractmethod
    def refuse(self, status: int, code: str) -> StoreAnswer:
        """A refusal in this store's words."""

    @abstractmethod
    def page(self, values: Mapping[str, str]) -> bytes:
        """A page of a listing."""

    @abstractmethod
    def get(self, kept: CloudObject, values: Mapping[str, str], headers: Mapping[str, str]) -> StoreAnswer:
        """An object."""


class GoogleServer(Cloud):
    """Google Cloud Storage, by its JSON API."""

    scheme = "gs"

    def __init__(self) -> None:
        super().__init__()
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)

    @property
    def place(self) -> dict[str, str]:
        return {"STORAGE_EMULATOR_HOST": self.url, "AWS_MAX_ATTEMPTS": "3", "NO_PROXY": "127.0.0.1"}

    @property
    def environment(self) -> dict[str, str]:
        return {**self.place, "CLOUDSDK_AUTH_ACCESS_TOKEN": TOKEN}

    def service_account(self) -> dict[str, str]:
        """Its file of credentials."""
        encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        key = self.key.private_bytes(encoding, form, serialization.NoEncryption()).decode()
        return {"type": "service_account", "client_email": "me@test", "private_key": key, "private_key_id": "7"}

    def person(self) -> dict[str, str]:
        """The file of credentials of somebody who has logged in."""
        return {
            "type": "authorized_user",
            "client_id": "c",
            "client_secret": "s",
            "refresh_token": "a refresh/token+",
            "token_uri": f"{self.url}/token",
        }

    def names(self, path: str) -> tuple[str, str | None]:
        bucket, _, key = path.removeprefix("/storage/v1/b/").partition("/o")
        return unquote(bucket), unquote(key.removeprefix("/")) or None

    def token(
        self, method: str, path: str, values: Mapping[str, str], headers: Mapping[str, str], form: Mapping[str, str]
    ) -> StoreAnswer | None:
        asked = {"grant_type": "refresh_token", "client_id": "c", "client_secret": "s", "refresh_token": "a refresh/token+"}
        is_machine = path.startswith("/computeMetadata/") and headers.get("metadata-flavor") == "Google"
        if not is_machine and path != "/token":
            return None
        self.lent[path] = method
        if path == "/token" and form != asked:
            return StoreAnswer(400, {}, b'{"error": "invalid_grant"}')
        return StoreAnswer(200, {}, json.dumps({"access_token": TOKEN, "expires_in": 3600}).encode())

    def forbids(self, target: str, headers: Mapping[str, str], values: Mapping[str, str]) -> StoreAnswer | None:
        said = headers.get("authorization", "").removeprefix("Bearer ")
        if self.public or said == TOKEN or (said.count(".") == 2 and self._is_signed(said)):
            return None
        return self.refuse(403 if said else 401, "denied")

    def _is_signed(self, token: str) -> bool:
        """Returns True if the service account has signed a valid token (JSON Web Token, RS256) for reading only."""
        signed, _, signature = token.rpartition(".")

        def decoded(text: str) -> bytes:
            return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))

        self.key.public_key().verify(decoded(signature), signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        head, claims = (json.loads(decoded(part)) for part in signed.split("."))
        is_now = claims["iat"] <= time.time() + 60 and time.time() < claims["exp"] <= claims["iat"] + 3600
        scope = "https://www.googleapis.com/auth/devstorage.read_only"
        return is_now and head["kid"] == "7" and (claims["iss"], claims["sub"], claims["scope"]) == ("me@test", "me@test", scope)

    def refuse(self, status: int, code: str) -> StoreAnswer:
        return StoreAnswer(status, {}, json.dumps({"error": {"code": status, "message": code}}).encode())

    def page(self, values: Mapping[str, str]) -> bytes:
        keys, folders, following = self.listed(values, "pageToken")
        items = [self._item(key) for key in keys]
        page = {"kind": "storage#objects", "items": items, "prefixes": folders, "nextPageToken": following}
        return json.dumps({name: value for name, value in page.items() if value}).encode()

    def _item(self, key: str) -> dict[str, str]:
        kept = self.kept[key]
        modified = time.strftime("%Y-%m-%dT%H:%M:%S.250Z", time.gmtime(MODIFIED_S))
        return {"name": key, "size": str(len(kept.content)), "generation": str(kept.version), "timeCreated": modified}

    def get(self, kept: CloudObject, values: Mapping[str, str], headers: Mapping[str, str]) -> StoreAnswer:
        if values.get("ifGenerationMatch", str(kept.version)) != str(kept.version):
            return self.refuse(412, "conditionNotMet")
        version = {"x-goog-generation": str(kept.version)}
        if kept.is_compressed and "gzip" not in headers.get("accept-encoding", ""):
            return StoreAnswer(200, version, b"expanded")
        if kept.is_compressed:
            version["content-encoding"] = "gzip"
        return self.ranged(kept, headers, version)


class AzureServer(Cloud):
    """Azure Blob Storage."""

    scheme = "az"

    @property
    def place(self) -> dict[str, str]:
        text = f"BlobEndpoint={self.url}/{ACCOUNT};AccountName={ACCOUNT}"
        return {"AZURE_STORAGE_CONNECTION_STRING": text, "AWS_MAX_ATTEMPTS": "3", "NO_PROXY": "127.0.0.1"}

    @property
    def environment(self) -> dict[str, str]:
        return {**self.place, "AZURE_STORAGE_KEY": ACCOUNT_KEY}

    def names(self, path: str) -> tuple[str, str | None]:
        container, _, key = path.removeprefix(f"/{ACCOUNT}/").partition("/")
        return unquote(container), unquote(key) or None

    def token(
        self, method: str, path: str, values: Mapping[str, str], headers: Mapping[str, str], form: Mapping[str, str]
    ) -> StoreAnswer | None:
        asked = {"grant_type": "client_credentials", "client_id": "c", "scope": "https://storage.azure.com/.default"}
        federated = {"client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:jwt-bearer", "client_assertion": IDENTITY}
        is_machine = path == "/metadata/identity/oauth2/token" and headers.get("metadata") == "true"
        if not is_machine and path != "/tenant/oauth2/v2.0/token":
            return None
        self.lent[path] = method
        if is_machine and values.get("resource") != "https://storage.azure.com/":
            return StoreAnswer(400, {}, b"")
        if not is_machine and form not in ({**asked, "client_secret": "s"}, {**asked, **federated}):
            return StoreAnswer(401, {}, b'{"error": "invalid_client"}')
        # The service of a machine writes the number as text.
        return StoreAnswer(200, {}, json.dumps({"access_token": TOKEN, "expires_in": "3600" if is_machine else 3600}).encode())

    def forbids(self, target: str, headers: Mapping[str, str], values: Mapping[str, str]) -> StoreAnswer | None:
        said = headers.get("authorization", "")
        assert headers["x-ms-version"] == "2023-11-03"
        if self.public or said == f"Bearer {TOKEN}" or target.endswith((f"?{SHARED}", f"&{SHARED}")):
            return None
        if said.startswith("SharedKey"):
            is_it = said == f"SharedKey {ACCOUNT}:{shared_key(ACCOUNT_KEY, target, headers)}"
            return None if is_it else self.refuse(403, "AuthenticationFailed")
        return self.refuse(403, "denied") if said else self.refuse(404, "ResourceNotFound")

    def refuse(self, status: int, code: str) -> StoreAnswer:
        body = f"\ufeff<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message></Error>".encode()
        return StoreAnswer(status, {"content-type": "application/xml", "x-ms-error-code": code}, body)

    def page(self, values: Mapping[str, str]) -> bytes:
        assert (values["restype"], values["comp"]) == ("container", "list")
        keys, folders, following = self.listed(values, "marker")
        blobs = "".join(map(self._blob, keys)) + "".join(f"<BlobPrefix>{named(key)}</BlobPrefix>" for key in folders)
        end = f"<NextMarker>{following}</NextMarker>" if following else "<NextMarker />"
        return f"\ufeff<?xml version='1.0'?><EnumerationResults><Blobs>{blobs}</Blobs>{end}</EnumerationResults>".encode()

    def _blob(self, key: str) -> str:
        kept = self.kept[key]
        modified = f"<Last-Modified>{formatdate(MODIFIED_S, usegmt=True)}</Last-Modified>"
        size = f"<Content-Length>{len(kept.content)}</Content-Length>"
        return f"<Blob>{named(key)}<Properties>{modified}<Etag>0x8D{kept.version}</Etag>{size}</Properties></Blob>"

    def get(self, kept: CloudObject, values: Mapping[str, str], headers: Mapping[str, str]) -> StoreAnswer:
        etag = f'"0x8D{kept.version}"'
        if headers.get("if-match", etag) != etag:
            return self.refuse(412, "ConditionNotMet")
        return self.ranged(kept, headers, {"etag": etag})


def named(key: str) -> str:
    """A key in XML, which can't hold all characters."""
    if any(ord(character) < 32 for character in key):
        return f'<Name Encoded="true">{quote(key, safe="/")}</Name>'
    return f"<Name>{escape(key)}</Name>"


def shared_key(key: str, target: str, headers: Mapping[str, str]) -> str:
    """The signature of a GET by an account's key (Shared Key), by Azure's description."""
    path, _, query = target.partition("?")
    standard = ["content-encoding", "content-language", "content-length", "content-md5", "content-type", "date"]
    standard += ["if-modified-since", "if-match", "if-none-match", "if-unmodified-since", "range"]
    lines = ["GET", *(headers.get(name, "") for name in standard)]
    lines += [f"{name}:{headers[name].strip()}" for name in sorted(headers) if name.startswith("x-ms-")]
    values = sorted((name.lower(), value) for name, value in parse_qsl(query, keep_blank_values=True))
    resource = "\n".join([f"/{ACCOUNT}{path}", *(f"{name}:{value}" for name, value in values)])
    text = "\n".join([*lines, resource])
    return base64.b64encode(hmac.new(base64.b64decode(key), text.encode(), hashlib.sha256).digest()).decode()


CLOUDS: dict[str, Any] = {"gs": GoogleServer, "az": AzureServer}


@contextmanager
def serve_cloud(scheme: str) -> Iterator[Cloud]:
    """A store that is gone afterwards."""
    cloud: Cloud = CLOUDS[scheme]()
    with answers(cloud.answer) as cloud.port:
        yield cloud
