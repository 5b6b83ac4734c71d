"""Sessions: what a point does, what a clone gets, what is refused, and that training never suffers.

Clones are played in the test's own process.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import forebay.clone as clone
from forebay.clone import _description, _session, _source
from forebay.clone._errors import RefusedError
from forebay.clone._later import ThreadResult
from forebay.clone._resume import CloneRequest
from tests import support
from tests.clone import jobs
from tests.clone.forks import CloneNode, Opened, State, drop, refusal, taking, train, train_until, trained, wait_for_state
from tests.clone.jobs import full


def test_f50_a_clone_at_a_step_goes_on_as_its_parent_does(here: CloneNode, opened: Opened) -> None:
    """The parent trains on before the clone has read anything: what the clone gets is of that step all the same."""
    made, session = trained(opened, 3)
    with here.cloning("trunk", "--at", "7") as asked:
        train(made, session, 9, 4)
        last = made.inventory(counters={}).manifest()
        other = full(99)
        resumed = opened(other, asked=asked)
        assert resumed.resumed == {"epoch": 0, "step": 7}
        assert resumed.job == "trunk.1"
        assert resumed.lineage
        assert (resumed.lineage.parent, resumed.lineage.step, resumed.lineage.changes) == ("trunk", 7, {})
        train(other, resumed, 5, 8)
    assert other.losses == made.losses[7:]
    assert other.inventory(counters={}).manifest().differences(last) == []
    assert [fork.step for fork in session.forks] == [7]
    # And the parent as though nobody had asked.
    plain = full(1)
    train(plain, None, 12)
    assert made.losses == plain.losses
    listed = {job["job"]: (job["step"], job["clones"], job["bytes"] > 0) for job in here.jobs()}
    assert listed == {"trunk": (12, 1, True), "trunk.1": (12, 0, True)}


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"wait_s": "x"}, "wait_s='x': write a number of seconds, more than 0 and at most 1,000,000"),
        ({"wait_s": 0}, "wait_s=0: write a number of seconds"),
        ({"wait_s": float("inf")}, "wait_s=inf: write a number of seconds"),
        ({"warm": 5}, "warm=5: give a function that does one pass"),
        ({"job": 5}, "job=5: write a name"),
        ({"generators": 5}, "generators=5: give a dictionary of objects by name"),
        ({"others": [1]}, r"others=\[1\]: give a dictionary of objects by name"),
    ],
)
def test_arguments_that_can_not_be_are_refused(options: dict[str, Any], wrong: str) -> None:
    given: dict[str, Any] = {"model": nn.Linear(1, 1)} | dict.fromkeys(("optimizer", "scheduler", "scaler", "ema", "loader"))
    with pytest.raises(ValueError, match=wrong):
        clone.session(**given | options)


@pytest.mark.parametrize("point", [{"epoch": -1, "step": 0}, {"epoch": 0, "step": -1}])
def test_epochs_and_steps_are_counted_from_0_on(opened: Opened, point: dict[str, int]) -> None:
    made = full(1)
    session = opened(made)
    made.step()
    with pytest.raises(ValueError, match=r"point\(epoch=.*: count both from 0 on"):
        session.point(**point)


def test_a_fork_waits_for_the_clone_and_then_for_the_next_point(here: CloneNode, opened: Opened, executor: ThreadPoolExecutor) -> None:
    made = full(1)
    session = opened(made)
    with here.cloning("trunk") as asked:
        train(made, session, 5)
        assert session.forks == [], "nobody waits yet"
        state: Future[State] = executor.submit(wait_for_state, taking(asked))
        train_until(made, session, state.done, 6)
        drop(state.result())
    assert len(session.forks) == 1


def test_a_fork_that_copies_all_is_put_off_until_there_is_memory(
    here: CloneNode, opened: Opened, executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As states on a GPU are copied, too. To take gigabytes lasts several steps, in which training goes on."""
    made, session = trained(opened, prepare="never")
    begun: list[int] = []

    def noting(ask: Callable[[], Any], *, goes_on: bool = False) -> ThreadResult[Any]:
        if goes_on:
            begun.append(made.counters["step"])
        return ThreadResult(ask, goes_on=goes_on)

    monkeypatch.setattr("forebay.clone._source.ThreadResult", noting)
    # From then on its steps take longer.
    monkeypatch.setattr(_source.ForkSource, "_steps_ahead", lambda _: 2 if begun else 6)
    with here.cloning("trunk") as asked:
        state: Future[State] = executor.submit(wait_for_state, taking(asked))
        train_until(made, session, state.done, 2)
        drop(state.result())
    (fork,) = session.forks
    assert begun == [fork.step - 6], "once"


