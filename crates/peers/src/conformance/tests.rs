//! Holders that keep the rules, and holders each of which breaks one.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt as _,
    sync::{
        Condvar, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use super::*;

const OBJECT: BlobId = BlobId([1; 16]);
const OUTDATED: BlobId = BlobId([2; 16]);
const ABSENT: BlobId = BlobId([3; 16]);
/// Bytes of an object: more than a server reads before it sends.
const LENGTH: usize = 600_000;

fn content() -> Vec<u8> {
    (0..LENGTH).map(|index| (index * 7 + index / 251) as u8).collect()
}

/// Reads a range of an object into room, from an offset on.
type ReadRange = Box<dyn Fn(u64, &mut [u8]) -> io::Result<()> + Send + Sync>;

/// An object that a test describes.
struct DescribedBlob {
    read: ReadRange,
    digest: fn(&[u8]) -> Option<u128>,
    is_valid: Box<dyn Fn() -> bool + Send + Sync>,
    may_wait: bool,
}

impl fmt::Debug for DescribedBlob {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("DescribedBlob")
    }
}

impl DescribedBlob {
    fn new(read: impl Fn(u64, &mut [u8]) -> io::Result<()> + Send + Sync + 'static) -> Self {
        Self {
            read: Box::new(read),
            digest: |_| None,
            is_valid: Box::new(|| true),
            may_wait: false,
        }
    }

    fn in_memory() -> Self {
        let content = content();
        Self::new(move |offset, room| {
            let offset = usize::try_from(offset).map_err(io::Error::other)?;
            let part = offset.checked_add(room.len()).and_then(|end| content.get(offset..end));
            room.copy_from_slice(part.ok_or(io::ErrorKind::UnexpectedEof)?);
            Ok(())
        })
    }

    /// An object that is in a file, as long as this has not changed.
    fn of_file(file: File) -> Self {
        let file = Arc::new(file);
        let length = |file: &File| file.metadata().map_or(0, |metadata| metadata.len());
        let (known, whole) = (length(&file), Arc::clone(&file));
        let mut blob = Self::new(move |offset, room| file.read_exact_at(room, offset));
        blob.is_valid = Box::new(move || length(&whole) == known);
        blob.may_wait = true;
        blob
    }

    fn slow(mut self, pause: Duration) -> Self {
        let read = self.read;
        self.read = Box::new(move |offset, room| {
            thread::sleep(pause);
            read(offset, room)
        });
        self
    }
}

impl Blob for DescribedBlob {
    fn length(&self) -> u64 {
        LENGTH as u64
    }

    fn read(&self, offset: u64, room: &mut [u8]) -> io::Result<()> {
        (self.read)(offset, room)
    }

    fn digest(&self, range: &Range<u64>) -> Option<u128> {
        (self.digest)(content().get(range.start as usize..range.end as usize)?)
    }

    fn is_valid(&self, _: &Range<u64>) -> bool {
        (self.is_valid)()
    }

    fn may_wait(&self) -> bool {
        self.may_wait
    }
}

/// A holder of two objects, one of them outdated.
struct PairHolder {
    blobs: [(BlobId, Arc<DescribedBlob>); 2],
    /// Answers a request for an object that is here.
    answer: fn(Reply, Found),
}

impl Holder for PairHolder {
    fn asked(&self, request: BlobRequest, reply: Reply) {
        match self.blobs.iter().find(|(id, _)| *id == request.id) {
            Some((_, blob)) => (self.answer)(reply, Found::Blob(Arc::clone(blob) as Arc<dyn Blob>)),
            None => drop(reply),
        }
    }
}

impl PairHolder {
    fn new(blob: DescribedBlob, outdated: DescribedBlob) -> Self {
        Self {
            blobs: [(OBJECT, Arc::new(blob)), (OUTDATED, Arc::new(outdated))],
            answer: Reply::send,
        }
    }

    fn of(blob: DescribedBlob) -> Self {
        let mut outdated = DescribedBlob::in_memory();
        outdated.is_valid = Box::new(|| false);
        Self::new(blob, outdated)
    }
}

fn tested(holder: PairHolder, fails: bool) -> Result<(), String> {
    let holder = Arc::new(holder);
    let lent = || holder.blobs.iter().map(|(_, blob)| Arc::strong_count(blob) - 1).sum();
    conforms(&TestedHolder {
        holder: Arc::clone(&holder) as Arc<dyn Holder>,
        kind: Kind::Files,
        object: OBJECT,
        content: &content(),
        absent: ABSENT,
        outdated: Some(OUTDATED),
        names: &[],
        fails,
        lent: &lent,
    })
}

#[test]
fn objects_in_memory_keep_the_rules() {
    tested(PairHolder::of(DescribedBlob::in_memory()), false).unwrap();
    let mut digested = DescribedBlob::in_memory();
    digested.digest = |bytes| Some(XxHash3_128::oneshot(bytes));
    tested(PairHolder::of(digested), false).unwrap();
}

