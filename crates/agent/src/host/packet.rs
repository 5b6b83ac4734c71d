//! Packets of one JSON value each, with descriptors beside it.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recvmsg,
    sendmsg,
};
use serde::{Serialize, de::DeserializeOwned};

use crate::host::limits::{PACKET_BYTES_MAX, PACKET_DESCRIPTORS_MAX};

/// Sends a packet. Blocks only if the socket does.
pub(crate) fn send(socket: impl AsFd, value: &impl Serialize, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let packet = serde_json::to_vec(value)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PACKET_DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if packet.len() > PACKET_BYTES_MAX || (!descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors))) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    sendmsg(socket, &[IoSlice::new(&packet)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives a packet; `None` if the other side has closed the connection.
///
/// # Errors
/// `InvalidData` for an invalid packet; `WouldBlock` if the socket does not block and there is none.
pub(crate) fn receive<T: DeserializeOwned>(socket: impl AsFd) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut packet = vec![0; PACKET_BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PACKET_DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(socket, &mut [IoSliceMut::new(&mut packet)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let descriptors = control
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        })
        .flatten()
        .collect();
    if received.bytes == 0 {
        return Ok(None);
    }
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "a packet came without its end, or without its descriptors",
        ));
    }
    let value = serde_json::from_slice(packet.get(..received.bytes).unwrap_or_default())?;
    Ok(Some((value, descriptors)))
}
