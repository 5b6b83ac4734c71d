//! Hands a file that was opened at the source to the agent: a duplicate of the program's descriptor, from which the
//! agent copies.
//!
//! Each handoff has a connection of its own. The socket's backlog is the queue, so sending never waits, no descriptor
//! of ours stays in the program, and fork or exec can't leave anything half done.
//!
//! Only where nodes of a job share their copies does the opener wait, for the copy of another node: on a word of the
//! run page, for a bounded time, and not for an agent that has gone.

use core::{
    ffi::{CStr, c_int},
    mem,
};

use forebay_contract::{Counter, OpenWait, control::SMALL_FILE_BYTES, message::DescriptorHandoff, open_waits::longest_wait_ns};

use crate::{
    lookup::{self, Miss},
    real,
    state::Serving,
    sys::{self, Errno, FileKind},
};

const SOCKET: &[u8] = b"/door.sock";
/// Socket that only a live agent listens on, and that takes connections without a word.
const CONTROL_SOCKET: &[u8] = b"/control.sock";
/// Size from which the opener compares a copy that is out of time with the source, in bytes: the attributes cost less
/// than the bytes.
const COMPARED_BYTES_MIN: u64 = 256 << 10;
/// Time after which an opener that waits looks whether there still is an agent.
const ALIVE_LOOK_NS: u64 = 100_000_000;

/// A file that a program has just opened for reading at the source.
#[derive(Clone, Copy)]
pub(crate) struct OpenedFile<'a> {
    /// Name as the program gave it.
    pub(crate) name: &'a CStr,
    /// Absolute path, as spelled.
    pub(crate) path: &'a [u8],
    pub(crate) fd: c_int,
    /// Flags of the open.
    pub(crate) flags: c_int,
    /// Time before the open.
    pub(crate) opened_at: u64,
    /// Nanoseconds that the source's open took.
    pub(crate) took: u64,
    /// True if the loader opens it.
    pub(crate) is_library: bool,
}

/// Counts a file that was opened at the source because of `miss`, and hands it to the agent if that needs it. Puts a
/// copy in its place if there is one after all: of another node, for which the opener waits where nodes of a job share
/// their copies; or one that was out of time, if the source has not changed.
pub(crate) fn offer(serving: Serving, miss: Miss, file: &OpenedFile<'_>) {
    let pages = serving.pages;
    let kind = sys::kind_of(file.fd);
    if let Ok(kind) = kind
        && let Some(copy) = copy_after_open(serving, miss, file, kind)
        && put_in_place(copy, file.fd)
    {
        pages.count_startup_wait(file.path, file.opened_at);
        return pages.count(Counter::CopyAfterOpen, 1);
    }
    if let Miss::Because(reason) = miss {
        pages.count(reason, 1);
    }
    if let Ok(FileKind {
        is_regular: true, size, ..
    }) = kind
    {
        pages.count(Counter::FromSourceBytes, size);
        pages.count_startup_source(file.path, file.opened_at, (file.took, size));
        pages.note_open(file.path);
    }
}

/// Hands a file to the agent if that needs it, and opens the copy that there is afterwards.
fn copy_after_open(serving: Serving, miss: Miss, file: &OpenedFile<'_>, kind: FileKind) -> Option<c_int> {
    // For a moment it has a descriptor of its own, which no child is to get.
    let flags = file.flags | libc::O_CLOEXEC;
    let miss = if hand_over(serving, miss, file, kind) {
        match lookup::open_copy(serving, file.path, file.name, flags, real::now()) {
            Ok(copy) => return Some(copy),
            // The time of the copy began with this open, and can have passed while it waited.
            Err(miss) => miss,
        }
    } else {
        miss
    };
    let is_out_of_time = matches!(miss, Miss::Because(Counter::Stale));
    (is_out_of_time && kind.size >= COMPARED_BYTES_MIN)
        .then(|| lookup::open_unchanged(serving, file.path, file.fd, flags))
        .flatten()
}

/// Makes the program's descriptor one of a copy, which it closes. Returns false if that failed.
fn put_in_place(copy: c_int, fd: c_int) -> bool {
    let is_in_place = sys::put_in_place(copy, fd).is_ok();
    sys::close(copy);
    is_in_place
}

/// Hands a file to the agent if that needs it. Returns true once there may be a copy of it that was waited for.
fn hand_over(serving: Serving, miss: Miss, opened: &OpenedFile<'_>, kind: FileKind) -> bool {
    let Serving { pages, control } = serving;
    let FileKind { is_regular, size, .. } = kind;
    if !miss.is_news() {
        return false;
    }
    if !is_regular {
        pages.count(Counter::NotRegular, 1);
        return false;
    }
    if control
        .live(kind.dev, kind.ino)
        .is_some_and(|live| opened.opened_at < live.rests_until())
    {
        // The agent gets no duplicate: a lock that the program takes would belong to the agent, too.
        pages.count(Counter::Live, u64::from(matches!(miss, Miss::Unknown)));
        return false;
    }
    if !control.is_worth_handoff(size) && !miss.is_news_of_copy() {
        pages.count(Counter::NoRoom, 1);
        return false;
    }
    let wait = if size > 0 { pages.run.open_waits().begin() } else { None };
    let message = DescriptorHandoff {
        run: pages.run.number(),
        opened_at: opened.opened_at,
        descriptor: opened.fd,
        is_library: opened.is_library,
        wait: wait.map(|wait| wait.number),
        read_bytes: if size > SMALL_FILE_BYTES { sys::bytes_read() } else { None },
        path: opened.path,
    };
    match deliver(serving, &message) {
        Ok(()) => {
            pages.count(Counter::HandedOver, 1);
            pages.count(Counter::HandedOverBytes, size);
            wait.is_some_and(|wait| await_agent(serving, wait, size))
        }
        Err(dropped) => {
            pages.count(dropped, 1);
            false
        }
    }
}

