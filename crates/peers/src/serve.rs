//! Answers other nodes with what a [`Holder`] has.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    convert::Infallible,
    io,
    net::{SocketAddr, TcpListener},
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use forebay_policy::peers::{Admission, admit};
use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    Request as HttpRequest, Response, StatusCode, body::Incoming, header::CONTENT_RANGE, server::conn::http1, service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::TcpStream,
    sync::{Notify, Semaphore, oneshot},
    task::spawn_local,
    time::timeout,
};
use tokio_io_timeout::TimeoutWriter;
use tokio_rustls::TlsAcceptor;
use twox_hash::XxHash3_128;

use crate::{
    blob::{BlobRequest, Found, Holder, Reply},
    gate::{Gate, Pass},
    identity::{Keys, Secret},
    limits::{
        ANSWERS_MAX, CONNECTIONS_MAX, CONNECTIONS_OF_NODE_MAX, HANDSHAKE_MAX, HANDSHAKES_MAX, HEAD_BYTES_MAX, IDLE_MAX, MANY_MAX,
        PROGRESS_MAX, WAITING_MAX,
    },
    members::Members,
    pull::PeersError,
    runtime,
    sent::{Pieces, Sent, read},
    served::LastServed,
    wire::{
        ASK, Asked, BlobId, Common, DIGEST, HAS, Head, Item, ItemHead, Kind, content_range, digest_header, holders_header, other_length,
    },
};

/// Answers up to this many bytes are read whole before their head is sent, so that a digest and a refusal can be in
/// it.
const WHOLE_BYTES: u64 = 256 << 10;

/// Counts of a server, from its beginning on.
#[derive(Debug, Default)]
pub struct Served {
    /// Bytes of answers.
    pub bytes: AtomicU64,
    /// Ranges that were answered.
    pub ranges: AtomicU64,
    /// Ranges that are not here, or no longer.
    pub absent: AtomicU64,
    /// Ranges that were refused for lack of time.
    pub busy: AtomicU64,
    /// Requests with another table of members.
    pub other_members: AtomicU64,
    /// Requests that made no sense.
    pub bad: AtomicU64,
    /// Connections of somebody who is not of this job, or broke off.
    pub strangers: AtomicU64,
}

