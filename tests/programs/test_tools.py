"""cp, mv, install, rsync, tar, git and their kin do the same to files with copies, without copies, and without us."""

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import support
from tests.programs.snapshot import snapshot
from tests.support import Place, PlacePool


def grow(root: Path) -> None:
    """Sizes around the units of copying, modes, times, links, holes, attributes, odd names."""
    contents = random.Random(3)  # noqa: S311
    sizes = {"a": 10_000, "big": 3_000_001, "empty": 0, "page": 4096, "d/x": 131_072, "d/y": 131_073, "d/deep/er/z": 17, "a name\n\\": 5}
    for number, (name, size) in enumerate(sizes.items()):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(contents.randbytes(size))
        path.chmod((0o644, 0o600, 0o444, 0o755, 0o4711)[number % 5])
    (root / "text").write_text("".join(f"line {n} of {n % 7}\n" for n in range(3000)))
    with (root / "holes").open("wb") as file:
        file.truncate(1_000_000)
        file.seek(500_000)
        file.write(b"island")
    (root / "link").symlink_to("a")
    (root / "dangling").symlink_to("nowhere")
    (root / "d/up").symlink_to("..")
    (root / "harder").hardlink_to(root / "a")
    os.setxattr(root / "page", "user.colour", b"green")
    for path in root.rglob("*"):
        os.utime(path, ns=(10**18, 10**18 + path.lstat().st_size), follow_symlinks=False)


@dataclass
class Trees:
    """A served tree and its equal."""

    place: Place
    plain: Path

    def out(self, name: str) -> Path:
        out = self.place.root / "out" / name
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        return out


def grow_both(place: Place) -> None:
    (place.root / "plain").mkdir()
    for tree in (place.source, place.root / "plain"):
        grow(tree)


@pytest.fixture(scope="module")
def pool() -> Iterator[PlacePool]:
    with PlacePool(grow_both, ahead=4) as made:
        yield made


@pytest.fixture(scope="module")
def shared(pool: PlacePool) -> Iterator[Trees]:
    """For what changes nothing under the source."""
    with pool.taken() as place:
        yield Trees(place, place.root / "plain")


@pytest.fixture
def trees(pool: PlacePool) -> Iterator[Trees]:
    """For what does."""
    with pool.taken() as place:
        yield Trees(place, place.root / "plain")


def plainly(trees: Trees, script: str, source: Path, out: Path) -> tuple[int, str, str]:
    environment = {**trees.place.environment(), "S": str(source), "O": str(out), "LC_ALL": "C"}
    done = subprocess.run(
        ["sh", "-c", script],
        env=environment,
        cwd=out,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=support.PROGRAM_S,
    )
    return done.returncode, said(done.stdout, source, out), said(done.stderr, source, out)


def said(text: bytes, source: Path, out: Path) -> str:
    return text.decode(errors="replace").replace(str(out), "$O").replace(str(source), "$S")


