//! Another node, as it is asked: connections to it, and what is known of its health.

use std::{
    cell::RefCell,
    future::poll_fn,
    net::SocketAddr,
    pin::pin,
    rc::Rc,
    task::Poll,
    time::{Duration, Instant},
};

use bytes::Bytes;
use forebay_policy::peers::{Health, Reach};
use http_body_util::{BodyExt, Full};
use hyper::{
    Request, Response, StatusCode,
    body::{Body, Incoming},
    client::conn::http1::{self, SendRequest},
};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::{
    net::TcpStream,
    sync::Semaphore,
    task::spawn_local,
    time::{sleep_until, timeout, timeout_at},
};
use tokio_rustls::TlsConnector;

use crate::limits::{CONNECT_MAX, CONNECTIONS_TO_NODE_MAX, IDLE_MAX, PROBE_WAIT, PROGRESS_MAX};

/// Bytes of an answer that are read at once: those of a TLS record. More would leave the processor's cache before they
/// are copied, and an idle connection keeps them.
const READ_BUFFER_BYTES: usize = 16 << 10;

type Sender = SendRequest<Full<Bytes>>;

/// Makes a request for an object that nobody has.
type Probe = Box<dyn Fn() -> Option<Request<Full<Bytes>>>>;

/// A node that is asked.
pub(crate) struct AskedNode {
    number: u16,
    address: SocketAddr,
    connector: TlsConnector,
    /// Beginning of the clock of all nodes that are asked.
    began: Instant,
    health: RefCell<Health>,
    /// Reach of this node, which all that it asks tell of.
    reach: Rc<RefCell<Reach>>,
    /// Connections that are not in use, the last one used last.
    idle: RefCell<Vec<(Sender, Instant)>>,
    places: Semaphore,
    /// Makes the request of a probe.
    probe: Probe,
    /// True if it may have to read the source before it answers: then it has all the time that the asker has.
    may_read_first: bool,
}

impl AskedNode {
    pub(crate) fn new(
        (number, address): (u16, SocketAddr),
        connector: TlsConnector,
        may_read_first: bool,
        probe: Probe,
        (reach, began): (Rc<RefCell<Reach>>, Instant),
    ) -> Self {
        Self {
            number,
            address,
            connector,
            began,
            health: RefCell::default(),
            reach,
            idle: RefCell::default(),
            places: Semaphore::new(CONNECTIONS_TO_NODE_MAX),
            may_read_first,
            probe,
        }
    }

    /// Returns true if the node is not to be asked now.
    pub(crate) fn is_suspected(&self) -> bool {
        self.health.borrow().is_suspected()
    }

    /// Returns after which time without an answer a second node may be asked.
    pub(crate) fn hedge_after(&self) -> Option<Duration> {
        self.health.borrow().hedge_after_s().map(Duration::from_secs_f64)
    }

    /// Closes connections that were not used for a while, or that the other side has closed.
    pub(crate) fn close_idle(&self) {
        self.idle
            .borrow_mut()
            .retain(|(sender, since)| !sender.is_closed() && since.elapsed() < IDLE_MAX);
    }

    #[cfg(test)]
    pub(crate) fn idle_connections(&self) -> usize {
        self.idle.borrow().iter().filter(|(sender, _)| !sender.is_closed()).count()
    }

