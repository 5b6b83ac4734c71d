//! Counts, hangs and failures, and the socket through which tests and benchmarks control them.
//!
//! One line a request, one line an answer: `stats`, `reset`, `hang`, `resume`, `fail ERRNO [OPERATION]`, `ok`, `set KEY
//! VALUE`.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use anyhow::{Context, bail};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::process::umask;

use crate::pace::{Cost, Pace, lock};

macro_rules! operations {
    ($($variant:ident $name:literal $cost:ident,)*) => {
        /// An operation of the file system, as the server gets it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Op { $($variant,)* }

        impl Op {
            const ALL: &[(Op, &str)] = &[$((Op::$variant, $name),)*];

            fn cost(self) -> Cost {
                match self { $(Op::$variant => Cost::$cost,)* }
            }
        }
    };
}

operations! {
    Lookup "lookup" Meta,
    Getattr "getattr" Meta,
    Setattr "setattr" Meta,
    Readlink "readlink" Meta,
    Mknod "mknod" Meta,
    Mkdir "mkdir" Meta,
    Unlink "unlink" Meta,
    Rmdir "rmdir" Meta,
    Symlink "symlink" Meta,
    Rename "rename" Meta,
    Link "link" Meta,
    Create "create" Open,
    Open "open" Open,
    Read "read" Data,
    Write "write" Data,
    Flush "flush" Free,
    Release "release" Free,
    Fsync "fsync" Meta,
    Fallocate "fallocate" Meta,
    Opendir "opendir" Meta,
    Readdir "readdir" Meta,
    Readdirplus "readdirplus" Meta,
    Releasedir "releasedir" Free,
    Fsyncdir "fsyncdir" Meta,
    Statfs "statfs" Meta,
    Getxattr "getxattr" Meta,
    Setxattr "setxattr" Meta,
    Listxattr "listxattr" Meta,
    Removexattr "removexattr" Meta,
}

const OPERATIONS: usize = Op::ALL.len();

#[derive(Debug)]
struct Faults {
    hung: bool,
    fails: [Option<Errno>; OPERATIONS],
}

/// Entry of the server: every request passes here first.
#[derive(Debug)]
pub(crate) struct SlowServer {
    pace: Pace,
    counts: [AtomicU64; OPERATIONS],
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    faults: Mutex<Faults>,
    resumed: Condvar,
}

impl SlowServer {
    pub(crate) fn new(pace: Pace) -> Self {
        Self {
            pace,
            counts: [const { AtomicU64::new(0) }; OPERATIONS],
            bytes_read: AtomicU64::new(0),
            bytes_written: AtomicU64::new(0),
            faults: Mutex::new(Faults {
                hung: false,
                fails: [None; OPERATIONS],
            }),
            resumed: Condvar::new(),
        }
    }

    pub(crate) fn pace(&self) -> &Pace {
        &self.pace
    }

    /// Takes a request in: counts it, then waits for its latency, and for as long as the server hangs.
    ///
    /// # Errors
    /// The one that `fail` set.
    pub(crate) fn take(&self, op: Op) -> Result<(), Errno> {
        self.counts[op as usize].fetch_add(1, Relaxed);
        self.wait_while_hung();
        self.pace.work(op.cost());
        self.wait_while_hung();
        match lock(&self.faults).fails[op as usize] {
            Some(errno) => Err(errno),
            None => Ok(()),
        }
    }

    /// Sends bytes that were read through the link to the client.
    pub(crate) fn send(&self, bytes: usize) {
        self.bytes_read.fetch_add(bytes as u64, Relaxed);
        // A FUSE request carries 16 MiB at most.
        self.pace.transfer(bytes as u32);
        self.wait_while_hung();
    }

    /// Receives bytes to be written through the link from the client.
    pub(crate) fn receive(&self, bytes: usize) {
        self.bytes_written.fetch_add(bytes as u64, Relaxed);
        self.pace.transfer(bytes as u32);
        self.wait_while_hung();
    }

    /// Ends a hang: waiting requests go on.
    pub(crate) fn resume(&self) {
        lock(&self.faults).hung = false;
        self.resumed.notify_all();
    }

