//! Nodes find each other by an [`Exchange`].
//!
//! Each node leaves a line with its name, its address and a random token. The first node writes `table` once all are
//! there: the job's secret, or a salt where each node has the secret already, the size of its groups, and the lines
//! that it read. A node takes a table only if its own token is in it, so values of an earlier job with the same key
//! lead nobody astray. It then says that it has read the table, and the first node removes everything.

use std::{
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use zeroize::Zeroizing;

use crate::{
    announcement::{Announcement, check_of, derived, lines_of, random_hex, value_of},
    exchange::{Exchange, ExchangeError},
    launcher::Numbering,
    members::{Member, Members, MembersError},
};

/// Pause after the first look for other nodes.
const LOOK_AFTER: Duration = Duration::from_millis(50);
/// Longest pause between two looks.
const LOOK_EVERY_MAX: Duration = Duration::from_secs(1);
/// Longest line of a node, in bytes.
const NODE_BYTES_MAX: u64 = 4096;
/// Value of the first node, with all nodes.
const TABLE: &str = "table";

/// Nodes did not find each other.
#[derive(Debug, thiserror::Error)]
pub enum RendezvousError {
    /// The place in which they meet can't be used.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    /// The system gives no random bytes.
    #[error("the system gives no random bytes: {0}")]
    Random(#[from] rustix::io::Errno),
    /// Not all nodes have come.
    #[error("{missing} of {all} {unit} did not come within {seconds} s{first}: do all nodes see {place}?")]
    Missing {
        /// The place.
        place: String,
        /// Number of missing nodes or ranks.
        missing: u32,
        /// The first missing node, in words, where nodes have numbers.
        first: String,
        /// Number of nodes or ranks of the job.
        all: u32,
        /// Nodes or ranks.
        unit: &'static str,
        /// Time waited, in seconds.
        seconds: u64,
    },
    /// More ranks have come than the job has.
    #[error("{0} ranks came, and the job has {1}: do two jobs meet in {2}? Set FOREBAY_PEERS_DIR to a directory of the job's own")]
    TooMany(u32, u32, String),
    /// A value was not written by this version.
    #[error("{0} was not written by this version of Forebay: use one version on all nodes")]
    Foreign(String),
    /// A node has another version.
    #[error("node {name} speaks version {theirs} of Forebay's messages, this node {ours}: install one version on all nodes")]
    Version {
        /// The other node.
        name: String,
        /// Its version.
        theirs: u32,
        /// This node's.
        ours: u32,
    },
    /// Some nodes have a secret file, and others have not.
    #[error("the first node {0} a secret file, and this node {1}: set FOREBAY_PEERS_SECRET alike on all nodes")]
    OtherWay(&'static str, &'static str),
    /// Nodes have different secret files.
    #[error("the secret file of this node differs from that of the first node: give all nodes the same file by FOREBAY_PEERS_SECRET")]
    OtherSecret,
    /// The nodes contradict each other.
    #[error(transparent)]
    Members(#[from] MembersError),
}

/// This node, as it announces itself.
#[derive(Clone, Debug)]
pub struct Here {
    /// Its place in the job.
    pub numbering: Numbering,
    /// Its name and address.
    pub member: Member,
    /// Its smallest rank.
    pub first_rank: u32,
    /// Number of its ranks.
    pub ranks: u32,
    /// Most nodes of a group, if it is the first node.
    pub group_max: u16,
    /// Version of the messages that it speaks.
    pub version: u32,
    /// Secret that each node has already; `None`: the first node makes one.
    pub secret: Option<Zeroizing<Vec<u8>>>,
}

/// All nodes of a job.
#[derive(Debug)]
pub struct Met {
    /// The nodes, in the order of their ranks.
    pub members: Members,
    /// True if each node has the same number of ranks, those of a node being consecutive.
    pub is_even: bool,
    /// Most nodes of a group, as the first node says; 0 for one group of all.
    pub group_max: u16,
    /// The job's secret, as 64 hexadecimal digits.
    pub secret: Zeroizing<String>,
    /// Names of all values by which nodes have met.
    names: Vec<String>,
    /// Names of the values by which nodes say that they have read the table.
    acknowledgements: Vec<String>,
}

/// Announces this node, and waits until all have come, or until `is_unwanted`.
///
/// # Errors
/// [`RendezvousError`]: the place can't be used or is not private, nodes did not come within `wait`, or they
/// contradict each other.
pub fn meet(exchange: &dyn Exchange, here: &Here, wait: Duration, is_unwanted: &dyn Fn() -> bool) -> Result<Met, RendezvousError> {
    let token = random_hex()?;
    let Here {
        first_rank,
        ranks,
        version,
        member,
        ..
    } = here;
    let announced = value_of(&format!(
        "{} {version} {first_rank} {ranks} {} {}\n",
        *token, member.address, member.name
    ));
    let names = node_names(here.numbering);
    let all = [names.as_slice(), &[TABLE.to_owned()]].concat();
    if here.numbering.is_first() {
        exchange.clear(&all)?;
    }
    let began = Instant::now();
    loop {
        if let Some(met) = look(exchange, here, &token, &announced, &names)? {
            // A table that was read stays read, also where the first node does not hear of it.
            let _ = exchange.put(&acknowledgement(&token), b"");
            return Ok(met);
        }
        if began.elapsed() >= wait || is_unwanted() {
            let error = missing(exchange, here, &names, wait)?;
            if here.numbering.is_first() {
                exchange.end(&all);
            }
            return Err(error);
        }
        thread::sleep((LOOK_AFTER + began.elapsed() / 10).min(LOOK_EVERY_MAX));
    }
}

/// Waits until the node of rank 0 has come, or until `is_unwanted`; returns its address.
///
/// # Errors
/// [`RendezvousError`]: as those of [`meet`].
pub fn first_address(
    exchange: &dyn Exchange,
    numbering: Numbering,
    wait: Duration,
    is_unwanted: &dyn Fn() -> bool,
) -> Result<SocketAddr, RendezvousError> {
    let first = node_name(0);
    let began = Instant::now();
    loop {
        if exchange.are_there(std::slice::from_ref(&first))? == [true]
            && let Some(line) = line_of(exchange, &first)?
        {
            let announcement = Announcement::parse(&line).ok_or_else(|| foreign(exchange, &first))?;
            return Ok(announcement.member.address);
        }
        if began.elapsed() >= wait || is_unwanted() {
            return Err(RendezvousError::Missing {
                place: exchange.describe(None),
                missing: numbering.count(),
                first: " (rank 0 has not)".into(),
                all: numbering.count(),
                unit: numbering.unit(),
                seconds: wait.as_secs(),
            });
        }
        thread::sleep((LOOK_AFTER + began.elapsed() / 10).min(LOOK_EVERY_MAX));
    }
}

/// Removes the values by which nodes have met, as the first node: once all have read the table, or after `wait`.
///
/// It asks the nodes for that after a second, in which all of them look; immediately if `is_hurried`.
pub fn leave(exchange: &dyn Exchange, met: &Met, wait: Duration, is_hurried: &dyn Fn() -> bool) {
    let began = Instant::now();
    let have_read = || {
        exchange
            .are_there(&met.acknowledgements)
            .is_ok_and(|are_there| !are_there.contains(&false))
    };
    while began.elapsed() < wait {
        if (began.elapsed() >= LOOK_EVERY_MAX || is_hurried()) && have_read() {
            break;
        }
        thread::sleep(LOOK_AFTER);
    }
    exchange.end(&met.names);
}

/// Announces this node unless it has, writes the table as the first node once all are there, and reads it.
fn look(exchange: &dyn Exchange, here: &Here, token: &str, announced: &[u8], names: &[String]) -> Result<Option<Met>, RendezvousError> {
    let own = node_name(here.numbering.number());
    // The first node removes what it finds when it comes.
    let are_there = exchange.are_there(&[own.clone(), TABLE.to_owned()])?;
    if !are_there[0] || exchange.get(&own, NODE_BYTES_MAX)?.is_none_or(|found| *found != announced) {
        exchange.put(&own, announced)?;
    }
    if here.numbering.is_first() && !are_there[1] {
        if let Some(lines) = all_lines(exchange, here.numbering, names)? {
            exchange.put(TABLE, &table_of(here, &lines)?)?;
        }
    } else if !are_there[1] {
        return Ok(None);
    }
    read_table(exchange, here, token)
}

/// Returns the lines of all nodes, in the order of their numbers; `None` if one is missing.
fn all_lines(exchange: &dyn Exchange, numbering: Numbering, names: &[String]) -> Result<Option<Vec<Zeroizing<String>>>, RendezvousError> {
    let are_there = exchange.are_there(names)?;
    if matches!(numbering, Numbering::Nodes { .. }) && are_there.contains(&false) {
        return Ok(None);
    }
    let mut lines = Vec::new();
    let mut ranks_seen = 0_u32;
    for (name, _) in names.iter().zip(are_there).filter(|(_, is_there)| *is_there) {
        let Some(line) = line_of(exchange, name)? else { return Ok(None) };
        let announcement = Announcement::parse(&line).ok_or_else(|| foreign(exchange, name))?;
        ranks_seen = ranks_seen.saturating_add(announcement.ranks);
        lines.push(line);
    }
    match numbering {
        Numbering::Ranks { ranks, .. } if ranks_seen > ranks => Err(RendezvousError::TooMany(ranks_seen, ranks, exchange.describe(None))),
        Numbering::Ranks { ranks, .. } if ranks_seen < ranks => Ok(None),
        _ => Ok(Some(lines)),
    }
}

/// Returns the table: a new secret, or a salt with a check of the secret that each node has, and the nodes' lines.
fn table_of(here: &Here, lines: &[Zeroizing<String>]) -> Result<Zeroizing<Vec<u8>>, RendezvousError> {
    let random = random_hex()?;
    let mut table = Zeroizing::new(match &here.secret {
        None => format!("secret {} {}\n", *random, here.group_max),
        Some(secret) => format!("salt {} {} {}\n", *random, check_of(secret, &random), here.group_max),
    });
    for line in lines {
        table.push_str(line);
        table.push('\n');
    }
    Ok(value_of(&table))
}

/// Reads the table. `None` if it is not there, or this node, with this token, is not in it.
fn read_table(exchange: &dyn Exchange, here: &Here, token: &str) -> Result<Option<Met>, RendezvousError> {
    let bytes_max = NODE_BYTES_MAX * u64::from(here.numbering.count() + 1);
    let Some(bytes) = exchange.get(TABLE, bytes_max)? else {
        return Ok(None);
    };
    let foreign = || foreign(exchange, TABLE);
    let text = lines_of(&bytes).ok_or_else(foreign)?;
    let (head, lines) = text.split_once('\n').ok_or_else(foreign)?;
    let nodes: Option<Vec<Announcement<'_>>> = lines.lines().map(Announcement::parse).collect();
    let nodes = nodes.ok_or_else(foreign)?;
    let Some(place) = nodes.iter().position(|node| node.token == token) else {
        return Ok(None);
    };
    if let Some(other) = nodes.iter().find(|node| node.version != here.version) {
        return Err(RendezvousError::Version {
            name: other.member.name.clone(),
            theirs: other.version,
            ours: here.version,
        });
    }
    let (head, group_max) = head.rsplit_once(' ').ok_or_else(foreign)?;
    let group_max = group_max.parse().map_err(|_| foreign())?;
    let secret = match (head.split(' ').collect::<Vec<_>>().as_slice(), &here.secret) {
        (["secret", secret], None) => Zeroizing::new((*secret).to_owned()),
        (["salt", salt, check], Some(secret)) if check_of(secret, salt) == *check => {
            derived("forebay peers secret 1", secret, text.as_bytes())
        }
        (["salt", ..], Some(_)) => return Err(RendezvousError::OtherSecret),
        (["secret", _], Some(_)) => return Err(RendezvousError::OtherWay("has not", "has")),
        (["salt", ..], None) => return Err(RendezvousError::OtherWay("has", "has not")),
        _ => return Err(foreign()),
    };
    let ranks = nodes[0].ranks;
    let is_even = (0_u32..)
        .zip(&nodes)
        .all(|(place, node)| node.ranks == ranks && node.first_rank == place * ranks);
    let acknowledgements: Vec<String> = nodes.iter().map(|node| acknowledgement(node.token)).collect();
    let mut names = node_names(here.numbering);
    names.push(TABLE.to_owned());
    names.extend(acknowledgements.iter().cloned());
    let members = Members::new(0, nodes.into_iter().map(|node| node.member).collect(), place)?;
    Ok(Some(Met {
        members,
        is_even,
        group_max,
        secret,
        names,
        acknowledgements,
    }))
}

/// Returns an error that says how many have not come.
fn missing(exchange: &dyn Exchange, here: &Here, names: &[String], wait: Duration) -> Result<RendezvousError, RendezvousError> {
    let are_there = exchange.are_there(names)?;
    let (missing, first) = match here.numbering {
        Numbering::Nodes { .. } => {
            let missing: Vec<usize> = (0..names.len()).filter(|node| !are_there[*node]).collect();
            let first = missing.first().copied().unwrap_or(0);
            (missing.len().max(1) as u32, format!(" ({first} is the first of them)"))
        }
        Numbering::Ranks { ranks, .. } => {
            let mut seen = 0_u32;
            for (name, _) in names.iter().zip(are_there).filter(|(_, is_there)| *is_there) {
                let line = line_of(exchange, name)?.unwrap_or_default();
                seen = seen.saturating_add(Announcement::parse(&line).map_or(0, |node| node.ranks));
            }
            (ranks.saturating_sub(seen).max(1), String::new())
        }
    };
    Ok(RendezvousError::Missing {
        place: exchange.describe(None),
        missing,
        first,
        all: here.numbering.count(),
        unit: here.numbering.unit(),
        seconds: wait.as_secs(),
    })
}

fn node_name(number: u32) -> String {
    format!("node.{number}")
}

/// Returns the names of all nodes' lines; where ranks have numbers, a node has that of its first one.
fn node_names(numbering: Numbering) -> Vec<String> {
    (0..numbering.count()).map(node_name).collect()
}

fn acknowledgement(token: &str) -> String {
    format!("read.{}", token.get(..16).unwrap_or(token))
}

/// Returns the line of a node; `None` if it is not there.
fn line_of(exchange: &dyn Exchange, name: &str) -> Result<Option<Zeroizing<String>>, RendezvousError> {
    let Some(bytes) = exchange.get(name, NODE_BYTES_MAX)? else {
        return Ok(None);
    };
    let lines = lines_of(&bytes).ok_or_else(|| foreign(exchange, name))?;
    Ok(Some(Zeroizing::new(lines.lines().next().unwrap_or_default().to_owned())))
}

fn foreign(exchange: &dyn Exchange, name: &str) -> RendezvousError {
    RendezvousError::Foreign(exchange.describe(Some(name)))
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeMap,
        sync::{Mutex, PoisonError},
    };

    use super::*;

    /// A job's store, in memory.
    #[derive(Default)]
    struct TestStore(Mutex<BTreeMap<String, Vec<u8>>>);

    impl TestStore {
        fn with<T>(&self, f: impl FnOnce(&mut BTreeMap<String, Vec<u8>>) -> T) -> T {
            f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
        }
    }

    impl Exchange for TestStore {
        fn are_there(&self, names: &[String]) -> Result<Vec<bool>, ExchangeError> {
            Ok(self.with(|values| names.iter().map(|name| values.contains_key(name)).collect()))
        }

        fn get(&self, name: &str, _: u64) -> Result<Option<Zeroizing<Vec<u8>>>, ExchangeError> {
            Ok(self.with(|values| values.get(name).cloned().map(Zeroizing::new)))
        }

        fn put(&self, name: &str, bytes: &[u8]) -> Result<(), ExchangeError> {
            self.with(|values| values.insert(name.to_owned(), bytes.to_owned()));
            Ok(())
        }

        fn clear(&self, names: &[String]) -> Result<(), ExchangeError> {
            self.with(|values| values.retain(|name, _| !names.contains(name)));
            Ok(())
        }

        fn end(&self, names: &[String]) {
            let _ = self.clear(names);
        }

        fn describe(&self, name: Option<&str>) -> String {
            name.unwrap_or("the store").to_owned()
        }
    }

    fn here(node: u16, nodes: u16) -> Here {
        Here {
            numbering: Numbering::Nodes { node, nodes },
            member: Member {
                name: format!("n{node}"),
                address: format!("10.0.0.{}:7000", node + 1).parse().unwrap(),
            },
            first_rank: 2 * u32::from(node),
            ranks: 2,
            group_max: 4 + node,
            version: 1,
            secret: None,
        }
    }

    const SOON: Duration = Duration::from_millis(300);
    const LONG: Duration = Duration::from_secs(20);

    fn meet_each(store: &TestStore, nodes: &[Here]) -> Vec<Result<Met, RendezvousError>> {
        thread::scope(|scope| {
            let meeting: Vec<_> = nodes
                .iter()
                .map(|node| scope.spawn(move || meet(store, node, LONG, &|| false)))
                .collect();
            meeting.into_iter().map(|node| node.join().unwrap()).collect()
        })
    }

    fn meet_all(store: &TestStore, nodes: u16) -> Vec<Met> {
        let nodes: Vec<Here> = (0..nodes).rev().map(|node| here(node, nodes)).collect();
        meet_each(store, &nodes).into_iter().map(Result::unwrap).collect()
    }

    fn check_alike(met: &[Met]) {
        for node in met {
            assert_eq!(node.members.digest(), met[0].members.digest());
            assert_eq!((&node.secret, node.is_even), (&met[0].secret, true));
            assert_eq!(node.group_max, 4, "that of the first node");
            assert_eq!(node.secret.len(), 64);
        }
        let mut numbers: Vec<u16> = met.iter().map(|met| met.members.here()).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..met.len() as u16).collect::<Vec<_>>());
    }

    #[test]
    fn all_nodes_get_the_same_table_and_secret() {
        let store = TestStore::default();
        let met = meet_all(&store, 4);
        check_alike(&met);
        assert!(store.with(|values| values.contains_key(TABLE)));
        leave(&store, &met[0], LONG, &|| true);
        assert_eq!(store.with(|values| values.len()), 0);
    }

    #[test]
    fn the_table_stays_until_all_have_read_it() {
        let store = TestStore::default();
        let met = meet_all(&store, 3);
        let late = met[0].acknowledgements[2].clone();
        store.with(|values| values.remove(&late));
        thread::scope(|scope| {
            let leaving = scope.spawn(|| leave(&store, &met[0], LONG, &|| true));
            thread::sleep(SOON);
            assert!(store.with(|values| values.contains_key(TABLE)) && !leaving.is_finished());
            store.put(&late, b"").unwrap();
            leaving.join().unwrap();
        });
        assert_eq!(store.with(|values| values.len()), 0);
        let again = meet_all(&store, 2);
        store.with(|values| values.retain(|name, _| name == TABLE));
        leave(&store, &again[0], SOON, &|| true);
        assert_eq!(store.with(|values| values.len()), 0, "nobody is waited for without an end");
    }

    #[test]
    fn what_an_earlier_job_has_left_leads_nobody_astray() {
        let store = TestStore::default();
        let before = meet_all(&store, 3);
        // The first node comes last: the others find a whole table meanwhile.
        let now: Vec<Met> = thread::scope(|scope| {
            let others = scope.spawn(|| meet_each(&store, &[here(1, 3), here(2, 3)]));
            thread::sleep(SOON);
            let first = meet(&store, &here(0, 3), LONG, &|| false);
            others.join().unwrap().into_iter().chain([first]).map(Result::unwrap).collect()
        });
        check_alike(&now);
        assert_ne!(now[0].secret, before[0].secret);
    }

    #[test]
    fn s7_a_secret_that_nodes_have_is_not_told_and_each_job_has_its_own() {
        let store = TestStore::default();
        let with = |node, secret: Option<&str>| Here {
            secret: secret.map(|secret| Zeroizing::new(secret.as_bytes().to_vec())),
            ..here(node, 2)
        };
        let alike = [with(0, Some("a secret of all nodes")), with(1, Some("a secret of all nodes"))];
        let mut secrets = Vec::new();
        for _ in 0..2 {
            let met: Vec<Met> = meet_each(&store, &alike).into_iter().map(Result::unwrap).collect();
            check_alike(&met);
            secrets.push(met[0].secret.clone());
            let told = |value: &Vec<u8>| {
                let text = String::from_utf8_lossy(value);
                text.contains("a secret of all") || text.contains(met[0].secret.as_str())
            };
            assert!(store.with(|values| values.len() > 3 && !values.values().any(told)));
        }
        assert_ne!(secrets[0], secrets[1]);
        let why = |other: Option<&str>| {
            let met = meet_each(&store, &[with(0, Some("a secret of all nodes")), with(1, other)]);
            met[1].as_ref().unwrap_err().to_string()
        };
        assert!(why(Some("the secret of another job")).starts_with("the secret file of this node differs"));
        assert!(why(None).starts_with("the first node has a secret file, and this node has not"));
        let met = meet_each(&store, &[here(0, 2), with(1, Some("a secret of one node"))]);
        assert!(matches!(met[1], Err(RendezvousError::OtherWay("has not", "has"))));
    }

    #[test]
    fn nodes_that_place_their_ranks_alternately_are_not_even() {
        let store = TestStore::default();
        let nodes = [0, 1].map(|node| Here {
            first_rank: u32::from(node),
            ..here(node, 2)
        });
        assert!(meet_each(&store, &nodes).into_iter().all(|met| !met.unwrap().is_even));
    }

    #[test]
    fn who_does_not_come_is_named() {
        let store = TestStore::default();
        let error = meet(&store, &here(0, 3), SOON, &|| false).unwrap_err().to_string();
        assert_eq!(
            error,
            "2 of 3 nodes did not come within 0 s (1 is the first of them): do all nodes see the store?"
        );
    }

    #[test]
    fn a_node_of_another_version_is_named() {
        let store = TestStore::default();
        let nodes = [0, 1].map(|node| Here {
            version: u32::from(node) + 12,
            ..here(node, 2)
        });
        let errors = meet_each(&store, &nodes).into_iter().map(|met| met.unwrap_err().to_string());
        let errors: Vec<String> = errors.collect();
        assert!(
            errors[0].starts_with("node n1 speaks version 13 of Forebay's messages, this node 12: install"),
            "{errors:?}"
        );
        assert!(
            errors[1].starts_with("node n0 speaks version 12 of Forebay's messages, this node 13: install"),
            "{errors:?}"
        );
        // One that writes its line in another way.
        let error = thread::scope(|scope| {
            let first = scope.spawn(|| meet(&store, &here(0, 2), LONG, &|| false).unwrap_err());
            thread::sleep(SOON);
            store.put("node.1", b"forebay peers 2\n").unwrap();
            first.join().unwrap()
        });
        assert!(matches!(&error, RendezvousError::Foreign(name) if name == "node.1"), "{error}");
    }
}
