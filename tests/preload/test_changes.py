"""Changes to the source through the preload library are seen by the next open, and no copy is ever changed."""

import pytest

from tests.preload.covered import CoveredSource

pytest_plugins = ["tests.preload.fixtures"]

# `{change}` happens between two opens, all under `immutable`: only a tombstone can make the difference.
SCRIPT = """
import ctypes, subprocess
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *words):
    assert getattr(libc, name)(*words) == 0, (name, ctypes.get_errno())
def text(name):
    with open(name) as file:
        return file.read()
os.close(copy("f1")); os.close(copy("f2")); os.close(copy("deep/file"))
old = copy("f1")
{change}
# A descriptor stays what it was.
assert os.pread(old, 99, 0) == b"file 1\\n"
# Unconcerned names are still served, but for one that chance gave a mark's place.
assert any([is_copy(os.open(f"f{number}", os.O_RDONLY)) for number in (3, 4, 5)])
"""

WRITES = {
    "open for writing": "os.write(os.open('f1', os.O_WRONLY), b'F')",
    "append": "file = open('f1', 'a'); file.write('more'); file.close()",
    "read and write": "os.write(os.open('f1', os.O_RDWR), b'F')",
    "truncate at open": "open('f1', 'w').write('new')",
    "create over it": "libc.close(libc.creat(b'f1', 0o600)); call('truncate', b'f1', 2)",
    "by directory descriptor": "os.write(os.open('f1', os.O_WRONLY, dir_fd=os.open('.', os.O_RDONLY)), b'F')",
    "by a link": "os.write(os.open('link', os.O_WRONLY), b'F')",
    "by a foreign name": "os.symlink(SOURCE + '/f1', '/tmp/' + os.path.basename(TIER) + str(os.getpid())); "
    "os.write(os.open('/tmp/' + os.path.basename(TIER) + str(os.getpid()), os.O_WRONLY), b'F'); "
    "os.unlink('/tmp/' + os.path.basename(TIER) + str(os.getpid()))",
    "truncate": "os.truncate('f1', 2)",
    "truncate64": "call('truncate64', b'f1', 3)",
    "rename over": "os.rename('f2', 'f1')",
    "replace": "os.replace('f2', 'f1')",
    "renameat2": "call('renameat2', -100, b'f2', -100, b'f1', 2)",
    "stdio": "libc.fopen.restype = ctypes.c_void_p; stream = ctypes.c_void_p(libc.fopen(b'f1', b'r+')); "
    "libc.fputc(70, stream); libc.fclose(stream)",
    "another process": "subprocess.run(['sh', '-c', 'echo other > f1'], check=True)",
}


@pytest.mark.parametrize("change", WRITES.values(), ids=WRITES)
def test_a_write_is_seen_at_once(own_covered: CoveredSource, change: str) -> None:
    script = SCRIPT.replace("{change}", change + "\nfd = os.open('f1', os.O_RDONLY)\nassert not is_copy(fd) and text('f1') != 'file 1\\n'")
    assert own_covered.python(script).counters["tombstones"] >= 1


REMOVALS = {
    "unlink": "os.unlink('f1')",
    "unlinkat": "os.unlink('f1', dir_fd=os.open('.', os.O_RDONLY))",
    "remove": "call('remove', b'f1')",
    "rename away": "os.rename('f1', 'elsewhere')",
    "renameat away": "os.rename('f1', 'elsewhere', src_dir_fd=os.open('.', os.O_RDONLY))",
}


@pytest.mark.parametrize("change", REMOVALS.values(), ids=REMOVALS)
def test_a_name_that_is_gone_is_gone(own_covered: CoveredSource, change: str) -> None:
    script = SCRIPT.replace(
        "{change}",
        change + "\nassert not os.path.exists('f1')\ntry:\n    open('f1')\n    sys.exit('still there')\n"
        "except FileNotFoundError:\n    pass",
    )
    own_covered.python(script)


ELSEWHERE = {
    "a directory is renamed": "os.rename('deep', 'deeper'); os.mkdir('deep'); open('deep/file', 'w').write('new')",
    "a directory is replaced": "os.unlink('deep/file'); os.rmdir('deep'); os.mkdir('other'); open('other/file', 'w').write('new'); "
    "os.rename('other', 'deep')",
    "a link to a directory is changed": "os.mkdir('other'); open('other/file', 'w').write('new'); "
    "os.unlink('way'); os.symlink('other', 'way')",
    "a link to a file is changed": "os.unlink('link'); os.symlink('f9', 'link')",
    "a hard link takes a name": "os.unlink('f1'); os.link('f9', 'f1')",
}


@pytest.mark.parametrize("change", ELSEWHERE.values(), ids=ELSEWHERE)
def test_names_that_lead_elsewhere(own_covered: CoveredSource, change: str) -> None:
    script = """
names = ["f1", "f2", "link", "way/file", "deep/file"]
def texts():
    found = []
    for name in names:
        with open(name) as file:
            found.append(file.read())
    return found
for name in ["f1", "deep/file"]:
    os.close(copy(name))
assert texts() == ["file 1\\n", "file 2\\n", "file 1\\n", "deep\\n", "deep\\n"]
time.sleep(0.3)
{change}
real = []
for name in names:
    # What the kernel says, past every preload library: a flag that makes no difference to a file that is not a link passes.
    try:
        fd = os.open(os.path.realpath(name), os.O_RDONLY | os.O_NOFOLLOW)
        real.append(os.read(fd, 99).decode())
    except FileNotFoundError:
        real.append(None)
for name, want in zip(names, real):
    try:
        with open(name) as file:
            got = file.read()
    except FileNotFoundError:
        got = None
    assert got == want, (name, got, want)
""".replace("{change}", change.replace("; ", "\n"))
    own_covered.python(script)


def test_a_copy_is_never_written_to(own_covered: CoveredSource) -> None:
    """Its descriptor, opened again by name, is the source's."""
    script = """
names = iter(f"f{number}" for number in range(1, 20))
for flags in [os.O_WRONLY, os.O_RDWR | os.O_TRUNC, os.O_WRONLY | os.O_APPEND]:
    for form in ["/proc/self/fd/", f"/proc/{os.getpid()}/fd/", "/dev/fd/"]:
        name = next(names)
        fd = copy(name)
        before = os.pread(fd, 99, 0)
        again = os.open(f"{form}{fd}", flags)
        assert os.write(again, b"F") == 1 and not is_copy(again)
        assert os.pread(fd, 99, 0) == before
        with open(name, "rb") as file:
            assert file.read() != before, name
        os.close(fd), os.close(again)
fd = copy("f20")
os.truncate(f"/proc/self/fd/{fd}", 1)
assert os.pread(fd, 99, 0) == b"file 20\\n" and open("f20").read() == "f"
fd = copy("f21")
with open(f"/proc/self/fd/{fd}", "r+") as file:
    file.write("F")
assert os.pread(fd, 99, 0) == b"file 21\\n" and open("f21").read() == "File 21\\n"
# The source's name leads to another file by now: there is nothing to write to.
fd = copy("f22")
os.rename("f23", "f22")
try:
    os.open(f"/proc/self/fd/{fd}", os.O_WRONLY)
    sys.exit("opened")
except OSError as error:
    assert error.errno == 116, error
assert open("f22").read() == "file 23\\n"
"""
    own_covered.python(script)
