use forebay_agent::host::shared::SharedFile;
use forebay_contract::{
    Freshness, Run,
    run::{RUN_BYTES, RunSettings},
};

use super::*;

const S: u64 = 1_000_000_000;
const BEGUN: u64 = 100 * S;
const SETTINGS: StartupSettings = StartupSettings {
    has_libraries: false,
    reads_ahead: true,
    left: CopiesLeft::Kept,
    tier_bytes: 1 << 30,
};

struct Page {
    _dir: tempfile::TempDir,
    file: SharedFile,
}

impl Page {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = SharedFile::create(&dir.path().join("run.1"), RUN_BYTES).unwrap();
        let settings = RunSettings {
            run: 1,
            freshness: Freshness::Immutable,
            mount_namespace: 1,
            root: (1, 1),
            agent_dir: b"/agent",
            agent_started_at: 1,
            roots: &[],
            excludes: &[],
        };
        Run::create(file.region(), &settings).unwrap();
        Self { _dir: dir, file }
    }

    fn startup(&self) -> Startup<'_> {
        Run::open(self.file.region()).unwrap().startup()
    }

    /// Opens a file of 10 bytes after a time in seconds, at the source or from the first tier.
    fn open(&self, at_s: u64, path: &str, is_copy: bool) {
        if is_copy {
            self.startup().count_hit(7, path.as_bytes(), BEGUN + at_s * S, (0, 10));
        } else {
            self.startup().count_source(7, path.as_bytes(), BEGUN + at_s * S, (S / 2, 10));
        }
    }

    fn read(&self) -> FirstStep {
        FirstStep::read(&self.startup(), BEGUN, 1).expect("something was opened")
    }

    fn advice(&self, settings: StartupSettings) -> String {
        self.read().advised(settings).advice.expect("a sentence")
    }
}

fn spans(first_step: &FirstStep) -> Vec<(PhaseName, f64, Option<f64>)> {
    let span = |phase: &Phase| (phase.name, phase.begin_s, phase.end_s);
    first_step.phases.iter().map(span).collect()
}

#[test]
fn a_loader_tells_the_first_batch_and_phases_end_there() {
    let page = Page::new();
    page.open(1, "/s/train.py", false);
    page.open(3, "/s/lib.py", false);
    page.open(4, "/s/config.json", false);
    page.open(5, "/s/w.gguf", false);
    page.open(11, "/s/0.jpg", false);
    page.startup().note_weights_read(BEGUN + 9 * S);
    page.startup().note_batch(BEGUN + 10 * S, BEGUN + 12 * S);
    page.startup().note_batch(BEGUN + 10 * S, BEGUN + 13 * S);
    page.startup().note_step(BEGUN + 15 * S);
    page.open(16, "/s/late.py", false);
    let first_step = page.read();
    assert_eq!(
        spans(&first_step),
        [
            (PhaseName::Start, 0.0, Some(1.0)),
            (PhaseName::Imports, 1.0, Some(3.0)),
            (PhaseName::Weights, 5.0, Some(9.0)),
            (PhaseName::Settings, 4.0, Some(4.0)),
            (PhaseName::FirstBatch, 10.0, Some(12.0)),
        ]
    );
    let imports = first_step.phase(PhaseName::Imports).unwrap();
    assert_eq!((imports.source, imports.waited_s), (Answered { opens: 2, bytes: 20 }, 1.0));
    assert_eq!(
        first_step.headline(),
        "12 s to the first batch of a loader (13 s to that of the last of 2 processes), 15 s to the end of the first step"
    );
    let text = serde_json::to_string(&first_step).unwrap();
    assert_eq!(serde_json::from_str::<FirstStep>(&text).unwrap(), first_step);
}

#[test]
fn an_unmodified_program_does_not_tell_and_phases_are_what_was_seen() {
    let page = Page::new();
    assert_eq!(FirstStep::read(&page.startup(), BEGUN, 1), None);
    page.open(2, "/s/train.py", false);
    page.open(4, "/s/0.jpg", true);
    let first_step = page.read();
    assert_eq!(
        spans(&first_step),
        [
            (PhaseName::Start, 0.0, Some(2.0)),
            (PhaseName::Imports, 2.0, Some(2.0)),
            (PhaseName::FirstBatch, 4.0, None),
        ]
    );
    assert_eq!(
        first_step.headline(),
        "not told by the program; the first file of data was opened after 4.0 s"
    );
    assert_eq!(
        first_step.phase(PhaseName::FirstBatch).unwrap().from_tiers(),
        Answered { opens: 1, bytes: 10 }
    );
}

