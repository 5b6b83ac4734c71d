//! Fetches ranges from other nodes, into memory that the caller has reserved.

use std::{
    any::Any,
    fmt, io,
    rc::Rc,
    sync::{Arc, Mutex, PoisonError},
    thread::JoinHandle,
    time::Instant,
};

use tokio::sync::mpsc;

use crate::{
    asking::Asking,
    identity::{Keys, Secret},
    members::Members,
    runtime,
    wire::{BlobId, BlobName, Kind},
};

/// The data plane can't be started.
#[derive(Debug, thiserror::Error)]
pub enum PeersError {
    /// A socket or a thread.
    #[error("the data plane between nodes can't start: {0}")]
    Io(#[from] io::Error),
    /// Keys.
    #[error("the keys of the job's nodes can't be made: {0}")]
    Keys(#[from] rustls::Error),
}

/// Memory into which a range is fetched. Its length is that of the range.
pub trait Room: Any + Send + fmt::Debug {
    /// The memory.
    fn bytes(&mut self) -> &mut [u8];
}

impl Room for Vec<u8> {
    fn bytes(&mut self) -> &mut [u8] {
        self
    }
}

/// A range that is wanted from other nodes.
pub struct Wanted {
    /// The object.
    pub id: BlobId,
    /// Name and version of which the identity was made, for a node that can make the object. Together at most some
    /// 5,000 bytes, so that they fit into a head.
    pub name: Option<Arc<BlobName>>,
    /// First byte. The room's length says how many, 1 to [`RANGE_BYTES_MAX`](crate::limits::RANGE_BYTES_MAX).
    pub offset: u64,
    /// Nodes that may have it, the best first.
    pub holders: Vec<u16>,
    /// Time after which the range is useless.
    pub deadline: Instant,
    /// The step that needs it.
    pub turn: u64,
    /// True if the whole object is wanted, from `offset` on, whose length is not known: the room's length is the most
    /// that is taken.
    pub is_whole: bool,
    /// XXH3-128 of the range, where the caller knows it. Else the holder's own word is taken.
    pub digest: Option<u128>,
    /// Memory for the bytes.
    pub room: Box<dyn Room>,
    /// Called at the end, in the thread of the data plane: it must not block.
    pub done: Box<dyn FnOnce(Fetched) + Send>,
}

impl fmt::Debug for Wanted {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Wanted({} from {} of {:?})", self.id, self.offset, self.holders)
    }
}

/// Result of a fetch.
#[derive(Debug)]
pub struct Fetched {
    /// The memory that was given. It has bytes if they came, and else anything.
    pub room: Box<dyn Room>,
    /// End of the fetch.
    pub end: FetchEnd,
    /// Bytes of the object, from its beginning on, that the node which answered last has. It is less than the object's
    /// length while that is still being made; 0 if nobody answered with bytes.
    pub has: u64,
}

/// End of a fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchEnd {
    /// The bytes are at the beginning of the room.
    Came {
        /// The node that gave them.
        from: u16,
        /// Their number.
        bytes: u64,
    },
    /// The whole object has this length, for which the room is too small; or it is empty.
    OtherLength(u64),
    /// The nodes that were asked do not have it.
    Absent,
    /// Nobody gave it in time.
    Late,
}

impl Fetched {
    /// The node from which the bytes came; `None` if they did not come.
    pub const fn from(&self) -> Option<u16> {
        match self.end {
            FetchEnd::Came { from, .. } => Some(from),
            FetchEnd::OtherLength(_) | FetchEnd::Absent | FetchEnd::Late => None,
        }
    }
}

/// Takes the rooms of many ranges, and whether each has its bytes.
pub type ManyDone = Box<dyn FnOnce(Vec<(Box<dyn Room>, bool)>) + Send>;

/// Many small ranges of one node, wanted in one request.
pub struct ManyWanted {
    /// The node that is asked.
    pub node: u16,
    /// The ranges: object, offset, and room whose length is that of the range. At most 1,024, and 4 MiB in all.
    pub items: Vec<(BlobId, u64, Box<dyn Room>)>,
    /// Time after which the ranges are useless.
    pub deadline: Instant,
    /// The step that needs them.
    pub turn: u64,
    /// True if each is to be the whole of an object: one of another length does not come.
    pub are_whole: bool,
    /// Called at the end with each room, in the order of `items`. It must not block.
    pub done: ManyDone,
}

