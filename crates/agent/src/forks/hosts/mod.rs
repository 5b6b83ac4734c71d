//! Clones on other hosts: the state of a job is copied to memory of a serving process while the read lease lasts,
//! and pulled from there over the data plane.
//!
//! [`ForkServer`] runs at each host of the job (`forebay clone serve`). For each fork it takes the states of the ranks
//! on its host as a clone there would (`staging.rs`): it reads leased tensors in place, digests them, has the job
//! confirm that nothing changed, and reports the states as loaded. From then on the job has no part in the transfer.
//! Each rank keeps its shard of the replicated entries, and its own entries, in memory of the server (`stage.rs`).
//!
//! [`RemoteJob`] runs at the host of the clone (`forebay clone --from`). It registers the ranks of the job at the forks
//! role of its own host under a guest name, has all hosts of the job (`source_host.rs`) capture the states of one step
//! (`agreeing.rs`), pulls manifests and bytes from all of them (`pulling.rs`) into memory (`received.rs`), and
//! publishes them here as the job would, large entries under a read lease while they come. From there on the clone is
//! one like any other: it checks every digest, and exists once all ranks have loaded. Several hosts of one clone meet
//! at the first host of the job, and pull shards from each other (`gathering.rs`); the clone exists once the ranks of
//! all of them have loaded. Several clones of one step pull from each other, too (`sharing.rs`).
//!
//! Both sides know each other by a [`Ticket`], a private file with the secret of the data plane's keys. Requests are
//! names of objects that the server makes ([`HostRequest`]); ranges of manifests and states are pulled by identity.

mod agreeing;
mod filled;
mod gathering;
mod memory;
pub(in crate::forks) mod message;
mod object_part;
mod planning;
mod pulling;
mod received;
mod receiving;
mod served_object;
mod serving;
mod sharing;
mod source_host;
mod stage;
mod staging;
mod ticket;
mod under_way;

pub use message::HostRequest;
pub use receiving::{RemoteError, RemoteJob};
pub use serving::ForkServer;
pub use ticket::{Ticket, TicketError, TicketHost, TicketLock};
pub use under_way::CloneUnderWay;

/// Nodes in the table of a server: itself, and as many askers. An asker takes a number at random.
const ASKERS: u16 = 1024;

/// Tells whether nobody waits for a fork any more.
type IsOver<'a> = &'a (dyn Fn() -> bool + Sync);

/// Reason for a transfer that nobody waits for any more.
const OVER: &str = "the clone has ended";
