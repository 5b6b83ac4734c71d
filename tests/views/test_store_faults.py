"""Faults of the store and of the network.

Retried where that may help, else one clear line, and nothing half is ever seen.
"""

import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests import support
from tests.views.conftest import Views
from tests.views.store import BUCKET, REGION, SECRET, Behaviour, ReceivedRequest, StoreAnswer, first_times, refusal, truncated

MIB = 1 << 20
NO_KEYS = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_EC2_METADATA_DISABLED": "true"}
PASSING: dict[str, Callable[[StoreAnswer], StoreAnswer | None]] = {
    "slow down": lambda _: refusal(503, "SlowDown"),
    "internal error": lambda _: refusal(500, "InternalError"),
    "too many requests": lambda _: refusal(429, "TooManyRequests"),
    "truncated": truncated,
    "closed": lambda _: None,
}


@pytest.mark.parametrize("fault", PASSING)
def test_passing_faults_are_got_over(views: Views, fault: str) -> None:
    views.put({"a": b"1" * 1000, "b": b"2" * 1000})
    views.bucket.behave = first_times(2, "p/a", PASSING[fault])
    views.fetch()
    assert views.held() == {"a": b"1" * 1000, "b": b"2" * 1000}
    assert views.bucket.gets() == ["p/a", "p/a", "p/a", "p/b"]


def test_f04_what_comes_bit_by_bit_is_not_given_up(views: Views) -> None:
    content = bytes(range(250)) * 4
    views.put({"a": content})
    views.bucket.behave = lambda asked, forward: replace(forward(), sent=100) if asked.key else forward()
    views.fetch()
    assert views.held() == {"a": content}
    asked = [one.range for one in views.bucket.asked if one.key]
    assert asked == [None, *(f"bytes={at}-999" for at in range(100, 1000, 100))], "more often than failed attempts are allowed"


def test_a_listing_is_asked_for_again_too(views: Views) -> None:
    views.put({"a": b"1"})
    left = [2]

    def behave(asked: ReceivedRequest, forward: Callable[[], StoreAnswer]) -> StoreAnswer | None:
        left[0] -= asked.key is None
        return refusal(503, "SlowDown") if asked.key is None and left[0] >= 0 else forward()

    views.bucket.behave = behave
    views.fetch()
    assert views.held() == {"a": b"1"}


# One that comes in part is nearer to its end each time.
LASTING = PASSING | {"truncated": lambda answer: replace(answer, sent=0)}


@pytest.mark.parametrize("fault", LASTING)
def test_lasting_faults_end_it_and_it_goes_on_from_there(views: Views, fault: str) -> None:
    objects = {f"{number:03}": bytes(100) for number in range(40)} | {"zz": b"2" * 1000}
    views.put(objects)
    views.bucket.behave = first_times(1000, "p/zz", LASTING[fault])
    line = views.refuse(status=1)
    assert line.startswith(f"s3://{BUCKET}/p/zz: ")
    assert line.endswith("; the fetched part is kept: the same command continues")
    assert not views.dir.exists(), "what is not whole is not there"
    views.bucket.behave = None
    before = views.bucket.gets()
    assert before.count("p/zz") == 3, "as often as was asked for"
    views.fetch()
    assert views.held() == objects
    assert not set(before) - {"p/zz"} & set(views.bucket.gets()), "nothing is fetched twice"
    assert sorted(path.name for path in views.state.iterdir()) == ["lock", "manifest"]


def test_an_object_that_may_not_be_read(views: Views) -> None:
    views.put({"a": b"1", "secret": b"2"})
    views.bucket.behave = first_times(1000, "p/secret", lambda _: refusal(403, "AccessDenied", "Access\nDenied \x1b[31m" + "x" * 5000))
    line = views.refuse(status=1)
    assert line.startswith(f"s3://{BUCKET}/p/secret: AccessDenied: Access Denied")
    assert "check the credentials and their rights" in line
    assert "\x1b" not in line
    assert len(line) < 500


def test_an_archived_object_says_so(views: Views) -> None:
    views.put({"cold": b"1"})
    views.bucket.behave = first_times(1000, "p/cold", lambda _: refusal(403, "InvalidObjectState", "not valid for the storage class"))
    assert "InvalidObjectState: not valid for the storage class" in views.refuse(status=1)


def replaced_meanwhile(views: Views, times: int, when: Callable[[ReceivedRequest], bool]) -> None:
    """Before a request is answered its object is replaced, so many times."""
    lock, left = threading.Lock(), [times]

    def behave(asked: ReceivedRequest, forward: Callable[[], StoreAnswer]) -> StoreAnswer | None:
        with lock:
            if when(asked) and left[0] > 0:
                left[0] -= 1
                size = 20 * MIB if asked.range else 10
                views.bucket.put(str(asked.key), bytes([left[0] + 1]) * size)
        return forward()

    views.bucket.behave = behave