/// Waits until the agent has a copy of a file of `size` bytes, or none will come. Returns false if it does not
/// answer; then no open waits for a second.
fn await_agent(serving: Serving, wait: OpenWait<'_>, size: u64) -> bool {
    let begun = real::now();
    let waits = serving.pages.run.open_waits();
    let alone = begun.saturating_add(longest_wait_ns(size));
    let mut now = begun;
    while !wait.is_over() && waits.is_waiting() {
        // The agent prolongs the wait, a little at a time, while programs wait for much.
        let until = alone.max(waits.prolonged_until());
        let is_alive = now - begun < ALIVE_LOOK_NS || is_alive(serving);
        if now >= until || !is_alive {
            serving.pages.set_agent_away(now);
            return false;
        }
        sys::sleep_on(wait.word, wait.value, ALIVE_LOOK_NS.min(until - now));
        now = real::now();
    }
    true
}

/// Returns whether an agent listens.
fn is_alive(serving: Serving) -> bool {
    let Serving { pages, control } = serving;
    let Some((address, len)) = address(pages.run.agent_dir(), CONTROL_SOCKET) else {
        return false;
    };
    let Ok(socket) = sys::packet_socket() else { return true };
    let connected = sys::connect(socket, &address, len);
    sys::close(socket);
    !control.is_closed() && !matches!(connected, Err(Errno(libc::ECONNREFUSED | libc::ENOENT)))
}

/// Hands a directory that has just been opened to the agent, which caches it or compares its copy, as [`offer`] does
/// for a file.
pub(crate) fn offer_directory(serving: Serving, path: &[u8], fd: c_int, opened_at: u64) {
    let message = DescriptorHandoff {
        run: serving.pages.run.number(),
        opened_at,
        descriptor: fd,
        is_library: false,
        wait: None,
        read_bytes: None,
        path,
    };
    if deliver(serving, &message).is_err() {
        serving.pages.count(Counter::ListingsDropped, 1);
    }
}

/// Sends a message to the agent.
///
/// # Errors
/// The reason why the agent does not get it.
fn deliver(serving: Serving, message: &DescriptorHandoff<'_>) -> Result<(), Counter> {
    let Serving { pages, control } = serving;
    if control.is_closed() || pages.agent_is_away(message.opened_at) {
        return Err(Counter::DroppedNoAgent);
    }
    match send(pages.run.agent_dir(), message) {
        Ok(()) => Ok(()),
        Err(Errno(libc::ECONNREFUSED | libc::ENOENT | libc::ENAMETOOLONG)) => {
            pages.set_agent_away(message.opened_at);
            Err(Counter::DroppedNoAgent)
        }
        Err(Errno(libc::EAGAIN | libc::ETOOMANYREFS)) => Err(Counter::DroppedFull),
        Err(_) => Err(Counter::DroppedNoAgent),
    }
}

fn send(agent_dir: &[u8], message: &DescriptorHandoff<'_>) -> Result<(), Errno> {
    let (address, len) = address(agent_dir, SOCKET).ok_or(Errno(libc::ENAMETOOLONG))?;
    let socket = sys::packet_socket()?;
    let sent = sys::connect(socket, &address, len).and_then(|()| send_on(socket, message));
    sys::close(socket);
    sent
}

fn address(agent_dir: &[u8], name: &[u8]) -> Option<(libc::sockaddr_un, usize)> {
    let mut address = libc::sockaddr_un {
        sun_family: libc::AF_UNIX as libc::sa_family_t,
        sun_path: [0; 108],
    };
    let used = agent_dir.len() + name.len();
    // The kernel requires the NUL inside.
    let room = address.sun_path.get_mut(..used).filter(|_| used < 108)?;
    for (to, from) in room.iter_mut().zip(agent_dir.iter().chain(name)) {
        *to = libc::c_char::from_ne_bytes([*from]);
    }
    Some((address, mem::offset_of!(libc::sockaddr_un, sun_path) + used + 1))
}

/// One control message with one descriptor, as `CMSG_SPACE(4)` lays it out.
#[repr(C)]
struct OneDescriptor {
    header: libc::cmsghdr,
    fd: c_int,
    padding: u32,
}

const _: () = assert!(size_of::<OneDescriptor>() == 24);

fn send_on(socket: c_int, message: &DescriptorHandoff<'_>) -> Result<(), Errno> {
    let header = message.header();
    let mut parts = [header.as_slice(), message.path].map(|part| libc::iovec {
        iov_base: part.as_ptr().cast_mut().cast(),
        iov_len: part.len(),
    });
    let mut control = OneDescriptor {
        header: libc::cmsghdr {
            cmsg_len: mem::offset_of!(OneDescriptor, padding),
            cmsg_level: libc::SOL_SOCKET,
            cmsg_type: libc::SCM_RIGHTS,
        },
        fd: message.descriptor,
        padding: 0,
    };
    let envelope = libc::msghdr {
        msg_name: core::ptr::null_mut(),
        msg_namelen: 0,
        msg_iov: parts.as_mut_ptr(),
        msg_iovlen: parts.len(),
        msg_control: (&raw mut control).cast(),
        msg_controllen: size_of::<OneDescriptor>(),
        msg_flags: 0,
    };
    // SAFETY: it points to the parts, the header, the path and the control message, which are all alive.
    unsafe { sys::send(socket, &envelope) }.map(drop)
}
