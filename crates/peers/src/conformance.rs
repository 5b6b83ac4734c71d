//! One suite for every [`Holder`]: asks it directly, and through a server and TLS on loopback.
//!
//! Built for tests only: with the feature `conformance`, which a crate that has a holder enables among its
//! `dev-dependencies`.

use std::{
    fmt,
    net::TcpListener,
    ops::Range,
    sync::{
        Arc,
        mpsc::{Receiver, channel},
    },
    thread,
    time::{Duration, Instant},
};

use tokio::sync::oneshot::{self, error::TryRecvError};
use twox_hash::XxHash3_128;

use crate::{
    Blob, BlobId, BlobName, BlobRequest, FetchEnd, Fetched, Found, Holder, Kind, ManyWanted, Member, Members, Peers, Reply, Secret, Server,
    Wanted,
};

/// Limit of each wait. Only a test that fails reaches it.
const LONG: Duration = Duration::from_secs(20);
/// Longest time that the thread which serves all nodes may be held up: the shortest of [`TRIES`] counts.
const PROMPT: Duration = Duration::from_millis(20);
/// Limit of the wait for objects that were lent.
const RELEASED_MAX: Duration = Duration::from_secs(3);
/// Attempts at what a busy machine may delay.
const TRIES: usize = 5;

/// A holder, and the objects with which it is tested.
pub struct TestedHolder<'a> {
    /// The holder.
    pub holder: Arc<dyn Holder>,
    /// Kind of its objects.
    pub kind: Kind,
    /// An object that it has.
    pub object: BlobId,
    /// The bytes of this object, at least two.
    pub content: &'a [u8],
    /// An object that it does not have.
    pub absent: BlobId,
    /// An object whose bytes no longer count, if there can be one.
    pub outdated: Option<BlobId>,
    /// Names of its objects, where a request has to have one.
    pub names: &'a [BlobName],
    /// True if reads fail now and then.
    pub fails: bool,
    /// Returns how many of its objects are lent: handed out, and not dropped yet.
    pub lent: &'a (dyn Fn() -> usize + Sync),
}

/// Returns a reply for a holder, and a closure that returns its answer once there is one.
pub fn reply() -> (Reply, impl FnMut() -> Option<Found>) {
    let (sender, mut receiver) = oneshot::channel();
    (Reply(sender), move || receiver.try_recv().ok())
}

impl fmt::Debug for TestedHolder<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "TestedHolder({} of {} bytes)", self.object, self.content.len())
    }
}

