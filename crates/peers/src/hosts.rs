//! A plain list of the hosts of a job's nodes: which of them this host is.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, ToSocketAddrs},
};

use crate::launcher::Numbering;

/// A list of hosts that makes no sense here.
#[derive(Debug, thiserror::Error)]
pub enum HostsError {
    /// A host has no address.
    #[error("the host {host} can't be resolved ({source}): correct its name in the list of nodes, or add it to /etc/hosts")]
    Unresolved {
        /// The host.
        host: String,
        /// Error of the resolver.
        source: io::Error,
    },
    /// A host is in the list twice.
    #[error("the host {0} is in the list of nodes twice: name each node once")]
    Twice(String),
    /// Two hosts have one address.
    #[error("the hosts {0} and {1} have one address, {2}: name each node once, by a name of its own")]
    SameAddress(String, String, IpAddr),
    /// This host is not in the list.
    #[error("this host, {name} ({addresses}), is not in the list of nodes {list}: add it, at the place of its node")]
    NotListed {
        /// Name of this host.
        name: String,
        /// Its addresses.
        addresses: String,
        /// The list.
        list: String,
    },
    /// The list is too long.
    #[error("the list of nodes has {0} hosts: name at most {max}", max = u16::MAX)]
    TooMany(usize),
    /// The interfaces can't be listed.
    #[error("the interfaces of this host can't be listed: {0}")]
    Unlisted(io::Error),
}

/// Place of this host in a list.
#[derive(Debug, PartialEq, Eq)]
pub struct ListedHost {
    /// Number of the node.
    pub numbering: Numbering,
    /// This host's address, as the list has it; `None` if other hosts can't reach it.
    pub address: Option<IpAddr>,
    /// Another host of the list, which this node's network leads to.
    pub other: String,
}

/// Finds this host, by its interfaces' addresses or by its name, in a list.
///
/// # Errors
/// [`HostsError`].
pub fn find(hosts: &[String]) -> Result<ListedHost, HostsError> {
    let interfaces = if_addrs::get_if_addrs().map_err(HostsError::Unlisted)?;
    let addresses: Vec<IpAddr> = interfaces.iter().map(if_addrs::Interface::ip).collect();
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    find_by(hosts, &name, &addresses, &resolve)
}

fn resolve(host: &str) -> io::Result<Vec<IpAddr>> {
    Ok((host, 0).to_socket_addrs()?.map(|address| address.ip()).collect())
}

fn find_by(
    hosts: &[String],
    name: &str,
    addresses: &[IpAddr],
    resolve: &dyn Fn(&str) -> io::Result<Vec<IpAddr>>,
) -> Result<ListedHost, HostsError> {
    let nodes = u16::try_from(hosts.len()).map_err(|_| HostsError::TooMany(hosts.len()))?;
    let mut by_address: HashMap<IpAddr, &str> = HashMap::new();
    let mut here: Option<(u16, Option<IpAddr>)> = None;
    for (node, host) in (0..nodes).zip(hosts) {
        if hosts[..usize::from(node)].contains(host) {
            return Err(HostsError::Twice(host.clone()));
        }
        let found = resolve(host).map_err(|source| HostsError::Unresolved {
            host: host.clone(),
            source,
        })?;
        // A host's own name often leads to its loopback interface.
        let public: Vec<IpAddr> = found.into_iter().filter(|address| !address.is_loopback()).collect();
        for address in &public {
            match by_address.insert(*address, host) {
                Some(other) if other != host => return Err(HostsError::SameAddress(other.to_owned(), host.clone(), *address)),
                _ => {}
            }
        }
        let own = public.into_iter().find(|address| addresses.contains(address));
        let first_label = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
        if own.is_some() || host == name || first_label(host) == first_label(name) && host.parse::<IpAddr>().is_err() {
            // An address says more than a name.
            here = here.filter(|(_, address)| address.is_some()).or(Some((node, own)));
        }
    }
    let Some((node, address)) = here else {
        let shown: Vec<String> = addresses
            .iter()
            .filter(|address| !address.is_loopback())
            .map(ToString::to_string)
            .collect();
        return Err(HostsError::NotListed {
            name: name.into(),
            addresses: shown.join(", "),
            list: hosts.join(","),
        });
    };
    Ok(ListedHost {
        numbering: Numbering::Nodes { node, nodes },
        address,
        other: hosts[usize::from(node == 0)].clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "10.0.0.2";

    fn known(host: &str) -> io::Result<Vec<IpAddr>> {
        let address = match host {
            "a" => "10.0.0.1",
            "b" | "b2" => OWN,
            "c" => "10.0.0.3",
            "self" | "self.cluster" => "127.0.1.1",
            _ => host,
        };
        Ok(vec![address.parse().map_err(io::Error::other)?])
    }

    fn find_in(list: &str) -> Result<ListedHost, String> {
        let hosts: Vec<String> = list.split(',').map(str::to_owned).collect();
        let own = [IpAddr::from([127, 0, 0, 1]), OWN.parse().unwrap()];
        find_by(&hosts, "self", &own, &known).map_err(|error| error.to_string())
    }

    #[test]
    fn a_host_finds_itself_by_address_or_name() {
        let found = find_in("a,b,c").unwrap();
        assert_eq!(found.numbering, Numbering::Nodes { node: 1, nodes: 3 });
        assert_eq!((found.address, found.other.as_str()), (Some(OWN.parse().unwrap()), "a"));
        assert_eq!(find_in("10.0.0.2,c").unwrap().other, "c");
        for list in ["a,self", "a,self.cluster"] {
            let found = find_in(list).unwrap();
            assert_eq!((found.numbering.number(), found.address), (1, None), "{list}");
        }
    }

    #[test]
    fn a_list_that_makes_no_sense_names_host_cause_and_mend() {
        let error = |list| find_in(list).unwrap_err();
        assert!(error("a,nowhere").starts_with("the host nowhere can't be resolved ("));
        assert!(error("a,b,a").contains("the host a is in the list of nodes twice: name each node once"));
        assert!(error("a,b,b2").contains("the hosts b and b2 have one address, 10.0.0.2"));
        assert!(error("a,c").contains("this host, self (10.0.0.2), is not in the list of nodes a,c: add it"));
    }
}