/// A server. It ends when it is dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    served: Arc<Served>,
    end: Arc<Notify>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts to answer on a listening socket, in a thread of its own.
    ///
    /// # Errors
    /// The socket can't be used, keys can't be made, or there is no thread.
    pub fn start(
        kind: Kind,
        secret: &Secret,
        members: &Members,
        listener: TcpListener,
        holder: Arc<dyn Holder>,
    ) -> Result<Self, PeersError> {
        let nodes = u16::try_from(members.members().len()).unwrap_or(u16::MAX);
        let keys = Keys::new(secret, kind, nodes, members.here())?;
        let acceptor = TlsAcceptor::from(keys.for_serving()?);
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (served, end) = (Arc::new(Served::default()), Arc::new(Notify::new()));
        let state = (Arc::clone(&served), Arc::clone(&end));
        let members = members.digest();
        let thread = runtime::start("serve", kind, move || {
            let (served, end) = state;
            let state = Rc::new(Serving {
                kind,
                keys,
                members,
                holder,
                served,
                gate: Gate::new(ANSWERS_MAX, WAITING_MAX),
                gate_apart: Gate::new(ANSWERS_MAX, WAITING_MAX),
                sending: Rc::default(),
                connections: RefCell::default(),
                last_served: RefCell::default(),
            });
            async move {
                let accept = spawn_local(Serving::accept(state, listener, acceptor));
                end.notified().await;
                accept.abort();
            }
        })?;
        Ok(Self {
            address,
            served,
            end,
            thread: Some(thread),
        })
    }

    /// Address on which it listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Counts from its beginning on.
    pub fn served(&self) -> &Served {
        &self.served
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A connection that is served.
#[derive(Debug)]
struct Connected {
    node: Option<u16>,
    used: Rc<Cell<Instant>>,
    end: Rc<Notify>,
}

/// The state of a server's thread.
struct Serving {
    kind: Kind,
    keys: Arc<Keys>,
    members: u64,
    holder: Arc<dyn Holder>,
    served: Arc<Served>,
    gate: Gate,
    /// Gate of the nodes that the holder answers without other nodes.
    gate_apart: Gate,
    /// Long ranges that are being sent.
    sending: Rc<Cell<usize>>,
    connections: RefCell<BTreeMap<u64, Connected>>,
    last_served: RefCell<LastServed>,
}

impl Serving {
    async fn accept(self: Rc<Self>, listener: TcpListener, acceptor: TlsAcceptor) -> io::Result<()> {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let handshakes = Rc::new(Semaphore::new(HANDSHAKES_MAX));
        let mut number = 0;
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                // Out of descriptors, or it has gone already.
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            number += 1;
            self.make_room();
            let connected = Connected {
                node: None,
                used: Rc::new(Cell::new(Instant::now())),
                end: Rc::new(Notify::new()),
            };
            let (used, end) = (Rc::clone(&connected.used), Rc::clone(&connected.end));
            self.connections.borrow_mut().insert(number, connected);
            let (state, acceptor, handshakes) = (Rc::clone(&self), acceptor.clone(), Rc::clone(&handshakes));
            spawn_local(async move {
                state.connection(number, stream, &acceptor, &handshakes, &used, &end).await;
                state.connections.borrow_mut().remove(&number);
            });
        }
    }

    /// Ends the connection that was idle for longest, if there are too many.
    fn make_room(&self) {
        let connections = self.connections.borrow();
        if connections.len() >= CONNECTIONS_MAX
            && let Some(idlest) = connections.values().min_by_key(|connected| connected.used.get())
        {
            idlest.end.notify_one();
        }
    }

    async fn connection(
        self: &Rc<Self>,
        number: u64,
        stream: TcpStream,
        acceptor: &TlsAcceptor,
        handshakes: &Semaphore,
        used: &Rc<Cell<Instant>>,
        end: &Notify,
    ) {
        let _ = stream.set_nodelay(true);
        // An asker that reads nothing more would hold what it is sent until TCP gives it up.
        let mut stream = TimeoutWriter::new(stream);
        stream.set_timeout(Some(PROGRESS_MAX));
        let Ok(permit) = handshakes.acquire().await else { return };
        let secured = timeout(HANDSHAKE_MAX, acceptor.accept(Box::pin(stream))).await;
        drop(permit);
        let Ok(Ok(secured)) = secured else {
            self.served.strangers.fetch_add(1, Relaxed);
            return;
        };
        let key = secured.get_ref().1.peer_certificates().and_then(|keys| keys.first());
        let Some(node) = key.and_then(|key| self.keys.node_of(key.as_ref())) else {
            self.served.strangers.fetch_add(1, Relaxed);
            return;
        };
        {
            let mut connections = self.connections.borrow_mut();
            if connections.values().filter(|connected| connected.node == Some(node)).count() >= CONNECTIONS_OF_NODE_MAX {
                return;
            }
            if let Some(connected) = connections.get_mut(&number) {
                connected.node = Some(node);
            }
        }
        let service = service_fn(|request| {
            used.set(Instant::now());
            let state = Rc::clone(self);
            async move { Ok::<_, Infallible>(state.answer(node, request).await) }
        });
        let mut builder = http1::Builder::new();
        builder
            .max_buf_size(HEAD_BYTES_MAX)
            .max_headers(16)
            .timer(TokioTimer::new())
            .header_read_timeout(2 * IDLE_MAX);
        let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(secured), service));
        let mut ended = std::pin::pin!(end.notified());
        // A request that is under way is answered; then the connection closes.
        std::future::poll_fn(|context| {
            if ended.as_mut().poll(context).is_ready() {
                connection.as_mut().graceful_shutdown();
                return connection.as_mut().poll(context).map(drop);
            }
            connection.as_mut().poll(context).map(drop)
        })
        .await;
    }

    async fn answer(self: Rc<Self>, node: u16, request: HttpRequest<Incoming>) -> Response<Sent> {
        let asked = match Asked::parse(self.kind, request.method(), request.uri().path(), request.headers()) {
            Ok(asked) => asked,
            Err(status) => {
                self.served.bad.fetch_add(1, Relaxed);
                return refusal(status);
            }
        };
        let (Asked::One(Head { common, .. }) | Asked::Many(common)) = asked;
        if common.members != self.members {
            self.served.other_members.fetch_add(1, Relaxed);
            return refusal(StatusCode::CONFLICT);
        }
        let deadline = Instant::now() + common.within;
        if let Asked::One(head) = &asked
            && let Some(busy) = self.redirect(head, node)
        {
            return busy;
        }
        // An object that has to be made first takes no place meanwhile: it may take as long as the asker waits.
        let made = match &asked {
            Asked::One(head) if head.name.is_some() => Some(self.find(request_of(head, node, deadline)).await),
            _ => None,
        };
        // Of several nodes that have waited for one piece the first is sent it, and the others are sent to that one.
        if let (Asked::One(head), Some(Found::Blob(_))) = (&asked, &made)
            && let Some(busy) = self.redirect(head, node)
        {
            return busy;
        }
        let gate = if self.holder.is_apart(node) { &self.gate_apart } else { &self.gate };
        let Some(pass) = gate.enter(node, common.turn, common.within).await else {
            self.served.busy.fetch_add(1, Relaxed);
            let mut busy = refusal(StatusCode::TOO_MANY_REQUESTS);
            if let Asked::One(head) = &asked {
                busy.headers_mut()
                    .insert(ASK, holders_header(&self.last_served.borrow().of(head.id, head.range.start, node)));
            }
            return busy;
        };
        match asked {
            Asked::One(head) => {
                let found = match made {
                    Some(found) => found,
                    None => self.find(request_of(&head, node, deadline)).await,
                };
                self.answer_one(node, head, found, pass).await
            }
            Asked::Many(common) => self.answer_many(node, common, request.into_body(), deadline, pass).await,
        }
    }

    /// Returns an answer that sends the asker to other nodes, if this one has given them the same piece and is
    /// sending enough.
    fn redirect(&self, head: &Head, node: u16) -> Option<Response<Sent>> {
        if head.range.end - head.range.start <= WHOLE_BYTES {
            return None;
        }
        let last_served = self.last_served.borrow();
        let holders = last_served.of(head.id, head.range.start, node);
        // Nodes that ask by name want all pieces, and serve those that they have.
        let is_on_its_way = head.name.is_some() && last_served.is_on_its_way(head.id, head.range.start);
        let sending = self.sending.get().max(usize::from(is_on_its_way));
        if admit(sending, !holders.is_empty()) == Admission::Serve {
            return None;
        }
        self.served.busy.fetch_add(1, Relaxed);
        let mut busy = refusal(StatusCode::TOO_MANY_REQUESTS);
        busy.headers_mut().insert(ASK, holders_header(&holders));
        Some(busy)
    }

    /// Asks the holder, for as long as the asker waits.
    async fn find(&self, request: BlobRequest) -> Found {
        let (sender, receiver) = oneshot::channel();
        let deadline = request.deadline;
        self.holder.asked(request, Reply(sender));
        match tokio::time::timeout_at(deadline.into(), receiver).await {
            Ok(found) => found.unwrap_or(Found::Absent),
            Err(_) => Found::Busy,
        }
    }

    async fn answer_one(&self, node: u16, head: Head, found: Found, pass: Pass) -> Response<Sent> {
        let Head {
            id, mut range, is_whole, ..
        } = head;
        let blob = match found {
            Found::Blob(blob) => blob,
            other => return self.not_found(&other, (id, range.start), node),
        };
        if is_whole {
            if blob.length() > range.end || blob.length() <= range.start {
                let mut response = refusal(StatusCode::PAYLOAD_TOO_LARGE);
                response.headers_mut().insert(CONTENT_RANGE, other_length(blob.length()));
                return response;
            }
            range.end = blob.length();
        }
        if range.end > blob.length() {
            self.served.bad.fetch_add(1, Relaxed);
            return refusal(StatusCode::RANGE_NOT_SATISFIABLE);
        }
        let bytes = range.end - range.start;
        let (length, has) = (blob.length(), blob.available());
        let (digest, sent) = if bytes <= WHOLE_BYTES {
            let read = read(&blob, range.start, usize::try_from(bytes).unwrap_or_default()).await;
            let Ok(read) = read else {
                return self.not_found(&Found::Absent, (id, range.start), node);
            };
            if !blob.is_valid(&range) {
                return self.not_found(&Found::Gone, (id, range.start), node);
            }
            let digest = blob.digest(&range).unwrap_or_else(|| XxHash3_128::oneshot(&read));
            (Some(digest), Sent::Whole(Full::new(read.into()), Some(pass)))
        } else {
            (
                blob.digest(&range),
                Sent::Pieces(Pieces::new(blob, range.clone(), pass, &self.sending)),
            )
        };
        self.served.ranges.fetch_add(1, Relaxed);
        self.served.bytes.fetch_add(bytes, Relaxed);
        self.last_served.borrow_mut().note(id, range.start, node);
        let mut response = Response::new(sent);
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
        response.headers_mut().insert(CONTENT_RANGE, content_range(&range, length));
        if has < length {
            response.headers_mut().insert(HAS, has.into());
        }
        if let Some(digest) = digest {
            response.headers_mut().insert(DIGEST, digest_header(digest));
        }
        response
    }

    fn not_found(&self, found: &Found, (id, offset): (BlobId, u64), node: u16) -> Response<Sent> {
        let (status, counter) = match found {
            Found::Busy => (StatusCode::TOO_MANY_REQUESTS, &self.served.busy),
            Found::Gone => (StatusCode::GONE, &self.served.absent),
            Found::Absent | Found::Blob(_) => (StatusCode::NOT_FOUND, &self.served.absent),
        };
        counter.fetch_add(1, Relaxed);
        let mut response = refusal(status);
        if matches!(found, Found::Busy) {
            response
                .headers_mut()
                .insert(ASK, holders_header(&self.last_served.borrow().of(id, offset, node)));
        }
        response
    }

    async fn answer_many(&self, node: u16, common: Common, body: Incoming, deadline: Instant, pass: Pass) -> Response<Sent> {
        let body = Limited::new(body, MANY_MAX * Item::BYTES);
        let body = match tokio::time::timeout_at(deadline.into(), body.collect()).await {
            Ok(Ok(body)) => body.to_bytes(),
            _ => return refusal(StatusCode::BAD_REQUEST),
        };
        let Some(items) = Item::parse_all(&body) else {
            self.served.bad.fetch_add(1, Relaxed);
            return refusal(StatusCode::BAD_REQUEST);
        };
        // All are asked for before the first is waited for.
        let waiting: Vec<_> = items
            .iter()
            .map(|item| {
                let (sender, receiver) = oneshot::channel();
                let request = BlobRequest {
                    id: item.id,
                    name: None,
                    range: item.range().unwrap_or_default(),
                    from: node,
                    deadline,
                    turn: common.turn,
                };
                self.holder.asked(request, Reply(sender));
                receiver
            })
            .collect();
        let mut answer = Vec::with_capacity(items.iter().map(|item| ItemHead::BYTES + item.length as usize).sum());
        for (item, receiver) in items.iter().zip(waiting) {
            let found = match tokio::time::timeout_at(deadline.into(), receiver).await {
                Ok(found) => found.unwrap_or(Found::Absent),
                Err(_) => Found::Busy,
            };
            self.append(item, &found, &mut answer).await;
        }
        Response::new(Sent::Whole(Full::new(answer.into()), Some(pass)))
    }

    async fn append(&self, item: &Item, found: &Found, answer: &mut Vec<u8>) {
        let refused = |status: StatusCode, answer: &mut Vec<u8>| {
            let head = ItemHead {
                status: status.as_u16(),
                length: 0,
                object_length: 0,
                digest: 0,
            };
            head.write(answer);
        };
        let range = item.range().unwrap_or_default();
        let blob = match found {
            Found::Blob(blob) if range.end <= blob.length() => blob,
            Found::Blob(_) => return refused(StatusCode::RANGE_NOT_SATISFIABLE, answer),
            Found::Gone => return refused(StatusCode::GONE, answer),
            Found::Busy => return refused(StatusCode::TOO_MANY_REQUESTS, answer),
            Found::Absent => return refused(StatusCode::NOT_FOUND, answer),
        };
        match read(blob, item.offset, item.length as usize).await {
            Ok(bytes) if blob.is_valid(&range) => {
                let head = ItemHead {
                    status: StatusCode::PARTIAL_CONTENT.as_u16(),
                    length: item.length,
                    object_length: blob.length(),
                    digest: blob.digest(&range).unwrap_or_else(|| XxHash3_128::oneshot(&bytes)),
                };
                head.write(answer);
                answer.extend_from_slice(&bytes);
                self.served.ranges.fetch_add(1, Relaxed);
                self.served.bytes.fetch_add(u64::from(item.length), Relaxed);
            }
            Ok(_) => refused(StatusCode::GONE, answer),
            Err(_) => refused(StatusCode::NOT_FOUND, answer),
        }
    }
}

fn refusal(status: StatusCode) -> Response<Sent> {
    let mut response = Response::new(Sent::Whole(Full::default(), None));
    *response.status_mut() = status;
    response
}

/// Returns the request to a holder for one range.
fn request_of(head: &Head, from: u16, deadline: Instant) -> BlobRequest {
    BlobRequest {
        id: head.id,
        name: head.name.clone(),
        range: head.range.clone(),
        from,
        deadline,
        turn: head.common.turn,
    }
}
