//! The event descriptor that wakes an agent's thread.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::event::{EventfdFlags, eventfd};

/// An eventfd. Other threads ring it, and peers that got a descriptor of it.
#[derive(Debug)]
pub(crate) struct Doorbell(OwnedFd);

impl Doorbell {
    pub(crate) fn create() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Takes the doorbell that an agent sent.
    pub(crate) fn received(descriptor: OwnedFd) -> Self {
        Self(descriptor)
    }

    /// Wakes the agent. Fails only if it was rung so often that it wakes anyway.
    pub(crate) fn ring(&self) {
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Resets it after any number of rings.
    pub(crate) fn hush(&self) {
        let _ = rustix::io::read(&self.0, &mut [0_u8; 8]);
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
