//! Objects of a fork that the server of a job's states gives away.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use forebay_peers::Blob;

use super::stage::Stage;

/// An object of a fork, and the stage whose bytes it has, if they are still coming.
#[derive(Clone, Debug)]
pub(super) struct ServedObject {
    pub(super) blob: Arc<HeardBlob>,
    pub(super) stage: Option<Arc<Stage>>,
}

/// Time at which an asker was last heard, or was sent bytes.
#[derive(Debug)]
pub(super) struct LastHeard(Mutex<Instant>);

impl LastHeard {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(Instant::now())))
    }

    pub(super) fn note(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    pub(super) fn since(&self) -> Duration {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }
}

/// An object of a fork. A slow link takes long for a range: the asker is there as long as parts of it are sent.
#[derive(Debug)]
pub(super) struct HeardBlob {
    pub(super) blob: Arc<dyn Blob>,
    pub(super) heard: Arc<LastHeard>,
}

impl Blob for HeardBlob {
    fn length(&self) -> u64 {
        self.blob.length()
    }

    fn read(&self, offset: u64, room: &mut [u8]) -> io::Result<()> {
        self.heard.note();
        self.blob.read(offset, room)
    }
}

/// Bytes of an answer or a manifest.
#[derive(Debug)]
pub(super) struct Text(pub(super) Vec<u8>);

impl Blob for Text {
    fn length(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&self, offset: u64, room: &mut [u8]) -> io::Result<()> {
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        let part = self.0.get(from..).and_then(|rest| rest.get(..room.len()));
        room.copy_from_slice(part.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_sent_of_what_is_there_and_nothing_past_it() {
        let text = Text(b"manifest".to_vec());
        let mut room = [0; 4];
        text.read(4, &mut room).unwrap();
        assert_eq!(&room, b"fest");
        assert!(text.read(5, &mut room).is_err());
        assert!(text.read(u64::MAX, &mut room).is_err());
    }
}
