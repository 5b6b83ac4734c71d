//! Receives descriptor handoffs from preload libraries, and does nothing else. Sending never waits; a full queue drops
//! handoffs.

use std::{
    io::IoSliceMut,
    mem::MaybeUninit,
    os::fd::OwnedFd,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
};

use forebay_contract::{
    Identity, NotCached,
    message::{DescriptorHandoff, MESSAGE_BYTES_MAX},
};
use forebay_store::{CopySource, SourceFile, SourceStat, StatFrom};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind,
    listen, recvmsg, socket_with, sockopt,
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::Uid,
};

use crate::{
    host::{
        error::{AgentError, io_error},
        limits::BACKLOG,
    },
    tiering::{
        copy_job::CopyPace,
        limits::{BATCH_PAUSE, PACKET_WAIT_MAX},
        nodes::open_waits::{WaitPages, WaitingOpener},
        open_files::name_of,
        reader::ReaderDescriptor,
    },
};

/// Bound on the descriptors of handoffs that the agent holds. Each counts until it is dropped.
#[derive(Clone, Debug)]
pub(crate) struct DescriptorBudget {
    held: Arc<AtomicUsize>,
    max: usize,
}

/// Share of one descriptor in the budget, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct HeldDescriptor(Arc<AtomicUsize>);

impl DescriptorBudget {
    pub(crate) fn new(max: usize) -> Self {
        Self { held: Arc::default(), max }
    }

    pub(crate) fn take(&self) -> Option<HeldDescriptor> {
        if self.held.fetch_add(1, Ordering::Relaxed) >= self.max {
            self.held.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(HeldDescriptor(Arc::clone(&self.held)))
    }
}

impl Drop for HeldDescriptor {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A descriptor handoff, as received from a program that opened a source file or listed a directory.
#[derive(Debug)]
pub(crate) struct Handoff {
    pub(crate) run: u64,
    pub(crate) opened_at: u64,
    pub(crate) reader: ReaderDescriptor,
    pub(crate) path: Vec<u8>,
    /// True if the kernel's name of the file is the program's path, so that no link is on the way.
    pub(crate) plain: bool,
    /// The kernel's name of the file, if it differs from `path`.
    pub(crate) other_name: Option<Vec<u8>>,
    /// Version of the file two seconds ago, if the handoff has waited since then.
    pub(crate) waited: Option<Identity>,
    pub(crate) source: SourceFile,
    pub(crate) stat: SourceStat,
    pub(crate) place: HeldDescriptor,
    /// The opener, if it waits for a copy from another node.
    pub(crate) waiting: Option<WaitingOpener>,
    /// True for a shared library that the loader maps.
    pub(crate) is_library: bool,
}

impl Handoff {
    /// Returns the pace at which the file is copied. Pages of a library are read in any order, so nothing shows how far
    /// its reader is.
    pub(crate) const fn pace(&self) -> CopyPace {
        if self.is_library { CopyPace::Whole } else { CopyPace::Reader }
    }
}

/// Queue of handoffs, as other threads see it.
#[derive(Clone, Debug)]
pub(crate) struct HandoffQueue {
    socket: Arc<OwnedFd>,
    /// True while the receiver takes handoffs from the socket, or is about to.
    taking: Arc<AtomicBool>,
}

impl HandoffQueue {
    /// Returns true if the event loop was told of all earlier handoffs.
    pub(crate) fn is_taken(&self) -> bool {
        // In this order: a handoff that has left the socket's queue is in the receiver's hands until the event loop was
        // told.
        !self.is_waiting() && !self.taking.load(Ordering::SeqCst)
    }

    fn is_waiting(&self) -> bool {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&*self.socket, PollFlags::IN)], Some(&at_once)).is_ok_and(|ready| ready > 0)
    }
}

/// Binds the socket of descriptor handoffs and starts the receiver. It passes each handoff to `deliver`, or the reason
/// why it was lost.
pub(crate) fn start(
    dir: &Path,
    budget: DescriptorBudget,
    waits: WaitPages,
    deliver: impl Fn(Result<Box<Handoff>, NotCached>) + Send + 'static,
) -> Result<HandoffQueue, AgentError> {
    let path = dir.join("door.sock");
    let error = |operation| io_error(operation, &path);
    let socket = socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
    .map_err(|e| error("make")(e.into()))?;
    let address = SocketAddrUnix::new(&path).map_err(|e| error("name")(e.into()))?;
    bind(&socket, &address).map_err(|e| error("bind")(e.into()))?;
    listen(&socket, BACKLOG).map_err(|e| error("listen on")(e.into()))?;
    let queue = HandoffQueue {
        socket: Arc::new(socket),
        taking: Arc::default(),
    };
    let taken_from = queue.clone();
    thread::Builder::new()
        .name("receiver".into())
        .spawn(move || receive(&taken_from, &budget, &waits, &deliver))
        .map_err(error("start a thread for"))?;
    Ok(queue)
}