@pytest.mark.parametrize("forgets", [False, True], ids=["conditions", "no conditions"])
def test_an_object_that_changes_between_listing_and_getting(views: Views, forgets: bool) -> None:
    views.bucket.forgets_conditions = forgets
    views.put({"a": b"old", "b": b"1"})
    replaced_meanwhile(views, 1, lambda asked: asked.key == "p/a")
    views.fetch()
    assert views.held() == {"a": b"\1" * 10, "b": b"1"}


@pytest.mark.parametrize("forgets", [False, True], ids=["conditions", "no conditions"])
def test_p17_parts_are_never_of_two_versions(views: Views, forgets: bool) -> None:
    views.bucket.forgets_conditions = forgets
    views.put({"a": b"\xff" * (20 * MIB)})
    replaced_meanwhile(views, 1, lambda asked: bool(asked.range) and not str(asked.range).startswith("bytes=0-"))
    views.fetch()
    assert views.held() == {"a": b"\1" * (20 * MIB)}


def test_an_object_that_is_gone_between_listing_and_getting(views: Views) -> None:
    views.put({"a": b"1", "b": b"2"})

    def behave(asked: ReceivedRequest, forward: Callable[[], StoreAnswer]) -> StoreAnswer | None:
        if asked.key == "p/a":
            views.bucket.delete("p/a")
        return forward()

    views.bucket.behave = behave
    views.fetch()
    assert views.held() == {"b": b"2"}


def test_a_bucket_that_never_stands_still(views: Views) -> None:
    views.put({"a": b"old", "b": b"1"})
    replaced_meanwhile(views, 100, lambda asked: asked.key == "p/a")
    line = views.refuse(status=1)
    assert line.startswith(f"s3://{BUCKET}/p/a: it changed after it was listed, 3 times in a row; try again when nobody writes there; ")
    assert not views.dir.exists()


def test_a_refresh_that_fails_leaves_the_view_as_it_was(views: Views) -> None:
    views.put({"a": b"1", "b": b"1"})
    views.fetch()
    views.put({"a": b"22", "b": b"22", "c": b"22"})
    views.bucket.behave = first_times(1000, "p/c", lambda _: refusal(403, "AccessDenied"))
    views.refuse(status=1)
    assert views.held() == {"a": b"1", "b": b"1"}
    views.bucket.behave = None
    views.fetch()
    assert views.held() == {"a": b"22", "b": b"22", "c": b"22"}


def test_a_store_that_sends_too_much(views: Views) -> None:
    views.put({"a": b"1"})
    views.bucket.behave = first_times(1000, "p/a", lambda answer: replace(answer, body=answer.body * 2))
    assert "more bytes than it has" in views.refuse(status=1)


def test_p17_a_command_that_is_killed_leaves_no_half_view(views: Views) -> None:
    objects = {f"{number:03}": bytes([number]) * 100 for number in range(60)}
    views.put(objects)
    gate, reached = threading.Event(), threading.Event()

    def behave(asked: ReceivedRequest, forward: Callable[[], StoreAnswer]) -> StoreAnswer | None:
        if asked.key == "p/040":
            reached.set()
            gate.wait(support.LONG_S)
        return forward()

    views.bucket.behave = behave
    words = [str(support.command()), "view", views.address, str(views.dir)]
    environment = {**views.desk.environment, **views.environment()}
    with subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        assert reached.wait(support.LONG_S)
        # All but what waits is staged by then.
        staged = views.state / "journal"
        support.wait_until(lambda: staged.read_text().count('"path"') == len(objects) - 1, "the rest to be fetched")
        assert not views.dir.exists()
        process.send_signal(signal.SIGKILL)
    gate.set()
    views.bucket.behave = None
    assert not views.dir.exists()
    views.bucket.gets()
    views.fetch()
    assert views.bucket.gets() == ["p/040"]
    assert views.held() == objects


