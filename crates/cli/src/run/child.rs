//! The program as our child: it has our terminal, our process group and our directory; signals sent to us alone are
//! passed on to it, it is stopped and continued with us, and our end is its end.

use std::{
    ffi::OsString,
    io,
    os::unix::process::CommandExt,
    path::Path,
    process::Command,
    sync::{Arc, atomic::AtomicBool},
    thread,
    time::Duration,
};

use forebay_settings::user_error::{EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, UserError};
use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitId, WaitIdOptions, WaitIdStatus, getpid, getppid, kill_process, set_parent_process_death_signal,
    setrlimit, waitid,
};
use signal_hook::{
    consts::signal,
    iterator::{SignalsInfo, exfiltrator::WithOrigin},
    low_level::siginfo::{Cause, Origin},
};

/// Signals that are passed on when somebody sends them to us, besides the real-time ones.
const PASSED_ON: &[i32] = &[
    signal::SIGHUP,
    signal::SIGINT,
    signal::SIGQUIT,
    signal::SIGABRT,
    signal::SIGTERM,
    signal::SIGUSR1,
    signal::SIGUSR2,
    signal::SIGALRM,
    signal::SIGVTALRM,
    signal::SIGPROF,
    signal::SIGXCPU,
    signal::SIGXFSZ,
    signal::SIGWINCH,
    signal::SIGURG,
    signal::SIGTSTP,
    signal::SIGCONT,
    signal::SIGIO,
    signal::SIGSYS,
    signal::SIGTRAP,
];
/// The real-time signals that glibc leaves to programs.
const REAL_TIME: std::ops::RangeInclusive<i32> = 34..=64;
/// A child that the terminal stopped together with us is being continued together with us, too: it is looked at again
/// after this.
const STOP_SETTLES: Duration = Duration::from_millis(20);

/// End of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The program exited with this status.
    Status(u8),
    /// A signal ended the program.
    Signal(i32),
}

/// Program to run.
#[derive(Clone, Debug)]
pub struct Launch<'a> {
    /// The file.
    pub path: &'a Path,
    /// Its name and arguments, as they were typed.
    pub words: &'a [OsString],
    /// Variables that are added to its environment.
    pub environment: &'a [(&'a str, OsString)],
}

impl Launch<'_> {
    fn command(&self) -> Command {
        let mut command = Command::new(self.path);
        if let Some((name, arguments)) = self.words.split_first() {
            command.arg0(name).args(arguments);
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    fn refusal(&self, error: &io::Error) -> UserError {
        let name = self
            .words
            .first()
            .map_or(self.path.as_os_str(), OsString::as_os_str)
            .to_string_lossy();
        let status = if error.kind() == io::ErrorKind::NotFound {
            EXIT_NOT_FOUND
        } else {
            EXIT_NOT_EXECUTABLE
        };
        // The file is there; what is not there is the loader that it names.
        let why = if status == EXIT_NOT_FOUND {
            "cannot execute: required file not found".into()
        } else {
            error.to_string()
        };
        UserError::with_status(status, format_args!("{name}: {why}"))
    }

    /// Becomes the program. Returns only when that fails.
    pub fn replace(&self) -> UserError {
        self.refusal(&self.command().exec())
    }

    /// Runs the program to its end.
    ///
    /// # Errors
    /// When it can't be started.
    pub fn run(&self) -> Result<Ended, UserError> {
        // Before the program starts: from now on a signal to us must reach it rather than end us.
        let mut signals = register().map_err(|error| self.refusal(&error))?;
        let mut command = self.command();
        die_with_parent(&mut command);
        let child = command.spawn().map_err(|error| self.refusal(&error))?;
        let Some(pid) = Pid::from_raw(child.id() as i32) else {
            return Err(self.refusal(&io::Error::other("it has no process number")));
        };
        wait(&mut signals, pid).map_err(|error| self.refusal(&error))
    }
}

/// Whoever kills us by SIGKILL wants the program to be gone: launchers do that to end a job.
#[expect(unsafe_code, reason = "what runs between fork and exec is marked unsafe")]
fn die_with_parent(command: &mut Command) {
    let parent = getpid();
    let tie = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // It may have ended before that.
        if getppid() == Some(parent) {
            Ok(())
        } else {
            Err(io::Error::other("its parent has ended"))
        }
    };
    // SAFETY: two system calls and no allocation on the way that succeeds; both are safe between fork and exec.
    unsafe { command.pre_exec(tie) };
}

fn register() -> io::Result<SignalsInfo<WithOrigin>> {
    // What was ignored when we started (nohup) must be ignored in the program as well: a handler of ours would undo
    // that.
    let ignored = ignored_signals();
    let passed_on = PASSED_ON
        .iter()
        .copied()
        .chain(REAL_TIME)
        .filter(|number| ignored >> (number - 1) & 1 == 0);
    SignalsInfo::new(passed_on.chain([signal::SIGCHLD]))
}

