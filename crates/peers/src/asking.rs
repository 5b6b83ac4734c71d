//! The thread that asks other nodes: it does what `forebay_policy::peers` says about each range.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    ops::Range,
    rc::Rc,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use forebay_policy::peers::{FetchStep, HedgeBudget, PeerAnswer, PeerFetch, Reach};
use http_body_util::Full;
use hyper::{
    Request, Response, StatusCode,
    body::Incoming,
    header::{CONTENT_LENGTH, RANGE},
};
use tokio::{
    sync::{Semaphore, mpsc},
    task::{JoinSet, spawn_local},
    time::{timeout, timeout_at},
};
use tokio_rustls::TlsConnector;
use twox_hash::{XxHash3_128, xxhash3_128::Hasher};

use crate::{
    connection::AskedNode,
    identity::Keys,
    limits::{
        HEDGE_SAVED_BYTES, HEDGE_SHARE, IDLE_MAX, MANY_BYTES_MAX, MANY_MAX, OUTSTANDING_BYTES_MAX, PROBE_WAIT, RANGE_BYTES_MAX,
        READ_OUT_BYTES_MAX,
    },
    members::Members,
    pull::{Command, FetchEnd, Fetched, ManyWanted, Room, Totals, Wanted},
    wire::{
        BlobId, BlobName, Common, Item, ItemHead, Kind, WHOLE, parse_content_range, parse_digest, parse_has, parse_holders,
        parse_other_length, range_header,
    },
};

/// Units of the bytes that are under way: a semaphore counts 32 bits.
const UNIT_BYTES: u64 = 1024;

/// The room of a range, as long as the range is wanted. A request that lost finds nothing, and writes nothing.
type SharedRoom = Rc<RefCell<Option<Box<dyn Room>>>>;

/// A node that was asked, its answer, and the spare memory that it may have filled.
type NodeAnswer = (u16, PeerAnswer, Option<Vec<u8>>);

/// A request for a range that is under way.
struct Attempt {
    id: BlobId,
    name: Option<Arc<BlobName>>,
    range: Range<u64>,
    deadline: Instant,
    turn: u64,
    digest: Option<u128>,
    is_whole: bool,
    /// Bytes of the object that the node which answered last has.
    has: Cell<u64>,
}

/// A request for many ranges that is under way.
#[derive(Clone, Copy)]
struct ManyRequest {
    deadline: Instant,
    turn: u64,
    are_whole: bool,
    /// Bytes of all ranges.
    total: u64,
}

/// The state of the asking thread.
pub(crate) struct Asking {
    kind: Kind,
    keys: Arc<Keys>,
    members: Members,
    /// Counts by node; the last one is of all.
    totals: Arc<Mutex<Vec<Totals>>>,
    nodes: RefCell<HashMap<u16, Rc<AskedNode>>>,
    reach: Rc<RefCell<Reach>>,
    outstanding: Semaphore,
    hedging: RefCell<HedgeBudget>,
    began: Instant,
}

impl Asking {
    pub(crate) fn new(kind: Kind, keys: Arc<Keys>, members: Members, totals: Arc<Mutex<Vec<Totals>>>) -> Self {
        Self {
            kind,
            keys,
            members,
            totals,
            nodes: RefCell::default(),
            reach: Rc::default(),
            outstanding: Semaphore::new(units(OUTSTANDING_BYTES_MAX) as usize),
            hedging: RefCell::new(HedgeBudget::new(HEDGE_SHARE, HEDGE_SAVED_BYTES)),
            began: Instant::now(),
        }
    }

    /// Carries out commands until nobody can send any, and all have ended.
    pub(crate) async fn serve(self: Rc<Self>, mut commands: mpsc::UnboundedReceiver<Command>) {
        let sweeping = spawn_local(Rc::clone(&self).close_idle());
        let mut tasks = JoinSet::new();
        while let Some(command) = commands.recv().await {
            while tasks.try_join_next().is_some() {}
            let asking = Rc::clone(&self);
            tasks.spawn_local(async move {
                match command {
                    Command::One(wanted) => asking.fetch(wanted).await,
                    Command::Many(wanted) => asking.fetch_many(wanted).await,
                }
            });
        }
        // Each has a deadline.
        while tasks.join_next().await.is_some() {}
        sweeping.abort();
    }