fn receive(queue: &HandoffQueue, budget: &DescriptorBudget, waits: &WaitPages, deliver: &impl Fn(Result<Box<Handoff>, NotCached>)) {
    let socket = &*queue.socket;
    let mut packet = vec![0; MESSAGE_BYTES_MAX];
    let user = rustix::process::geteuid();
    loop {
        let _ = poll(&mut [PollFd::new(socket, PollFlags::IN)], None);
        queue.taking.store(true, Ordering::SeqCst);
        if waits.is_empty() {
            // The queue is long and nobody waits, so one wake-up for many handoffs takes less from the program's cores.
            thread::sleep(BATCH_PAUSE);
        }
        loop {
            match accept_with(socket, SocketFlags::CLOEXEC) {
                Ok(connection) => deliver(take(&connection, user, &mut packet, budget, waits).map(Box::new)),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                // AGAIN: the queue is empty. If the process is out of descriptors, the queue waits until copies give
                // some back.
                Err(_) => break,
            }
        }
        queue.taking.store(false, Ordering::SeqCst);
    }
}

/// Returns true if the kernel's name of an open file is this path, and the kernel's name if it differs.
pub(crate) fn names_of(source: &SourceFile, path: &[u8]) -> (bool, Option<Vec<u8>>) {
    match name_of(source) {
        Some(name) if name.as_bytes() == path => (true, None),
        Some(name) => (false, Some(name.into_bytes())),
        None => (false, None),
    }
}

/// Reads the only packet of a connection.
fn take(connection: &OwnedFd, user: Uid, packet: &mut [u8], budget: &DescriptorBudget, waits: &WaitPages) -> Result<Handoff, NotCached> {
    let peer = sockopt::socket_peercred(connection).map_err(|_| NotCached::Malformed)?;
    if peer.uid != user {
        return Err(NotCached::AnotherUser);
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = match recvmsg(
        connection,
        &mut [IoSliceMut::new(packet)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT,
    ) {
        // The packet follows the connection immediately. A program that is stopped in between holds the queue up for at
        // most this long.
        Err(Errno::AGAIN) => {
            sockopt::set_socket_timeout(connection, sockopt::Timeout::Recv, Some(PACKET_WAIT_MAX)).map_err(|_| NotCached::Malformed)?;
            recvmsg(connection, &mut [IoSliceMut::new(packet)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)
        }
        result => result,
    }
    .map_err(|_| NotCached::NoPacket)?;
    let descriptor = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    let source = SourceFile::new(descriptor.ok_or(NotCached::Malformed)?);
    let message = packet
        .get(..received.bytes)
        .and_then(|bytes| DescriptorHandoff::parse(bytes).ok())
        .ok_or(NotCached::Malformed)?;
    // Dropped with the handoff, wherever that ends: then the opener goes on.
    let stat = source.stat(StatFrom::Kernel);
    let bytes = stat.as_ref().map_or(0, |stat| stat.identity.size);
    let waiting = message.wait.and_then(|number| waits.opener(message.run, number, bytes));
    let stat = stat.map_err(|_| NotCached::SourceError)?;
    let place = budget.take().ok_or(NotCached::TooManyDescriptors)?;
    let (plain, other_name) = names_of(&source, message.path);
    Ok(Handoff {
        run: message.run,
        opened_at: message.opened_at,
        reader: ReaderDescriptor {
            pid: peer.pid.as_raw_nonzero().get(),
            number: message.descriptor,
            read_bytes: message.read_bytes,
        },
        path: message.path.to_vec(),
        plain,
        other_name,
        waited: None,
        source,
        stat,
        place,
        waiting,
        is_library: message.is_library,
    })
}

/// Returns the handoff of a file or directory, as from a program that opened it.
#[cfg(test)]
pub(crate) fn handoff_of(path: &Path) -> Handoff {
    let source = SourceFile::new(OwnedFd::from(std::fs::File::open(path).unwrap()));
    Handoff {
        run: 7,
        opened_at: 1,
        reader: ReaderDescriptor {
            pid: 1,
            number: 3,
            read_bytes: None,
        },
        path: path.as_os_str().as_encoded_bytes().to_vec(),
        plain: true,
        other_name: None,
        waited: None,
        stat: source.stat(StatFrom::Kernel).unwrap(),
        source,
        place: DescriptorBudget::new(1).take().unwrap(),
        waiting: None,
        is_library: false,
    }
}
