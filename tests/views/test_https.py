"""A store behind TLS: its certificate must come from an authority that the system knows."""

import datetime
import ipaddress
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Desk
from tests.views import store
from tests.views.conftest import Views, new_backend

YEAR = datetime.timedelta(days=365)


def certified(directory: Path) -> tuple[Path, ssl.SSLContext]:
    """An authority's certificate, in a file, and what a server needs that has one from it for 127.0.0.1."""
    reason = "needs cryptography: uv sync --group stores"
    x509 = pytest.importorskip("cryptography.x509", reason=reason)
    ec = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ec", reason=reason)
    hashes = pytest.importorskip("cryptography.hazmat.primitives.hashes", reason=reason)
    written = pytest.importorskip("cryptography.hazmat.primitives.serialization", reason=reason)
    pem = written.Encoding.PEM
    today = datetime.datetime.now(datetime.UTC)

    def name(text: str) -> object:
        return x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, text)])

    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    names = [name("an authority"), name("a store")]
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = []
    for number, extension in enumerate([x509.BasicConstraints(ca=True, path_length=0), address]):
        builder = x509.CertificateBuilder(names[0], names[number], keys[number].public_key(), x509.random_serial_number())
        builder = builder.not_valid_before(today - YEAR).not_valid_after(today + YEAR).add_extension(extension, critical=number == 0)
        made.append(builder.sign(keys[0], hashes.SHA256()))
    files = [directory / name for name in ("authority.pem", "store.pem", "key.pem")]
    for file, certificate in zip(files, made, strict=False):
        file.write_bytes(certificate.public_bytes(pem))
    files[2].write_bytes(keys[1].private_bytes(pem, written.PrivateFormat.PKCS8, written.NoEncryption()))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files[1], files[2])
    return files[0], context


@pytest.fixture
def secured(desk: Desk, moto: tuple[str, int], tmp_path: Path) -> Iterator[tuple[Views, Path]]:
    authority, context = certified(tmp_path)
    with store.serve(moto, new_backend(), context) as bucket:
        yield Views(desk, bucket), authority


def test_a_certificate_of_a_known_authority(secured: tuple[Views, Path]) -> None:
    views, authority = secured
    views.put({"a": b"1", "b c": b"2"})
    views.fetch(env={"SSL_CERT_FILE": str(authority)})
    assert views.held() == {"a": b"1", "b c": b"2"}


def test_a_certificate_of_an_unknown_authority(secured: tuple[Views, Path]) -> None:
    views, _ = secured
    views.put({"a": b"1"})
    line = views.refuse()
    assert "certificate" in line
    assert views.bucket.asked == []
