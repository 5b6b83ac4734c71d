//! Another node, as it is asked: connections to it, and what is known of its health.

use std::{
    cell::RefCell,
    net::SocketAddr,
    time::{Duration, Instant},
};

use bytes::Bytes;
use forebay_policy::peers::Health;
use http_body_util::{BodyExt, Full};
use hyper::{
    Request, Response,
    body::{Body, Incoming},
    client::conn::http1::{self, SendRequest},
};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::{
    net::TcpStream,
    sync::Semaphore,
    task::spawn_local,
    time::{timeout, timeout_at},
};
use tokio_rustls::TlsConnector;

use crate::limits::{CONNECT_MAX, CONNECTIONS_TO_NODE_MAX, IDLE_MAX, PROGRESS_MAX};

/// Bytes that hyper reads at once of an answer.
const READ_BUFFER_BYTES: usize = 512 << 10;

type Sender = SendRequest<Full<Bytes>>;

/// A node that is asked.
pub(crate) struct AskedNode {
    address: SocketAddr,
    connector: TlsConnector,
    began: Instant,
    health: RefCell<Health>,
    /// Connections that are not in use, the last one used last.
    idle: RefCell<Vec<(Sender, Instant)>>,
    places: Semaphore,
    /// True if it may have to read the source before it answers: then it has all the time that the asker has.
    may_read_first: bool,
}

impl AskedNode {
    pub(crate) fn new(address: SocketAddr, connector: TlsConnector, may_read_first: bool) -> Self {
        Self {
            address,
            connector,
            began: Instant::now(),
            health: RefCell::default(),
            idle: RefCell::default(),
            places: Semaphore::new(CONNECTIONS_TO_NODE_MAX),
            may_read_first,
        }
    }

    /// Returns whether the node is not to be asked now.
    pub(crate) fn is_suspected(&self) -> bool {
        self.health.borrow().is_suspected(self.now_s())
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

    fn now_s(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// Sends a request, and has its answer read. Returns `None` if there was no connection, or no first byte in time:
    /// the node's health knows that then. `make` is told for how long the asker waits.
    pub(crate) async fn exchange<T>(
        &self,
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
        &self,
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
                self.health.borrow_mut().failed(self.now_s());
                return None;
            };
            let within = deadline.saturating_duration_since(Instant::now());
            let first_byte = if self.may_read_first {
                within
            } else {
                Duration::from_secs_f64(self.health.borrow().first_byte_s(within.as_secs_f64()))
            };
            let asked = Instant::now();
            match timeout(first_byte, sender.send_request(make(within)?)).await {
                Ok(Ok(response)) => {
                    self.health.borrow_mut().answered(asked.elapsed().as_secs_f64());
                    return Some((sender, response));
                }
                // The other side has closed a connection that was idle, which is its right.
                Ok(Err(_)) if was_used => {}
                Ok(Err(_)) => {
                    self.health.borrow_mut().failed(self.now_s());
                    return None;
                }
                Err(_) => {
                    self.health.borrow_mut().late(self.now_s());
                    return None;
                }
            }
        }
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
}

/// Reads a body of exactly `length` bytes, each part by `take`, which says whether to go on. Returns whether all
/// came, before the deadline and without a pause that is too long.
pub(crate) async fn receive(body: &mut Incoming, deadline: Instant, length: usize, mut take: impl FnMut(usize, &[u8]) -> bool) -> bool {
    let mut came = 0;
    while came < length {
        let pause = PROGRESS_MAX.min(deadline.saturating_duration_since(Instant::now()));
        let Ok(Some(Ok(frame))) = timeout(pause, body.frame()).await else {
            return false;
        };
        if let Some(part) = frame.data_ref() {
            if part.len() > length - came || !take(came, part) {
                return false;
            }
            came += part.len();
        }
    }
    true
}
