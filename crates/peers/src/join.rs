//! A node joins the others of its job: by the launcher's variables or a list of hosts, an interface, and a place in
//! which nodes meet.

use std::{
    io,
    net::{IpAddr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use crate::{
    exchange::{Directory, Exchange},
    hosts::{self, HostsError},
    hydra,
    interface::{self, InterfaceError},
    launcher::{self, Job, LauncherError, Numbering},
    members::Member,
    rendezvous::{Here, Met, RendezvousError, first_address, leave, meet},
    secret_file::{self, SecretFileError},
};

/// Longest wait for nodes that have not read the table yet, before it is removed.
const READ_WAIT: Duration = Duration::from_secs(5);

/// A node that has not joined the others.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The launcher contradicts itself.
    #[error(transparent)]
    Launcher(#[from] LauncherError),
    /// The list of hosts makes no sense here.
    #[error(transparent)]
    Hosts(#[from] HostsError),
    /// No address of this node can be told.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// The launcher does not say where its first node is.
    #[error("{0} does not say which network leads to the other nodes: set FOREBAY_PEERS_INTERFACE to the name of an interface")]
    NoFirst(launcher::Launcher),
    /// The secret file is refused.
    #[error(transparent)]
    SecretFile(#[from] SecretFileError),
    /// No socket listens.
    #[error("listen on {0}: {1}; {2}")]
    Listen(IpAddr, io::Error, &'static str),
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

/// The first rank of this node.
#[derive(Clone, Debug, Default)]
pub struct Rank {
    /// Name of the job: no other job of this user on its nodes has it.
    pub job: String,
    /// Number in the whole job.
    pub rank: u32,
    /// Number of ranks of this node.
    pub local_ranks: u32,
}

/// The user's choices for the nodes of a job.
#[derive(Clone, Debug, Default)]
pub struct JoinOptions {
    /// Name of an interface, an address of one, or a network.
    pub interface: Option<String>,
    /// File with a secret that all nodes have.
    pub secret_file: Option<PathBuf>,
    /// Most nodes of a group that keeps everything once; 0 for one group of all. That of the first node counts.
    pub group_max: u16,
    /// Version of the messages that this node speaks.
    pub version: u32,
}

/// Nodes as they are told.
#[derive(Debug)]
enum GroupNodes {
    Launched(Job),
    Hosts(Vec<String>),
}

/// A job of several nodes, and the name of what they share.
#[derive(Debug)]
pub struct Group {
    nodes: GroupNodes,
    rank: Rank,
    key: String,
    store: Option<(String, u16)>,
}

impl Group {
    /// Returns the group of nodes that share something of this name, such as a loader: those of a list of hosts, or
    /// those of the launcher. `None` if the launcher says nothing of nodes, or has one only.
    ///
    /// # Errors
    /// The launcher's variables contradict each other.
    pub fn of(
        variables: &dyn Fn(&str) -> Option<String>,
        hosts: Option<&[String]>,
        rank: Rank,
        name: &str,
    ) -> Result<Option<Self>, JoinError> {
        let name = launcher::plain(name);
        let is_of_mpich = |name: &str| name == "PMI_JOBID" && variables("MPI_LOCALRANKID").is_some();
        let variables = |name: &str| variables(name).or_else(|| is_of_mpich(name).then(hydra::job).flatten());
        let port = variables("MASTER_PORT").and_then(|port| port.parse().ok());
        let store = variables("MASTER_ADDR").filter(|host| !host.is_empty()).zip(port);
        if let Some(hosts) = hosts {
            let digest = blake3::hash(hosts.join(",").as_bytes()).to_hex();
            let key = format!("hosts-{}-{}-{name}", launcher::plain(&rank.job), &digest[..16]);
            let nodes = GroupNodes::Hosts(hosts.to_vec());
            return Ok(Some(Self { nodes, rank, key, store }));
        }
        let is_several = |job: &Job| match job.numbering {
            Numbering::Nodes { nodes, .. } => nodes > 1,
            Numbering::Ranks { ranks, .. } => ranks > rank.local_ranks,
        };
        let job = launcher::detect(&variables)?.filter(is_several);
        Ok(job.map(|job| {
            let key = format!("{}-{name}", job.key);
            let nodes = GroupNodes::Launched(job);
            Self { nodes, rank, key, store }
        }))
    }

    /// Name of the group, which no other group has.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Host and port of the job's store of keys and values, torch's; `None` if the environment names none.
    pub fn store(&self) -> Option<(&str, u16)> {
        self.store.as_ref().map(|(host, port)| (host.as_str(), *port))
    }

    /// Returns the place of this group in a directory that all nodes see.
    pub fn directory(&self, dir: &Path) -> Directory {
        Directory::remove_stale(dir);
        Directory::of_job(dir, &self.key)
    }

    /// Listens for the other nodes, and meets them by `exchange` within `wait`. It ends early, with an error, once
    /// `is_unwanted` returns true.
    ///
    /// # Errors
    /// [`JoinError`].
    pub fn join(
        &self,
        exchange: &dyn Exchange,
        options: &JoinOptions,
        wait: Duration,
        is_unwanted: &dyn Fn() -> bool,
    ) -> Result<Joined, JoinError> {
        let began = Instant::now();
        let secret = options.secret_file.as_deref().map(secret_file::read).transpose()?;
        let (numbering, address) = self.place(exchange, options, wait, is_unwanted)?;
        let (address, listener) = listen((address, 0).into())?;
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let here = Here {
            numbering,
            member: Member {
                // Several nodes of a test, and containers, may have one name.
                name: format!("{host}:{}", numbering.number()),
                address,
            },
            first_rank: self.rank.rank,
            ranks: self.rank.local_ranks,
            group_max: options.group_max,
            version: options.version,
            secret,
        };
        let met = meet(exchange, &here, wait.saturating_sub(began.elapsed()), is_unwanted)?;
        Ok(Joined { met, listener })
    }

    /// Returns the place of this node in the job, and the address that other nodes are told.
    fn place(
        &self,
        exchange: &dyn Exchange,
        options: &JoinOptions,
        wait: Duration,
        is_unwanted: &dyn Fn() -> bool,
    ) -> Result<(Numbering, IpAddr), JoinError> {
        let chosen = options.interface.as_deref().map(interface::chosen).transpose()?;
        let (numbering, address) = match &self.nodes {
            GroupNodes::Hosts(hosts) => {
                let listed = hosts::find(hosts)?;
                let address = match chosen.or(listed.address) {
                    Some(address) => address,
                    None => interface::towards(&listed.other)?,
                };
                (listed.numbering, address)
            }
            GroupNodes::Launched(job) => {
                let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
                let address = match (chosen, &job.first, job.numbering) {
                    (Some(address), ..) => address,
                    (None, Some((host, _)), _) => interface::towards(host)?,
                    (None, None, Numbering::Nodes { .. }) => return Err(JoinError::NoFirst(job.launcher)),
                    (None, None, ranks) if ranks.is_first() => interface::towards(&host)?,
                    (None, None, ranks) => {
                        let first = first_address(exchange, ranks, wait, is_unwanted)?;
                        interface::towards(&first.ip().to_string())?
                    }
                };
                (job.numbering, address)
            }
        };
        Ok((numbering, address))
    }
}

impl Joined {
    /// Removes the values by which the nodes have met, if this is the first node: once all have read them, or after
    /// some seconds. `is_hurried` returns true once somebody waits for it.
    pub fn leave(&self, exchange: &dyn Exchange, is_hurried: &dyn Fn() -> bool) {
        if self.met.members.here() == 0 {
            leave(exchange, &self.met, READ_WAIT, is_hurried);
        }
    }
}

/// Listens at an address; port 0 is one that the kernel chooses.
fn listen(at: SocketAddr) -> Result<(SocketAddr, TcpListener), JoinError> {
    let listen = || {
        let listener = TcpListener::bind(at)?;
        Ok((listener.local_addr()?, listener))
    };
    listen().map_err(|error: io::Error| {
        let mend = match error.kind() {
            io::ErrorKind::AddrInUse => "all its ports are in use: end programs, or widen net.ipv4.ip_local_port_range",
            _ => "set FOREBAY_PEERS_INTERFACE to another interface",
        };
        JoinError::Listen(at.ip(), error, mend)
    })
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt, thread};

    use super::*;

    const WAIT: Duration = Duration::from_secs(20);

    fn rank(rank: u32, local_ranks: u32) -> Rank {
        Rank {
            job: "job".into(),
            rank,
            local_ranks,
        }
    }

    fn group(node: u16, nodes: u16) -> Option<Group> {
        let variables = move |name: &str| match name {
            "GROUP_RANK" => Some(node.to_string()),
            "GROUP_WORLD_SIZE" => Some(nodes.to_string()),
            "MASTER_PORT" => Some("29500".to_owned()),
            _ => None,
        };
        Group::of(&variables, None, rank(u32::from(node) * 3, 3), "train/0").unwrap()
    }

    fn mpi_group(of: u32, local_ranks: u32, ranks: u32) -> Option<Group> {
        let variables = move |name: &str| match name {
            "OMPI_COMM_WORLD_RANK" => Some(of.to_string()),
            "OMPI_COMM_WORLD_SIZE" => Some(ranks.to_string()),
            "PMIX_NAMESPACE" => Some("job@1".to_owned()),
            _ => None,
        };
        Group::of(&variables, None, rank(of, local_ranks), "train").unwrap()
    }

    fn options() -> JoinOptions {
        JoinOptions {
            interface: Some("lo".into()),
            secret_file: None,
            group_max: 3,
            version: 7,
        }
    }

    fn join_all(dir: &Path, groups: &[Group]) -> Vec<Joined> {
        thread::scope(|scope| {
            let join = |group: &Group| group.join(&group.directory(dir), &options(), WAIT, &|| false).unwrap();
            let joining: Vec<_> = groups.iter().map(|group| scope.spawn(move || join(group))).collect();
            joining.into_iter().map(|node| node.join().unwrap()).collect()
        })
    }

    #[test]
    fn a_job_of_one_node_has_no_group() {
        assert!(group(0, 1).is_none());
        assert!(mpi_group(0, 4, 4).is_none());
        assert!(Group::of(&|_| None, None, rank(0, 1), "train").unwrap().is_none());
    }

    #[test]
    fn nodes_meet_on_the_interface_that_was_chosen() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let groups = [group(0, 2).unwrap(), group(1, 2).unwrap()];
        let joined = join_all(dir, &groups);
        assert_eq!(joined[0].met.members.digest(), joined[1].met.members.digest());
        assert!(joined[0].met.is_even);
        for joined in &joined {
            let here = joined.met.members.member(joined.met.members.here()).unwrap();
            assert_eq!(here.address, joined.listener.local_addr().unwrap());
        }
        joined[1].leave(&groups[1].directory(dir), &|| true);
        assert_eq!(fs::read_dir(dir).unwrap().count(), 1, "the first node removes the files");
        joined[0].leave(&groups[0].directory(dir), &|| true);
        assert_eq!(fs::read_dir(dir).unwrap().count(), 0);
    }

    #[test]
    fn nodes_whose_ranks_have_numbers_are_ordered_by_their_first_ranks() {
        let dir = tempfile::tempdir().unwrap();
        // Ranks 0 and 1, 2, and 3 to 5.
        let groups = [(3, 3), (0, 2), (2, 1)].map(|(of, local_ranks)| mpi_group(of, local_ranks, 6).unwrap());
        let joined = join_all(dir.path(), &groups);
        let places: Vec<u16> = joined.iter().map(|joined| joined.met.members.here()).collect();
        assert_eq!(places, [2, 0, 1]);
        assert!(
            joined
                .iter()
                .all(|joined| joined.met.members.members().len() == 3 && !joined.met.is_even)
        );
    }

    #[test]
    fn what_is_missing_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let why = |group: &Group, choice: Option<&str>| {
            let options = JoinOptions {
                interface: choice.map(str::to_owned),
                ..options()
            };
            let joined = group.join(&group.directory(dir.path()), &options, Duration::from_millis(200), &|| false);
            joined.unwrap_err().to_string()
        };
        let first = group(0, 2).unwrap();
        assert!(why(&first, None).contains("set FOREBAY_PEERS_INTERFACE"), "{}", why(&first, None));
        assert!(why(&first, Some("none0")).contains("none0"), "{}", why(&first, Some("none0")));
        let error = why(&first, Some("lo"));
        assert!(
            error.starts_with("1 of 2 nodes did not come within 0 s (1 is the first of them): do all"),
            "{error}"
        );
        let error = why(&mpi_group(0, 2, 6).unwrap(), Some("lo"));
        assert!(
            error.starts_with("4 of 6 ranks did not come within 0 s: do all nodes see"),
            "{error}"
        );
        assert_eq!(
            fs::read_dir(dir.path()).unwrap().count(),
            0,
            "a first node that gives up leaves nothing"
        );
        let error = why(&mpi_group(2, 2, 6).unwrap(), None);
        assert!(
            error.starts_with("6 of 6 ranks did not come within 0 s (rank 0 has not)"),
            "{error}"
        );
    }

    #[test]
    fn s7_a_secret_file_is_read_before_anything_is_said_to_others() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("secret");
        fs::write(&file, "0123456789abcdef").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        let options = JoinOptions {
            secret_file: Some(file),
            ..options()
        };
        let group = group(0, 2).unwrap();
        let error = group.join(&group.directory(dir.path()), &options, WAIT, &|| false).unwrap_err();
        assert!(matches!(error, JoinError::SecretFile(_)), "{error}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_port_in_use_is_said_with_its_mend() {
        let (at, _listener) = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let error = listen(at).unwrap_err().to_string();
        assert!(error.starts_with("listen on 127.0.0.1: Address already in use"), "{error}");
        assert!(error.contains("all its ports are in use: end programs, or widen"), "{error}");
        let error = listen("203.0.113.1:0".parse().unwrap()).unwrap_err().to_string();
        assert!(error.ends_with("set FOREBAY_PEERS_INTERFACE to another interface"), "{error}");
    }

    #[test]
    fn a_store_has_host_and_port() {
        assert_eq!(group(0, 2).unwrap().store(), None, "only its port is known");
        let variables = |name: &str| match name {
            "MASTER_ADDR" => Some("node0".to_owned()),
            "MASTER_PORT" => Some("29500".to_owned()),
            _ => None,
        };
        let hosts = ["a".to_owned(), "b".to_owned()];
        let group = Group::of(&variables, Some(&hosts), rank(0, 1), "train").unwrap().unwrap();
        assert_eq!(group.store(), Some(("node0", 29500)));
    }

    #[test]
    fn a_list_of_hosts_needs_no_launcher() {
        let hosts = ["nowhere.invalid".to_owned(), "127.0.0.1".to_owned()];
        let group = Group::of(&|_| None, Some(&hosts), rank(0, 2), "train").unwrap().unwrap();
        assert!(group.key().starts_with("hosts-job-") && group.store().is_none());
        let dir = tempfile::tempdir().unwrap();
        let error = group.join(&group.directory(dir.path()), &options(), WAIT, &|| false).unwrap_err();
        assert!(matches!(error, JoinError::Hosts(HostsError::Unresolved { .. })), "{error}");
    }
}
