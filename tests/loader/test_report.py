"""Messages at the end of an epoch."""

import json
from pathlib import Path
from typing import Any

import pytest

from forebay.loader import EpochReport
from forebay.loader._batches import FetchedBatch
from forebay.loader._failures import SampleFailure
from forebay.loader._report import SPAN_S, SPANS, Meter, TrainingWait, WaitTimeline
from forebay.loader._reporter import LoaderReporter


def report(**values: Any) -> EpochReport:
    given: dict[str, Any] = {
        "epoch": 3,
        "samples": 40_000,
        "skipped": 0,
        "seconds": 100.0,
        "source_wait_s": 0.0,
        "decode_wait_s": 0.0,
        "ideal_s": 80.0,
        "read_bytes": 2_000_000_000,
        "workers": 2,
        "processors": 4,
    }
    return EpochReport(**{**given, **values})


BEGUN = "epoch 3: 40,000 samples in 100.0 s, 1.25 times the ideal (80.0 s); waited "


@pytest.mark.parametrize(
    ("values", "bound_by", "said"),
    [
        (
            {"source_wait_s": 2.0, "decode_wait_s": 2.0},
            "training",
            "2.0 s for the source, 2.0 s for decoding; bound by training: no loader",
        ),
        (
            {"source_wait_s": 15.0, "decode_wait_s": 5.0},
            "source",
            "15.0 s for the source, 5.0 s for decoding; bound by the source (20.0 MB/s): would be helped by copies on local disk",
        ),
        ({"source_wait_s": 20.0, "read_bytes": None}, "source", "20.0 s for the source, 0.0 s for decoding; bound by the source: would"),
        (
            {"decode_wait_s": 20.0},
            "decoding",
            "0.0 s for the source, 20.0 s for decoding; bound by decoding: num_workers=4 would help (now 2)",
        ),
        (
            {"decode_wait_s": 20.0, "workers": 4},
            "decoding",
            "bound by decoding, with num_workers=4 on 4 processors: more processors for each rank",
        ),
    ],
)
def test_it_says_what_bounded_the_epoch(values: dict[str, Any], bound_by: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FOREBAY_RUN", raising=False)
    assert report(**values).bound_by == bound_by
    line = str(report(**values))
    assert line.startswith(BEGUN)
    assert said in line
    assert "\n" not in line


def test_under_a_run_another_knob_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_RUN", "somewhere")
    assert "a larger --tier or --ram would help" in str(report(source_wait_s=20.0))


def test_a_cache_that_was_given_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_RUN", "somewhere")
    assert "a larger cache= would help" in str(report(source_wait_s=20.0, is_cached=True))


def test_skipped_samples_are_named() -> None:
    line = str(report(skipped=2, first_skipped=SampleFailure(7, "a.png", "OSError: cut", "")))
    assert line.endswith("; 2 skipped, the first: sample 7 (a.png): OSError: cut")


def test_waiting_is_shared_out_as_the_batch_itself_waited() -> None:
    meter = Meter(0, workers=1, processors=2, is_located=True)
    meter.had(8, FetchedBatch(waited_s=3.0, decoded_s=1.0, read_bytes=100), 2.0)
    meter.had(8, FetchedBatch(waited_s=0.0, decoded_s=1.0, read_bytes=50, failures=[SampleFailure(1, None, "no", "")]), 0.5)
    meter.had(4, FetchedBatch(), 0.25)
    told = meter.report()
    assert (told.source_wait_s, told.decode_wait_s) == (1.5, 1.25)
    assert (told.samples, told.skipped, told.read_bytes) == (19, 1, 150)
    assert told.ideal_s == 1.0, "two seconds of decoding on two processors"
    assert Meter(0, workers=1, processors=2, is_located=False).report().read_bytes is None


def test_a_course_has_so_many_spans_however_long_an_epoch_is() -> None:
    course = WaitTimeline()
    for at_s in range(1000):
        course.add(float(at_s), 0.5, 0.25)
    assert course.span_s == pytest.approx(SPAN_S * 256)
    assert len(course.source_s) == len(course.decode_s) <= SPANS
    assert sum(course.source_s) == pytest.approx(500.0)
    assert sum(course.decode_s) == pytest.approx(250.0)
    assert course.source_s[0] == pytest.approx(0.5 * 26)


def test_the_longest_waits_are_kept_with_whose_they_were() -> None:
    meter = Meter(0, workers=1, processors=1, is_located=True)
    for number in range(30):
        of_source = number % 2 == 0
        meter.had(1, FetchedBatch(waited_s=float(of_source), decoded_s=float(not of_source)), number / 1000)
    waits = meter.report().waits
    assert [wait.seconds for wait in waits] == [number / 1000 for number in range(29, 19, -1)]
    assert [wait.of for wait in waits[:2]] == ["decoding", "source"]
    told = str(report(waits=(TrainingWait(3.25, 17.4, "source"), TrainingWait(2.0, 1.0, "decoding")), source_wait_s=15.0))
    assert told.endswith("; the longest wait was 3.2 s for the source, 17 s in")
    assert "longest" not in str(report(waits=(TrainingWait(0.5, 17.4, "source"),)))


def test_an_epoch_is_reported_to_the_run_and_to_a_person(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FOREBAY_RUN", str(tmp_path / "run.1"))
    file = tmp_path / "loaders.1"
    reporter = LoaderReporter("0", 1, 2, None, is_saying=False)
    reporter.end(report())
    assert list(tmp_path.iterdir()) == [], "a run that has ended has taken its file away"
    file.touch()
    reporter.padding = 3
    reporter.end(slow := report(course=WaitTimeline(0.5, [0.25], [0.0]), source_wait_s=20.0))
    assert (reporter.last, reporter.padding) == (slow, 0)
    (line,) = map(json.loads, file.read_text().splitlines())
    assert (line["rank"], line["world"], line["bound_by"], line["epoch"]) == (1, 2, "source", 3)
    assert (line["span_s"], line["source_s"], line["agent"]) == (0.5, [0.25], {})
    assert capfd.readouterr().err == ""
    monkeypatch.delenv("FOREBAY_RUN")
    LoaderReporter("0", 0, 2, None, is_saying=True).end(slow)
    assert len(file.read_text().splitlines()) == 1
    assert capfd.readouterr().err.startswith("forebay: epoch 3: 40,000 samples")