    fn now_s(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// Sends a request, and has its answer read. Returns `None` if there was no connection, or no first byte in time:
    /// the node's health knows that then. `make` is told for how long the asker waits.
    pub(crate) async fn exchange<T>(
        self: &Rc<Self>,
        deadline: Instant,
        make: impl Fn(Duration) -> Option<Request<Full<Bytes>>>,
        read: impl AsyncFnOnce(&mut Response<Incoming>) -> T,
    ) -> Option<T> {
        let _place = timeout_at(deadline.into(), self.places.acquire()).await.ok()?.ok()?;
        let (mut sender, mut response) = self.send(deadline, make).await?;
        let result = read(&mut response).await;
        // A body that was not read to its end would block its connection: that is closed by dropping it.
        let is_over = response.body().is_end_stream();
        drop(response);
        if is_over && timeout(PROGRESS_MAX, sender.ready()).await.is_ok_and(|ready| ready.is_ok()) {
            self.idle.borrow_mut().push((sender, Instant::now()));
        }
        Some(result)
    }

    async fn send(
        self: &Rc<Self>,
        deadline: Instant,
        make: impl Fn(Duration) -> Option<Request<Full<Bytes>>>,
    ) -> Option<(Sender, Response<Incoming>)> {
        loop {
            let idle = self
                .idle
                .borrow_mut()
                .pop()
                .map(|(sender, _)| sender)
                .filter(|sender| !sender.is_closed());
            let was_used = idle.is_some();
            let connected = match idle {
                Some(sender) => Some(sender),
                None => self.connect(deadline).await,
            };
            let Some(mut sender) = connected else {
                self.was_silent();
                return None;
            };
            let within = deadline.saturating_duration_since(Instant::now());
            let asked = Instant::now();
            match self.first_byte(sender.send_request(make(within)?), deadline).await {
                // It is asked again once it has the same table.
                Some(Ok(response)) if response.status() == StatusCode::CONFLICT => {
                    self.reach.borrow_mut().answered();
                    self.suspect();
                    return None;
                }
                Some(Ok(response)) => {
                    self.health.borrow_mut().answered(asked.elapsed().as_secs_f64());
                    self.reach.borrow_mut().answered();
                    return Some((sender, response));
                }
                // The other side has closed a connection that was idle, which is its right.
                Some(Err(_)) if was_used => {}
                Some(Err(_)) | None => {
                    self.was_silent();
                    return None;
                }
            }
        }
    }

    /// Waits for the first byte of an answer. Returns `None` if it does not come in time.
    ///
    /// A node that may have to read the source has until the deadline, but only while it takes connections: one that
    /// takes none will not answer either.
    async fn first_byte<T>(&self, answer: impl Future<Output = T>, deadline: Instant) -> Option<T> {
        let within = deadline.saturating_duration_since(Instant::now());
        // To try another connection costs little.
        let most = if self.may_read_first { within.min(CONNECT_MAX) } else { within };
        let usual = Duration::from_secs_f64(self.health.borrow().first_byte_s(most.as_secs_f64()));
        let mut answer = pin!(answer);
        let answered = timeout(usual, &mut answer).await.ok();
        if answered.is_some() || !self.may_read_first {
            return answered;
        }
        let mut is_gone = pin!(self.takes_no_connection(deadline));
        let first = poll_fn(|context| match answer.as_mut().poll(context) {
            Poll::Ready(answered) => Poll::Ready(Some(answered)),
            Poll::Pending => is_gone.as_mut().poll(context).map(|()| None),
        });
        timeout_at(deadline.into(), first).await.ok().flatten()
    }

    /// Blocks until the node takes no connection any more.
    async fn takes_no_connection(&self, deadline: Instant) {
        while self.connect(deadline).await.is_some() {
            tokio::time::sleep(CONNECT_MAX).await;
        }
    }

    fn was_silent(self: &Rc<Self>) {
        self.reach.borrow_mut().silent(self.number, self.now_s());
        self.suspect();
    }

    /// Suspects the node, and probes it until it answers.
    fn suspect(self: &Rc<Self>) {
        let was_suspected = self.is_suspected();
        self.health.borrow_mut().silent(self.now_s());
        if was_suspected {
            return;
        }
        // The node may know nothing of these any more.
        self.idle.borrow_mut().clear();
        let node = Rc::clone(self);
        spawn_local(async move {
            while let Some(at_s) = node.probe_at_s() {
                tokio::time::sleep(Duration::from_secs_f64((at_s - node.now_s()).max(0.0))).await;
                if node.answers().await {
                    node.health.borrow_mut().cleared();
                    node.reach.borrow_mut().answered();
                } else {
                    node.health.borrow_mut().not_cleared(node.now_s());
                }
            }
        });
    }

    fn probe_at_s(&self) -> Option<f64> {
        self.health.borrow().probe_at_s()
    }

    /// Asks the node for an object that nobody has. Returns true if it says anything but that it has another table of
    /// members.
    async fn answers(&self) -> bool {
        let Ok(_place) = self.places.acquire().await else { return false };
        let Some(mut sender) = self.connect(Instant::now() + CONNECT_MAX).await else {
            return false;
        };
        let Some(request) = (self.probe)() else { return false };
        let answered = timeout(PROBE_WAIT, sender.send_request(request)).await;
        let Ok(Ok(response)) = answered else { return false };
        response.status() != StatusCode::CONFLICT
    }

    async fn connect(&self, deadline: Instant) -> Option<Sender> {
        let within = CONNECT_MAX.min(deadline.saturating_duration_since(Instant::now()));
        let connect = async {
            let stream = TcpStream::connect(self.address).await.ok()?;
            stream.set_nodelay(true).ok()?;
            let secured = self.connector.connect(ServerName::from(self.address.ip()), stream).await.ok()?;
            let mut builder = http1::Builder::new();
            let (sender, connection) = builder
                .max_buf_size(READ_BUFFER_BYTES)
                .handshake(TokioIo::new(secured))
                .await
                .ok()?;
            spawn_local(async move {
                let _ = connection.await;
            });
            Some(sender)
        };
        timeout(within, connect).await.ok()?
    }

    /// Reads a body of exactly `length` bytes, each part by `take`, which says whether to go on. Returns true if all
    /// came, before the deadline and without a pause that is too long.
    pub(crate) async fn receive(
        self: &Rc<Self>,
        body: &mut Incoming,
        deadline: Instant,
        length: usize,
        mut take: impl FnMut(usize, &[u8]) -> bool,
    ) -> bool {
        let mut came = 0;
        // One timer for all parts: it is looked at when it ends.
        let mut timer = pin!(sleep_until((Instant::now() + PROGRESS_MAX).min(deadline).into()));
        let mut since = Instant::now();
        while came < length {
            let mut next = pin!(body.frame());
            let either = poll_fn(|context| match next.as_mut().poll(context) {
                Poll::Ready(frame) => Poll::Ready(Some(frame)),
                Poll::Pending => timer.as_mut().poll(context).map(|()| None),
            });
            let Some(frame) = either.await else {
                let now = Instant::now();
                if now >= deadline {
                    return false;
                }
                if now >= since + PROGRESS_MAX {
                    self.was_silent();
                    return false;
                }
                timer.as_mut().reset((since + PROGRESS_MAX).min(deadline).into());
                continue;
            };
            let Some(Ok(frame)) = frame else { return false };
            if let Some(part) = frame.data_ref() {
                if part.len() > length - came || !take(came, part) {
                    return false;
                }
                came += part.len();
                since = Instant::now();
            }
        }
        true
    }
}
