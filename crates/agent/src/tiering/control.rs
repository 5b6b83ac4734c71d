//! The control socket: hands each request of a command to the event loop, and the answer back. A connection is the
//! lease of the run that it joined.

use std::{
    collections::HashMap,
    os::fd::OwnedFd,
    path::Path,
    sync::{
        Arc,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

use crate::{
    host::{
        doorbell::Doorbell,
        driver::{Host, HostSettings},
        error::{AgentError, io_error},
        log,
        refusal::Refusal,
        role::{Peer, Peers, Role, Turn},
    },
    tiering::{
        handoff::HandoffQueue,
        limits::{BATCH_PAUSE, CONTROL_PEERS_MAX, QUEUE_WAIT_MAX},
        protocol::{ControlRequest, ControlResponse},
    },
};

/// Message from a command's connection to the event loop.
#[derive(Debug)]
pub(crate) enum CommandEvent {
    /// A command sends a request.
    Asked {
        request: ControlRequest,
        /// Descriptors beside the request.
        descriptors: Vec<OwnedFd>,
        /// Number of the run that the connection has joined.
        run: Option<u64>,
        /// Way back for the answer.
        reply: ReplyTo,
    },
    /// A command's connection has closed.
    Disconnected {
        /// Number of the run that the connection had joined.
        run: Option<u64>,
    },
}

/// Way back to a peer, from another thread.
#[derive(Clone, Debug)]
pub(crate) struct ReplyTo {
    peer: Peer,
    answers: Sender<(Peer, ControlResponse)>,
    doorbell: Arc<Doorbell>,
}

impl ReplyTo {
    /// Makes the way back to a peer of the thread that receives `answers` and sleeps on `doorbell`.
    pub(crate) fn new(peer: Peer, answers: Sender<(Peer, ControlResponse)>, doorbell: Arc<Doorbell>) -> Self {
        Self { peer, answers, doorbell }
    }

    /// Sends the answer from the control thread. A command that has gone gets none.
    pub(crate) fn send(self, answer: ControlResponse) {
        if self.answers.send((self.peer, answer)).is_ok() {
            self.doorbell.ring();
        }
    }
}

/// Binds the socket and starts the thread that serves it, which passes its messages to `deliver`.
pub(crate) fn start(dir: &Path, queue: HandoffQueue, deliver: impl Fn(CommandEvent) + Send + 'static) -> Result<(), AgentError> {
    let socket = dir.join("control.sock");
    let host = Host::open(HostSettings {
        socket: socket.clone(),
        peers_max: CONTROL_PEERS_MAX,
        // The event loop ends the process.
        idle_max: Duration::MAX,
        sleep_max: Duration::from_secs(3600),
    })?;
    let (answers, answered) = channel();
    let mut control = ControlRole {
        queue,
        deliver,
        answers,
        answered,
        doorbell: host.doorbell(),
        runs: HashMap::new(),
        waiting: Vec::new(),
    };
    let serve = move || {
        if let Err(error) = host.run(&mut control) {
            tracing::error!("the control socket is not served any more: {error}");
        }
    };
    thread::Builder::new()
        .name("control".into())
        .spawn(serve)
        .map_err(io_error("start a thread for", &socket))?;
    Ok(())
}

struct ControlRole<D> {
    queue: HandoffQueue,
    deliver: D,
    answers: Sender<(Peer, ControlResponse)>,
    answered: Receiver<(Peer, ControlResponse)>,
    doorbell: Arc<Doorbell>,
    /// Runs by the connection that joined them.
    runs: HashMap<Peer, u64>,
    /// Requests that wait until the event loop has all earlier descriptor handoffs, and the time until which they wait.
    waiting: Vec<(Peer, ControlRequest, Instant)>,
}

impl<D: Fn(CommandEvent)> Role for ControlRole<D> {
    type Request = ControlRequest;
    type Response = ControlResponse;
    const OTHER_VERSION_MEND: &'static str = "wait for its runs to end, or use another tier";

    fn hear(&mut self, peer: Peer, request: ControlRequest, descriptors: Vec<OwnedFd>, peers: &mut Peers) {
        if self.runs.contains_key(&peer) && matches!(request, ControlRequest::Join { .. }) {
            let refusal = Refusal::from("this connection has joined a run already");
            return peers.send(peer, &ControlResponse::from(refusal), &[]);
        }
        // The answer counts all earlier opens; and files that the last program opened just before it ended are copied,
        // too.
        let waits = matches!(request, ControlRequest::Status | ControlRequest::Leave) && !self.queue.is_taken();
        if waits {
            self.waiting.push((peer, request, Instant::now() + QUEUE_WAIT_MAX));
        } else {
            self.pass(peer, request, descriptors);
        }
    }

    fn gone(&mut self, peer: Peer, _peers: &mut Peers) {
        self.waiting.retain(|(waiting, _, _)| *waiting != peer);
        let run = self.runs.remove(&peer);
        (self.deliver)(CommandEvent::Disconnected { run });
    }

    fn turn(&mut self, peers: &mut Peers) -> Turn {
        while let Ok((peer, answer)) = self.answered.try_recv() {
            if let ControlResponse::Joined { run, .. } = &answer {
                if peers.get(peer).is_some() {
                    self.runs.insert(peer, *run);
                } else {
                    log::lost(None, "a command ended before it heard that its run was joined");
                    (self.deliver)(CommandEvent::Disconnected { run: Some(*run) });
                }
            }
            peers.send(peer, &answer, &[]);
        }
        let is_taken = !self.waiting.is_empty() && self.queue.is_taken();
        let now = Instant::now();
        for (peer, request, _) in self
            .waiting
            .extract_if(.., |(_, _, until)| is_taken || *until <= now)
            .collect::<Vec<_>>()
        {
            self.pass(peer, request, Vec::new());
        }
        if self.waiting.is_empty() {
            Turn::WaitForPeers
        } else {
            Turn::WaitUntil(now + BATCH_PAUSE)
        }
    }
}

impl<D: Fn(CommandEvent)> ControlRole<D> {
    fn pass(&self, peer: Peer, request: ControlRequest, descriptors: Vec<OwnedFd>) {
        let reply = ReplyTo::new(peer, self.answers.clone(), Arc::clone(&self.doorbell));
        let run = self.runs.get(&peer).copied();
        (self.deliver)(CommandEvent::Asked {
            request,
            descriptors,
            run,
            reply,
        });
    }
}