#[test]
fn a_session_alone_tells_the_end_of_the_first_step() {
    let page = Page::new();
    page.open(2, "/s/w.pt", false);
    page.startup().note_step(BEGUN + 9 * S);
    let first_step = page.read();
    assert_eq!(
        spans(&first_step)[1..],
        [(PhaseName::Weights, 2.0, Some(2.0)), (PhaseName::FirstBatch, 2.0, Some(9.0))]
    );
    assert!(
        first_step.headline().starts_with("9.0 s to the end of the first step"),
        "{}",
        first_step.headline()
    );
}

#[test]
fn counting_ends_once_data_are_read_and_nothing_is_loaded_for_as_long_as_it_took() {
    let page = Page::new();
    let is_over_at = |at_s: u64| {
        end_startup(&page.startup(), BEGUN, BEGUN + at_s * S);
        page.startup().is_over()
    };
    page.open(1, "/s/train.py", false);
    assert!(!is_over_at(500), "no data");
    page.open(2, "/s/0.jpg", false);
    assert!(!is_over_at(11));
    page.open(30, "/s/w.gguf", false);
    assert!(!is_over_at(59));
    assert!(is_over_at(60));
}

#[test]
fn the_sentence_is_about_the_phase_that_took_longest() {
    let page = Page::new();
    page.open(4, "/s/train.py", false);
    assert!(
        page.advice(SETTINGS).starts_with("start took longest, 4.0 s, before anything"),
        "{}",
        page.advice(SETTINGS)
    );
    page.open(9, "/s/lib.py", false);
    let imports = page.advice(SETTINGS);
    assert!(
        imports.starts_with("imports took longest, 5.0 s: the source answered 2 of 2 opens"),
        "{imports}"
    );
    assert!(
        imports.contains("--libraries") && imports.contains("the next run finds copies"),
        "{imports}"
    );
    let served = StartupSettings {
        has_libraries: true,
        ..SETTINGS
    };
    assert!(!page.advice(served).contains("--libraries"));
    page.open(10, "/s/w.gguf", false);
    page.startup().note_weights_read(BEGUN + 17 * S);
    let weights = page.advice(SETTINGS);
    assert!(
        weights.starts_with("weights took longest, 7.0 s: 10 B came from the source"),
        "{weights}"
    );
    let follows = StartupSettings {
        reads_ahead: false,
        ..SETTINGS
    };
    assert!(page.advice(follows).contains("--prefetch auto"));
    let small = StartupSettings { tier_bytes: 9, ..SETTINGS };
    assert!(page.advice(small).contains("a larger --tier"));
    let forgets = StartupSettings {
        left: CopiesLeft::InMemory,
        ..SETTINGS
    };
    assert!(page.advice(forgets).contains("a --tier on a disk, or --keep"));
    let none = StartupSettings {
        left: CopiesLeft::Missing,
        ..SETTINGS
    };
    assert!(page.advice(none).contains("no copy was made"));
    page.open(18, "/s/0.jpg", false);
    page.startup().note_batch(BEGUN + 17 * S, BEGUN + 27 * S);
    assert!(
        page.advice(SETTINGS)
            .starts_with("first batch took longest, 10 s: its files came from the source")
    );
}

#[test]
fn a_phase_from_copies_and_a_loader_that_reads_elsewhere_are_named() {
    let page = Page::new();
    page.open(1, "/s/train.py", true);
    page.open(9, "/s/lib.py", true);
    assert!(
        page.advice(SETTINGS).contains("copies answered all opens of its files"),
        "{}",
        page.advice(SETTINGS)
    );
    page.startup().note_batch(BEGUN + 9 * S, BEGUN + 27 * S);
    assert!(page.advice(SETTINGS).contains("DataLoader(cache="), "{}", page.advice(SETTINGS));
}
