//! A client's connection to the fork agent or the loader agent, and the socket to which it connects.

use std::{
    os::fd::{BorrowedFd, OwnedFd},
    path::Path,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::{stat, unlink},
    net::{AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, shutdown, socket_with, sockopt},
    process::{Pid, getpid},
};
use serde::{Serialize, de::DeserializeOwned};

use crate::host::{
    clock::timespec,
    error::{AgentError, io_error},
    limits::BACKLOG,
    packet,
};

/// Why there is no answer from an agent that has ended.
pub(crate) const CLOSED: &str = "it closed the connection";

/// An agent's socket at a path, where whatever stood there before makes room. It does not wait.
pub(crate) fn listening(path: &Path) -> Result<OwnedFd, AgentError> {
    let _ = unlink(path);
    let failed = |operation| io_error(operation, path);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map_err(|e| failed("make")(e.into()))?;
    let address = SocketAddrUnix::new(path).map_err(|e| failed("name")(e.into()))?;
    bind(&socket, &address).map_err(|e| failed("bind")(e.into()))?;
    listen(&socket, BACKLOG).map_err(|e| failed("listen on")(e.into()))?;
    Ok(socket)
}

/// A connection, and whose it is: a forked child, such as a loader's worker, has a descriptor of it too, and may live longer.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: OwnedFd,
    owner: Pid,
}

impl Drop for Connection {
    fn drop(&mut self) {
        if self.owner == getpid() {
            // Closing it would not end it as long as a child is there.
            let _ = shutdown(&self.socket, Shutdown::Both);
        }
    }
}

impl Connection {
    /// Connects to a socket. To send something never takes longer than `send_max`, whatever the agent does.
    pub(crate) fn open(path: &Path, send_max: Duration) -> Result<Self, AgentError> {
        let failed = |errno: rustix::io::Errno| io_error("connect to", path)(errno.into());
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).map_err(failed)?;
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(send_max)).map_err(failed)?;
        connect(&socket, &SocketAddrUnix::new(path).map_err(failed)?).map_err(failed)?;
        let owner = getpid();
        Ok(Self { socket, owner })
    }

    /// Whether the other side is still there.
    pub(crate) fn is_served(&self) -> bool {
        let mut polled = [PollFd::new(&self.socket, PollFlags::empty())];
        poll(&mut polled, Some(&timespec(Duration::ZERO))).is_ok_and(|gone| gone == 0)
    }

    /// The agent's process; `None` where it can't be known.
    pub(crate) fn pid(&self) -> Option<i32> {
        let peer = sockopt::socket_peercred(&self.socket).ok()?;
        Some(peer.pid.as_raw_nonzero().get())
    }

    /// Whether the other side sees the same files by the same paths: it is in the same mount namespace, with the same root.
    pub(crate) fn is_of_same_files(&self) -> bool {
        let Some(pid) = self.pid() else {
            return false;
        };
        let theirs = format!("/proc/{pid}");
        let place = |path: &str| stat(path).ok().map(|found| (found.st_dev, found.st_ino));
        let are_alike = |ours: &str, theirs: &str| place(ours).is_some_and(|ours| place(theirs) == Some(ours));
        are_alike("/proc/self/ns/mnt", &format!("{theirs}/ns/mnt")) && are_alike("/", &format!("{theirs}/root"))
    }

    pub(crate) fn send(&self, value: &impl Serialize, descriptors: &[BorrowedFd<'_>]) -> Result<(), AgentError> {
        packet::send(&self.socket, value, descriptors).map_err(|error| AgentError::Protocol(error.to_string()))
    }

    /// What the agent says next, if it says anything within this time.
    pub(crate) fn hear<T: DeserializeOwned>(&self, wait: Duration) -> Result<Option<(T, Vec<OwnedFd>)>, AgentError> {
        let deadline = Instant::now() + wait;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&timespec(left))) {
                Ok(0) => return Ok(None),
                Ok(_) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(AgentError::Protocol(errno.to_string())),
            }
        }
        match packet::receive(&self.socket).map_err(|error| AgentError::Protocol(error.to_string()))? {
            None => Err(AgentError::Protocol(CLOSED.into())),
            told => Ok(told),
        }
    }
}
