"""Settings of all tests: in CI a skipped test is a failure, for CI's machine has root and FUSE."""

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

_skipped: list[str] = []

# A shell that starts the tests in the background, or nohup, has them ignored, and what is ignored stays so in every
# program below.
for _number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL)


# A busy machine stands still for seconds; and CI tries what was tried before.
settings.register_profile("forebay", deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
settings.load_profile("forebay")


@pytest.fixture
def idle_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Benchmarks find that nothing else runs here: on a busy machine no bar counts as kept."""
    monkeypatch.setattr("os.getloadavg", lambda: (0.5, 0.5, 0.5))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a GPU")


def _note(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        _skipped.append(f"{report.nodeid}: {reason}")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _note(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    _note(report)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if os.environ.get("FOREBAY_CI") == "1" and _skipped and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if os.environ.get("FOREBAY_CI") == "1" and _skipped:
        terminalreporter.section("skipped, which fails under FOREBAY_CI=1", red=True, bold=True)
        for line in _skipped:
            terminalreporter.write_line(line)
