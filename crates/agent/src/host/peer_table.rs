//! The nodes of a job that share what they keep, as a role is told of them.

use std::{
    fmt, io,
    net::{SocketAddr, TcpListener},
    os::fd::OwnedFd,
    sync::Arc,
};

use forebay_peers::{Holder, Joined, Kind, Member, Members, Peers, PeersError, Secret, Server, Totals};
use forebay_policy::peers::NodeGroups;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::{
    limits::PEER_TABLE_BYTES_MAX,
    shared::{self, SharedFile},
};

/// Nodes of a job that share what they keep.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerTable {
    /// The nodes, in the order of their ranks.
    pub nodes: Vec<PeerAddress>,
    /// Place of this node among them.
    pub here: u16,
    /// True if each node has the same number of ranks, those of a node being consecutive.
    pub is_even: bool,
    /// Most nodes of a group that keeps everything once; 0 for one group of all.
    pub group_max: u16,
    /// The secret that only processes of the job have.
    pub secret: PeerSecret,
}

/// A node of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerAddress {
    /// Name of its host.
    pub name: String,
    /// Address on which it listens.
    pub address: SocketAddr,
}

/// A secret of 32 bytes, as 64 hexadecimal digits. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PeerSecret(pub Zeroizing<String>);

impl PeerTable {
    /// Returns the table of nodes that have met.
    pub fn of(joined: &Joined) -> Self {
        let met = &joined.met;
        let address = |member: &Member| PeerAddress {
            name: member.name.clone(),
            address: member.address,
        };
        Self {
            nodes: met.members.members().iter().map(address).collect(),
            here: met.members.here(),
            is_even: met.is_even,
            group_max: met.group_max,
            secret: PeerSecret(met.secret.clone()),
        }
    }

    /// Writes the table to sealed memory, to be sent: a packet has no room for thousands of nodes.
    ///
    /// # Errors
    /// There is no memory for it.
    pub(crate) fn seal(&self) -> io::Result<OwnedFd> {
        shared::seal("forebay-nodes", &Zeroizing::new(serde_json::to_vec(self)?))
    }

    /// Reads a table that was sent.
    ///
    /// # Errors
    /// It is not sealed, too long, or not a table.
    pub(crate) fn open(table: OwnedFd) -> io::Result<Self> {
        let table = SharedFile::received_sealed(table)?;
        let length = table.region().len();
        let bytes = table.region().bytes(0, length as u64).filter(|_| length <= PEER_TABLE_BYTES_MAX);
        Ok(serde_json::from_slice(bytes.ok_or(io::ErrorKind::FileTooLarge)?)?)
    }

    /// Starts to serve the other nodes on a listening socket with what `holder` has, and to ask them.
    ///
    /// # Errors
    /// Message for a person.
    pub(crate) fn start(&self, kind: Kind, listener: OwnedFd, holder: Arc<dyn Holder>) -> Result<(Server, PeerLinks), String> {
        let member = |node: &PeerAddress| Member {
            name: node.name.clone(),
            address: node.address,
        };
        let nodes = self.nodes.iter().map(member).collect();
        let members = Members::new(0, nodes, usize::from(self.here)).map_err(|error| error.to_string())?;
        let secret = Secret::new(self.secret.bytes().ok_or("the job's secret has not 64 hexadecimal digits")?);
        let groups = self.groups();
        let start = || {
            let server = Server::start(kind, &secret, &members, TcpListener::from(listener), holder)?;
            let links = PeerLinks {
                near: Peers::start(kind, &secret, &members)?,
                far: (groups.count() > 1).then(|| Peers::start(kind, &secret, &members)).transpose()?,
                groups,
                here: self.here,
            };
            Ok((server, links))
        };
        start().map_err(|error: PeersError| error.to_string())
    }

    /// Returns the groups of the nodes.
    pub(crate) fn groups(&self) -> NodeGroups {
        NodeGroups::of_at_most(self.nodes.len() as u16, self.group_max)
    }
}

/// Ways to the other nodes of a job: one to those of this node's group, and one to all others.
///
/// A node of the group may have to ask another group before it answers. Requests to other groups have room of their
/// own, so that they never wait behind requests to such a node.
#[derive(Debug)]
pub(crate) struct PeerLinks {
    near: Peers,
    far: Option<Peers>,
    groups: NodeGroups,
    here: u16,
}

impl PeerLinks {
    /// Returns the way to a node.
    pub(crate) fn to(&self, node: u16) -> &Peers {
        let is_near = self.groups.are_together(node, self.here);
        self.far.as_ref().filter(|_| !is_near).unwrap_or(&self.near)
    }

    /// Returns the counts of each node, by its number.
    pub(crate) fn totals(&self) -> Vec<Totals> {
        let mut totals = self.near.totals();
        if let Some(far) = &self.far {
            for ((node, near), far) in (0..).zip(&mut totals).zip(far.totals()) {
                if !self.groups.are_together(node, self.here) {
                    *near = far;
                }
            }
        }
        totals
    }

    /// Number of this node.
    pub(crate) const fn here(&self) -> u16 {
        self.here
    }
}

impl PeerSecret {
    /// Returns the bytes; `None` if these are not 64 hexadecimal digits.
    fn bytes(&self) -> Option<[u8; 32]> {
        let digits: Vec<u8> = self
            .0
            .chars()
            .map(|digit| digit.to_digit(16).map(|digit| digit as u8))
            .collect::<Option<_>>()?;
        let bytes: Vec<u8> = digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect();
        <[u8; 32]>::try_from(bytes).ok().filter(|_| digits.len() == 64)
    }
}

impl fmt::Debug for PeerSecret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("PeerSecret")
    }
}

/// Returns a table of one node.
#[cfg(test)]
pub(crate) fn table_of_one() -> PeerTable {
    PeerTable {
        nodes: vec![PeerAddress {
            name: "node".into(),
            address: "10.0.0.1:7000".parse().unwrap(),
        }],
        here: 1,
        is_even: true,
        group_max: 0,
        secret: PeerSecret(Zeroizing::new("ab".repeat(32))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_not_shown_and_has_32_bytes() {
        assert!(!format!("{:?}", table_of_one()).contains("abab"));
        assert_eq!(table_of_one().secret.bytes(), Some([0xab; 32]));
        for wrong in [
            "",
            "ab",
            "xyxyxyxyxyxyxyxyxyxyxyxyxyxyxyxyxyxyxyxyxyxyxyxyxyxyxyxyxyxyxyxy",
            &"a".repeat(65),
        ] {
            assert_eq!(PeerSecret(Zeroizing::new(wrong.to_owned())).bytes(), None, "{wrong}");
        }
    }

    #[test]
    fn a_table_of_the_largest_job_is_sent_whole() {
        let mut table = table_of_one();
        let name = |node: usize| format!("{}-{node}.cluster.example.org:{node}", "n".repeat(40));
        table.nodes = (0..4096)
            .map(|node| PeerAddress {
                name: name(node),
                address: format!("[2001:db8:1234:5678:9abc:def0:{node:x}:1]:65535").parse().unwrap(),
            })
            .collect();
        assert_eq!(PeerTable::open(table.seal().unwrap()).unwrap(), table);
        table.nodes.iter_mut().for_each(|node| node.name = "x".repeat(300));
        assert!(PeerTable::open(table.seal().unwrap()).is_err(), "it is too long");
        let open = rustix::fs::memfd_create("open", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        assert!(PeerTable::open(open).is_err(), "its sender could change it");
    }
}
