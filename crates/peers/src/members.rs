//! The nodes of a job: who they are, in which order, and where they listen.

use std::{fmt, net::SocketAddr};

/// A node of the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its host's name, as people know it. No two nodes have the same.
    pub name: String,
    /// Address on which its server listens.
    pub address: SocketAddr,
}

/// A table of members that makes no sense.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum MembersError {
    /// Two nodes have one name.
    #[error("two nodes of the job are called {0:?}: give each host a name of its own")]
    SameName(String),
    /// Two nodes have one address.
    #[error("two nodes of the job, {0} and {1}, have the address {2}: check which interface they chose")]
    SameAddress(String, String, SocketAddr),
    /// A node of another host listens on loopback.
    #[error("node {0} listens on {1}, which other hosts can't reach: set FOREBAY_PEERS_INTERFACE")]
    Loopback(String, SocketAddr),
    /// There are too many.
    #[error("the job has {0} nodes; the most is {max}", max = u16::MAX)]
    TooMany(usize),
    /// This node is not in the table.
    #[error("this node is not among the {0} nodes of the job")]
    NotHere(usize),
}

/// The table of members, which the launcher made: all nodes have the same one, in the same order.
#[derive(Clone, PartialEq, Eq)]
pub struct Members {
    epoch: u64,
    nodes: Vec<Member>,
    here: u16,
    digest: u64,
}

impl Members {
    /// Checks a table. `epoch` counts the tables of a job, `here` is the place of this node.
    ///
    /// # Errors
    /// [`MembersError`]: two nodes with one name or address, too many, `here` outside of the table; or several nodes
    /// and one of them on loopback, unless all are.
    pub fn new(epoch: u64, members: Vec<Member>, here: usize) -> Result<Self, MembersError> {
        if members.len() > usize::from(u16::MAX) {
            return Err(MembersError::TooMany(members.len()));
        }
        let place = u16::try_from(here).ok().filter(|_| here < members.len());
        let here = place.ok_or(MembersError::NotHere(members.len()))?;
        let mut by_name: Vec<&Member> = members.iter().collect();
        by_name.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        if let Some((a, _)) = pair(&by_name, |a, b| a.name == b.name) {
            return Err(MembersError::SameName(a.name.clone()));
        }
        by_name.sort_unstable_by_key(|member| member.address);
        if let Some((a, b)) = pair(&by_name, |a, b| a.address == b.address) {
            return Err(MembersError::SameAddress(a.name.clone(), b.name.clone(), a.address));
        }
        let is_on_loopback = |member: &&Member| member.address.ip().is_loopback();
        if let Some(member) = members.iter().find(is_on_loopback)
            && !members.iter().all(|member| is_on_loopback(&member))
        {
            return Err(MembersError::Loopback(member.name.clone(), member.address));
        }
        let mut hasher = blake3::Hasher::new();
        hasher.update(&epoch.to_le_bytes());
        for member in &members {
            hasher.update(&(member.name.len() as u64).to_le_bytes());
            hasher.update(member.name.as_bytes());
            hasher.update(member.address.to_string().as_bytes());
            hasher.update(&[0]);
        }
        let mut digest = [0; 8];
        hasher.finalize_xof().fill(&mut digest);
        Ok(Self {
            epoch,
            nodes: members,
            here,
            digest: u64::from_le_bytes(digest),
        })
    }

    /// Makes the table of one server and its askers, which need no addresses: the server is node 0, and an asker takes
    /// any other number. Both sides have the same digest, whatever address the asker reaches the server by.
    ///
    /// # Errors
    /// [`MembersError::NotHere`]: `here` is not below `nodes`.
    pub fn of_server(server: SocketAddr, nodes: u16, here: u16) -> Result<Self, MembersError> {
        if here >= nodes {
            return Err(MembersError::NotHere(nodes.into()));
        }
        let node = |number: u16| Member {
            name: number.to_string(),
            address: server,
        };
        Ok(Self {
            epoch: 0,
            nodes: (0..nodes).map(node).collect(),
            here,
            digest: nodes.into(),
        })
    }

    /// The number of the table: a later table of the same job has a larger one.
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The nodes, by number.
    pub fn members(&self) -> &[Member] {
        &self.nodes
    }

    /// Number of this node.
    pub const fn here(&self) -> u16 {
        self.here
    }

    /// A digest of the table: nodes with other tables would compute other owners.
    pub const fn digest(&self) -> u64 {
        self.digest
    }

    /// Returns a node by its number.
    pub fn member(&self, node: u16) -> Option<&Member> {
        self.nodes.get(usize::from(node))
    }
}

impl fmt::Debug for Members {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "Members({} nodes, epoch {}, here {})",
            self.nodes.len(),
            self.epoch,
            self.here
        )
    }
}

/// Returns the first two neighbours of which `alike` is true.
fn pair<'a, T>(sorted: &[&'a T], alike: impl Fn(&T, &T) -> bool) -> Option<(&'a T, &'a T)> {
    sorted
        .iter()
        .zip(sorted.iter().skip(1))
        .find(|(a, b)| alike(a, b))
        .map(|(a, b)| (*a, *b))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &str, address: &str) -> Member {
        Member {
            name: name.into(),
            address: address.parse().unwrap(),
        }
    }

    #[test]
    fn tables_that_differ_have_other_digests() {
        let nodes = [member("a", "10.0.0.1:7000"), member("b", "10.0.0.2:7000")];
        let one = Members::new(1, nodes.to_vec(), 0).unwrap();
        assert_eq!(
            one.digest(),
            Members::new(1, nodes.to_vec(), 1).unwrap().digest(),
            "the same on each node"
        );
        assert_ne!(one.digest(), Members::new(2, nodes.to_vec(), 0).unwrap().digest());
        let [first, second] = nodes;
        assert_ne!(one.digest(), Members::new(1, vec![second, first], 0).unwrap().digest());
    }

    #[test]
    fn a_server_and_its_askers_agree_by_whatever_address_they_meet() {
        let [any, one] = ["0.0.0.0:7000", "10.0.0.1:7000"].map(|address| address.parse().unwrap());
        let (server, asker) = (Members::of_server(any, 8, 0).unwrap(), Members::of_server(one, 8, 7).unwrap());
        assert_eq!(server.digest(), asker.digest());
        assert_eq!(asker.member(0).unwrap().address, one);
        assert!(Members::of_server(one, 8, 8).is_err());
    }

    #[test]
    fn a_table_that_makes_no_sense_names_the_nodes() {
        let two = |a: (&str, &str), b: (&str, &str)| {
            Members::new(1, vec![member(a.0, a.1), member(b.0, b.1)], 0)
                .unwrap_err()
                .to_string()
        };
        assert!(two(("a", "10.0.0.1:1"), ("a", "10.0.0.2:1")).contains("called \"a\""));
        assert!(two(("a", "10.0.0.1:1"), ("b", "10.0.0.1:1")).contains("a and b"));
        assert!(two(("a", "10.0.0.1:1"), ("b", "127.0.0.1:1")).contains("node b listens on 127.0.0.1:1"));
        assert!(Members::new(1, vec![member("a", "127.0.0.1:1")], 1).is_err());
        assert!(
            Members::new(1, vec![member("a", "127.0.0.1:1"), member("b", "127.0.0.1:2")], 1).is_ok(),
            "all on one host"
        );
    }
}
