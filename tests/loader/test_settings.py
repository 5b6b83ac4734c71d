"""Settings of a loader with a cache: one declaration, which the check, the agent and the pages follow."""

import re
from dataclasses import fields
from typing import Any

import pytest

from forebay.loader._settings import AgentSettings, chosen_settings
from forebay.torch import DataLoader
from tests.support import ROOT

DECLARED = {one.name: one for one in fields(AgentSettings) if "is_valid" in one.metadata}


def test_the_page_and_the_docstring_name_the_declared_defaults() -> None:
    rows = [row.split("|") for row in (ROOT / "docs/loader.md").read_text().splitlines() if row.startswith("| `")]
    missing = {name: default for names, default in ((row[1], row[-2]) for row in rows) for name in re.findall("`([a-z_]+)`", names)}
    assert "policy" in DECLARED
    for name, one in DECLARED.items():
        assert re.search(rf"\b{re.escape(str(one.default))}\b", missing[name]), name
        said = re.search(rf"\n {{8}}{name}: (.*?)\n {{4,8}}\S", DataLoader.__doc__ or "", re.DOTALL)
        assert said, name
        # False is in the signature.
        assert one.default is False or str(one.default) in said[1], name


@pytest.mark.parametrize(
    ("name", "choice", "mend"),
    [
        ("policy", "best", "give one of .*forebay"),
        ("schedule", 3, "give one of .*earliest_deadline"),
        ("hedge_budget", True, "give the share of reads that may be made twice, from 0 to 1"),
        ("thread_tau", 1, "give a share of a step, from 0 to below 1"),
        ("thread_tau", -0.1, "give a share of a step, from 0 to below 1"),
        ("thread_steps", 0, "give a number of steps, from 1"),
        ("thread_steps", True, "give a number of steps, from 1"),
        ("hedge_budget", 1.5, "give the share of reads that may be made twice, from 0 to 1"),
        ("background_fill", 1, "give True or False"),
    ],
)
def test_an_invalid_choice_is_refused_by_name(name: str, choice: Any, mend: str) -> None:  # noqa: ANN401
    with pytest.raises(ValueError, match=f"^{name}={choice!r}: {mend}"):
        chosen_settings(**{name: choice})


def test_none_is_no_choice() -> None:
    assert chosen_settings(policy=None, hedge_budget=0, background_fill=True) == {"hedge_budget": 0, "background_fill": True}
