//! Hands a file that was opened at the source to the agent: a duplicate of the program's descriptor, from which the
//! agent copies.
//!
//! Each handoff has a connection of its own. The socket's backlog is the queue, so nobody waits, no descriptor of ours
//! stays in the program, and fork or exec can't leave anything half done.

use core::{ffi::c_int, mem};

use forebay_contract::{Counter, message::DescriptorHandoff};

use crate::{
    lookup::Miss,
    state::Serving,
    sys::{self, Errno, FileKind},
};

const SOCKET: &[u8] = b"/door.sock";

/// Counts a file that the program has just opened for reading at the source, because of `miss`, and hands it to the
/// agent if that needs it. `opened_at` is a time before that open.
pub(crate) fn offer(serving: Serving, miss: Miss, path: &[u8], fd: c_int, flags: c_int, opened_at: u64) {
    let Serving { pages, control } = serving;
    let Ok(file) = sys::kind_of(fd) else { return };
    let FileKind { is_regular, size, .. } = file;
    if is_regular {
        pages.count(Counter::FromSourceBytes, size);
        pages.note_open(path);
    }
    if !miss.is_news() {
        return;
    }
    if !is_regular {
        return pages.count(Counter::NotRegular, 1);
    }
    if control.live(file.dev, file.ino).is_some_and(|live| opened_at < live.rests_until()) {
        // The agent gets no duplicate: a lock that the program takes would belong to the agent, too.
        return pages.count(Counter::Live, u64::from(matches!(miss, Miss::Unknown)));
    }
    if size > control.room_hint() && !miss.is_news_of_copy() {
        return pages.count(Counter::NoRoom, 1);
    }
    let message = DescriptorHandoff {
        run: pages.run.number(),
        opened_at,
        descriptor: fd,
        flags,
        path,
    };
    match deliver(serving, &message) {
        Ok(()) => {
            pages.count(Counter::HandedOver, 1);
            pages.count(Counter::HandedOverBytes, size);
        }
        Err(dropped) => pages.count(dropped, 1),
    }
}

/// Hands a directory that has just been opened to the agent, which caches it or compares its copy, as [`offer`] does
/// for a file.
pub(crate) fn offer_directory(serving: Serving, path: &[u8], fd: c_int, opened_at: u64) {
    let message = DescriptorHandoff {
        run: serving.pages.run.number(),
        opened_at,
        descriptor: fd,
        flags: libc::O_RDONLY | libc::O_DIRECTORY,
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
    let (address, len) = address(agent_dir).ok_or(Errno(libc::ENAMETOOLONG))?;
    let socket = sys::packet_socket()?;
    let sent = sys::connect(socket, &address, len).and_then(|()| send_on(socket, message));
    sys::close(socket);
    sent
}

fn address(agent_dir: &[u8]) -> Option<(libc::sockaddr_un, usize)> {
    let mut address = libc::sockaddr_un {
        sun_family: libc::AF_UNIX as libc::sa_family_t,
        sun_path: [0; 108],
    };
    let used = agent_dir.len() + SOCKET.len();
    // The kernel requires the NUL inside.
    let room = address.sun_path.get_mut(..used).filter(|_| used < 108)?;
    for (to, from) in room.iter_mut().zip(agent_dir.iter().chain(SOCKET)) {
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
