//! The nodes of one job.

use std::{
    os::fd::OwnedFd,
    sync::{Arc, atomic::Ordering::Relaxed},
    thread,
};

use forebay_contract::Identity;
use forebay_peers::{BlobId, BlobRequest, Holder, Kind, Reply, Server};
use forebay_policy::peers::{FileHolders, FilePart, NodeGroups};

use crate::{
    host::{
        log,
        peer_table::{PeerLinks, PeerTable},
    },
    tiering::{
        handoff::Handoff,
        nodes::{
            blob::{CopyPart, SharedVersion},
            fetcher::FetchPlan,
        },
    },
};

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
    peers: Arc<PeerLinks>,
    holders: FileHolders,
    here: u16,
}

/// Part of a node in a file.
#[derive(Debug)]
pub(crate) enum FileShare {
    /// No other node has a part in it.
    Alone,
    /// This node reads it for all.
    Owner,
    /// This node keeps it for the nodes of its group, and another node reads it.
    Keeper(FetchPlan),
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
        let groups = table.groups();
        let inbox = Inbox::new(job, deliver, groups, table.here);
        let (server, peers) = table.start(Kind::Files, listener, Arc::new(inbox))?;
        Ok(Self {
            server,
            peers: Arc::new(peers),
            holders: FileHolders::new(groups, table.here),
            here: table.here,
        })
    }

    /// Returns the part of this node in a file, by its path.
    pub(crate) fn share_of(&self, path: &[u8], identity: &Identity) -> FileShare {
        match self.holders.part(owner_hash(path)) {
            FilePart::Reads => FileShare::Owner,
            FilePart::Keeps(nodes) => FileShare::Keeper(self.plan(path, identity, nodes)),
            FilePart::Asks(nodes) => FileShare::Other(self.plan(path, identity, nodes)),
        }
    }

    /// Returns the plan by which this node gets a file that nodes of its group have asked for from another group;
    /// `None` if it reads the source.
    pub(crate) fn plan_for_others(&self, path: &[u8], identity: &Identity) -> Option<FetchPlan> {
        let nodes = self.holders.to_ask_for_others(owner_hash(path));
        (!nodes.is_empty()).then(|| self.plan(path, identity, nodes))
    }

    fn plan(&self, path: &[u8], identity: &Identity, holders: Vec<u16>) -> FetchPlan {
        let version = SharedVersion::of(identity);
        let name = |part| Arc::new(version.name(path, part));
        FetchPlan {
            peers: Arc::clone(&self.peers),
            holders,
            place: (self.here, self.holders.groups().nodes()),
            bytes: name(CopyPart::Bytes),
            digest: name(CopyPart::Digest),
        }
    }

    /// Returns true if this node reads the file at a path for all.
    pub(crate) fn is_owner_of(&self, path: &[u8]) -> bool {
        self.holders.part(owner_hash(path)) == FilePart::Reads
    }

    /// Returns true if this node gets the file at a path for another node: it keeps it for its group, or takes over
    /// from the one that does. For a node of another group it asks no third one.
    pub(crate) fn gets_for(&self, node: u16, path: &[u8]) -> bool {
        let hash = owner_hash(path);
        self.holders.gets_for_others(hash) && (self.is_near(node) || self.holders.to_ask_for_others(hash).is_empty())
    }

    /// Returns true if a node is of this node's group.
    pub(crate) fn is_near(&self, node: u16) -> bool {
        self.holders.is_near(node)
    }

    /// Returns true if this node keeps the file at a path for its group.
    pub(crate) fn keeps(&self, path: &[u8]) -> bool {
        self.holders.keeps(owner_hash(path))
    }

    /// Returns true if the job has several groups.
    pub(crate) fn has_groups(&self) -> bool {
        self.holders.groups().count() > 1
    }

    /// Returns the other nodes, in words.
    pub(crate) fn others(&self) -> String {
        let groups = self.holders.groups();
        let others = match groups.nodes() - 1 {
            1 => "1 other node".into(),
            others => format!("{others} other nodes"),
        };
        match groups.count() {
            1 => others,
            count => format!("{others}, in {count} groups of at most {}", groups.size_max()),
        }
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
    groups: NodeGroups,
    here: u16,
}

impl Inbox {
    pub(super) fn new(job: &str, deliver: Deliver, groups: NodeGroups, here: u16) -> Self {
        Self {
            job: job.into(),
            deliver,
            groups,
            here,
        }
    }
}

impl Holder for Inbox {
    fn asked(&self, request: BlobRequest, reply: Reply) {
        let job = Arc::clone(&self.job);
        (self.deliver)(NodeEvent::Asked { job, request, reply });
    }

    fn is_apart(&self, node: u16) -> bool {
        !self.groups.are_together(node, self.here)
    }
}
