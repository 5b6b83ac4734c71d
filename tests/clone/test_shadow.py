"""`verify="shadow:N"`: a clone exists only if it is as its parent N steps later, too, and goes on from there."""

import pytest

import forebay.clone as clone
from forebay.clone import _shadow
from tests import support
from tests.clone.forks import CloneNode, Opened, train, trained
from tests.clone.jobs import full


def clones(here: CloneNode) -> list[int]:
    return [job["clones"] for job in here.jobs() if job["job"] == "trunk"]


def test_p14_a_clone_that_takes_its_parents_steps_exists_and_goes_on_from_there(
    here: CloneNode, opened: Opened, capfd: pytest.CaptureFixture[str]
) -> None:
    made = full(1)
    session = opened(made)
    step = train(made, session, 3)
    with here.cloning("trunk", "--at", "7", "--verify", "shadow:3", "--set", "weight_decay=0.25") as asked:
        train(made, session, 9, step)
        other = full(99)
        trial = opened(other, asked=asked)
        assert (trial.verifying, trial.resumed) == (True, {"epoch": 0, "step": 7})
        train(other, trial, 2, 8)
        assert trial.verifying
        assert clones(here) == [0]
        assert other.optimizer.param_groups[0]["weight_decay"] == 0, "changes come last"
        assert capfd.readouterr().err == ""
        train(other, trial, 1, 10)
        assert not trial.verifying
        assert clones(here) == [1]
    assert other.losses == made.losses[7:10]
    lineage = trial.lineage
    assert lineage
    assert (lineage.parent, lineage.step, lineage.verified, lineage.changes) == ("trunk", 10, "shadow:3", {"weight_decay": 0.25})
    assert other.optimizer.param_groups[0]["weight_decay"] == 0.25
    assert "this is trunk.1, a clone of trunk after step 10 (shadow:3), weight_decay=0.25" in capfd.readouterr().err
    (fork,) = session.forks
    assert (fork.step, fork.compared_s > 0) == (7, True)
    # From here on it is a job as any other.
    train(other, trial, 1, 11)
    assert {job["job"]: job["step"] for job in here.jobs()} == {"trunk": 12, "trunk.1": 11}
    plain = full(1)
    train(plain, None, 12)
    assert made.losses == plain.losses


def test_f50_a_clone_that_sees_other_data_is_none(here: CloneNode, opened: Opened) -> None:
    made, session = trained(opened, verify="shadow:2")
    with here.cloning("trunk", "--at", "3") as asked:
        train(made, session, 5, 2)
        other = full(9)
        trial = opened(other, asked=asked)
        other.generators["torch"].manual_seed(5)
        train(other, trial, 1, 4)
        with pytest.raises(
            clone.CloneError, match=r"2 steps later .* is not the same in rank 0 of the clone as in its parent's: do both see"
        ):
            train(other, trial, 1, 5)
        assert not trial.verifying
        assert clones(here) == [0]
    # The job's word may be taken back.
    with here.cloning("trunk", "--at", "8", "--verify", "digest") as asked:
        train(made, session, 3, 7)
        resumed = opened(full(9), asked=asked)
        assert resumed.lineage
        assert (resumed.verifying, resumed.lineage.verified) == (False, "digest")


def test_f51_a_parent_that_ends_before_the_comparison_leaves_no_clone(here: CloneNode, opened: Opened) -> None:
    made, session = trained(opened)
    with here.cloning("trunk", "--at", "3", "--verify", "shadow:3") as asked:
        train(made, session, 4, 2)
        other = full(9)
        trial = opened(other, asked=asked)
        session.close()
        with pytest.raises(clone.CloneError, match=r"no clone of trunk: .*trunk has ended, or called close"):
            train(other, trial, 3, 4)
    train(made, session, 2, 6)


def test_f51_a_clone_under_verification_may_go_at_any_step(here: CloneNode, opened: Opened) -> None:
    made = full(1)
    session = opened(made)
    step = train(made, session, 1)
    for steps in range(3):
        with here.cloning("trunk", "--at", str(step + 1), "--verify", "shadow:3") as asked:
            step = train(made, session, 3, step)
            # One job at a time has the process's generators.
            before = made.inventory(counters={}).generators()
            other = full(9)
            trial = opened(other, asked=asked)
            train(other, trial, steps, step - 1)
            trial.close()
            made.inventory(counters={}).set_generators(before)
            step = train(made, session, 3, step)
    assert clones(here) == [0]
    plain = full(1)
    train(plain, None, step - 1)
    assert made.losses == plain.losses