/// The program has ended and nobody is left to pass a signal on to: from now on those that end a program end us, as
/// is their default.
pub fn let_signals_end_us() {
    let ignored = ignored_signals();
    let ending = [signal::SIGHUP, signal::SIGINT, signal::SIGQUIT, signal::SIGTERM];
    for number in ending.into_iter().filter(|number| ignored >> (number - 1) & 1 == 0) {
        // Where that fails we only wait for longer.
        let _ = signal_hook::flag::register_conditional_default(number, Arc::new(AtomicBool::new(true)));
    }
}

/// One bit a signal, that of signal 1 the lowest.
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

fn wait(signals: &mut SignalsInfo<WithOrigin>, child: Pid) -> io::Result<Ended> {
    let mut was_continued = false;
    for origin in signals.forever() {
        match origin.signal {
            signal::SIGCHLD => {}
            // That one has continued us after a stop, and `stop_too` has seen to the program.
            signal::SIGCONT if was_continued => was_continued = false,
            _ => pass_on(&origin, child),
        }
        // Signals merge, so after each one the child is looked at until there is no news.
        while let Some(status) = news(child, WaitIdOptions::empty())? {
            if let Some(code) = status.exit_status() {
                return Ok(Ended::Status(code as u8));
            }
            if let Some(number) = status.terminating_signal() {
                return Ok(Ended::Signal(number));
            }
            if let Some(number) = status.stopping_signal() {
                was_continued |= stop_too(child, number)?;
            }
        }
    }
    Err(io::Error::other("signals are no longer delivered"))
}

fn news(child: Pid, options: WaitIdOptions) -> io::Result<Option<WaitIdStatus>> {
    let all = WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
    Ok(waitid(WaitId::Pid(child), all | options)?)
}

/// Forwards a signal to the program, unless the kernel sent it (a terminal's key or hang-up): the kernel sends those
/// to the whole process group, so the program has received it.
fn pass_on(origin: &Origin, child: Pid) {
    let from_us = origin.process.is_some_and(|process| process.pid == getpid().as_raw_nonzero().get());
    if matches!(origin.cause, Cause::Sent(_)) && !from_us {
        send(child, origin.signal);
    }
}

fn send(child: Pid, number: i32) {
    // Signals without a name, the real-time ones, were registered by number and exist.
    if let Some(signal) = Signal::from_named_raw(number).or_else(|| real_time(number)) {
        // It may just have ended, which is the next news.
        let _ = kill_process(child, signal);
    }
}

#[expect(unsafe_code, reason = "rustix marks unnamed signals so, since libc reserves some of them")]
fn real_time(number: i32) -> Option<Signal> {
    // SAFETY: the range leaves out those that libc keeps for itself; the signal is only sent, no handler is set.
    REAL_TIME.contains(&number).then(|| unsafe { Signal::from_raw_unchecked(number) })
}

/// The program was stopped from the terminal: the shell waits for us, so we stop as well; gives whether we were. A
/// stop by SIGSTOP is somebody else's who will continue the program, and may not know of us.
fn stop_too(child: Pid, number: i32) -> io::Result<bool> {
    if ![signal::SIGTSTP, signal::SIGTTIN, signal::SIGTTOU].contains(&number) {
        return Ok(false);
    }
    thread::sleep(STOP_SETTLES);
    if !is_stopped(child) {
        return Ok(false);
    }
    kill_process(getpid(), Signal::STOP)?;
    // Here somebody has continued us. A shell does that to the whole group, others only to us; and the program may
    // have been stopped again since then, which is news that is left to the caller.
    if news(child, WaitIdOptions::NOWAIT)?.is_none() && is_stopped(child) {
        send(child, signal::SIGCONT);
    }
    Ok(true)
}

fn is_stopped(child: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.as_raw_nonzero())).unwrap_or_default();
    // The name in parentheses may hold anything.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
}

/// Ends this process as the program ended: by the same signal, without a core file of ours. Returns the status if
/// that can't be.
pub fn end_as(ended: Ended) -> u8 {
    match ended {
        Ended::Status(status) => status,
        Ended::Signal(number) => {
            let _ = setrlimit(
                Resource::Core,
                Rlimit {
                    current: Some(0),
                    maximum: Some(0),
                },
            );
            let _ = signal_hook::low_level::emulate_default_handler(number);
            128_u8.wrapping_add(number as u8)
        }
    }
}

/// A signal's name, or its number.
pub fn signal_name(number: i32) -> String {
    signal_hook::low_level::signal_name(number).map_or_else(|| format!("signal {number}"), str::to_owned)
}
