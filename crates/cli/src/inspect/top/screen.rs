//! The live display: the terminal's other screen, redrawn at each look, given back whatever happens.

use std::{
    io::{self, Write},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use crossterm::{
    cursor::{Hide, MoveTo, Show},
    execute, queue,
    style::{Attribute, Print, SetAttribute},
    terminal::{Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode, size},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::{Errno, read},
};
use signal_hook::{
    consts::{SIGHUP, SIGTERM},
    flag,
};

use super::{AgentsSnapshot, figures};

/// Interval between two checks for a signal that ends the command.
const SIGNAL_POLL: Duration = Duration::from_millis(100);
/// `q`, and what Ctrl-C and Ctrl-D send in raw mode.
const ENDING: [u8; 3] = [b'q', 3, 4];
/// Size of a terminal that does not know its own.
const USUAL_SIZE: (u16, u16) = (80, 24);

/// The terminal, taken; given back when dropped.
struct Screen;

impl Screen {
    fn take() -> io::Result<Self> {
        enable_raw_mode()?;
        let taken = Self;
        execute!(io::stdout(), EnterAlternateScreen, Hide)?;
        Ok(taken)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Nothing can be done about a terminal that is gone.
        let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
        let _ = disable_raw_mode();
    }
}

/// Shows until `q` or Ctrl-C is typed.
pub(super) fn run(runtime_dir: &Path, pause: Duration) -> io::Result<()> {
    // The terminal is given back first.
    let signalled = Arc::new(AtomicBool::new(false));
    for number in [SIGTERM, SIGHUP] {
        flag::register(number, Arc::clone(&signalled))?;
    }
    let _screen = Screen::take()?;
    let mut before = AgentsSnapshot::now(runtime_dir);
    loop {
        let now = AgentsSnapshot::now(runtime_dir);
        match draw(&figures::lines(&before, &now)) {
            // The terminal is gone.
            Err(error) if signalled.load(Ordering::Relaxed) || error.raw_os_error() == Some(Errno::IO.raw_os_error()) => return Ok(()),
            drawn => drawn?,
        }
        before = now;
        if is_ended(pause, &signalled)? {
            return Ok(());
        }
    }
}

fn draw(lines: &[String]) -> io::Result<()> {
    let (width, height) = match size()? {
        (0, _) | (_, 0) => USUAL_SIZE,
        known => known,
    };
    let mut out = io::stdout().lock();
    queue!(
        out,
        MoveTo(0, 0),
        SetAttribute(Attribute::Bold),
        Print("forebay top"),
        SetAttribute(Attribute::Reset)
    )?;
    queue!(out, Print("   q: quit"), Clear(ClearType::UntilNewLine))?;
    let room = usize::from(height.saturating_sub(2));
    for (row, line) in (2..).zip(lines.iter().take(room)) {
        let line: String = line.chars().take(usize::from(width)).collect();
        queue!(out, MoveTo(0, row), Print(line), Clear(ClearType::UntilNewLine))?;
    }
    queue!(out, Clear(ClearType::FromCursorDown))?;
    out.flush()
}

/// Waits; whether the user has ended it meanwhile, or the terminal is gone. Another size of the window is seen at the
/// next look.
///
/// The keys are read here: crossterm's own reading never comes back from a terminal that was closed.
fn is_ended(pause: Duration, signalled: &AtomicBool) -> io::Result<bool> {
    let begun = Instant::now();
    while let Some(left) = pause.checked_sub(begun.elapsed()) {
        if signalled.load(Ordering::Relaxed) {
            return Ok(true);
        }
        let wait = Timespec::try_from(left.min(SIGNAL_POLL)).map_err(io::Error::other)?;
        let stdin = io::stdin();
        let mut ready = [PollFd::new(&stdin, PollFlags::IN)];
        match poll(&mut ready, Some(&wait)) {
            Ok(0) | Err(Errno::INTR) => continue,
            Ok(_) => {}
            Err(errno) => return Err(errno.into()),
        }
        let mut keys = [0; 64];
        match read(&stdin, &mut keys) {
            Ok(0) | Err(Errno::IO) => return Ok(true),
            Ok(count) if keys[..count].iter().any(|key| ENDING.contains(key)) => return Ok(true),
            Ok(_) | Err(Errno::INTR | Errno::AGAIN) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(false)
}