type Check = fn(&TestedHolder<'_>) -> Result<(), String>;

const CHECKS: [(&str, Check); 7] = [
    ("reads", reads),
    ("digests", digests),
    ("absent and outdated objects", absent_and_outdated),
    ("two requests", two_requests),
    ("time of the serving thread", time_of_the_serving_thread),
    ("requests that nobody waits for", unwanted_requests),
    ("over TLS", over_tls),
];

/// Checks everything that servers and askers rely on.
///
/// # Errors
/// The first rule that the holder breaks.
pub fn conforms(tested: &TestedHolder<'_>) -> Result<(), String> {
    for (name, check) in CHECKS {
        check(tested)
            .and_then(|()| all_released(tested))
            .map_err(|why| format!("{name}: {why}"))?;
    }
    Ok(())
}

fn reads(tested: &TestedHolder<'_>) -> Result<(), String> {
    let blob = tested.blob()?;
    let length = tested.content.len() as u64;
    expect(blob.length() == length, || format!("the length is {}, not {length}", blob.length()))?;
    for range in tested.ranges() {
        tested.read(&*blob, &range)?;
        expect(blob.is_valid(&range), || format!("bytes {range:?} do not count"))?;
    }
    for (offset, bytes) in [(length, 1), (length - 1, 2), (0, tested.content.len() + 1), (u64::MAX, 1)] {
        let has_come = blob.read(offset, &mut vec![0; bytes]).is_ok();
        expect(!has_come, || {
            format!("{bytes} bytes from {offset} on came of an object of {length} bytes")
        })?;
    }
    Ok(())
}

fn digests(tested: &TestedHolder<'_>) -> Result<(), String> {
    let blob = tested.blob()?;
    for range in tested.ranges() {
        let digest = blob.digest(&range);
        let right = XxHash3_128::oneshot(tested.part(&range));
        expect(digest.is_none_or(|digest| digest == right), || {
            format!("bytes {range:?}: the digest is {digest:?}, not {right}")
        })?;
    }
    Ok(())
}

fn absent_and_outdated(tested: &TestedHolder<'_>) -> Result<(), String> {
    let found = tested.found(tested.absent)?;
    expect(matches!(found, Found::Absent), || format!("a missing object is {found:?}"))?;
    let Some(outdated) = tested.outdated else { return Ok(()) };
    if let Found::Blob(blob) = tested.found(outdated)? {
        let range = 0..blob.length();
        let _ = blob.read(0, &mut vec![0; tested.content.len()]);
        expect(!blob.is_valid(&range), || "bytes of an object that has changed count".into())?;
    }
    Ok(())
}

fn two_requests(tested: &TestedHolder<'_>) -> Result<(), String> {
    let answers = [tested.ask(tested.object), tested.ask(tested.object)];
    let [one, other] = answers.map(blob_of);
    let (one, other) = (one?, other?);
    let (ranges, content, fails) = (tested.ranges(), tested.content, tested.fails);
    let read_all = |blob: Arc<dyn Blob>| ranges.iter().try_for_each(|range| read(&*blob, range, content, fails));
    thread::scope(|scope| {
        let reader = scope.spawn(|| read_all(other));
        read_all(one)?;
        reader.join().unwrap_or_else(|_| Err("a reader panicked".into()))
    })
}

fn time_of_the_serving_thread(tested: &TestedHolder<'_>) -> Result<(), String> {
    for id in [tested.object, tested.absent] {
        let asking = shortest(|| drop(tested.ask(id)));
        expect(asking <= PROMPT, || format!("a request holds it up for {asking:?}"))?;
    }
    let blob = tested.blob()?;
    if !blob.may_wait() {
        let reading = shortest(|| drop(blob.read(0, &mut [0; 1])));
        expect(reading <= PROMPT, || {
            format!("a read holds it up for {reading:?}, and may_wait() is false")
        })?;
    }
    Ok(())
}

fn unwanted_requests(tested: &TestedHolder<'_>) -> Result<(), String> {
    for _ in 0..100 {
        drop(tested.ask(tested.object));
    }
    tested.blob().map(drop)
}

/// Fetches what the other checks read, as another node does.
fn over_tls(tested: &TestedHolder<'_>) -> Result<(), String> {
    let (_server, peers) = loopback(tested).map_err(|error| error.to_string())?;
    let is_right = |end: FetchEnd| matches!(end, FetchEnd::Came { from: 1, .. }) || tested.fails;
    let length = tested.content.len() as u64;
    for range in tested.ranges().into_iter().filter(|range| !range.is_empty()) {
        let (mut fetched, end) = fetch(tested, &peers, tested.object, &range, false)?;
        expect(is_right(end), || format!("bytes {range:?}: {end:?}"))?;
        expect(fetched.from().is_none() || fetched.room.bytes() == tested.part(&range), || {
            format!("bytes {range:?} are wrong")
        })?;
    }
    let (mut fetched, end) = fetch(tested, &peers, tested.object, &(0..length + 1), true)?;
    expect(is_right(end), || format!("the whole: {end:?}"))?;
    expect(
        fetched.from().is_none() || fetched.room.bytes().get(..tested.content.len()) == Some(tested.content),
        || "the whole is wrong".into(),
    )?;
    let (_, end) = fetch(tested, &peers, tested.absent, &(0..1), false)?;
    expect(end == FetchEnd::Absent, || format!("a missing object: {end:?}"))?;
    let beyond = fetch(tested, &peers, tested.object, &(0..length + 1), false)?.0.from();
    expect(beyond.is_none(), || "bytes beyond the end came".into())?;
    many_over_tls(tested, &peers)?;
    // At last, since an answer that breaks off makes a node suspect.
    if let Some(outdated) = tested.outdated {
        let came = fetch(tested, &peers, outdated, &(0..length), false)?.0.from();
        expect(came.is_none(), || "an object that has changed came".into())?;
    }
    Ok(())
}

/// Fetches single bytes by one request, in which objects have no names.
fn many_over_tls(tested: &TestedHolder<'_>, peers: &Peers) -> Result<(), String> {
    let items = [(tested.object, 1), (tested.absent, 0), (tested.object, 0)];
    let is_found = tested.names.is_empty();
    for ((id, offset), (mut room, has_come)) in items.into_iter().zip(fetch_many(peers, &items)?) {
        let is_here = id == tested.object && is_found;
        expect(has_come == is_here || is_here && tested.fails, || {
            format!("among many, {id}: {has_come}")
        })?;
        let is_right = tested.content.get(offset) == room.bytes().first();
        expect(!has_come || is_right, || format!("among many, byte {offset} is wrong"))?;
    }
    Ok(())
}

/// Starts a server with the holder, and another node that asks it.
fn loopback(tested: &TestedHolder<'_>) -> Result<(Server, Peers), Box<dyn std::error::Error>> {
    let listeners = [TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?];
    let mut nodes = Vec::new();
    for (number, listener) in listeners.iter().enumerate() {
        nodes.push(Member {
            name: format!("node{number}"),
            address: listener.local_addr()?,
        });
    }
    let [_, listener] = listeners;
    let secret = Secret::new([7; 32]);
    let here = |here| Members::new(1, nodes.clone(), here);
    let server = Server::start(tested.kind, &secret, &here(1)?, listener, Arc::clone(&tested.holder))?;
    Ok((server, Peers::start(tested.kind, &secret, &here(0)?)?))
}

/// Fetches a range, or the whole of an object; again if a busy machine was late.
fn fetch(tested: &TestedHolder<'_>, peers: &Peers, id: BlobId, range: &Range<u64>, is_whole: bool) -> Result<(Fetched, FetchEnd), String> {
    let mut last = None;
    for _ in 0..TRIES {
        let (sender, receiver) = channel();
        peers.fetch(Wanted {
            id,
            name: tested.name(id).map(Arc::new),
            offset: range.start,
            holders: vec![1],
            deadline: Instant::now() + LONG / 2,
            turn: 1,
            is_whole,
            digest: None,
            room: Box::new(vec![0; (range.end - range.start) as usize]),
            done: Box::new(move |fetched| drop(sender.send(fetched))),
        });
        let fetched = ended(&receiver)?;
        let end = fetched.end;
        last = Some((fetched, end));
        if end != FetchEnd::Late {
            break;
        }
    }
    last.ok_or_else(|| "nothing was fetched".into())
}

type Rooms = Vec<(Box<dyn crate::Room>, bool)>;

/// Fetches one byte of each of these objects by one request.
fn fetch_many(peers: &Peers, items: &[(BlobId, usize)]) -> Result<Rooms, String> {
    let (sender, receiver) = channel();
    let item = |&(id, offset): &(BlobId, usize)| (id, offset as u64, Box::new(vec![0u8; 1]) as Box<dyn crate::Room>);
    peers.fetch_many(ManyWanted {
        node: 1,
        items: items.iter().map(item).collect(),
        deadline: Instant::now() + LONG / 2,
        turn: 1,
        are_whole: false,
        done: Box::new(move |rooms| drop(sender.send(rooms))),
    });
    ended(&receiver)
}

fn ended<T>(receiver: &Receiver<T>) -> Result<T, String> {
    receiver.recv_timeout(LONG).map_err(|_| "a fetch did not end".into())
}

impl TestedHolder<'_> {
    fn ask(&self, id: BlobId) -> oneshot::Receiver<Found> {
        let (sender, receiver) = oneshot::channel();
        let request = BlobRequest {
            id,
            name: self.name(id),
            range: 0..self.content.len() as u64,
            from: 0,
            deadline: Instant::now() + LONG,
            turn: 1,
        };
        self.holder.asked(request, Reply(sender));
        receiver
    }

    fn name(&self, id: BlobId) -> Option<BlobName> {
        self.names.iter().find(|name| name.id(self.kind) == id).cloned()
    }

    fn found(&self, id: BlobId) -> Result<Found, String> {
        answer(self.ask(id))
    }

    fn blob(&self) -> Result<Arc<dyn Blob>, String> {
        blob_of(self.ask(self.object))
    }

    fn part(&self, range: &Range<u64>) -> &[u8] {
        part(self.content, range)
    }

    fn read(&self, blob: &dyn Blob, range: &Range<u64>) -> Result<(), String> {
        read(blob, range, self.content, self.fails)
    }

    /// Returns ranges of the object: the whole, both ends, none, and some in between.
    fn ranges(&self) -> Vec<Range<u64>> {
        let length = self.content.len() as u64;
        let between = (1..9).map(|number: u64| {
            let start = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % length;
            start..start + number * number * 977 % (length - start + 1)
        });
        [0..length, 0..1, length - 1..length, length..length, 1..length]
            .into_iter()
            .chain(between)
            .collect()
    }
}