# Name: script, whether times are kept. $S is the tree, $O where the results go.
READING = {
    "cp": ("cp $S/a $S/big $S/page $O/ && cp $S/empty $O/other", False),
    "cp -a": ("cp -a $S/. $O/all", True),
    "cp -p": ("cp -p $S/a $S/d/x $O/", True),
    "cp -r --preserve=all": ("cp -r --preserve=all $S/d $O/ && cp --preserve=xattr,timestamps $S/page $O/", True),
    "cp -L": ("cp -rL $S/link $S/d/x $O/", False),
    "cp --sparse": ("cp --sparse=always $S/holes $O/always; cp --sparse=never $S/holes $O/never; cp $S/holes $O/auto", False),
    "cp --reflink": ("cp --reflink=auto $S/big $O/", False),
    "cp -u": ("cp -pu $S/a $O/ && cp -pu $S/a $O/", True),
    "install": ("install -m 640 -D $S/a $O/x/y/a && install -p $S/d/x $O/ && install -C $S/a $O/twice && install -C $S/a $O/twice", False),
    "install -p": ("install -p $S/a $S/d/x $O/", True),
    "rsync -a": ("rsync -a $S/ $O/all/", True),
    "rsync -aHAXS": ("rsync -aHAXS $S/ $O/all/", True),
    "rsync --checksum": ("rsync -a $S/ $O/all/ && rsync -a --checksum --itemize-changes $S/ $O/all/", True),
    "rsync --inplace --no-whole-file": ("cp $S/big $O/big && rsync -a --inplace --no-whole-file $S/big $O/big", True),
    "tar": ("tar -C $S --sort=name -cf $O/t.tar . && tar -C $O -xpf $O/t.tar && tar --compare -C $S -f $O/t.tar && rm $O/t.tar", True),
    "tar -S": ("tar -C $S -cSf $O/t.tar holes a d && tar -C $O -xpf $O/t.tar && rm $O/t.tar", True),
    "tar -z": ("tar -C $S -czf - . | tar -C $O -xzpf -", True),
    "dd": ("dd if=$S/big of=$O/a bs=4096 skip=3 count=7 status=none; dd if=$S/big of=$O/b bs=1M status=none iflag=direct || true", False),
    "cat, tee": ("cat $S/text $S/a - < $S/page | tee $O/one > $O/two; cat < $S/big > $O/three", False),
    "cmp, diff": ("cmp $S/a $S/harder && ! cmp $S/a $S/big; diff -r $S $S && ! diff $S/a $S/page", False),
    "checksums": ("cd $S && md5sum a big d/* text; sha256sum * 2>&1; cksum big", False),
    "head, tail, wc, sort": (
        "head -c 100 $S/big | md5sum; tail -n 3 $S/text; tail -c 10 $S/a | md5sum; wc $S/text; sort -r $S/text | md5sum",
        False,
    ),
    "grep, sed, awk": ("grep -c '7$' $S/text; grep -rl line $S | sort; sed -n 5,7p $S/text; awk '{n += $2} END {print n}' $S/text", False),
    "find -exec, xargs": (
        "find $S -type f -size +0 -exec md5sum {} + | sort; find $S -name '*' -type f -print0 | sort -z | xargs -0 cat | md5sum",
        False,
    ),
    "gzip": ("gzip -c $S/text > $O/t.gz; gzip -dc $O/t.gz | cmp - $S/text; rm $O/t.gz; zcat -f < $S/text | md5sum", False),
    "stat, ls": ("cd $S; stat -c '%n %s %f %h %u %g %Y' *; ls -lnR --time-style=+%s .; stat -c '%s %Y' - < a", False),
    "split, od, base64": ("cd $O; split -b 100000 $S/d/x; od -c $S/page | md5sum; base64 $S/a | md5sum", False),
    "sh reads": ("while read -r a b c; do echo $b; done < $S/text | md5sum; . $S/empty; . $S/d/../empty && echo sourced", False),
    "python": (
        "python3 -c \"import shutil, os; s, o = os.environ['S'], os.environ['O']; shutil.copytree(s + '/d', o + '/d', symlinks=True);"
        " shutil.copy2(s + '/a', o); shutil.copyfile(s + '/big', o + '/big')\" && touch -hd @1 $O/big $O/d/up",
        True,
    ),
}


@pytest.mark.parametrize("tool", READING)
def test_what_reads(shared: Trees, tool: str) -> None:
    """Without us; with us, when nothing has a copy; with us again."""
    script, times = READING[tool]
    plain_out = shared.out("plain")
    expected = plainly(shared, script, shared.plain, plain_out)
    for _ in range(2):
        out = shared.out("served")
        ran = shared.place.run(
            "sh", "-c", script, environment={"S": str(shared.place.source), "O": str(out), "LC_ALL": "C"}, cwd=out, check=False
        )
        told = "".join(line for line in ran.err.decode(errors="replace").splitlines(True) if not line.startswith(("forebay:", "  ")))
        assert (ran.status, said(ran.out, shared.place.source, out), said(told.encode(), shared.place.source, out)) == expected
        assert snapshot(out, times=times) == snapshot(plain_out, times=times)


def test_those_copies_were_used(shared: Trees) -> None:
    script, environment = READING["checksums"][0], {"S": str(shared.place.source)}
    shared.place.stop()
    with shared.place.adopted():
        shared.place.run("sh", "-c", script, environment=environment)
        status = shared.place.idle()
        ran = shared.place.run("sh", "-c", script, environment=environment)
    assert status["not_copied"] == {}
    # Five files by md5sum, nine by sha256sum, one by cksum; besides, three directories and a link that leads nowhere.
    assert (ran.hits, ran.counters["source_opens"]) == (15, 19)


CHANGING = {
    "mv across devices": "mv $S/a $S/d $O/ && ls $S && mv $O/a $S/came && cat $S/came | md5sum",
    "mv over": "cat $S/a $S/big | md5sum; mv $S/big $S/a; cat $S/a | md5sum; mv $S/d $S/moved; cat $S/moved/x | md5sum; ls $S",
    "cp over": "cat $S/a | md5sum; cp $S/page $S/a; cat $S/a $S/harder | md5sum; cp -a $S/text $S/new; cat $S/new | md5sum",
    "install over": "cat $S/page | md5sum; install -m 600 $S/text $S/page; cat $S/page | md5sum; stat -c %a $S/page",
    "rsync into": "cat $S/text | md5sum; cp $S/a $O/text; rsync -a --checksum $O/text $S/; cat $S/text | md5sum;"
    " rsync -a --delete $O/ $S/; ls $S",
    "tar into": "tar -C $S -cf $O/t.tar text d; cat $S/text | md5sum; echo other > $S/text; tar -C $S -xf $O/t.tar;"
    " md5sum < $S/text; rm $O/t.tar",
    "sed -i": "cat $S/text | md5sum; sed -i 's/line/LINE/' $S/text; cat $S/text | md5sum; head -n1 $S/text",
    "append": "tail -n1 $S/text; echo more >> $S/text; tail -n1 $S/text; truncate -s 10 $S/text; cat $S/text; ls -s $S/text | wc -l",
    "dd in place": "md5sum < $S/d/x; dd if=$S/page of=$S/d/x conv=notrunc status=none; md5sum < $S/d/x",
    "touch, chmod": "cat $S/page | md5sum; touch -d @77 $S/page; chmod 711 $S/page; stat -c '%Y %a' $S/page; stat -c '%s %a' - < $S/page",
    "ln": "cat $S/link | md5sum; ln -sf page $S/link; cat $S/link | md5sum; ln -sfn d/deep $S/d/up; ls $S/d/up; cat $S/d/up/er/z | md5sum;"
    " ln -f $S/text $S/a; tail -n1 $S/a",
    "rm": "cat $S/a | md5sum; rm -r $S/d $S/a; ls $S; cat $S/a $S/d/x; cat $S/harder | md5sum",
    "find -delete": "cat $S/d/x | md5sum; find $S/d -type f -delete; find $S/d | sort; cat $S/d/x",
    "gzip": "md5sum < $S/text; gzip $S/text; ls $S; zcat $S/text.gz | md5sum; gunzip $S/text.gz; md5sum < $S/text; stat -c %a $S/text",
    "python": "python3 -c \"import os, pathlib; p = pathlib.Path(os.environ['S'], 'text'); t = p.read_text(); p.write_text(t.upper());"
    " assert p.read_text() == t.upper(); p.rename(p.with_name('up')); print((p.with_name('up')).read_text()[:20])\"",
}


