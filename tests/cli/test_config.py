"""Configuration: flags, then the environment, then the file, then defaults; each value says where it comes from."""

import os
from pathlib import Path

import pytest

from tests import support
from tests.cli.conftest import Desk


def write(desk: Desk, text: str, mode: int = 0o600) -> Path:
    path = desk.home / ".config/forebay/config.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def shown(desk: Desk, env: dict[str, str] | None = None) -> dict[str, tuple[str, str]]:
    """Returns the output of `config show`: key -> value, origin."""
    done = desk.type("config", "show", env=env)
    assert (done.returncode, done.stderr) == (0, "")
    rows = (line.split("  # ", 1) for line in done.stdout.splitlines()[1:])
    return {left.split(" ", 1)[0]: (left.split("= ", 1)[-1].strip(), origin.split("# ")[-1].strip()) for left, origin in rows}


def test_defaults(desk: Desk) -> None:
    settings = shown(desk)
    assert settings["freshness"] == ('"ttl=60"', "default")
    assert settings["keep"] == settings["quiet"] == ("false", "default")
    assert settings["policy"] == ('"fill_first"', "default")
    assert settings["tier_order"] == ('"given"', "default")
    assert settings["prefetch"] == ('"auto"', "default")
    assert settings["runtime_dir"] == (f'"{desk.runtime}"', "$FOREBAY_RUNTIME_DIR")
    assert settings["state_dir"] == (f'"{desk.home}/.local/state/forebay"', "default")


def test_the_file_is_read_and_says_so(desk: Desk) -> None:
    path = write(desk, f'source = ["{desk.source}"]\ntier = ["{desk.tier}=1.5M"]\nfreshness = "immutable"\nquiet = true\nram = "1M"\n')
    settings = shown(desk)
    assert settings["ram"] == ('"1048576B"', f"ram in {path}")
    assert settings["freshness"] == ('"immutable"', f"freshness in {path}")
    assert settings["tier"] == (f'["{desk.tier}=1572864B"]', f"tier in {path}")
    # That one needs another directory.
    path.write_text(path.read_text().replace('ram = "1M"\n', ""))
    done = desk.type("run", "--", "cat", "source/file")
    assert (done.returncode, done.stdout, done.stderr) == (0, "content", "")
    (record,) = desk.records()
    assert record["settings"]["source"]["origin"] == f"source in {path}"
    assert record["tiers"][0]["quota_bytes"] == 1572864


def test_flags_before_environment_before_file(desk: Desk) -> None:
    write(desk, 'freshness = "immutable"\nkeep = true\n')
    assert shown(desk, {"FOREBAY_FRESHNESS": "ttl=5"})["freshness"] == ('"ttl=5"', "$FOREBAY_FRESHNESS")
    assert shown(desk, {"FOREBAY_KEEP": "0"})["keep"] == ("false", "$FOREBAY_KEEP")
    assert desk.run("--freshness", "on_open", "--", "true", env={"FOREBAY_FRESHNESS": "ttl=5", "FOREBAY_KEEP": "0"}).returncode == 0
    assert desk.records()[-1]["settings"]["freshness"] == {"value": "on_open", "origin": "--freshness"}


def test_patterns_of_excluded_files(desk: Desk) -> None:
    assert shown(desk)["exclude"] == ("[]", "default")
    path = write(desk, 'exclude = ["*.mdb", "logs/**"]\n')
    assert shown(desk)["exclude"] == ('["*.mdb","logs/**"]', f"exclude in {path}")
    assert shown(desk, {"FOREBAY_EXCLUDE": "a:b"})["exclude"] == ('["a","b"]', "$FOREBAY_EXCLUDE")
    assert desk.run("--exclude", "x", "--exclude", "y", "--", "true").returncode == 0
    assert desk.records()[-1]["settings"]["exclude"] == {"value": ["x", "y"], "origin": "--exclude"}
    done = desk.type("doctor", "--source", "source", "--tier", "tier=64M", "--exclude", "*.mdb")
    assert "exclude     *.mdb (--exclude): the source's alone" in done.stdout


def test_an_empty_variable_is_none(desk: Desk) -> None:
    assert shown(desk, {"FOREBAY_FRESHNESS": "", "FOREBAY_CONFIG": ""})["freshness"] == ('"ttl=60"', "default")


def test_a_misspelt_variable_is_named_with_the_one_that_was_meant(desk: Desk) -> None:
    said = "FOREBAY_PREFECTH has no effect, since Forebay has no such variable: did you mean FOREBAY_PREFETCH?"
    env = {"FOREBAY_PREFECTH": "follow", "FOREBAY_OF_ANOTHER_TOOL": "1"}
    ran = desk.run("--", "true", env=env)
    assert ran.returncode == 0
    assert [line for line in ran.stderr.splitlines() if "variable" in line] == [f"forebay: {said}"]
    checked = desk.type("doctor", "--source", desk.source, "--tier", f"{desk.tier}=1M", env=env)
    assert said in checked.stdout


