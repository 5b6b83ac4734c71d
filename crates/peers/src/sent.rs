//! Bodies of answers: ranges that are read as they are sent.

use std::{
    cell::Cell,
    io,
    ops::Range,
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Frame, SizeHint};
use tokio::task::JoinHandle as Task;

use crate::{blob::Blob, gate::Pass, limits::CHUNK_BYTES};

/// Reads bytes of an object: here, or in a helper thread if that may wait.
pub(crate) async fn read(blob: &Arc<dyn Blob>, offset: u64, length: usize) -> io::Result<Vec<u8>> {
    let read = move |blob: &dyn Blob| {
        let mut room = vec![0; length];
        blob.read(offset, &mut room).map(|()| room)
    };
    if !blob.may_wait() {
        return read(&**blob);
    }
    let blob = Arc::clone(blob);
    tokio::task::spawn_blocking(move || read(&*blob)).await.map_err(io::Error::other)?
}

/// The body of an answer. It holds its pass until it is sent.
pub(crate) enum Sent {
    Whole(Full<Bytes>, #[expect(dead_code, reason = "it is held")] Option<Pass>),
    Pieces(Pieces),
}

/// A long range, which is read chunk by chunk as it is sent. If the object no longer counts, the connection ends in
/// the middle.
pub(crate) struct Pieces {
    blob: Arc<dyn Blob>,
    left: Range<u64>,
    reading: Option<Task<io::Result<Vec<u8>>>>,
    _pass: Pass,
    sending: Rc<Cell<usize>>,
}

impl Drop for Pieces {
    fn drop(&mut self) {
        self.sending.set(self.sending.get() - 1);
    }
}

impl Pieces {
    pub(crate) fn new(blob: Arc<dyn Blob>, left: Range<u64>, pass: Pass, sending: &Rc<Cell<usize>>) -> Self {
        sending.set(sending.get() + 1);
        Self {
            blob,
            left,
            reading: None,
            _pass: pass,
            sending: Rc::clone(sending),
        }
    }

    fn next(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        if self.left.is_empty() {
            return Poll::Ready(None);
        }
        let length = usize::try_from(self.left.end - self.left.start).map_or(CHUNK_BYTES, |left| left.min(CHUNK_BYTES));
        let chunk = self.left.start..self.left.start + length as u64;
        let read = if self.blob.may_wait() {
            let reading = self.reading.get_or_insert_with(|| {
                let (blob, offset) = (Arc::clone(&self.blob), chunk.start);
                tokio::task::spawn_blocking(move || {
                    let mut room = vec![0; length];
                    blob.read(offset, &mut room).map(|()| room)
                })
            });
            let read = ready!(Pin::new(reading).poll(context));
            self.reading = None;
            read.unwrap_or_else(|error| Err(io::Error::other(error)))
        } else {
            let mut room = vec![0; length];
            self.blob.read(chunk.start, &mut room).map(|()| room)
        };
        let read = read.and_then(|bytes| {
            if self.blob.is_valid(&chunk) {
                Ok(bytes)
            } else {
                Err(io::Error::other("the object changed while it was sent"))
            }
        });
        self.left.start = chunk.end;
        Poll::Ready(Some(read.map(Bytes::from)))
    }
}

impl Body for Sent {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match self.get_mut() {
            Self::Whole(whole, _) => Pin::new(whole).poll_frame(context).map_err(|never| match never {}),
            Self::Pieces(pieces) => pieces.next(context).map_ok(Frame::data),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(whole, _) => whole.is_end_stream(),
            Self::Pieces(pieces) => pieces.left.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(whole, _) => whole.size_hint(),
            Self::Pieces(pieces) => SizeHint::with_exact(pieces.left.end - pieces.left.start),
        }
    }
}
