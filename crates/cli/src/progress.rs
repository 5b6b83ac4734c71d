//! Progress of work that takes longer than two seconds, on standard error: a bar on a terminal, else a line now and
//! then.

use std::{
    io::{IsTerminal, Write},
    sync::Mutex,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Work that takes less shows nothing.
const SHOWN_AFTER: Duration = Duration::from_secs(2);
/// Between two lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Progress of some work. Several threads may report it.
#[derive(Debug)]
pub struct WorkProgress {
    what: &'static str,
    bar: ProgressBar,
    terminal: bool,
    begun: Instant,
    told: Mutex<Option<Instant>>,
}

impl WorkProgress {
    /// Starts with a number of pieces of work, which `what` names in a word or two.
    pub fn new(what: &'static str, pieces: u64) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let bar = ProgressBar::with_draw_target(Some(pieces), ProgressDrawTarget::hidden());
        let style = ProgressStyle::with_template("{prefix} [{bar:30}] {percent} % {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> "));
        bar.set_prefix(what);
        Self {
            what,
            bar,
            terminal,
            begun: Instant::now(),
            told: Mutex::new(None),
        }
    }

    /// Shows the present activity.
    pub fn note(&self, now: &str) {
        self.bar.set_message(now.to_owned());
        self.refresh();
    }

    /// Counts more pieces as done. The caller refreshes.
    pub fn advance(&self, pieces: u64) {
        self.bar.inc(pieces);
    }

    /// Shows how far it is, if that is due. To be called now and then while a piece takes long.
    pub fn refresh(&self) {
        if self.begun.elapsed() < SHOWN_AFTER {
            return;
        }
        let Ok(mut told) = self.told.lock() else { return };
        if self.terminal {
            if told.is_none() {
                self.bar.set_draw_target(ProgressDrawTarget::stderr());
            }
        } else if told.is_none_or(|told| told.elapsed() >= LINE_EVERY) {
            let percent = self.bar.position() * 100 / self.bar.length().unwrap_or(0).max(1);
            let _ = writeln!(std::io::stderr(), "forebay: {}: {percent} % {}", self.what, self.bar.message());
        } else {
            return;
        }
        *told = Some(Instant::now());
    }
}

impl Drop for WorkProgress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