def test_p17_after_another_boot_what_was_staged_is_compared(views: Views) -> None:
    views.put({"good": b"1" * 100, "torn": b"2" * 100, "z": b"3"})
    views.bucket.behave = first_times(1000, "p/z", lambda _: refusal(403, "AccessDenied"))
    views.refuse(status=1)
    # What a loss of power leaves: names and sizes, and no bytes.
    (torn,) = [path for path in (views.state / "staged").iterdir() if path.read_bytes() == b"2" * 100]
    times = torn.stat()
    torn.chmod(0o600)
    torn.write_bytes(bytes(100))
    os.utime(torn, ns=(times.st_atime_ns, times.st_mtime_ns))
    journal = views.state / "journal"
    head, _, rest = journal.read_text().partition("\n")
    journal.write_text(head.replace(head.partition('"boot":"')[2][:8], "00000000") + "\n" + rest)
    views.bucket.behave = None
    views.bucket.gets()
    views.fetch()
    assert views.bucket.gets() == ["p/torn", "p/z"]
    assert views.held() == {"good": b"1" * 100, "torn": b"2" * 100, "z": b"3"}


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "wrong"}, "SignatureDoesNotMatch"),
        ({"AWS_REGION": "elsewhere"}, f"the bucket is in the region {REGION}; set AWS_REGION={REGION}"),
        (
            {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_EC2_METADATA_DISABLED": "true"},
            "no credentials were found; set AWS_",
        ),
        ({"AWS_SECRET_ACCESS_KEY": ""}, "set both, or none"),
        ({"AWS_PROFILE": "nobody"}, "there is no profile 'nobody'"),
        ({"AWS_ENDPOINT_URL": "not a url"}, "'not a url' is not a URL; write https://HOST"),
        ({"AWS_MAX_ATTEMPTS": "many"}, "$AWS_MAX_ATTEMPTS: 'many'"),
    ],
    ids=["secret", "region", "none", "half", "profile", "endpoint", "attempts"],
)
def test_access_that_is_wrong(views: Views, env: dict[str, str], words: str) -> None:
    views.put({"a": b"1"})
    line = views.refuse(env=env)
    assert words in line
    assert SECRET not in line
    assert "Signature=" not in line
    assert not views.dir.exists()
    assert not views.state.exists(), "what was refused leaves nothing"


def test_a_store_that_is_not_there(views: Views) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        line = views.refuse(env={"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_MAX_ATTEMPTS": "2"})
    assert line.startswith(f"s3://{BUCKET}/p: Connection refused")
    assert not views.state.exists()


def test_a_host_that_speaks_no_tls(views: Views) -> None:
    line = views.refuse(env={"AWS_ENDPOINT_URL": views.bucket.url.replace("http:", "https:"), "AWS_MAX_ATTEMPTS": "1"})
    assert line.startswith(f"s3://{BUCKET}/p: ")


def test_a_host_that_is_no_store(views: Views) -> None:
    for body in (b"<html>hello</html>", b"hello", b"", b"<ListBucketResult><IsTruncated>false</IsTruncated><Contents/></ListBucketResult>"):
        views.bucket.behave = behave_as(StoreAnswer(200, {}, body))
        assert "can't be read: is this an endpoint of S3?" in views.refuse(env={"AWS_MAX_ATTEMPTS": "1"})


def behave_as(answer: StoreAnswer) -> Behaviour:
    return lambda *_: answer


LISTING = "<ListBucketResult><IsTruncated>{more}</IsTruncated>{rest}<Contents><Key>p/a</Key><Size>{size}</Size><ETag>&quot;e&quot;</ETag>\
<LastModified>2026-01-02T03:04:05Z</LastModified></Contents></ListBucketResult>"


def test_sizes_that_can_not_be(views: Views) -> None:
    for size, words in ((2**64 - 1, "name a directory on a larger disk"), (2**64, "can't be read"), (-1, "can't be read")):
        views.bucket.behave = behave_as(StoreAnswer(200, {}, LISTING.format(more="false", rest="", size=size).encode()))
        assert words in views.refuse(env={"AWS_MAX_ATTEMPTS": "1"})


@pytest.mark.parametrize("token", ["", "<NextContinuationToken>x</NextContinuationToken>"], ids=["it stops", "it stands still"])
def test_a_listing_that_does_not_go_on_is_not_taken_for_whole(views: Views, token: str) -> None:
    views.bucket.behave = behave_as(StoreAnswer(200, {}, LISTING.format(more="true", rest=token, size=1).encode()))
    assert "does not go on where it should" in views.refuse()


@pytest.mark.parametrize(("address", "words"), [("s3://data/nothing", "has no objects"), ("s3://nowhere/p", "there is no such bucket")])
def test_what_is_not_there(views: Views, address: str, words: str) -> None:
    views.put({"a": b"1"})
    line = views.refuse("view", address, views.dir)
    assert line.startswith(f"{address}")
    assert words in line
    assert not views.state.exists()


def test_an_emptied_bucket_does_not_empty_the_view(views: Views) -> None:
    views.put({"a": b"1"})
    views.fetch()
    views.bucket.delete("p/a")
    assert "has no objects" in views.refuse()
    assert views.held() == {"a": b"1"}
