//! Threads of the data plane, each with a runtime of its own.

use std::{
    io,
    sync::mpsc::sync_channel,
    thread::{Builder, JoinHandle},
};

use tokio::runtime::{Builder as RuntimeBuilder, LocalOptions};

use crate::{
    limits::{FORKS_NICE, NICE},
    wire::Kind,
};

/// Starts a thread that drives the future which `make` returns, and the tasks that it spawns, until it ends. `doing` is
/// the first part of its name.
///
/// # Errors
/// There is no thread, or no descriptor for its runtime.
pub(crate) fn start<F: Future<Output = ()>>(
    doing: &str,
    kind: Kind,
    make: impl FnOnce() -> F + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let name = format!("{doing}-{}", kind.name());
    let nice = if kind == Kind::Forks { FORKS_NICE } else { NICE };
    let (sender, receiver) = sync_channel(1);
    let run = move || {
        // On Linux the thread's own, and of those that it starts. Where it is forbidden, it serves all the same.
        let _ = rustix::process::setpriority_process(None, nice);
        // Not a `LocalSet`: that would wake its own thread by a system call at each packet that comes.
        let runtime = RuntimeBuilder::new_current_thread()
            .enable_io()
            .enable_time()
            .build_local(LocalOptions::default());
        match runtime {
            Ok(runtime) => {
                let _ = sender.send(Ok(()));
                runtime.block_on(async { make().await });
            }
            Err(error) => drop(sender.send(Err(error))),
        }
    };
    let thread = Builder::new().name(name).spawn(run)?;
    receiver.recv().map_err(io::Error::other)??;
    Ok(thread)
}
