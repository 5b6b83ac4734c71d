//! Pulls parts of objects from several hosts, some at a time from each.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    time::{Duration, Instant},
};

use forebay_peers::{BlobId, FetchEnd, Fetched, Room};
use forebay_state::StateStream;

use super::{OVER, message::HostRequest, source_host::SourceHost};

use crate::forks::limits::{HOST_GATHER_EVERY, HOST_LOOK_EVERY, HOST_RANGE_BYTES, HOST_RANGE_BYTES_MIN, HOST_RANGES, HOST_SILENT_MAX};

/// Interval of looks whether anybody still waits.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Part of an object that a host has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ObjectPart {
    /// Object.
    pub(super) id: BlobId,
    /// First byte in the object.
    pub(super) offset: u64,
    /// Number of bytes.
    pub(super) bytes: u64,
    /// Number of the state, or text, that the bytes belong to.
    pub(super) of: usize,
    /// Stream of the state.
    pub(super) stream: StateStream,
    /// First byte in the stream.
    pub(super) at: u64,
}

impl ObjectPart {
    /// Cuts an object into parts of the size of a request. The object is a part of a stream, from `at` on.
    pub(super) fn all(id: BlobId, length: u64, of: usize, stream: StateStream, at: u64) -> impl Iterator<Item = Self> {
        let step = HOST_RANGE_BYTES as u64;
        (0..length.div_ceil(step)).map(move |number| Self {
            id,
            offset: number * step,
            bytes: step.min(length - number * step),
            of,
            stream,
            at: at + number * step,
        })
    }

    /// Cuts the part in halves.
    fn halves(self) -> [Self; 2] {
        let bytes = self.bytes / 2;
        let second = Self {
            offset: self.offset + bytes,
            bytes: self.bytes - bytes,
            at: self.at + bytes,
            ..self
        };
        [Self { bytes, ..self }, second]
    }
}

/// Memory for a part, which tells when bytes come.
#[derive(Debug)]
struct WatchedRoom {
    bytes: Vec<u8>,
    /// Looks at the memory so far. The first one asks for its length.
    looks: u32,
    /// Milliseconds from `began` until bytes came last.
    came_ms: Arc<AtomicU64>,
    began: Instant,
}

impl Room for WatchedRoom {
    fn bytes(&mut self) -> &mut [u8] {
        self.looks += 1;
        if self.looks > 1 {
            self.came_ms.fetch_max(millis(self.began.elapsed()), Relaxed);
        }
        &mut self.bytes
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Pulls parts from hosts, first the job's, then the clone's own; each host has a queue. `put` takes a part and its
/// bytes. A host of the clone is asked again for a part that it does not have yet.
///
/// A host of the job that sends nothing for [`HOST_SILENT_MAX`] is lost. Parts that took too long are cut in halves: as
/// long as bytes come, a link may be as slow as it is.
///
/// # Errors
/// A host is lost or refuses, nobody waits for the bytes any more, or `put` fails.
pub(super) fn pull(
    (hosts, others): (&[SourceHost], &[SourceHost]),
    fork: u64,
    mut queues: Vec<VecDeque<ObjectPart>>,
    is_over: &dyn Fn() -> bool,
    mut put: impl FnMut(&ObjectPart, &[u8]) -> Result<(), String>,
) -> Result<(), String> {
    let began = Instant::now();
    let all: Vec<&SourceHost> = hosts.iter().chain(others).collect();
    let came: Vec<Arc<AtomicU64>> = all.iter().map(|_| Arc::default()).collect();
    let mut later: VecDeque<(Instant, usize, ObjectPart)> = VecDeque::new();
    let (sender, receiver) = mpsc::channel::<(usize, ObjectPart, u64, Fetched)>();
    let fetch = |host: usize, part: ObjectPart| {
        let room = WatchedRoom {
            bytes: vec![0; usize::try_from(part.bytes).unwrap_or_default()],
            looks: 0,
            came_ms: Arc::clone(&came[host]),
            began,
        };
        let (sender, id, offset, before_ms) = (sender.clone(), part.id, part.offset, came[host].load(Relaxed));
        all[host].fetch(id, offset, Box::new(room), move |fetched| {
            drop(sender.send((host, part, before_ms, fetched)));
        });
    };
    let mut under_way = 0;
    for (host, queue) in queues.iter_mut().enumerate() {
        for part in queue.drain(..queue.len().min(HOST_RANGES)) {
            fetch(host, part);
            under_way += 1;
        }
    }
    while under_way > 0 {
        if is_over() {
            return Err(OVER.into());
        }
        while later.front().is_some_and(|(at, _, _)| *at <= Instant::now())
            && let Some((_, host, part)) = later.pop_front()
        {
            fetch(host, part);
        }
        let wait = later
            .front()
            .map_or(LOOK_EVERY, |(at, _, _)| at.saturating_duration_since(Instant::now()));
        let Ok((host, part, before_ms, mut fetched)) = receiver.recv_timeout(wait) else {
            continue;
        };
        if host >= hosts.len() && !matches!(fetched.end, FetchEnd::Came { .. }) {
            later.push_back((Instant::now() + HOST_GATHER_EVERY, host, part));
            continue;
        }
        under_way -= 1;
        if let FetchEnd::Came { .. } = fetched.end {
            put(&part, fetched.room.bytes())?;
        } else {
            let came_ms = came[host].load(Relaxed);
            if millis(began.elapsed()).saturating_sub(came_ms) > millis(HOST_SILENT_MAX) {
                return Err(all[host].silent());
            }
            // A reason that the host knows goes before one that is guessed.
            all[host].ask(&HostRequest::Look { fork })?;
            std::thread::sleep(HOST_LOOK_EVERY);
            if came_ms > before_ms && part.bytes > HOST_RANGE_BYTES_MIN {
                part.halves().into_iter().rev().for_each(|half| queues[host].push_front(half));
            } else {
                queues[host].push_front(part);
            }
        }
        if let Some(part) = queues[host].pop_front() {
            fetch(host, part);
            under_way += 1;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use forebay_peers::Kind;

    use super::*;

    #[test]
    fn parts_are_all_of_an_object_and_so_are_their_halves() {
        let id = BlobId::of(Kind::Forks, b"object", b"1");
        let length = 2 * HOST_RANGE_BYTES as u64 + 5;
        let parts: Vec<_> = ObjectPart::all(id, length, 3, StateStream::Own, 100).collect();
        assert_eq!(parts.len(), 3);
        let halves: Vec<_> = parts.iter().cloned().flat_map(ObjectPart::halves).collect();
        for parts in [&parts, &halves] {
            assert_eq!((parts[0].offset, parts[0].at), (0, 100));
            assert!(
                parts
                    .windows(2)
                    .all(|two| two[0].offset + two[0].bytes == two[1].offset && two[1].at == two[1].offset + 100)
            );
            assert_eq!(parts.iter().map(|part| part.bytes).sum::<u64>(), length);
        }
        assert_eq!(ObjectPart::all(id, 0, 0, StateStream::Own, 0).count(), 0);
    }

    #[test]
    fn only_looks_after_the_first_tell_that_bytes_came() {
        let came_ms = Arc::new(AtomicU64::new(0));
        let began = Instant::now().checked_sub(Duration::from_secs(7)).unwrap();
        let mut room = WatchedRoom {
            bytes: vec![0; 4],
            looks: 0,
            came_ms: Arc::clone(&came_ms),
            began,
        };
        assert_eq!((room.bytes().len(), came_ms.load(Relaxed)), (4, 0));
        room.bytes();
        assert!(came_ms.load(Relaxed) >= 7000);
    }
}
