"""An object store on loopback: moto keeps the objects and speaks S3.

In front of it signatures are checked and faults done.
"""

import hashlib
import hmac
import http.client
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

KEY = "AKIAFOREBAYTEST"
SECRET = "top/secret+of=the-test"  # noqa: S105 # made up, as is the next
TOKEN = "a-session-token/+="  # noqa: S105
IDENTITY = "a-token/of+the=cluster"
REGION = "eu-test-1"
BUCKET = "data"
LONG_S = 120


@dataclass(frozen=True)
class ReceivedRequest:
    """A request. A listing has no key."""

    key: str | None
    range: str | None = None
    token: str | None = None


@dataclass(frozen=True)
class StoreAnswer:
    """An answer. `sent`: number of body bytes before the connection is closed."""

    status: int
    headers: dict[str, str]
    body: bytes
    sent: int | None = None


Behaviour = Callable[[ReceivedRequest, Callable[[], StoreAnswer]], StoreAnswer | None]


def refusal(status: int, code: str, message: str = "no", **headers: str) -> StoreAnswer:
    body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
    return StoreAnswer(status, {"content-type": "application/xml", **headers}, body)


def signature(secret: str, method: str, host: str, target: str) -> str:
    """The signature of a request that is signed in its address (Signature Version 4), by Amazon's description."""
    path, _, query = target.partition("?")
    pairs = sorted((quote(name, safe="-_.~"), quote(value, safe="-_.~")) for name, value in parse_qsl(query, keep_blank_values=True))
    values = dict(parse_qsl(query))
    canonical = "\n".join(
        [
            method,
            quote(unquote(path), safe="/-_.~"),
            "&".join(f"{name}={value}" for name, value in pairs if name != "X-Amz-Signature"),
            f"host:{host}\n",
            "host",
            "UNSIGNED-PAYLOAD",
        ]
    )
    scope = values["X-Amz-Credential"].partition("/")[2]
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    text = "\n".join(["AWS4-HMAC-SHA256", values["X-Amz-Date"], scope, digest])
    key = b"AWS4" + secret.encode()
    for part in [*scope.split("/"), text]:
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key.hex()


