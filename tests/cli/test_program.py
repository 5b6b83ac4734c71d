"""The program: found as a shell finds it, run as if we were not there, untouched where nothing can be done."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import support
from tests.cli.conftest import RUN, Desk


def compile_c(output: Path, text: str, *flags: str, compiler: str = "cc") -> None:
    subprocess.run([compiler, "-xc", "-", "-o", output, *flags], input=text, text=True, check=True)


HELLO = '#include <stdio.h>\nint main(void) { puts("hello"); return 3; }\n'


@pytest.fixture
def programs(desk: Desk) -> Path:
    """A directory with things that are no programs, and some that are."""
    directory = desk.root / "programs"
    (directory / "folder").mkdir(parents=True)
    for name, mode, text in [
        ("data", 0o644, "data"),
        ("script", 0o755, "#!/bin/sh -e\necho script $#\n"),
        ("bare", 0o755, "echo bare $1\n"),
        ("lost", 0o755, "#!/no/such/interpreter\n"),
        ("through-env", 0o755, f"#!/usr/bin/env {sys.executable}\nprint('env')\n"),
    ]:
        (directory / name).write_text(text)
        (directory / name).chmod(mode)
    return directory


# What bash says of the same words.
MISSING = [
    ("no-such-program", 127, "no-such-program: command not found"),
    ("./no-such-program", 127, "./no-such-program: No such file or directory"),
    ("programs/data", 126, "programs/data: Permission denied"),
    ("programs/folder", 126, "programs/folder: Is a directory"),
    ("programs/data/x", 126, "programs/data/x: Not a directory"),
    # Older ones say "bad interpreter" and 126.
    ("programs/lost", 127, "programs/lost: cannot execute: required file not found"),
    ("", 127, "''"),
]


@pytest.mark.parametrize(("name", "status", "said"), MISSING, ids=[name or "empty" for name, _, _ in MISSING])
def test_as_a_shell_refuses(desk: Desk, programs: Path, name: str, status: int, said: str) -> None:
    assert programs.exists()
    line = desk.refuse("run", "--source", "source", "--tier", "tier=64M", "--", name, status=status)
    assert line.startswith(said)
    quoted = name if name else "''"
    shell = subprocess.run(["bash", "-c", quoted], cwd=desk.root, env=desk.environment, capture_output=True, text=True, check=False)
    assert shell.returncode in {status, 126}
    if name and "bad interpreter" not in shell.stderr:
        assert said in shell.stderr


def test_bad_input_is_found_before_the_program(desk: Desk) -> None:
    desk.refuse("run", "--source", "nowhere", "--", "no-such-program", status=2)


@pytest.mark.parametrize(
    ("words", "said"),
    [(["programs/script", "a", "b"], "script 2\n"), (["programs/bare", "x"], "bare x\n"), (["programs/through-env"], "env\n")],
)
def test_scripts(desk: Desk, programs: Path, words: list[str], said: str) -> None:
    assert programs.exists()
    assert desk.run("--", *words).stdout == said


def test_options_after_the_program_are_its_own(desk: Desk) -> None:
    done = desk.run("printf", "%s.", "--source", "x", "--", "-q", "--help")
    assert done.stdout == "--source.x.--.-q.--help."


@pytest.mark.parametrize("status", [0, 1, 2, 42, 127, 255])
def test_the_exit_status_is_the_programs(desk: Desk, status: int) -> None:
    assert desk.run("-q", "--", "sh", "-c", f"exit {status}").returncode == status
    assert desk.records()[-1]["exit"] == {"code": status}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGUSR1])
def test_a_signal_that_ends_the_program_ends_us(desk: Desk, number: signal.Signals) -> None:
    assert desk.run("-q", "--", "sh", "-c", f"kill -{number} $$").returncode == -number
    assert desk.records()[-1]["exit"] == {"signal": number}


def test_the_three_streams_are_the_programs(desk: Desk) -> None:
    done = desk.type("run", "-q", "--source", "source", "--tier", "tier=64M", "--", "sh", "-c", "cat; echo err >&2", typed="in")
    assert (done.stdout, done.stderr) == ("in", "err\n")


def test_name_directory_and_environment_are_as_typed(desk: Desk) -> None:
    code = "import os; print(os.getcwd(), os.environ['MINE'], os.environ['LD_PRELOAD'])"
    done = desk.run("-q", "--", sys.executable, "-c", code, env={"MINE": "x", "LD_PRELOAD": "/no/such/library.so"})
    directory, mine, preload = done.stdout.split()
    assert (Path(directory), mine) == (desk.root, "x")
    assert preload.startswith("/no/such/library.so:"), "what was there stays in front"
    assert preload.endswith("/libforebay_preload.so")
    named = desk.run("-q", "sh", "-c", "tr '\\0' ' ' </proc/$$/cmdline")
    assert named.stdout.startswith("sh -c ")


@pytest.mark.parametrize("off", ["off", "0", "OFF"])
def test_off_is_untouched(desk: Desk, off: str) -> None:
    code = "import os; print(sorted(name for name in os.environ if 'PRELOAD' in name or name == 'FOREBAY_RUN'), os.getpid())"
    words = [str(support.command()), "run", "--source", "source", "--tier", "tier=64M", "--", sys.executable, "-c", code]
    environment = desk.environment | {"FOREBAY": off}
    with subprocess.Popen(words, cwd=desk.root, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        out, err = process.communicate()
    assert out == f"[] {process.pid}\n", "the very process becomes the program"
    assert err == ""
    assert not desk.records()
    assert not list(desk.tier.iterdir())
    assert not list(desk.runtime.iterdir())


def test_off_does_not_hide_a_missing_program(desk: Desk) -> None:
    desk.refuse("run", "--", "no-such-program", status=127, env={"FOREBAY": "off"})


def test_a_run_inside_a_run(desk: Desk) -> None:
    done = desk.run("--", str(support.command()), *RUN, "--", "sh", "-c", "echo $LD_PRELOAD; cat source/file")
    assert done.returncode == 0, done.stderr
    preload, content = done.stdout.splitlines()
    assert preload.count("libforebay_preload.so") == 1
    assert content == "content"
    assert len(desk.records()) == 2


def test_two_runs_at_once_share_an_agent(desk: Desk) -> None:
    words = [str(support.command()), "run", "-q", "--source", "source", "--tier", "tier=64M", "--", "sh", "-c", "sleep 1; cat source/file"]
    with (
        subprocess.Popen(words, cwd=desk.root, env=desk.environment, stdout=subprocess.PIPE) as one,
        subprocess.Popen(words, cwd=desk.root, env=desk.environment, stdout=subprocess.PIPE) as other,
    ):
        assert one.communicate()[0] == other.communicate()[0] == b"content"
    assert (one.returncode, other.returncode) == (0, 0)
    assert {record["agent"]["runs"] for record in desk.records()} <= {1, 2}


def test_a_kept_agent_holds_nothing_of_its_first_run(desk: Desk) -> None:
    words = [str(support.command()), "run", "-q", "--keep", "--source", "source", "--tier", "tier=64M", "--", "true"]
    reading, writing = os.pipe()
    subprocess.run(words, cwd=desk.root, env=desk.environment, pass_fds=[writing], check=True)
    os.close(writing)
    assert os.read(reading, 1) == b"", "the end of the pipe comes, for nobody else has its other end"
    os.close(reading)
    assert list(desk.runtime.glob("*/control.sock"))


@pytest.mark.skipif(shutil.which("musl-gcc") is None, reason="needs musl-gcc: apt-get install musl-tools")
def test_f23_another_c_library_is_refused(desk: Desk) -> None:
    compile_c(desk.root / "hello", HELLO, compiler="musl-gcc")
    line = desk.refuse("run", "--source", "source", "--tier", "tier=64M", "--", "./hello")
    assert "./hello" in line
    assert "musl" in line
    assert line.endswith("FOREBAY=off")


@pytest.mark.parametrize("works", [True, False], ids=["a library that it takes", "a library that it refuses"])
def test_f23_another_loader_is_tried_out(desk: Desk, works: bool) -> None:
    listed = subprocess.run(["ldd", "/bin/true"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"/\S*/ld-linux\S*\.so\.\d", listed)
    assert found
    loader = Path(found[0])
    shutil.copy(loader, desk.root)
    compile_c(desk.root / "hello", HELLO, f"-Wl,--dynamic-linker={desk.root / loader.name}")
    if works:
        assert desk.run("--", "./hello").stdout == "hello\n"
        assert desk.records()[-1]["counters"]["processes"] == 1
        return
    compile_c(desk.root / "libneeded.so", "", "-shared")
    compile_c(desk.root / "libforebay_preload.so", "", "-shared", f"-L{desk.root}", "-Wl,--no-as-needed", "-lneeded")
    env = {"FOREBAY_PRELOAD": "libforebay_preload.so"}
    line = desk.refuse("run", "--source", "source", "--tier", "tier=64M", "--", "./hello", env=env)
    assert "./hello: its C library is another" in line
    assert "libneeded.so" in line
    assert line.endswith("FOREBAY=off")


def test_f23_a_static_program_runs_and_is_counted(desk: Desk) -> None:
    compile_c(desk.root / "hello", HELLO, "-static")
    done = desk.run("--", "./hello")
    assert (done.returncode, done.stdout) == (3, "hello\n")
    assert "./hello: not covered: it is linked statically" in done.stderr
    (record,) = desk.records()
    assert [entry["program"] for entry in record["not_covered"]] == ["./hello"]
    assert desk.run("-q", "--", "./hello").stderr == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a program of another user")
def test_f23_a_setuid_program_runs_and_is_counted(desk: Desk) -> None:
    shutil.copy("/bin/true", desk.root / "true")
    os.chown(desk.root / "true", 1, 1)
    (desk.root / "true").chmod(0o4755)
    assert desk.run("--", "./true").returncode == 0
    assert "rights of another user" in desk.records()[-1]["not_covered"][0]["why"]


def test_a_library_whose_name_the_loader_would_split(desk: Desk) -> None:
    place = desk.root / "my project: v1"
    shutil.copytree(support.command().parent, place / "bin", ignore=lambda _, names: [name for name in names if name != "forebay"])
    library = support.target() / "preload/libforebay_preload.so"
    (place / "lib/forebay").mkdir(parents=True)
    shutil.copy(library, place / "lib/forebay")
    words = [str(place / "bin/forebay"), "run", "--source", "source", "--tier", "tier=64M", "--", "cat", "source/file"]
    done = subprocess.run(words, cwd=desk.root, env=desk.environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "content")
    assert desk.records()[-1]["counters"]["processes"] == 1