    fn wait_while_hung(&self) {
        let mut faults = lock(&self.faults);
        while faults.hung {
            faults = self.resumed.wait(faults).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn stats(&self) -> String {
        let counts = Op::ALL
            .iter()
            .map(|(op, name)| ((*name).to_owned(), self.counts[*op as usize].load(Relaxed)));
        let bytes = [("bytes_read", &self.bytes_read), ("bytes_written", &self.bytes_written)];
        let all = counts.chain(bytes.map(|(name, count)| (name.to_owned(), count.load(Relaxed))));
        serde_json::Value::Object(all.map(|(name, count)| (name, count.into())).collect()).to_string()
    }

    fn reset(&self) {
        let bytes = [&self.bytes_read, &self.bytes_written];
        self.counts.iter().chain(bytes).for_each(|count| count.store(0, Relaxed));
    }

    fn fail(&self, errno: Errno, only: Option<Op>) {
        let mut faults = lock(&self.faults);
        match only {
            Some(op) => faults.fails[op as usize] = Some(errno),
            None => faults.fails = [Some(errno); OPERATIONS],
        }
    }

    /// Executes one line.
    ///
    /// # Errors
    /// The fault of the line.
    fn carry_out(&self, line: &str) -> Result<String, String> {
        match *line.split_whitespace().collect::<Vec<_>>() {
            ["stats"] => return Ok(self.stats()),
            ["reset"] => self.reset(),
            ["hang"] => lock(&self.faults).hung = true,
            ["resume"] => self.resume(),
            ["fail", errno] => self.fail(errno_named(errno)?, None),
            ["fail", errno, op] => self.fail(errno_named(errno)?, Some(operation_named(op)?)),
            ["ok"] => lock(&self.faults).fails = [None; OPERATIONS],
            ["set", key, value] => self.pace.set(key, value)?,
            _ => {
                return Err(format!(
                    "{line:?}: stats, reset, hang, resume, fail ERRNO [OPERATION], ok, or set KEY VALUE"
                ));
            }
        }
        Ok("ok".to_owned())
    }

    fn converse(&self, stream: UnixStream) -> io::Result<()> {
        let mut answers = stream.try_clone()?;
        for line in BufReader::new(stream).lines() {
            let answer = self.carry_out(&line?).unwrap_or_else(|wrong| format!("error: {wrong}"));
            answers.write_all(format!("{answer}\n").as_bytes())?;
        }
        Ok(())
    }
}

fn operation_named(name: &str) -> Result<Op, String> {
    Op::ALL
        .iter()
        .find(|(_, known)| *known == name)
        .map(|(op, _)| *op)
        .ok_or_else(|| format!("no operation {name:?}"))
}

/// Parses an error number: the usual errors of storage by name, any other by its number.
fn errno_named(name: &str) -> Result<Errno, String> {
    Ok(match name {
        "EACCES" => Errno::ACCESS,
        "EAGAIN" => Errno::AGAIN,
        "EBADF" => Errno::BADF,
        "EBUSY" => Errno::BUSY,
        "ECONNRESET" => Errno::CONNRESET,
        "EDQUOT" => Errno::DQUOT,
        "EEXIST" => Errno::EXIST,
        "EFBIG" => Errno::FBIG,
        "EHOSTDOWN" => Errno::HOSTDOWN,
        "EINTR" => Errno::INTR,
        "EINVAL" => Errno::INVAL,
        "EIO" => Errno::IO,
        "ELOOP" => Errno::LOOP,
        "EMFILE" => Errno::MFILE,
        "ENFILE" => Errno::NFILE,
        "ENODATA" => Errno::NODATA,
        "ENODEV" => Errno::NODEV,
        "ENOENT" => Errno::NOENT,
        "ENOMEM" => Errno::NOMEM,
        "ENOSPC" => Errno::NOSPC,
        "ENOSYS" => Errno::NOSYS,
        "ENOTCONN" => Errno::NOTCONN,
        "EOPNOTSUPP" => Errno::OPNOTSUPP,
        "EPERM" => Errno::PERM,
        "EREMOTEIO" => Errno::REMOTEIO,
        "EROFS" => Errno::ROFS,
        "ESTALE" => Errno::STALE,
        "ETIMEDOUT" => Errno::TIMEDOUT,
        "EUCLEAN" => Errno::UCLEAN,
        number => match number.parse() {
            Ok(code @ 1..=511) => Errno::from_raw_os_error(code),
            _ => return Err(format!("no error {name:?}")),
        },
    })
}

/// Answers at `path` until the process ends. Only its owner can use the socket.
///
/// # Errors
/// The path can't be bound, or another server answers there.
pub(crate) fn listen(path: &Path, server: Arc<SlowServer>) -> anyhow::Result<()> {
    if UnixStream::connect(path).is_ok() {
        bail!("{}: another slowfs answers there", path.display());
    }
    match std::fs::remove_file(path) {
        Err(gone) if gone.kind() == io::ErrorKind::NotFound => {}
        done => done.with_context(|| format!("{}: can't replace it", path.display()))?,
    }
    let mask = umask(Mode::from_raw_mode(0o177));
    let bound = UnixListener::bind(path).with_context(|| format!("{}: can't listen there", path.display()));
    umask(mask);
    let listener = bound?;
    std::thread::Builder::new().name("control".to_owned()).spawn(move || {
        for stream in listener.incoming().flatten() {
            let server = Arc::clone(&server);
            // Each connection has a thread: one that stays open must not block the others. A broken one concerns only
            // its client.
            let _ = std::thread::Builder::new()
                .name("client".to_owned())
                .spawn(move || server.converse(stream));
        }
    })?;
    Ok(())
}
