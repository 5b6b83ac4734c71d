"""`forebay run --view`: the program starts once the view is whole, and the view stays as it is until it ends."""

import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator

import pytest

from tests import support
from tests.cli.conftest import apart
from tests.views.conftest import Views
from tests.views.store import BUCKET, SECRET, ReceivedRequest, StoreAnswer

SHOW = "for f in $(cd view; ls -A); do echo $f $(cat view/$f); done"
# Says that it is there, and stays until it is told to go.
STAY = "echo there; read -r line; cat view/*"


def run(views: Views, *words: str, program: str = SHOW, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return views.desk.run("--view", f"{views.address}=view", *words, "--", "sh", "-c", program, env=views.environment(env))


def test_a_program_sees_whole_files(views: Views) -> None:
    views.put({"a": b"1", "b": b"2"})
    ran = run(views)
    assert (ran.returncode, ran.stdout) == (0, "a 1\nb 2\n"), ran.stderr
    assert f"forebay: {views.address} at {views.dir}: 2 files, 2 B; 2 fetched (2 B)\n" in ran.stderr
    views.put({"a": b"3"})
    ran = run(views)
    assert ran.stdout == "a 3\nb 2\n"
    assert "; 1 fetched (1 B)\n" in ran.stderr
    (_, record) = views.desk.records()
    assert record["settings"]["view"] == {"value": [f"{views.address}={views.dir}"], "origin": "--view"}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for mounts of its own")
def test_without_anything_to_serve_the_program_runs_too(views: Views) -> None:
    """No source that is shared, so no preload library and no agent.

    The view is there all the same, and stays as it is.
    """
    views.put({"a": b"1"})
    views.desk.prefix = apart()
    words = ["run", "--view", f"{views.address}=view", "--", "sh", "-c", "echo $(cat view/a); exit 7"]
    ran = views.desk.type(*words, env=views.environment())
    assert (ran.returncode, ran.stdout) == (7, "1\n"), ran.stderr
    assert "nothing to do" in ran.stderr


def test_off_is_off(views: Views) -> None:
    views.put({"a": b"1"})
    ran = run(views, program="ls", env={"FOREBAY": "off"})
    assert ran.returncode == 0
    assert views.bucket.asked == []
    assert "view" not in ran.stdout.split()
    assert "unset it" in views.refuse(env={"FOREBAY": "off"})


def test_nothing_runs_when_a_view_can_not_be(views: Views) -> None:
    views.put({"a": b"1"})
    views.bucket.signed_with = "another"
    ran = run(views, program="touch ran")
    assert ran.returncode == 2
    assert ran.stderr.startswith(f"forebay: --view: {views.address}: SignatureDoesNotMatch")
    assert ran.stderr.count("\n") == 1
    assert not (views.desk.root / "ran").exists()


def test_who_vouches_for_the_source_has_it_not_asked(views: Views) -> None:
    views.put({"a": b"1"})
    run(views, "--freshness", "immutable")
    views.put({"a": b"2"})
    views.bucket.asked.clear()
    ran = run(views, "--freshness", "immutable")
    assert ran.stdout == "a 1\n"
    assert "taken as it is" in ran.stderr
    assert views.bucket.asked == []
    views.bucket.signed_with = "another"
    assert "; with --freshness immutable the view is taken as it is" in run(views).stderr


def test_settings_from_variables_and_files(views: Views) -> None:
    views.bucket.put_all({"p/a": b"1", "q/b": b"2"})
    both = f"s3://{BUCKET}/p=one:s3://{BUCKET}/q=two"
    ran = views.desk.run("--", "cat", "one/a", "two/b", env=views.environment({"FOREBAY_VIEW": both}))
    assert ran.stdout == "12", ran.stderr
    told = views.desk.type("doctor", "--source", "source", "--tier", "tier=64M", env={"FOREBAY_VIEW": both}).stdout
    assert f"s3://{BUCKET}/q={views.desk.root}/two, fetched before the program starts" in told
    config = views.desk.home / ".config/forebay/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(f'view = ["s3://{BUCKET}/p={views.desk.root}/three"]\n')
    config.chmod(0o600)
    ran = views.desk.run("--", "cat", "three/a", env=views.environment())
    assert ran.stdout == "1", ran.stderr
    shown = views.desk.type("config", "show").stdout
    (line,) = [line for line in shown.splitlines() if line.startswith("view = ")]
    assert line.split("  # ") == [f'view = ["s3://{BUCKET}/p={views.desk.root}/three"]', f"view in {config}"]
    config.write_text(f'view = ["s3://{BUCKET}/p=three"]\n')
    assert "absolute" in views.desk.refuse("run", "--", "touch", "ran")


@pytest.fixture
def staying(views: Views) -> Iterator["subprocess.Popen[str]"]:
    views.put({"a": b"1"})
    words = [str(support.command()), "run", "--source", "source", "--tier", "tier=64M", "--view", f"{views.address}=view"]
    # Its end closes the program's input, which ends the program.
    with subprocess.Popen(
        [*words, "--", "sh", "-c", STAY],
        cwd=views.desk.root,
        env={**views.desk.environment, **views.environment()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "there\n"
        yield process


def test_p17_a_view_stays_as_it_is_while_a_run_uses_it(views: Views, staying: "subprocess.Popen[str]") -> None:
    views.put({"a": b"2"})
    assert "is used by a run" in views.refuse()
    assert "is used by a run" in views.refuse("view", "--remove", views.dir)
    ran = run(views)
    assert ran.stdout == "a 1\n", "another run takes it as it is"
    assert "taken as it is" in ran.stderr
    out, err = staying.communicate("go\n", timeout=support.LONG_S)
    assert (staying.returncode, out) == (0, "1"), err
    assert run(views).stdout == "a 2\n"


def test_p17_runs_that_start_together_fetch_once(views: Views) -> None:
    objects = {f"{number}": bytes([65 + number]) for number in range(20)}
    views.put(objects)
    started = threading.Barrier(4)
    ran: list[subprocess.CompletedProcess[str]] = []

    def one() -> None:
        started.wait()
        ran.append(run(views))

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [done.returncode for done in ran] == [0] * 4, [done.stderr for done in ran]
    assert len({done.stdout for done in ran}) == 1
    assert views.bucket.gets() == sorted(f"p/{name}" for name in objects)


def test_p17_nobody_sees_a_new_view_before_it_is_whole(views: Views) -> None:
    views.put({f"{number:02}": b"x" for number in range(30)})
    seen: list[bool] = []

    def behave(asked: ReceivedRequest, forward: Callable[[], StoreAnswer]) -> StoreAnswer | None:
        seen.append(views.dir.exists())
        return forward()

    views.bucket.behave = behave
    assert len(run(views).stdout.split("\n")) == 31
    assert len(seen) == 31
    assert not any(seen)


def test_s07_keys_are_told_to_nobody(views: Views) -> None:
    views.put({"a": b"1"})
    ran = run(views)
    told = [ran.stdout, ran.stderr, *(json.dumps(record) for record in views.desk.records())]
    told += [path.read_text() for path in views.state.iterdir()]
    told += [path.read_text(errors="replace") for path in views.desk.runtime.rglob("*.log")]
    views.bucket.behave = lambda *_: None
    told.append(views.refuse())
    for text in told:
        assert SECRET not in text
        assert "X-Amz-" not in text