def test_what_a_change_can_not_do_is_told_to_all_ranks(here: CloneNode, opened: Opened) -> None:
    made, session = trained(opened)
    with here.cloning("trunk", "--at", "3", "--verify", "shadow:1", "--set", "lrr=1") as asked:
        train(made, session, 4, 2)
        other = full(9)
        trial = opened(other, asked=asked)
        with pytest.raises(clone.DifferenceError, match="lrr can't be set"):
            train(other, trial, 1, 4)
        assert clones(here) == [0]


def test_a_parent_that_does_not_come_so_far_is_given_up_in_time(here: CloneNode, opened: Opened) -> None:
    made, session = trained(opened)
    with here.cloning("trunk", "--at", "3", "--verify", "shadow:2") as asked:
        train(made, session, 2, 2)
        other = full(9)
        trial = opened(other, asked=asked)
        trial._verification.wait_s = 0.05  # type: ignore[union-attr]
        with pytest.raises(clone.CloneError, match=r"trunk or the clone's other ranks did not come to step 5 in 0\.05 s"):
            train(other, trial, 2, 4)


def fails(*_: object) -> None:
    raise RuntimeError("no way")


def test_f50_a_fork_that_fails_leaves_the_comparison_of_another(
    here: CloneNode, opened: Opened, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Both are due at one point."""
    made, session = trained(opened)
    with here.cloning("trunk", "--at", "3", "--verify", "shadow:2") as asked, here.cloning("trunk", "--at", "5"):
        train(made, session, 3, 2)
        with monkeypatch.context() as broken:
            broken.setattr(clone.Inventory, "capture", fails)
            train(made, session, 1, 5)
        assert "no fork at step 5: no way\n" in capfd.readouterr().err
        other = full(9)
        trial = opened(other, asked=asked)
        train(other, trial, 2, 4)
        assert not trial.verifying
        assert clones(here) == [1]
    (fork,) = session.forks
    assert (fork.step, fork.compared_s > 0) == (3, True)


def test_a_state_that_can_not_be_compared_is_told_once(
    here: CloneNode, opened: Opened, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    made, session = trained(opened)
    passed: list[int | None] = []
    monkeypatch.setattr(session._telling, "passed", lambda _, fork: passed.append(fork and fork.step))
    with here.cloning("trunk", "--at", "3", "--verify", "shadow:1") as asked:
        train(made, session, 2, 2)
        with monkeypatch.context() as broken:
            broken.setattr(clone.Inventory, "manifest", fails)
            train(made, session, 1, 4)
        assert passed == [None, 3, None], "a point is one, for the run's record"
        assert "no clone at step 4: nothing to compare clones with: no way\n" in capfd.readouterr().err
        with pytest.raises(clone.CloneError, match="rank 0 of trunk could not take its state: no way"):
            opened(full(9), asked=asked)
    train(made, session, 1, 5)
    assert "can't be forked" not in capfd.readouterr().err


def test_a_parent_whose_agent_has_ended_compares_nothing(here: CloneNode, opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.clone._source.LOOK_EVERY_S", float("inf"))
    made, session = trained(opened)
    with here.cloning("trunk", "--at", "3", "--verify", "shadow:2"):
        train(made, session, 3, 2)
        here.kill_agent()
        source = session._source
        assert source
        support.wait_until(lambda: not source._rank.is_served(), "the end of the connection")
        train(made, session, 1, 5)
    (fork,) = session.forks
    assert (fork.step, fork.compared_s) == (3, 0.0)
    assert source._machine.repeats == {}


@pytest.mark.parametrize("verify", ["", "shadow", "shadow:0", "shadow:-3", "shadow:1001", "shadow:" + "9" * 5000, "digests", 3, None])
def test_nonsense_is_refused(verify: object, opened: Opened) -> None:
    with pytest.raises(ValueError, match=r"^verify=.*: write 'digest', or 'shadow:N' for a comparison after N more steps, 1 to 1000"):
        opened(full(1), verify=verify)
    assert [_shadow.shadow_steps(good) for good in ("digest", "shadow:3", "shadow:1000")] == [0, 3, 1000]
