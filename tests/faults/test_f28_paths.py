"""F28: names resolve as the kernel resolves them; what is odd passes, and is counted."""

import os

import pytest

from tests.preload.covered import CoveredSource

pytest_plugins = ["tests.preload.fixtures"]


def test_f28_relative_names_follow_the_current_directory(covered: CoveredSource) -> None:
    script = """

os.chdir("/")
os.close(copy(f"{SOURCE}/f1"))
for directory, name, text in [
    (SOURCE, "f1", "file 1"), (SOURCE, "./f2", "file 2"), (SOURCE, ".//f3", "file 3"),
    (f"{SOURCE}/deep", "file", "deep"), (SOURCE, "deep/file", "deep"),
    (f"{SOURCE}/way", "file", "deep"), ("/", f".{SOURCE}/f4", "file 4"),
]:
    os.chdir(directory)
    with open(name) as file:
        assert file.read() == text + "\\n", (directory, name)
os.chdir(SOURCE)
os.close(copy("f1"))
os.close(copy("deep/file"))
os.mkdir("/tmp/gone-" + str(os.getpid())); os.chdir("/tmp/gone-" + str(os.getpid())); os.rmdir(os.getcwd())
try:
    open("f1")
except FileNotFoundError:
    pass
else:
    sys.exit("a directory that is gone holds nothing")
"""
    assert covered.python(script).counters["pass_odd_path"] >= 1


def test_f28_dots_and_links_are_the_kernels(covered: CoveredSource) -> None:
    script = """

os.close(copy("f1"))
# `way` leads to `deep`: its parent by name would be the source, and is, but only because the kernel says so.
for name, text in [("way/../f1", "file 1"), ("deep/../deep/file", "deep"), ("link", "file 1"),
                   (f"{SOURCE}//f1", "file 1"), (f"{SOURCE}/deep/./file", "deep")]:
    with open(name) as file:
        assert file.read() == text + "\\n", name
# Out of the source by dots.
with open(f"{SOURCE}/../outside", "w") as file:
    file.write("outside\\n")
with open(f"{SOURCE}/deep/../../outside") as file:
    assert file.read() == "outside\\n"
"""
    covered.python(script)


def test_f28_directory_descriptors_pass(covered: CoveredSource) -> None:
    script = """

os.close(copy("f1"))
at = os.open(SOURCE + "/deep", os.O_RDONLY | os.O_DIRECTORY)
assert os.read(os.open("file", os.O_RDONLY, dir_fd=at), 9) == b"deep\\n"
# An absolute name is what it is, whatever the descriptor.
fd = os.open(SOURCE + "/f1", os.O_RDONLY, dir_fd=at)
assert is_copy(fd)
"""
    counters = covered.python(script).counters
    assert counters["pass_directory_descriptor"] == 1


@pytest.mark.parametrize("flag", ["O_PATH", "O_NOFOLLOW", "O_DIRECTORY", "O_NOATIME"])
def test_f28_flags_that_only_the_source_can_answer(covered: CoveredSource, flag: str) -> None:
    script = f"""
os.close(copy("f1"))
name = "deep" if "{flag}" == "O_DIRECTORY" else "f1"
fd = os.open(os.environ["COVERED_SOURCE"] + "/" + name, os.O_RDONLY | os.{flag})
assert not is_copy(fd)
"""
    assert covered.python(script).counters["pass_flags"] >= 1


def test_f28_nofollow_refuses_a_link(covered: CoveredSource) -> None:
    script = """
os.close(copy("f1"))
try:
    os.open("link", os.O_RDONLY | os.O_NOFOLLOW)
except OSError as error:
    assert error.errno == 40
else:
    sys.exit("ELOOP is the answer")
"""
    covered.python(script)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("how", ["chroot", "unshare"])
def test_f28_another_root_or_namespace_passes(covered: CoveredSource, how: str) -> None:
    ran = covered.program("namespaces", how)
    assert ran.counters["pass_other_namespace"] >= 1
