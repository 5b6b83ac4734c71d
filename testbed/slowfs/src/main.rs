//! `slowfs SRC MNT`: shows a directory as a slow shared file system.
//!
//! A FUSE pass-through with a token bucket for bytes, a latency for each kind of operation and a fixed number of server
//! slots. It counts its server side's requests, and hangs or fails on request. Requests arrive in `fuse.rs` and are
//! carried out by `fs.rs`; `pace.rs` makes them slow, `control.rs` counts and takes commands, `node.rs` keeps inodes.

mod control;
mod fs;
mod fuse;
mod node;
mod pace;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::Parser;
use fuser::{Config, MountOption, Session, SessionACL, SessionUnmounter};
use rustix::fs::Mode;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit, umask};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::control::SlowServer;
use crate::fs::SlowFs;
use crate::pace::{Pace, PaceSettings};

/// Shows SRC at MNT as a slow shared file system would, until it is unmounted or ended.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    /// Directory to show
    src: PathBuf,
    /// Directory to mount on
    mnt: PathBuf,
    #[command(flatten)]
    settings: PaceSettings,
    /// Socket to answer `stats`, `hang`, `fail` and their kin at
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// Let other users in too (without root, /etc/fuse.conf must have user_allow_other)
    #[arg(long)]
    allow_other: bool,
    /// List directories without attributes, as a file system that has no readdirplus does
    #[arg(long)]
    no_readdirplus: bool,
    /// Threads: the most requests that can be waiting for slots and link at once
    #[arg(long, default_value_t = 32, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: u16,
}

fn main() -> ExitCode {
    let Err(error) = serve(&Args::parse()) else {
        return ExitCode::SUCCESS;
    };
    // One line, whatever RUST_BACKTRACE is: failures here are about the caller's mount point or permissions.
    let chain = format!("{error:#}").replace('\n', " ");
    let _ = writeln!(std::io::stderr(), "slowfs: {}", chain.trim_end());
    ExitCode::FAILURE
}

fn serve(args: &Args) -> anyhow::Result<()> {
    if let Err(wrong) = args.settings.check() {
        bail!("{wrong}");
    }
    let src = args.src.canonicalize().with_context(|| args.src.display().to_string())?;
    let mnt = args.mnt.canonicalize().with_context(|| args.mnt.display().to_string())?;
    if src.starts_with(&mnt) {
        bail!("{}: the mount would cover its own source", mnt.display());
    }
    // Sleeps of some hundred microseconds should not be 50 longer; the threads to come inherit this.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));

    let server = Arc::new(SlowServer::new(Pace::new(args.settings)));
    let fs =
        SlowFs::new(&src, Arc::clone(&server), !args.no_readdirplus, descriptors_to_hold()).with_context(|| src.display().to_string())?;
    let mut session = Session::new(fs, &mnt, &mount_config(&src, args)).with_context(|| format!("can't mount on {}", mnt.display()))?;
    if let Some(path) = &args.control {
        control::listen(path, Arc::clone(&server))?;
    }
    // The kernel has applied the caller's umask to modes; ours must not apply as well.
    umask(Mode::empty());
    unmount_on_signal(session.unmount_callable(), mnt, server)?;
    let served = session.run();
    if let Some(path) = &args.control {
        let _ = std::fs::remove_file(path);
    }
    served.context("the mount failed")
}

/// Raises the limit of descriptors as far as possible. Returns the number that inodes may hold: half of them, since
/// open files need the others.
fn descriptors_to_hold() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            ..limit
        },
    );
    getrlimit(Resource::Nofile).current.map_or(usize::MAX, |most| most as usize / 2)
}

fn mount_config(src: &Path, args: &Args) -> Config {
    let mut config = Config::default();
    // A comma would end the option if fusermount3 makes the mount.
    let name = match src.to_str() {
        Some(plain) if !plain.contains([',', '\\']) => format!("slowfs:{plain}"),
        _ => "slowfs".to_owned(),
    };
    config.mount_options = vec![
        MountOption::FSName(name),
        MountOption::Subtype("slowfs".to_owned()),
        MountOption::DefaultPermissions,
    ];
    config.acl = if args.allow_other { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(usize::from(args.threads));
    config.clone_fd = true;
    config
}

/// Unmounts at SIGINT, SIGTERM and SIGHUP, even if files are open and requests hang.
#[expect(
    clippy::exit,
    reason = "while somebody has a file open, only the end of this process ends the connection"
)]
fn unmount_on_signal(mut unmounter: SessionUnmounter, mnt: PathBuf, server: Arc<SlowServer>) -> anyhow::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for _ in signals.forever() {
            let unmounted = unmounter.unmount();
            if unmounted.is_err() {
                detach(&mnt);
            }
            server.resume();
            if unmounted.is_err() {
                std::process::exit(0);
            }
        }
    })?;
    Ok(())
}

/// Detaches the mount. Neither way asks the file system anything, so a hang does not matter.
fn detach(mnt: &Path) {
    if unmount(mnt, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW).is_err() {
        let _ = Command::new("fusermount3").args(["-u", "-z", "--"]).arg(mnt).status();
    }
}
