//! A client's connection to an agent, and the socket that an agent listens on.

use std::{
    io,
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
    role::pid,
};

/// Binds an agent's socket, and replaces one of an earlier agent. The socket does not block.
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

/// A connection and the process that opened it. A forked child, such as a loader's worker, has a descriptor of it too,
/// and may live longer.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: OwnedFd,
    owner: Pid,
}

impl Drop for Connection {
    fn drop(&mut self) {
        if self.owner == getpid() {
            // A child's descriptor would keep the connection open.
            let _ = shutdown(&self.socket, Shutdown::Both);
        }
    }
}

impl Connection {
    /// Connects to a socket. A send takes at most `send_max`, whatever the agent does.
    pub(crate) fn open(path: &Path, send_max: Duration) -> Result<Self, AgentError> {
        let failed = |errno: rustix::io::Errno| io_error("connect to", path)(errno.into());
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).map_err(failed)?;
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(send_max)).map_err(failed)?;
        connect(&socket, &SocketAddrUnix::new(path).map_err(failed)?).map_err(failed)?;
        let owner = getpid();
        Ok(Self { socket, owner })
    }

    /// Returns true if the agent still holds its end.
    pub(crate) fn is_served(&self) -> bool {
        let mut polled = [PollFd::new(&self.socket, PollFlags::empty())];
        poll(&mut polled, Some(&timespec(Duration::ZERO))).is_ok_and(|gone| gone == 0)
    }

    /// Returns the agent's process; `None` where it can't be known.
    pub(crate) fn pid(&self) -> Option<i32> {
        pid(&self.socket)
    }

    /// Returns true if the agent sees the same files at the same paths: it is in our mount namespace, with our root.
    pub(crate) fn is_of_same_files(&self) -> bool {
        let Some(pid) = self.pid() else {
            return false;
        };
        let theirs = format!("/proc/{pid}");
        let place = |path: &str| stat(path).ok().map(|found| (found.st_dev, found.st_ino));
        let are_alike = |ours: &str, theirs: &str| place(ours).is_some_and(|ours| place(theirs) == Some(ours));
        are_alike("/proc/self/ns/mnt", &format!("{theirs}/ns/mnt")) && are_alike("/", &format!("{theirs}/root"))
    }

    /// Sends a packet.
    pub(crate) fn send(&self, value: &impl Serialize, descriptors: &[BorrowedFd<'_>]) -> Result<(), AgentError> {
        packet::send(&self.socket, value, descriptors).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidInput => AgentError::Protocol(error.to_string()),
            _ => AgentError::Lost(error.to_string()),
        })
    }

    /// Receives the next packet; `None` if none comes within `wait`.
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
            None => Err(AgentError::closed()),
            received => Ok(received),
        }
    }
}