    async fn close_idle(self: Rc<Self>) {
        loop {
            tokio::time::sleep(IDLE_MAX / 4).await;
            self.nodes.borrow().values().for_each(|node| node.close_idle());
        }
    }

    fn now_s(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    fn is_suspected(&self, node: u16) -> bool {
        let is_suspected = self.nodes.borrow().get(&node).is_some_and(|node| node.is_suspected());
        is_suspected || !self.reach.borrow_mut().lets_ask(self.now_s())
    }

    fn node(&self, number: u16) -> Option<Rc<AskedNode>> {
        if let Some(node) = self.nodes.borrow().get(&number) {
            return Some(Rc::clone(node));
        }
        let connector = TlsConnector::from(self.keys.for_asking(number).ok()?);
        let node = Rc::new(AskedNode::new(
            (number, self.members.member(number)?.address),
            connector,
            self.kind != Kind::Forks,
            self.probe(),
            (Rc::clone(&self.reach), self.began),
        ));
        self.nodes.borrow_mut().insert(number, Rc::clone(&node));
        Some(node)
    }

    /// Returns how to ask for an object that nobody has.
    fn probe(&self) -> Box<dyn Fn() -> Option<Request<Full<Bytes>>>> {
        let path = format!("/1/{}/{}", self.kind.name(), BlobId([0; 16]));
        let common = self.common(PROBE_WAIT, 0);
        Box::new(move || {
            let mut request = Request::get(&path).body(Full::default()).ok()?;
            request.headers_mut().insert(RANGE, range_header(&(0..1)));
            common.write(request.headers_mut());
            Some(request)
        })
    }

    fn count(&self, node: u16, add: impl FnOnce(&mut Totals)) {
        self.count_at(usize::from(node), add);
    }

    fn count_at(&self, index: usize, add: impl FnOnce(&mut Totals)) {
        let mut totals = self.totals.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(totals) = totals.get_mut(index) {
            add(totals);
        }
    }

    fn common(&self, within: Duration, turn: u64) -> Common {
        Common {
            within,
            turn,
            members: self.members.digest(),
        }
    }

    async fn fetch(self: Rc<Self>, wanted: Wanted) {
        let Wanted {
            id,
            name,
            offset,
            holders,
            deadline,
            turn,
            is_whole,
            digest,
            mut room,
            done,
        } = wanted;
        let length = room.bytes().len() as u64;
        let end = offset.checked_add(length).filter(|_| (1..=RANGE_BYTES_MAX).contains(&length));
        let shared = Rc::new(RefCell::new(Some(room)));
        let mut has = 0;
        let end = match end {
            Some(end) => {
                let attempt = Rc::new(Attempt {
                    id,
                    name,
                    range: offset..end,
                    deadline,
                    turn,
                    digest,
                    is_whole,
                    has: Cell::new(0),
                });
                let end = self.fetch_range(Rc::clone(&attempt), &holders, &shared).await;
                has = attempt.has.get();
                end
            }
            None => FetchEnd::Late,
        };
        if matches!(end, FetchEnd::Absent | FetchEnd::Late) {
            self.count_at(self.members.members().len(), |all| all.left_to_source += 1);
        }
        let room = shared.borrow_mut().take();
        if let Some(room) = room {
            done(Fetched { room, end, has });
        }
    }

    /// Returns how a range was found, once its bytes are in the room, or no node is left to ask.
    async fn fetch_range(self: &Rc<Self>, attempt: Rc<Attempt>, holders: &[u16], room: &SharedRoom) -> FetchEnd {
        let length = attempt.range.end - attempt.range.start;
        let units = units(length.min(OUTSTANDING_BYTES_MAX));
        let Ok(Ok(_outstanding)) = timeout_at(attempt.deadline.into(), self.outstanding.acquire_many(units)).await else {
            return FetchEnd::Late;
        };
        let left = attempt.deadline.saturating_duration_since(Instant::now());
        let here = self.members.here();
        let is_suspected = |node| node == here || self.is_suspected(node);
        let mut machine = PeerFetch::new(holders, self.now_s() + left.as_secs_f64());
        let mut requests: JoinSet<NodeAnswer> = JoinSet::new();
        let mut step = machine.begin(self.now_s(), is_suspected);
        let mut patience = None;
        // Nodes answered, and none was late.
        let (mut is_absent, mut is_late) = (false, false);
        loop {
            match step {
                FetchStep::Done | FetchStep::Source if is_absent && !is_late => return FetchEnd::Absent,
                FetchStep::Done | FetchStep::Source => return FetchEnd::Late,
                FetchStep::Ask(number) => {
                    // A second node would have to make the object, too.
                    let may_hedge = machine.may_hedge() && attempt.name.is_none();
                    patience = may_hedge.then(|| self.node(number)?.hedge_after()).flatten();
                    let (asking, attempt) = (Rc::clone(self), Rc::clone(&attempt));
                    // Only one request writes to the room; a second one has room of its own.
                    let room = requests.is_empty().then(|| Rc::clone(room));
                    requests.spawn_local(async move {
                        let mut spare = room.is_none().then(Vec::new);
                        let answer = asking.ask(number, &attempt, room, spare.as_mut()).await;
                        (number, answer, spare)
                    });
                }
                FetchStep::Later(at_s) => {
                    tokio::time::sleep(Duration::from_secs_f64((at_s - self.now_s()).max(0.0))).await;
                    step = machine.again(self.now_s(), is_suspected);
                    continue;
                }
                FetchStep::Wait => {}
            }
            let ended = match patience.take() {
                Some(patience) => timeout(patience, requests.join_next()).await,
                None => Ok(requests.join_next().await),
            };
            let Ok(ended) = ended else {
                step = FetchStep::Wait;
                if self.hedging.borrow_mut().take(length) {
                    step = machine.hedge(self.now_s(), is_suspected);
                    if let FetchStep::Ask(number) = step {
                        self.count(number, |totals| totals.hedged_bytes += length);
                    }
                }
                continue;
            };
            let Some(Ok((number, answer, spare))) = ended else {
                return FetchEnd::Late;
            };
            match answer {
                PeerAnswer::Whole { bytes } => {
                    self.came(length, spare, room, requests);
                    return FetchEnd::Came { from: number, bytes };
                }
                PeerAnswer::OtherLength(length) => return FetchEnd::OtherLength(length),
                PeerAnswer::Absent | PeerAnswer::Gone => is_absent = true,
                PeerAnswer::Busy { .. } | PeerAnswer::Failed | PeerAnswer::Corrupt => is_late = true,
            }
            step = machine.answered(number, &answer, self.now_s(), is_suspected);
        }
    }

    /// Takes a range of `length` bytes that has come, into the room or into spare memory.
    fn came(&self, length: u64, spare: Option<Vec<u8>>, room: &SharedRoom, mut others: JoinSet<NodeAnswer>) {
        if let (Some(spare), Some(room)) = (spare, room.borrow_mut().as_mut())
            && let Some(room) = room.bytes().get_mut(..spare.len())
        {
            room.copy_from_slice(&spare);
        }
        self.hedging.borrow_mut().came(length);
        if length <= READ_OUT_BYTES_MAX && !others.is_empty() {
            // The answer that lost is read to its end, so that its connection can be used again.
            spawn_local(async move { while others.join_next().await.is_some() {} });
        }
    }

    /// Asks one node for a range, into the room or into spare memory.
    async fn ask(&self, number: u16, attempt: &Attempt, room: Option<SharedRoom>, mut spare: Option<&mut Vec<u8>>) -> PeerAnswer {
        let Some(node) = self.node(number) else {
            return PeerAnswer::Absent;
        };
        let path = format!("/1/{}/{}", self.kind.name(), attempt.id);
        let make = |within| {
            let mut request = Request::get(&path).body(Full::default()).ok()?;
            request.headers_mut().insert(RANGE, range_header(&attempt.range));
            self.common(within, attempt.turn).write(request.headers_mut());
            if attempt.is_whole {
                request.headers_mut().insert(WHOLE, 1.into());
            }
            if let Some(name) = &attempt.name {
                name.write(request.headers_mut());
            }
            Some(request)
        };
        let take = |at: usize, part: &[u8]| match (&room, spare.as_mut()) {
            (Some(room), _) => room.borrow_mut().as_mut().is_some_and(|room| {
                room.bytes().get_mut(at..at + part.len()).is_some_and(|to| {
                    to.copy_from_slice(part);
                    true
                })
            }),
            (None, Some(spare)) => {
                spare.extend_from_slice(part);
                true
            }
            (None, None) => false,
        };
        let answer = node.exchange(attempt.deadline, make, async |response: &mut Response<Incoming>| {
            read(&node, response, attempt, take).await
        });
        let answer = answer.await.unwrap_or(PeerAnswer::Failed);
        self.count(number, |totals| match answer {
            PeerAnswer::Whole { bytes } => {
                totals.ranges += 1;
                totals.bytes += bytes;
            }
            PeerAnswer::OtherLength(_) => {}
            PeerAnswer::Absent | PeerAnswer::Gone => totals.absent += 1,
            PeerAnswer::Busy { .. } => totals.busy += 1,
            PeerAnswer::Failed => totals.failed += 1,
            PeerAnswer::Corrupt => totals.corrupt += 1,
        });
        answer
    }

    async fn fetch_many(self: Rc<Self>, wanted: ManyWanted) {
        let ManyWanted {
            node: number,
            mut items,
            deadline,
            turn,
            are_whole,
            done,
        } = wanted;
        let mut came = vec![false; items.len()];
        let total: u64 = items.iter_mut().map(|(_, _, room)| room.bytes().len() as u64).sum();
        let is_sound = (1..=MANY_MAX).contains(&items.len()) && total <= MANY_BYTES_MAX && number != self.members.here();
        if is_sound && !self.is_suspected(number) {
            let request = ManyRequest {
                deadline,
                turn,
                are_whole,
                total,
            };
            self.ask_many(number, &mut items, &mut came, request).await;
        }
        done(items.into_iter().map(|(_, _, room)| room).zip(came).collect());
    }

    async fn ask_many(
        &self,
        number: u16,
        items: &mut [(BlobId, u64, Box<dyn Room>)],
        came: &mut [bool],
        request: ManyRequest,
    ) -> Option<()> {
        let ManyRequest {
            deadline,
            turn,
            are_whole,
            total,
        } = request;
        let node = self.node(number)?;
        let _outstanding = timeout_at(deadline.into(), self.outstanding.acquire_many(units(total)))
            .await
            .ok()?
            .ok()?;
        let mut body = Vec::with_capacity(items.len() * Item::BYTES);
        for (id, offset, room) in &mut *items {
            let item = Item {
                id: *id,
                offset: *offset,
                length: u32::try_from(room.bytes().len()).ok()?,
            };
            item.write(&mut body);
        }
        let body = Bytes::from(body);
        let path = format!("/1/{}/many", self.kind.name());
        let make = |within| {
            let mut request = Request::post(&path).body(Full::new(body.clone())).ok()?;
            self.common(within, turn).write(request.headers_mut());
            Some(request)
        };
        let most = usize::try_from(total).ok()? + items.len() * ItemHead::BYTES;
        let answer = node.exchange(deadline, make, async |response: &mut Response<Incoming>| {
            let length = response
                .headers()
                .get(CONTENT_LENGTH)
                .and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
            let length = length.filter(|length| *length <= most && response.status() == StatusCode::OK)?;
            let mut bytes = Vec::with_capacity(length);
            let take = |_, part: &[u8]| {
                bytes.extend_from_slice(part);
                true
            };
            node.receive(response.body_mut(), deadline, length, take).await.then_some(bytes)
        });
        let Some(bytes) = answer.await.flatten() else {
            self.count(number, |totals| totals.failed += 1);
            return None;
        };
        let mut rest = bytes.as_slice();
        for ((_, _, room), came) in items.iter_mut().zip(came) {
            let (head, after) = ItemHead::parse(rest)?;
            let (part, after) = after.split_at_checked(head.length as usize)?;
            rest = after;
            *came = (!are_whole || head.object_length == u64::from(head.length)) && self.unpack(number, head, part, room.bytes());
        }
        Some(())
    }

    /// Copies one range out of an answer for many. Returns whether it is here, with its digest.
    fn unpack(&self, number: u16, head: ItemHead, part: &[u8], room: &mut [u8]) -> bool {
        let is_here = head.status == StatusCode::PARTIAL_CONTENT.as_u16() && part.len() == room.len();
        let is_whole = is_here && XxHash3_128::oneshot(part) == head.digest;
        if is_whole {
            room.copy_from_slice(part);
        }
        self.count(number, |totals| {
            if is_whole {
                totals.ranges += 1;
                totals.bytes += part.len() as u64;
            } else if is_here {
                totals.corrupt += 1;
            } else if head.status == StatusCode::TOO_MANY_REQUESTS.as_u16() {
                totals.busy += 1;
            } else {
                totals.absent += 1;
            }
        });
        is_whole
    }
}

/// Reads an answer for one range.
async fn read(
    node: &Rc<AskedNode>,
    response: &mut Response<Incoming>,
    attempt: &Attempt,
    mut take: impl FnMut(usize, &[u8]) -> bool,
) -> PeerAnswer {
    match response.status() {
        StatusCode::PARTIAL_CONTENT => {}
        StatusCode::TOO_MANY_REQUESTS => {
            return PeerAnswer::Busy {
                holders: parse_holders(response.headers()),
            };
        }
        StatusCode::PAYLOAD_TOO_LARGE if attempt.is_whole => {
            return parse_other_length(response.headers()).map_or(PeerAnswer::Corrupt, PeerAnswer::OtherLength);
        }
        StatusCode::GONE => return PeerAnswer::Gone,
        // 404, and 409: a node with another table of members has other objects.
        _ => return PeerAnswer::Absent,
    }
    let is_expected = |(came, length): &(Range<u64>, u64)| {
        let is_end = attempt.is_whole && came.end == *length && came.end <= attempt.range.end;
        came.start == attempt.range.start && (is_end || came.end == attempt.range.end)
    };
    let Some((came, length)) = parse_content_range(response.headers()).filter(is_expected) else {
        return PeerAnswer::Corrupt;
    };
    attempt.has.set(parse_has(response.headers(), length));
    let bytes = came.end - came.start;
    // If nobody knows a digest, TLS alone protects the bytes.
    let expected = attempt.digest.or_else(|| parse_digest(response.headers()));
    let mut hasher = expected.map(|_| Hasher::new());
    let length = usize::try_from(bytes).unwrap_or(usize::MAX);
    let take = |at, part: &[u8]| {
        if let Some(hasher) = &mut hasher {
            hasher.write(part);
        }
        take(at, part)
    };
    if !node.receive(response.body_mut(), attempt.deadline, length, take).await {
        return PeerAnswer::Failed;
    }
    if hasher.map(|hasher| hasher.finish_128()) == expected {
        PeerAnswer::Whole { bytes }
    } else {
        PeerAnswer::Corrupt
    }
}

fn units(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX)
}