fn part<'a>(content: &'a [u8], range: &Range<u64>) -> &'a [u8] {
    content.get(range.start as usize..range.end as usize).unwrap_or_default()
}

fn read(blob: &dyn Blob, range: &Range<u64>, content: &[u8], fails: bool) -> Result<(), String> {
    let mut room = vec![0xa5; (range.end - range.start) as usize];
    match blob.read(range.start, &mut room) {
        Ok(()) => expect(room == part(content, range), || format!("bytes {range:?} are wrong")),
        Err(_) if fails => Ok(()),
        Err(error) => Err(format!("bytes {range:?}: {error}")),
    }
}

/// Waits for the answer of a holder. One that is dropped counts as absent.
fn answer(mut receiver: oneshot::Receiver<Found>) -> Result<Found, String> {
    let began = Instant::now();
    loop {
        match receiver.try_recv() {
            Ok(found) => return Ok(found),
            Err(TryRecvError::Closed) => return Ok(Found::Absent),
            Err(TryRecvError::Empty) if began.elapsed() > LONG => return Err("a request was not answered".into()),
            Err(TryRecvError::Empty) => thread::sleep(Duration::from_millis(1)),
        }
    }
}

fn blob_of(receiver: oneshot::Receiver<Found>) -> Result<Arc<dyn Blob>, String> {
    match answer(receiver)? {
        Found::Blob(blob) => Ok(blob),
        other => Err(format!("an object that is here is {other:?}")),
    }
}

/// Waits until no object is lent any more.
fn all_released(tested: &TestedHolder<'_>) -> Result<(), String> {
    let began = Instant::now();
    while (tested.lent)() > 0 {
        expect(began.elapsed() < RELEASED_MAX, || {
            format!("{} objects are still lent", (tested.lent)())
        })?;
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn shortest(mut call: impl FnMut()) -> Duration {
    let times = (0..TRIES).map(|_| {
        let began = Instant::now();
        call();
        began.elapsed()
    });
    times.min().unwrap_or_default()
}

fn expect(is_so: bool, why: impl FnOnce() -> String) -> Result<(), String> {
    if is_so { Ok(()) } else { Err(why()) }
}

#[cfg(test)]
mod tests;