def test_lists_in_variables(desk: Desk) -> None:
    (desk.root / "second").mkdir()
    env = {"FOREBAY_SOURCE": "source:second", "FOREBAY_TIER": "tier=1M"}
    assert desk.type("run", "-q", "--", "true", env=env).returncode == 0
    assert [source["dir"] for source in desk.records()[-1]["sources"]] == [str(desk.source), str(desk.root / "second")]


BAD_FILES = [
    ("tiers = []\n", ":1: unknown key `tiers`"),
    ('quiet = true\n\nfreshness = "never"\n', "'never'"),
    ("source = 'x'\n", 'such as ["/lustre"]'),
    ('peers = "auto"\n', 'peers.nodes = "auto"'),
    ('source = ["relative"]\n', "absolute"),
    ('tier = ["relative=1G"]\n', "absolute"),
    ('tier = ["/x"]\n', "/x=200G"),
    ('ram = "lots"\n', "'lots'"),
    ('policy = "fifo"\n', "'fifo'"),
    ('tier_order = "size"\n', "'size'"),
    ('prefetch = "all"\n', "'all'"),
    ("ram = 16\n", ":1: "),
    ("keep = maybe\n", ":1: "),
    ("[run]\nkeep = true\n", "unknown key `run`"),
]


@pytest.mark.parametrize(("text", "named"), BAD_FILES, ids=[text.split("\n")[0] for text, _ in BAD_FILES])
def test_a_bad_file_is_named_with_its_line(desk: Desk, text: str, named: str) -> None:
    path = write(desk, text)
    line = desk.refuse("run", "--source", "source", "--tier", "tier=1M", "--", "touch", "ran")
    assert str(path) in line
    assert named in line


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_s6_a_file_that_others_can_write_is_refused(desk: Desk, mode: int) -> None:
    path = write(desk, "", mode)
    line = desk.refuse("run", "--", "touch", "ran")
    assert f"chmod go-w {path}" in line


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a file of another user")
def test_s6_a_file_of_another_user_is_refused(desk: Desk) -> None:
    path = write(desk, "")
    os.chown(path, support.NOBODY, -1)
    assert "another user" in desk.refuse("run", "--", "touch", "ran")


def test_s6_nothing_is_read_from_the_current_directory(desk: Desk) -> None:
    for name in ("config.toml", "forebay.toml", ".forebay.toml", "forebay/config.toml", ".config/forebay/config.toml"):
        path = desk.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("nonsense")
    assert desk.run("-q", "--", "true").returncode == 0
    # Nor by way of a variable that is not an absolute path.
    assert desk.run("-q", "--", "true", env={"XDG_CONFIG_HOME": "."}).returncode == 0


def test_a_named_file_replaces_the_usual_one(desk: Desk) -> None:
    write(desk, "nonsense")
    other = desk.root / "other.toml"
    other.write_text('freshness = "on_open"\n')
    other.chmod(0o600)
    assert shown(desk, {"FOREBAY_CONFIG": "other.toml"})["freshness"][0] == '"on_open"'


def test_without_a_home_state_goes_beside_the_sockets(desk: Desk) -> None:
    assert desk.run("-q", "--", "true", env={"HOME": "/nonexistent"}).returncode == 0
    assert list(desk.runtime.glob("state/runs/*.json"))


def test_the_site_comes_after_the_user(desk: Desk, tmp_path: Path) -> None:
    site = tmp_path / "site.toml"
    site.write_text('freshness = "on_open"\nkeep = true\n')
    named = {"FOREBAY_SITE_CONFIG": str(site)}
    assert shown(desk, named)["freshness"] == ('"on_open"', f"freshness in {site}")
    user = write(desk, 'freshness = "immutable"\n')
    settings = shown(desk, named)
    assert settings["freshness"] == ('"immutable"', f"freshness in {user}")
    assert settings["keep"] == ("true", f"keep in {site}")
    head = desk.type("config", "show", env=named).stdout.splitlines()[0]
    assert head == f"# configuration files, the first before the second: {user}, {site}"


def test_the_site_is_trusted_no_more_than_others(desk: Desk, tmp_path: Path) -> None:
    site = tmp_path / "site.toml"
    site.write_text("keep = true\n")
    site.chmod(0o666)
    assert f"chmod go-w {site}" in desk.refuse("config", "show", env={"FOREBAY_SITE_CONFIG": str(site)})