#[test]
fn files_keep_the_rules_and_one_that_has_changed_does_not_count() {
    let dir = tempfile::tempdir().unwrap();
    let open = |name: &str| {
        fs::write(dir.path().join(name), content()).unwrap();
        DescribedBlob::of_file(File::open(dir.path().join(name)).unwrap())
    };
    let pair = PairHolder::new(open("same"), open("changed"));
    fs::write(dir.path().join("changed"), b"shorter").unwrap();
    tested(pair, false).unwrap();
}

#[test]
fn reads_that_fail_now_and_then_bring_nothing_wrong() {
    let (reads, whole) = (AtomicUsize::new(0), DescribedBlob::in_memory());
    let failing = DescribedBlob::new(move |offset, room| {
        if reads.fetch_add(1, Relaxed) % 3 == 2 {
            // Some bytes were read already.
            room.fill(0xff);
            return Err(io::ErrorKind::StorageFull.into());
        }
        (whole.read)(offset, room)
    });
    tested(PairHolder::of(failing), true).unwrap();
}

#[test]
fn slow_reads_hold_up_nobody_else() {
    let mut slow = DescribedBlob::in_memory().slow(Duration::from_millis(10));
    slow.may_wait = true;
    tested(PairHolder::of(slow), false).unwrap();

    // As long as one object is being read, others are answered.
    let gate = Arc::new((Mutex::new(false), Condvar::new()));
    let (entry, whole) = (Arc::clone(&gate), DescribedBlob::in_memory());
    let mut waiting = DescribedBlob::new(move |offset, room| {
        drop(entry.1.wait_while(entry.0.lock().unwrap(), |is_open| !*is_open).unwrap());
        (whole.read)(offset, room)
    });
    waiting.may_wait = true;
    let tested = TestedHolder {
        holder: Arc::new(PairHolder::of(waiting)),
        kind: Kind::Files,
        object: OBJECT,
        content: &content(),
        absent: ABSENT,
        outdated: None,
        names: &[],
        fails: false,
        lent: &|| 0,
    };
    let (_server, peers) = loopback(&tested).unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| fetch(&tested, &peers, OBJECT, &(0..10), false).unwrap().1);
        assert_eq!(fetch(&tested, &peers, ABSENT, &(0..10), false).unwrap().1, FetchEnd::Absent);
        assert!(!waits.is_finished());
        *gate.0.lock().unwrap() = true;
        gate.1.notify_all();
        assert_eq!(waits.join().unwrap(), FetchEnd::Came { from: 1, bytes: 10 });
    });
}

/// Returns the rule that a holder breaks.
fn broken(holder: PairHolder) -> String {
    tested(holder, false).unwrap_err()
}

#[test]
fn each_broken_rule_is_found() {
    let whole = DescribedBlob::in_memory();
    let wrong = DescribedBlob::new(move |offset, room| {
        let end = offset + room.len() as u64;
        (whole.read)(offset, room)?;
        if end == LENGTH as u64 && !room.is_empty() {
            room[0] ^= 1;
        }
        Ok(())
    });
    assert_eq!(broken(PairHolder::of(wrong)), "reads: bytes 0..600000 are wrong");

    let lax = DescribedBlob::new(|offset, room| {
        let content = content();
        let byte = |at: usize| content.get(at).copied().unwrap_or(0);
        (0..)
            .zip(room)
            .for_each(|(at, to)| *to = byte((offset as usize).saturating_add(at)));
        Ok(())
    });
    assert_eq!(
        broken(PairHolder::of(lax)),
        "reads: 1 bytes from 600000 on came of an object of 600000 bytes"
    );

    let mut misdigested = DescribedBlob::in_memory();
    misdigested.digest = |_| Some(7);
    assert!(broken(PairHolder::of(misdigested)).starts_with("digests: bytes 0..600000: the digest is Some(7)"));

    let both = [DescribedBlob::in_memory(), DescribedBlob::in_memory()];
    let [blob, outdated] = both;
    assert_eq!(
        broken(PairHolder::new(blob, outdated)),
        "absent and outdated objects: bytes of an object that has changed count"
    );

    let unannounced = DescribedBlob::in_memory().slow(2 * PROMPT);
    let why = broken(PairHolder::of(unannounced));
    assert!(why.contains("and may_wait() is false"), "{why}");

    let blocking = PairHolder {
        answer: |reply, found| {
            thread::sleep(2 * PROMPT);
            reply.send(found);
        },
        ..PairHolder::of(DescribedBlob::in_memory())
    };
    let why = broken(blocking);
    assert!(why.starts_with("time of the serving thread: a request holds it up for"), "{why}");

    let leaking = PairHolder {
        answer: |reply, found| {
            if let Found::Blob(blob) = &found {
                std::mem::forget(Arc::clone(blob));
            }
            reply.send(found);
        },
        ..PairHolder::of(DescribedBlob::in_memory())
    };
    assert_eq!(broken(leaking), "reads: 1 objects are still lent");
}
