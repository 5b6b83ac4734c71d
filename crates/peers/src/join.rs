//! A node joins the others of its job: by the launcher's variables, an interface, and a directory that all nodes see.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    path::Path,
    time::Duration,
};

use crate::{
    interface::{self, InterfaceError},
    launcher::{self, Job, LauncherError},
    members::Member,
    rendezvous::{Here, Met, RendezvousError, leave, meet},
};

/// Variable that names a network interface, an address of one, or a network.
pub const INTERFACE: &str = "FOREBAY_PEERS_INTERFACE";

/// A node that has not joined the others.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The launcher contradicts itself.
    #[error(transparent)]
    Launcher(#[from] LauncherError),
    /// No address of this node can be told.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// The launcher does not say where its first node is.
    #[error("{0} does not say which network leads to the other nodes: set {INTERFACE} to the name of an interface")]
    NoFirst(launcher::Launcher),
    /// No socket listens.
    #[error("listen on {0}: {1}; set {INTERFACE} to another interface")]
    Listen(SocketAddr, io::Error),
    /// Nodes did not find each other.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
}

/// A node that has joined the others.
#[derive(Debug)]
pub struct Joined {
    /// All nodes.
    pub met: Met,
    /// The socket that listens on this node's address.
    pub listener: TcpListener,
}

/// A job of several nodes, and the name of what they share.
#[derive(Debug)]
pub struct Group {
    job: Job,
    key: String,
}

impl Group {
    /// Returns the group of nodes that share something of this name, such as a loader. `None` if the launcher says
    /// nothing of nodes, or has one only.
    ///
    /// # Errors
    /// The launcher's variables contradict each other.
    pub fn of(variables: &dyn Fn(&str) -> Option<String>, name: &str) -> Result<Option<Self>, JoinError> {
        let job = launcher::detect(variables)?.filter(|job| job.nodes > 1);
        Ok(job.map(|job| {
            let key = format!("{}-{}", job.key, launcher::plain(name));
            Self { job, key }
        }))
    }

    /// Number of nodes.
    pub const fn nodes(&self) -> u16 {
        self.job.nodes
    }

    /// Listens for the other nodes, and meets them in `dir`.
    ///
    /// `ranks` is the number of ranks of this node, and `choice` the user's choice of an interface. It ends early,
    /// with an error, once `is_unwanted` says so.
    ///
    /// # Errors
    /// [`JoinError`].
    pub fn join(
        &self,
        dir: &Path,
        ranks: u32,
        choice: Option<&str>,
        wait: Duration,
        is_unwanted: &dyn Fn() -> bool,
    ) -> Result<Joined, JoinError> {
        let address = match (choice, &self.job.first) {
            (Some(choice), _) => interface::chosen(choice)?,
            (None, Some((host, _))) => interface::towards(host)?,
            (None, None) => return Err(JoinError::NoFirst(self.job.launcher)),
        };
        let any_port = SocketAddr::from((address, 0));
        let listen = || {
            let listener = TcpListener::bind(any_port)?;
            Ok((listener.local_addr()?, listener))
        };
        let (address, listener) = listen().map_err(|error| JoinError::Listen(any_port, error))?;
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let here = Here {
            node: self.job.node,
            nodes: self.job.nodes,
            member: Member {
                // Several nodes of a test, and containers, may have one name.
                name: format!("{host}:{}", self.job.node),
                address,
            },
            ranks,
        };
        let met = meet(dir, &self.key, &here, wait, is_unwanted)?;
        Ok(Joined { met, listener })
    }

    /// Removes the files by which the nodes have met, if this is the first node.
    pub fn leave(&self, dir: &Path) {
        if self.job.node == 0 {
            leave(dir, &self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const WAIT: Duration = Duration::from_secs(20);

    fn group(node: u16, nodes: u16) -> Option<Group> {
        let variables = move |name: &str| match name {
            "GROUP_RANK" => Some(node.to_string()),
            "GROUP_WORLD_SIZE" => Some(nodes.to_string()),
            _ => None,
        };
        Group::of(&variables, "train/0").unwrap()
    }

    #[test]
    fn a_job_of_one_node_has_no_group() {
        assert!(group(0, 1).is_none());
        assert!(Group::of(&|_| None, "train").unwrap().is_none());
    }

    #[test]
    fn nodes_meet_on_the_interface_that_was_chosen() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let join = |node| group(node, 2).unwrap().join(dir, 3, Some("lo"), WAIT, &|| false).unwrap();
        let (one, other) = thread::scope(|scope| {
            let other = scope.spawn(|| join(1));
            (join(0), other.join().unwrap())
        });
        assert_eq!(one.met.members.digest(), other.met.members.digest());
        assert_eq!(one.met.ranks, [3, 3]);
        for joined in [&one, &other] {
            let here = joined.met.members.member(joined.met.members.here()).unwrap();
            assert_eq!(here.address, joined.listener.local_addr().unwrap());
        }
        group(1, 2).unwrap().leave(dir);
        assert_eq!(std::fs::read_dir(dir).unwrap().count(), 1, "the first node removes the files");
        group(0, 2).unwrap().leave(dir);
        assert_eq!(std::fs::read_dir(dir).unwrap().count(), 0);
    }

    #[test]
    fn what_is_missing_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let why = |choice| {
            group(0, 2)
                .unwrap()
                .join(dir.path(), 1, choice, Duration::from_millis(200), &|| false)
                .unwrap_err()
                .to_string()
        };
        assert!(why(None).contains("set FOREBAY_PEERS_INTERFACE"), "{}", why(None));
        assert!(why(Some("none0")).contains("none0"), "{}", why(Some("none0")));
        assert!(why(Some("lo")).contains("1 of 2 nodes did not come"), "{}", why(Some("lo")));
    }
}
