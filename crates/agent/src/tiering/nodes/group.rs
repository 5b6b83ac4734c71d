//! The nodes of one job.

use std::{
    os::fd::OwnedFd,
    sync::{Arc, atomic::Ordering::Relaxed},
    thread,
};

use forebay_contract::Identity;
use forebay_peers::{BlobId, BlobRequest, Holder, Kind, Peers, Reply, Server};
use forebay_policy::peers::Owners;

use crate::{
    host::{log, peer_table::PeerTable},
    tiering::{
        handoff::Handoff,
        nodes::{
            blob::{CopyPart, SharedVersion},
            fetcher::FetchPlan,
        },
    },
};

/// Nodes that are asked for a file: its owner, and the one that takes over from it.
const HOLDERS: usize = 2;

/// Passes a message to the event loop, from any thread.
pub(crate) type Deliver = Arc<dyn Fn(NodeEvent) + Send + Sync>;

/// Message of the threads that speak with other nodes.
#[derive(Debug)]
pub(crate) enum NodeEvent {
    /// The nodes of a job can be asked, and asks of them are answered, or it failed for this reason.
    Ready {
        /// Name of the job.
        job: String,
        /// The nodes.
        group: Result<Box<NodeGroup>, String>,
    },
    /// Another node asks for a file.
    Asked {
        /// Name of the job.
        job: Arc<str>,
        /// Its request.
        request: BlobRequest,
        /// Way back.
        reply: Reply,
    },
    /// A copy that requests wait for has another piece.
    Advanced {
        /// Number of the copy.
        number: u64,
    },
    /// A file for other nodes was opened, or can't be.
    Opened {
        /// Path of the file.
        path: Vec<u8>,
        /// The file; `None` if it can't be opened, or is not a regular file.
        file: Option<Box<Handoff>>,
    },
}

/// The nodes of a job.
#[derive(Debug)]
pub(crate) struct NodeGroup {
    server: Server,
    peers: Arc<Peers>,
    owners: Owners,
    nodes: usize,
    here: u16,
}

/// Part of a node in a file.
#[derive(Debug)]
pub(crate) enum FileShare {
    /// No other node has a part in it.
    Alone,
    /// This node reads it for all.
    Owner,
    /// Another node reads it.
    Other(FetchPlan),
}

impl NodeGroup {
    /// Starts the group of a job in the background: ranking the owners takes a while. A [`NodeEvent::Ready`] follows.
    pub(crate) fn begin(job: String, table: PeerTable, listener: OwnedFd, deliver: Deliver) {
        let begin = move || {
            let group = Self::start(&job, &table, listener, Arc::clone(&deliver)).map(Box::new);
            deliver(NodeEvent::Ready { job, group });
        };
        if let Err(error) = thread::Builder::new().name("nodes".into()).spawn(begin) {
            log::fallback(&format!("files are not shared with other nodes: {error}"));
        }
    }

    fn start(job: &str, table: &PeerTable, listener: OwnedFd, deliver: Deliver) -> Result<Self, String> {
        let inbox = Inbox::new(job, deliver);
        let (server, peers) = table.start(Kind::Files, listener, Arc::new(inbox))?;
        let nodes: Vec<(u64, f64)> = (0..table.nodes.len() as u64).map(|node| (node, 1.0)).collect();
        Ok(Self {
            server,
            peers: Arc::new(peers),
            owners: Owners::new(&nodes, HOLDERS),
            nodes: nodes.len(),
            here: table.here,
        })
    }

    /// Returns the part of this node in a file, by its path.
    pub(crate) fn share_of(&self, path: &[u8], identity: &Identity) -> FileShare {
        let holders = self.owners.of(owner_hash(path));
        if holders.first() == Some(&self.here) {
            return FileShare::Owner;
        }
        let version = SharedVersion::of(identity);
        let plan = |part| Arc::new(version.name(path, part));
        FileShare::Other(FetchPlan {
            peers: Arc::clone(&self.peers),
            holders: holders.iter().copied().filter(|node| *node != self.here).collect(),
            place: (self.here, u16::try_from(self.nodes).unwrap_or(u16::MAX)),
            bytes: plan(CopyPart::Bytes),
            digest: plan(CopyPart::Digest),
        })
    }

    /// Returns true if this node reads the file at a path for all.
    pub(crate) fn is_owner_of(&self, path: &[u8]) -> bool {
        self.owners.of(owner_hash(path)).first() == Some(&self.here)
    }

    /// Returns true if this node reads the file at a path for all, or takes over from the one that does.
    pub(crate) fn may_read(&self, path: &[u8]) -> bool {
        self.owners.of(owner_hash(path)).contains(&self.here)
    }

    /// Returns the number of other nodes.
    pub(crate) const fn others(&self) -> usize {
        self.nodes - 1
    }

    /// Returns the ranges and bytes that other nodes were sent.
    pub(crate) fn sent(&self) -> (u64, u64) {
        let served = self.server.served();
        (served.ranges.load(Relaxed), served.bytes.load(Relaxed))
    }

    /// Ends the data plane, in a thread of its own: requests that are under way may take until their deadline.
    pub(crate) fn end(self) {
        let end = move || drop(self);
        // Without a thread the process ends it.
        let _ = thread::Builder::new().name("nodes".into()).spawn(end);
    }
}

/// Returns the hash that names the owner of a path, whatever the version of the file.
fn owner_hash(path: &[u8]) -> u64 {
    BlobId::of(Kind::Files, path, b"").hash()
}

/// Passes requests of other nodes to the event loop.
pub(super) struct Inbox {
    job: Arc<str>,
    deliver: Deliver,
}

impl Inbox {
    pub(super) fn new(job: &str, deliver: Deliver) -> Self {
        Self { job: job.into(), deliver }
    }
}

impl Holder for Inbox {
    fn asked(&self, request: BlobRequest, reply: Reply) {
        let job = Arc::clone(&self.job);
        (self.deliver)(NodeEvent::Asked { job, request, reply });
    }
}