@pytest.mark.parametrize("tool", CHANGING)
def test_what_changes_the_source(trees: Trees, tool: str) -> None:
    """When everything has a copy."""
    script = CHANGING[tool]
    plain_out, out = trees.out("plain"), trees.out("served")
    for path in (plain_out, out):
        # On another device.
        path.rmdir()
        path.symlink_to(trees.place.runtime / f"out-{path.name}")
        (trees.place.runtime / f"out-{path.name}").mkdir(mode=0o700)
    expected = plainly(trees, script, trees.plain, plain_out)
    with trees.place.adopted():
        everything = "cat $S/* $S/d/* $S/d/deep/er/z > /dev/null 2>&1"
        trees.place.run("sh", "-c", everything, environment={"S": str(trees.place.source)}, check=False)
        trees.place.idle()
        ran = trees.place.run(
            "sh", "-c", script, environment={"S": str(trees.place.source), "O": str(out), "LC_ALL": "C"}, cwd=out, check=False
        )
    told = "".join(line for line in ran.err.decode(errors="replace").splitlines(True) if not line.startswith(("forebay:", "  ")))
    assert (ran.status, said(ran.out, trees.place.source, out), said(told.encode(), trees.place.source, out)) == expected
    assert snapshot(trees.place.source, times=False) == snapshot(trees.plain, times=False)
    assert snapshot(out.resolve(), times=False) == snapshot(plain_out.resolve(), times=False)
    # mv opens what it copies by O_NOFOLLOW, which a copy never answers.
    assert ran.hits > 0 or tool == "mv across devices"


GIT = """
export GIT_AUTHOR_DATE='2020-01-01T00:00:00Z' GIT_COMMITTER_DATE='2020-01-01T00:00:00Z' GIT_CONFIG_GLOBAL=/dev/null
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
set -e
cd $S
git init -q -b main .
git add a big d text link
git commit -q -m one
git status --short
git log --format=%H
eval "${PAUSE:-}"
git status --short
git fsck --no-progress
echo more >> text
git status --short
git diff --stat
git commit -q -a -m two
git checkout -q HEAD~1
tail -n 1 text
git checkout -q main
tail -n 1 text
git rm -q a
git stash -q
git stash pop -q
git gc -q
git log --format=%H
git show HEAD~1:big | md5sum
git clone -q . $O/clone
git -C $O/clone log --format=%H
git clone -q $S $S/inside
git -C $S/inside status --short
git -C $S/inside fsck --no-progress
md5sum $S/inside/text $S/inside/big < /dev/null
"""


def test_git(trees: Trees) -> None:
    """A repository inside the source, with pauses in which its files get copies."""
    plain_out, out = trees.out("plain"), trees.out("served")
    expected = plainly(trees, GIT, trees.plain, plain_out)
    assert expected[0] == 0, expected
    # What was written a moment ago is read once more when it may have copies.
    pause = f"sleep 2.5; git fsck --no-progress > /dev/null; git status --short > /dev/null; {sys.executable} -E {support.IDLE}"
    environment = {"S": str(trees.place.source), "O": str(out), "LC_ALL": "C", "PAUSE": pause}
    ran = trees.place.run("sh", "-c", GIT, environment=environment, cwd=out, check=False)
    assert (ran.status, said(ran.out, trees.place.source, out)) == expected[:2], ran.err.decode()
    for one, other in ((trees.place.source, trees.plain), (out / "clone", plain_out / "clone")):
        assert snapshot(one, times=False, leave_out=(".git", "inside")) == snapshot(other, times=False, leave_out=(".git", "inside"))
    assert ran.hits > 0