def test_how_many_steps_memory_takes(here: CloneNode, opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    made = full(1)
    source = opened(made, prepare="never")._source
    assert source is not None
    train(made, None, 1)
    source.point(epoch=0, step=1)
    assert source._steps_ahead() == 1, "of a small state"
    monkeypatch.setattr(_source, "READY_BYTES_PER_S", source._length / 3.0001)
    source._pointed_at.clear()
    source._pointed_at.extend([0.0, 0.1, 0.2, 2.0])
    assert source._steps_ahead() == 1 + 4, "three seconds, at two thirds of one a step"
    source._pointed_at.extend([2.0] * 100)
    assert source._steps_ahead() == 1 + 3000, "no step takes less than a millisecond"
    monkeypatch.setattr(_source, "READY_BYTES_PER_S", 1e-3)
    assert source._steps_ahead() == 1 + 30_000


def test_a_point_in_the_middle_of_accumulation_is_passed_over(here: CloneNode, opened: Opened) -> None:
    made, session = trained(opened)
    with here.cloning("trunk", "--at", "3"):
        for step in range(2, 50):
            session.point(epoch=0, step=step)
        assert session.forks == []
        train(made, session, 2, 50)
    assert [fork.step for fork in session.forks] == [51]


def test_several_clones_have_one_state_and_each_its_changes(here: CloneNode, opened: Opened) -> None:
    made, session = trained(opened)
    changed = ("--set", "lr=0.5", "--set", "seed=7", "--set", "weight_decay=0.25")
    with here.cloning("trunk", "--at", "3") as plain, here.cloning("trunk", "--at", "3", *changed) as other:
        train(made, session, 4, 2)
        assert len(session.forks) == 1, "one copy for both"
        one, two = full(2), full(3)
        opened(one, asked=plain)
        manifest = one.inventory(counters={}).manifest()
        resumed = opened(two, asked=other)
        assert resumed.lineage
        assert resumed.lineage.changes == {"lr": 0.5, "seed": 7, "weight_decay": 0.25}
        differing = manifest.differences(two.inventory(counters={}).manifest())
        assert {path.split("/")[0] for path in differing} == {"optimizer", "scheduler", "generators"}
        assert [(group["lr"], group["weight_decay"]) for group in two.optimizer.param_groups] == [(0.5, 0.25)]
        drawn = torch.rand(4)
        torch.manual_seed(7)
        assert torch.equal(torch.rand(4), drawn)
    with here.cloning("trunk", "--at", "7", "--set", "lrr=1") as asked:
        train(made, session, 3, 6)
        with pytest.raises(clone.DifferenceError, match=r"lrr can't be set: .*there are .*lr, .*momentum.*seed"):
            opened(full(4), asked=asked)
    assert {job["job"]: job["clones"] for job in here.jobs()}["trunk"] == 2


def test_f51_clones_that_end_or_fail_leave_nothing_and_the_parent_trains_on(
    here: CloneNode, opened: Opened, executor: ThreadPoolExecutor
) -> None:
    made = full(1)
    session = opened(made)
    step = train(made, session, 1)
    # Before it asks; while it waits; with its state in hand; after it has said that it could not load it.
    with here.cloning("trunk"):
        step = train(made, session, 3, step)
    with here.cloning("trunk") as asked:
        waiting = taking(asked)
        del waiting
        refusal(asked, "rank 0 of the clone has ended before all had their states")
        step = train(made, session, 3, step)
    for why in ("has ended before all had their states", "could not load its state: no room"):
        with here.cloning("trunk") as asked:
            mine = taking(asked)
            state: Future[State] = executor.submit(wait_for_state, mine)
            step = train_until(made, session, state.done, step)
            drop(state.result())
            if "no room" in why:
                mine.failed("no room")
            del mine, state
            refusal(asked, f"rank 0 of the clone {why}")
    # A second one for the same fork.
    with here.cloning("trunk", "--at", str(step + 1)) as asked:
        step = train(made, session, 3, step)
        first = full(5)
        opened(first, asked=asked)
        with pytest.raises(clone.CloneError, match="a clone that is started again is a new fork"):
            opened(full(6), asked=asked)
    with pytest.raises(clone.CloneError, match="this fork is over"):
        opened(full(6), asked=asked)
    plain = full(1)
    train(plain, None, step - 1)
    assert made.losses == plain.losses


def test_f51_a_parent_that_ends_lets_its_clones_go(here: CloneNode, opened: Opened, executor: ThreadPoolExecutor) -> None:
    made, session = trained(opened)
    with here.cloning("trunk", "--at", "1000000") as asked, here.cloning("trunk", "--at", "3") as taken:
        state: Future[State] = executor.submit(wait_for_state, taking(asked))
        train(made, session, 3, 2)
        session.close()
        with pytest.raises(ConnectionError, match="trunk has ended, or called close"):
            state.result()
        # What it had given before is a clone's whether or not it lives, and under whatever name another job trains now.
        opened(full(3))
        resumed = opened(full(2), asked=taken)
        assert resumed.resumed == {"epoch": 0, "step": 3}
    train(made, session, 2, 5)


def test_f51_an_agent_that_is_killed_ends_forks_and_not_training(opened: Opened, here: CloneNode, monkeypatch: pytest.MonkeyPatch) -> None:
    made = full(1)
    # It looks for another agent only when it is told to, however slow the machine is.
    monkeypatch.setattr("forebay.clone._source.LOOK_EVERY_S", float("inf"))
    session = opened(made)
    train(made, session, 1)
    with here.cloning("trunk", "--at", "1000000") as asked:
        here.kill_agent()
        step = train(made, session, 2, 2)
        with pytest.raises(ConnectionError, match=r"fork\.sock: Connection refused"):
            taking(asked)
    # The next one takes over what it left, and the job joins it.
    monkeypatch.setattr("forebay.clone._source.LOOK_EVERY_S", 0.0)
    step = train_until(made, session, lambda: [job["bytes"] > 0 for job in here.jobs()] == [True], step)
    with here.cloning("trunk", "--at", str(step + 2)) as asked:
        step = train(made, session, 4, step)
        assert opened(full(2), asked=asked).resumed == {"epoch": 0, "step": step - 2}
    plain = full(1)
    train(plain, None, step - 1)
    assert made.losses == plain.losses


def test_an_error_of_ours_is_told_and_training_goes_on(
    here: CloneNode, opened: Opened, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    made, session = trained(opened)

    def fails(*_: object) -> None:
        raise RuntimeError("no\nway")

    with here.cloning("trunk", "--at", "3") as asked, monkeypatch.context() as broken:
        broken.setattr(clone.Inventory, "capture", fails)
        train(made, session, 3, 2)
        assert "no fork at step 3: no way\n" in capfd.readouterr().err
        with pytest.raises(clone.CloneError, match="rank 0 of trunk could not take its state: no\nway"):
            opened(full(2), asked=asked)
    with here.cloning("trunk", "--at", "6"):
        train(made, session, 3, 5)
    assert [fork.step for fork in session.forks] == [6]


def test_a_parent_that_comes_to_no_point_is_given_up_in_time(here: CloneNode, opened: Opened) -> None:
    opened(full(1))
    with here.cloning("trunk") as asked, pytest.raises(clone.CloneError, match=r"trunk came to no point\(\) in 0.1 s: does it train"):
        opened(full(2), asked=asked, wait_s=0.1)
    late = r"trunk did not come to step 90 in 0.1 s: ask for an earlier one \(forebay clone ls shows .*or raise session\(wait_s=...\)"
    with here.cloning("trunk", "--at", "90") as asked, pytest.raises(clone.CloneError, match=late):
        opened(full(2), asked=asked, wait_s=0.1)


def test_s07_a_state_that_the_job_has_not_made_is_refused(here: CloneNode, opened: Opened) -> None:
    made, session = trained(opened)
    with here.cloning("trunk", "--at", "3") as asked:
        train(made, session, 3, 2)
        forged = here.root / "secret"
        forged.write_bytes(bytes(32))
        told = CloneRequest.from_json(asked)
        with pytest.raises(clone.DamagedError, match="failed HMAC verification"):
            opened(full(2), asked=asked.replace(str(told.secret), str(forged)))


def test_s07_the_secret_of_a_job_is_private_and_told_to_nobody(here: CloneNode, opened: Opened) -> None:
    made, session = trained(opened)
    (path,) = (here.forks / "secrets").iterdir()
    secret = path.read_bytes()
    assert len(secret) == 32
    assert path.stat().st_mode & 0o777 == 0o600
    assert all(directory.stat().st_mode & 0o777 == 0o700 for directory in (path.parent, here.forks))
    with here.cloning("trunk", "--at", "3") as asked:
        train(made, session, 3, 2)
        written = [(here.forks / "agent.log").read_bytes(), asked.encode()]
        for pid in (here.agent_pid(), os.getpid()):
            written += [open(f"/proc/{pid}/{what}", "rb").read() for what in ("environ", "cmdline")]  # noqa: SIM115, PTH123
        assert not any(spelled in text for text in written for spelled in (secret, secret.hex().encode()))
        (core,) = [line for line in open(f"/proc/{here.agent_pid()}/limits") if line.startswith("Max core")]  # noqa: SIM115, PTH123
        assert core.split()[4:6] == ["0", "0"], "it leaves no core file"
    session.close()
    support.wait_until(lambda: not path.exists(), "the secret to be gone")


def test_what_describes_a_state_is_read_back_or_refused() -> None:
    header = _description.StateHeader("trunk", 0, 1, 2)
    manifest = full(1).inventory().manifest()
    with _description.described(b"secret", header, manifest) as descriptor:
        assert _description.read(b"secret", descriptor) == (header, manifest)
        text = os.pread(descriptor, 1 << 20, 0)
        with pytest.raises(clone.DamagedError, match="failed HMAC verification"):
            _description.read(b"Secret", descriptor)
    lines = text.split(b"\n")
    for wrong, match in (
        (b"", "not of the format"),
        (b"\x80\x04.", "not of the format"),
        (lines[0], "failed HMAC verification"),
        (text.replace(b'"step":2', b'"step":3'), "failed HMAC verification"),
    ):
        descriptor = os.memfd_create("wrong")
        os.write(descriptor, wrong)
        with pytest.raises(clone.DamagedError, match=match):
            _description.read(b"secret", descriptor)
        os.close(descriptor)


def test_nonsense_on_the_socket_concerns_nobody_else(here: CloneNode, opened: Opened) -> None:
    made = full(1)
    session = opened(made)
    for packet in (
        b"\x80\x04.",
        b"null",
        b"{}",
        b'{"request":"publish"}',
        b"x" * 70000,
        b'{"request":"fetch","version":1,"fork":1,"rank":-1,"ranks":1}',
    ):
        with here.connect() as connection:
            connection.send(packet)
            assert b'"kind":"other_version"' in connection.recv(4096)
            assert connection.recv(4096) == b""
    with here.connect() as connection:
        connection.send(b'{"request":"register","version":0,"job":"x","rank":0,"ranks":1}')
        assert b"another version" in connection.recv(4096)
    train(made, session, 2)
    assert [job["job"] for job in here.jobs()] == ["trunk"]


def test_names(here: CloneNode, opened: Opened, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(_source, "TAKEN_WAIT_S", 0)
    session = opened(full(1))
    with pytest.raises(
        clone.CloneError, match=r"a job trunk trains here already, with 1 rank; name this one otherwise: session\(job=...\) or FOREBAY_JOB"
    ) as refused:
        opened(full(2))
    assert refused.value.__suppress_context__, "one traceback"
    for name in ("../x", "a/b", "x" * 101, ".x", "ls"):
        with pytest.raises(clone.CloneError, match="a job can't be named"):
            opened(full(2), job=name)
    session.close()
    support.wait_until(lambda: not here.jobs(), "the end of the job")
    assert opened(full(2)).job == "trunk"
    job = opened(full(2), job=None).job
    assert f"this job is {job}; to fork it: forebay clone {job} -- PROGRAM" in capfd.readouterr().err
    monkeypatch.setenv("PBS_JOBID", "4711.server")
    assert opened(full(2), job=None).job == "4711"
    assert opened(full(3), job=None).job.startswith("job-"), "nobody has asked for the name that is taken"
    monkeypatch.setenv("FOREBAY_JOB", "mine")
    assert opened(full(2), job=None).job == "mine"
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(clone.CloneError, match=r"call session\(\) after init_process_group\(\)"):
        opened(full(2))
    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(clone.CloneError, match="invalid FOREBAY_CLONE: only `forebay clone` sets it"):
        opened(full(2), asked="{}")


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({"PBS_JOBID": "1234[5].server"}, "1234-5"),
        ({"LSB_JOBID": "12", "LSB_JOBINDEX": "3"}, "12-3"),
        ({"LSB_JOBID": "12", "LSB_JOBINDEX": "0"}, "12"),
        ({"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0"}, "77"),
        ({"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "2"}, "77-2"),
        ({"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "4294967290"}, "77"),
        ({"SLURM_JOB_ID": "[]", "LSB_JOBINDEX": "1"}, None),
    ],
)
def test_names_of_schedulers(variables: dict[str, str], name: str | None, opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    assert _session._of_scheduler() == name


def test_ranks_of_a_job_whose_schedulers_name_is_taken_train_on(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def taken(*_: object) -> None:
        raise RefusedError("a job 77 trains here already")

    monkeypatch.setattr(_session, "ForkSource", taken)
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    for rank in (0, 1):
        described: Any = SimpleNamespace(rank=(rank, 2))
        state = _session.SessionState(loader_has_place=False, limits=_source.Limits(), shadow=0)
        session = _session._original(None, described, state)
        session._note_step()
        session.point(epoch=0, step=1)
        session.close()
    assert capfd.readouterr().err == "forebay: this job can't be forked: a job 77 trains here already\n"


def test_a_job_that_is_started_again_waits_for_its_name(opened: Opened) -> None:
    first = opened(full(1))
    timer = threading.Timer(1, first.close)
    timer.start()
    assert opened(full(2)).job == "trunk"
    timer.join()


def test_training_goes_on_where_nobody_reads_what_is_said(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    made = full(1)
    session = opened(made)

    def fails(*_: object) -> None:
        raise BrokenPipeError

    assert session._source
    monkeypatch.setattr(session._source, "point", fails)
    monkeypatch.setattr(os, "write", fails)
    train(made, session, 2)
    assert session._source is None


def test_a_program_that_is_switched_off_is_left_alone(opened: Opened, here: CloneNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY", "off")
    made = full(1)
    train(made, opened(made), 2)
    assert here.jobs() == []


def test_the_command_lists_jobs_and_refuses_what_can_not_be(here: CloneNode, opened: Opened) -> None:
    none = here.type("clone", "ls")
    assert (none.returncode, none.stdout) == (0, "no job that can be forked trains on this node\n")
    made = full(1)
    session = opened(made)
    train(made, session, 1, 1234)
    line = here.type("clone", "ls").stdout
    assert line.startswith("trunk  1 rank, step 1,234, ")
    assert line.endswith(" of state, 0 clones\n")
    for words, why in (
        (("nobody",), "no job 'nobody' that can be forked trains on this node; there are: trunk"),
        (("trunk", "--at", "1000"), "--at 1000: trunk is at step 1234 already; name a later one, or next"),
    ):
        done = here.type("clone", *words, "--", "touch", str(here.root / "ran"))
        assert (done.returncode, done.stdout, done.stderr) == (2, "", f"forebay: {why}\n")
    assert not (here.root / "ran").exists()
    done = here.type("clone", "trunk", "--", "sh", "-c", "exit 3")
    assert (done.returncode, done.stderr) == (3, "forebay: sh ended with status 3 before it asked for the state of trunk\n")
    done = here.type("clone", "trunk", "--", "sh", "-c", "exit 0")
    assert done.returncode == 0
    assert "sh ended without asking for the state of trunk: a clone is a program that calls forebay.clone.session(...)" in done.stderr


def test_a_model_of_another_shape_is_refused_before_anything_changes(here: CloneNode, opened: Opened) -> None:
    made, session = trained(opened)
    with here.cloning("trunk", "--at", "3") as asked:
        train(made, session, 3, 2)
        other = jobs.job(lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
        other.model = nn.Linear(2, 2)
        other.optimizer = torch.optim.SGD(other.model.parameters(), lr=0.1)
        other.loader, other.ema, other.scaler = made.loader, made.ema, made.scaler
        other.scheduler = jobs.SCHEDULERS["sequential"](other.optimizer)
        before = other.inventory(counters={}).manifest()
        with pytest.raises(clone.DifferenceError, match="differs: "):
            opened(other, asked=asked)
        assert other.inventory(counters={}).manifest() == before


class Loop:
    """A job by the session's own loop.

    Its loader knows nothing of its place: 13 batches an epoch, in an order drawn at its beginning.
    """

    def __init__(self, number: int) -> None:
        jobs.seed(number)
        self.model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        self.optimizer = jobs.momentum(self.model)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, 0.5)
        samples = torch.arange(150.0).reshape(50, 3) / 150
        self.loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(samples), batch_size=4, shuffle=True)

    def session(self) -> clone.Session:
        model, optimizer, scheduler = self.model, self.optimizer, self.scheduler
        return clone.session(model=model, optimizer=optimizer, scheduler=scheduler, scaler=None, ema=None, loader=None, job="trunk")

    def run(self, session: clone.Session) -> list[float]:
        losses = []
        for _ in session.epochs(4):
            for (samples,) in session.batches(self.loader):
                self.optimizer.zero_grad()
                loss = self.model(samples).square().mean()
                loss.backward()
                self.optimizer.step()
                losses.append(loss.item())
            self.scheduler.step()
        return losses


# In the middle of an epoch; at the last step of one, whose point comes after the scheduler's step; at the first.
@pytest.mark.parametrize(("step", "epoch"), [(20, 1), (26, 2), (27, 2)])
def test_a_loop_is_entered_where_the_parent_was(
    here: CloneNode, opened: Opened, monkeypatch: pytest.MonkeyPatch, step: int, epoch: int
) -> None:
    made = Loop(1)
    session = made.session()
    with here.cloning("trunk", "--at", str(step)) as asked:
        losses = made.run(session)
        assert len(losses) == 52
        assert [fork.step for fork in session.forks] == [step]
        monkeypatch.setenv("FOREBAY_CLONE", asked)
        other = Loop(2)
        resumed = other.session()
        assert resumed.resumed == {"epoch": epoch, "step": step}
        assert other.run(resumed) == losses[step:]
    session.close()
    resumed.close()


def test_a_loop_whose_loader_is_shorter_is_refused(here: CloneNode, opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Loop(1)
    session = made.session()
    with here.cloning("trunk", "--at", "20") as asked:
        made.run(session)
        monkeypatch.setenv("FOREBAY_CLONE", asked)
        other = Loop(2)
        other.loader = torch.utils.data.DataLoader(other.loader.dataset, batch_size=10)
        resumed = other.session()
        with pytest.raises(clone.CloneError, match="the loader has 5 batches, and its parent had had 7 of this epoch"):
            other.run(resumed)
    session.close()
    resumed.close()


def test_a_forked_child_neither_ends_a_job_nor_keeps_it(here: CloneNode, opened: Opened) -> None:
    """As a loader's workers are: they have the connection's descriptor, too."""
    session = opened(full(1))
    (ended, end), (wait, closed) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end)
        session.close()
        os.write(closed, b"x")
        os.read(ended, 1)
        os._exit(0)
    os.read(wait, 1)
    assert len(here.jobs()) == 1
    session.close()
    support.wait_until(lambda: not here.jobs(), "the end of the job")
    for descriptor in (ended, end, wait, closed):
        os.close(descriptor)
    assert os.waitpid(child, 0) == (child, 0)