impl fmt::Debug for ManyWanted {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "ManyWanted({} ranges of node {})", self.items.len(), self.node)
    }
}

/// Counts of one node, or of all: from the beginning on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Ranges that came.
    pub ranges: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Ranges that were not there, or no longer.
    pub absent: u64,
    /// Ranges for which it had no time.
    pub busy: u64,
    /// Requests without an answer in time, or broken off.
    pub failed: u64,
    /// Ranges whose digest was wrong.
    pub corrupt: u64,
    /// Bytes that were asked for a second time since an answer took long.
    pub hedged_bytes: u64,
    /// Ranges that nobody gave: counted in the totals of all nodes only.
    pub left_to_source: u64,
}

pub(crate) enum Command {
    One(Wanted),
    Many(ManyWanted),
}

/// Asks other nodes. Ends, and leaves unfinished ranges to the source, when it is dropped.
#[derive(Debug)]
pub struct Peers {
    commands: Option<mpsc::UnboundedSender<Command>>,
    totals: Arc<Mutex<Vec<Totals>>>,
    here: u16,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for Command {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(wanted) => wanted.fmt(formatter),
            Self::Many(wanted) => wanted.fmt(formatter),
        }
    }
}

impl Peers {
    /// Starts a thread that asks the servers of one kind.
    ///
    /// # Errors
    /// Keys can't be made, or there is no thread.
    pub fn start(kind: Kind, secret: &Secret, members: &Members) -> Result<Self, PeersError> {
        let nodes = u16::try_from(members.members().len()).unwrap_or(u16::MAX);
        let keys = Keys::new(secret, kind, nodes, members.here())?;
        // The last is of all nodes.
        let totals = Arc::new(Mutex::new(vec![Totals::default(); usize::from(nodes) + 1]));
        let (commands, received) = mpsc::unbounded_channel();
        let state = (members.clone(), Arc::clone(&totals));
        let thread = runtime::start("ask", kind, move || {
            let (members, totals) = state;
            Rc::new(Asking::new(kind, keys, members, totals)).serve(received)
        })?;
        Ok(Self {
            commands: Some(commands),
            totals,
            here: members.here(),
            thread: Some(thread),
        })
    }

    /// Number of this node, which is never asked.
    pub const fn here(&self) -> u16 {
        self.here
    }

    /// Fetches a range. Never blocks.
    pub fn fetch(&self, wanted: Wanted) {
        self.send(Command::One(wanted));
    }

    /// Fetches many small ranges of one node by one request. Never blocks. A second node is not asked: ranges that
    /// did not come are the caller's to fetch by [`Self::fetch`], or to read from the source.
    pub fn fetch_many(&self, wanted: ManyWanted) {
        self.send(Command::Many(wanted));
    }

    fn send(&self, command: Command) {
        let left = match &self.commands {
            Some(commands) => commands.send(command).err().map(|unsent| unsent.0),
            None => Some(command),
        };
        if let Some(command) = left {
            command.give_up();
        }
    }

    /// Returns the counts of each node, by its number.
    pub fn totals(&self) -> Vec<Totals> {
        let mut totals = self.totals.lock().unwrap_or_else(PoisonError::into_inner).clone();
        totals.pop();
        totals
    }

    /// Returns how many ranges nobody gave.
    pub fn left_to_source(&self) -> u64 {
        let totals = self.totals.lock().unwrap_or_else(PoisonError::into_inner);
        totals.last().map_or(0, |all| all.left_to_source)
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        drop(self.commands.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Command {
    fn give_up(self) {
        match self {
            Self::One(wanted) => (wanted.done)(Fetched {
                room: wanted.room,
                end: FetchEnd::Late,
                has: 0,
            }),
            Self::Many(wanted) => (wanted.done)(wanted.items.into_iter().map(|(_, _, room)| (room, false)).collect()),
        }
    }
}