@dataclass
class BucketStore:
    """A store with one bucket."""

    moto: tuple[str, int]
    backend: Any
    signed_with: str = SECRET
    public: bool = False
    # Of credentials that a machine or the token service lends; None: they lend none.
    lent_token: str | None = None
    # The web identities that came to the token service.
    identities: list[dict[str, str]] = field(default_factory=list)
    # When what the token service lends ends.
    lent_until: str = "2099-01-01T00:00:00Z"
    # A store that does not know `If-Match`.
    forgets_conditions: bool = False
    behave: Behaviour | None = None
    asked: list[ReceivedRequest] = field(default_factory=list)
    port: int = 0
    scheme: str = "http"
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that lead a command here."""
        keys = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
        return {"AWS_ENDPOINT_URL": self.url, "AWS_REGION": REGION, "AWS_MAX_ATTEMPTS": "3", "NO_PROXY": "127.0.0.1", **keys}

    def put(self, key: str, content: bytes) -> None:
        self.backend.put_object(BUCKET, key, content)

    def put_all(self, objects: dict[str, bytes]) -> None:
        for key, content in objects.items():
            self.put(key, content)

    def delete(self, key: str) -> None:
        self.backend.delete_object(BUCKET, key)

    def gets(self) -> list[str]:
        """The objects that were asked for since this was last asked."""
        with self._lock:
            keys = [asked.key for asked in self.asked if asked.key is not None]
            self.asked.clear()
        return sorted(keys)

    def answer(self, target: str, host: str, headers: dict[str, str]) -> StoreAnswer | None:
        """Returns the answer to a request; None: the connection is closed."""
        if target.startswith("/latest/"):
            return self._lend(target)
        path, _, query = target.partition("?")
        values = dict(parse_qsl(query))
        bucket, _, key = unquote(path).lstrip("/").partition("/")
        asked = ReceivedRequest(key or None, headers.get("range"), values.get("X-Amz-Security-Token"))
        with self._lock:
            self.asked.append(asked)
        if why := self._forbids(target, host, values):
            return why
        if bucket != BUCKET:
            return refusal(404, "NoSuchBucket")

        def forward() -> StoreAnswer:
            return self._forward(path, values, headers)

        return self.behave(asked, forward) if self.behave else forward()

    def _forbids(self, target: str, host: str, values: dict[str, str]) -> StoreAnswer | None:
        if "X-Amz-Signature" not in values:
            return None if self.public else refusal(403, "AccessDenied", "Access Denied")
        if values["X-Amz-Credential"].split("/")[2:] != [REGION, "s3", "aws4_request"]:
            return refusal(400, "AuthorizationHeaderMalformed", "the region is wrong", **{"x-amz-bucket-region": REGION})
        if self.lent_token and values.get("X-Amz-Security-Token") != self.lent_token:
            return refusal(403, "InvalidToken")
        if values["X-Amz-Signature"] != signature(self.signed_with, "GET", host, target):
            return refusal(403, "SignatureDoesNotMatch", "The signature does not match")
        return None

    def _forward(self, path: str, values: dict[str, str], headers: dict[str, str]) -> StoreAnswer:
        query = "&".join(f"{name}={quote(value, safe='')}" for name, value in values.items() if not name.startswith("X-Amz-"))
        passed: dict[str, str] = {name: headers[name] for name in ("range", "if-match") if name in headers}
        if self.forgets_conditions:
            passed.pop("if-match", None)
        # Anybody may read from moto who says that somebody is asking.
        passed["Authorization"] = "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=x"
        connection = http.client.HTTPConnection(*self.moto, timeout=LONG_S)
        try:
            connection.request("GET", f"{path}?{query}" if query else path, headers=passed)
            response = connection.getresponse()
            body = response.read()
        finally:
            connection.close()
        kept = ("etag", "content-type", "content-range", "last-modified")
        return StoreAnswer(response.status, {name: value for name, value in response.getheaders() if name.lower() in kept}, body)

    def _lend(self, target: str) -> StoreAnswer:
        """The metadata service of a virtual machine."""
        if self.lent_token is None:
            return StoreAnswer(404, {}, b"")
        lent = {"AccessKeyId": KEY, "SecretAccessKey": SECRET, "Token": self.lent_token, "Expiration": "2099-01-01T00:00:00Z"}
        paths = {
            "/latest/api/token": "the-session",
            "/latest/meta-data/iam/security-credentials/": "the-role",
            "/latest/meta-data/iam/security-credentials/the-role": json.dumps(lent),
        }
        return StoreAnswer(200, {}, paths[urlsplit(target).path].encode())

    def lend_to(self, form: dict[str, str]) -> StoreAnswer:
        """The token service: lends keys for a web identity."""
        self.identities.append(form)
        if self.lent_token is None or form["WebIdentityToken"] != IDENTITY:
            return refusal(400, "InvalidIdentityToken", "the token is invalid")
        lent = {"AccessKeyId": KEY, "SecretAccessKey": SECRET, "SessionToken": self.lent_token, "Expiration": self.lent_until}
        key = "".join(f"<{name}>{value}</{name}>" for name, value in lent.items())
        name = "AssumeRoleWithWebIdentity"
        return StoreAnswer(
            200, {}, f"<{name}Response><{name}Result><Credentials>{key}</Credentials></{name}Result></{name}Response>".encode()
        )


# A request's method, path, headers (their names in small letters) and body, and the answer, if there is to be one.
Answering = Callable[[str, str, dict[str, str], bytes], StoreAnswer | None]


def _handler(answering: Answering) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            body = self.rfile.read(int(headers.get("content-length", 0)))
            answer = answering(self.command, self.path, headers, body)
            if answer is None:
                self.close_connection = True
                return
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body[: answer.sent])
            self.close_connection = answer.sent is not None

        # A metadata service is asked for a session by PUT.
        do_POST = do_PUT = do_GET

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    return Handler


class QuietServer(ThreadingHTTPServer):
    """A server that keeps quiet about those who hang up."""

    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Somebody hung up: that is part of the tests."""


@contextmanager
def answers(answering: Answering, secured: ssl.SSLContext | None = None) -> Iterator[int]:
    """A server that is gone afterwards, on a port that the kernel chooses; gives the port."""
    server = QuietServer(("127.0.0.1", 0), _handler(answering))
    if secured:
        server.socket = secured.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def serve(moto: tuple[str, int], backend: Any, secured: ssl.SSLContext | None = None) -> Iterator[BucketStore]:  # noqa: ANN401 # moto's own
    """A store that is gone afterwards."""
    store = BucketStore(moto, backend, scheme="https" if secured else "http")

    def answer(method: str, path: str, headers: dict[str, str], body: bytes) -> StoreAnswer | None:
        return store.lend_to(dict(parse_qsl(body.decode()))) if method == "POST" else store.answer(path, headers["host"], headers)

    with answers(answer, secured) as store.port:
        yield store


def first_times(count: int, key: str, fault: Callable[[StoreAnswer], StoreAnswer | None]) -> Behaviour:
    """The first so many requests for an object are answered with a fault."""
    left = [count]
    lock = threading.Lock()

    def behave(asked: ReceivedRequest, forward: Callable[[], StoreAnswer]) -> StoreAnswer | None:
        with lock:
            is_due = asked.key == key and left[0] > 0
            left[0] -= is_due
        return fault(forward()) if is_due else forward()

    return behave


def truncated(answer: StoreAnswer) -> StoreAnswer:
    return replace(answer, sent=len(answer.body) // 2)
