//! The address of this node that other nodes are told.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket},
};

/// No address can be told.
#[derive(Debug, thiserror::Error)]
pub enum InterfaceError {
    /// The first node's name leads nowhere.
    #[error("the address of {host} can't be found ({source}): check the name, or set FOREBAY_PEERS_INTERFACE")]
    Unresolved {
        /// The name.
        host: String,
        /// Error of the resolver.
        source: io::Error,
    },
    /// This host has no such interface.
    #[error(
        "no interface of this host is '{choice}': it has {found}; set FOREBAY_PEERS_INTERFACE to one of these, an address, or a network such as 10.1.0.0/16"
    )]
    Unknown {
        /// The user's choice.
        choice: String,
        /// Names and addresses of the host's interfaces.
        found: String,
    },
    /// The interfaces can't be listed.
    #[error("the interfaces of this host can't be listed: {0}")]
    Unlisted(io::Error),
    /// No way leads there.
    #[error("no network leads to {host} ({source}): set FOREBAY_PEERS_INTERFACE")]
    Unreachable {
        /// The name.
        host: String,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The way there does not leave this host, although the job has others.
    #[error("the way to {host} is {address}, which other hosts can't reach: set FOREBAY_PEERS_INTERFACE, or mend {host} in /etc/hosts")]
    Loopback {
        /// The name.
        host: String,
        /// This node's address on the way.
        address: IpAddr,
    },
}

/// Returns this node's address on the way to another host: that of the interface by which the kernel would send.
/// Nothing is sent.
///
/// # Errors
/// The host can't be found or reached, or the way is loopback.
pub fn towards(host: &str) -> Result<IpAddr, InterfaceError> {
    // Any port: a connected datagram socket sends nothing by itself.
    let found = (host, 9)
        .to_socket_addrs()
        .map_err(|source| InterfaceError::Unresolved { host: host.into(), source })?;
    let mut refused = None;
    let mut loopback = None;
    for address in found {
        match local(address) {
            Ok(here) if here.is_loopback() => loopback = loopback.or(Some(here)),
            Ok(here) => return Ok(here),
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    Err(match loopback {
        Some(address) => InterfaceError::Loopback {
            host: host.into(),
            address,
        },
        None => InterfaceError::Unreachable {
            host: host.into(),
            source: refused.unwrap_or_else(|| io::ErrorKind::AddrNotAvailable.into()),
        },
    })
}

/// Returns the address of this node on an interface that is named, that has this address, or that is in this network
/// (`10.1.0.0/16`).
///
/// # Errors
/// There is none.
pub fn chosen(choice: &str) -> Result<IpAddr, InterfaceError> {
    let interfaces = if_addrs::get_if_addrs().map_err(InterfaceError::Unlisted)?;
    let matches = |interface: &&if_addrs::Interface| {
        interface.name == choice || choice.parse() == Ok(interface.ip()) || is_within(interface.ip(), choice)
    };
    // An interface may have addresses of both kinds; those of the link alone need more than an address.
    let mut found: Vec<IpAddr> = interfaces.iter().filter(matches).map(if_addrs::Interface::ip).collect();
    found.sort_unstable();
    found.first().copied().ok_or_else(|| {
        let names: Vec<String> = interfaces
            .iter()
            .map(|interface| format!("{} {}", interface.name, interface.ip()))
            .collect();
        InterfaceError::Unknown {
            choice: choice.into(),
            found: names.join(", "),
        }
    })
}

/// Returns the name of the interface that has an address; `None` if there is none.
pub fn name_of(address: IpAddr) -> Option<String> {
    let interfaces = if_addrs::get_if_addrs().ok()?;
    interfaces
        .into_iter()
        .find(|interface| interface.ip() == address)
        .map(|interface| interface.name)
}

/// Returns true if an address is in a network, written as its first address and the number of its fixed bits.
fn is_within(address: IpAddr, network: &str) -> bool {
    let Some((first, bits)) = network.split_once('/') else {
        return false;
    };
    let (Ok(first), Ok(bits)) = (first.parse::<IpAddr>(), bits.parse::<u32>()) else {
        return false;
    };
    match (address, first) {
        (IpAddr::V4(address), IpAddr::V4(first)) => bits <= 32 && (address.to_bits() ^ first.to_bits()).leading_zeros() >= bits,
        (IpAddr::V6(address), IpAddr::V6(first)) => bits <= 128 && (address.to_bits() ^ first.to_bits()).leading_zeros() >= bits,
        _ => false,
    }
}

fn local(to: SocketAddr) -> io::Result<IpAddr> {
    let any: IpAddr = if to.is_ipv4() {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        Ipv6Addr::UNSPECIFIED.into()
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(to)?;
    Ok(socket.local_addr()?.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_refused_and_named() {
        let error = towards("localhost").unwrap_err().to_string();
        assert!(
            error.contains("the way to localhost is 127.0.0.1") || error.contains("is ::1"),
            "{error}"
        );
    }

    #[test]
    fn an_interface_is_chosen_by_name_address_or_network() {
        let here = IpAddr::from(Ipv4Addr::LOCALHOST);
        for choice in ["lo", "127.0.0.1", "127.0.0.0/8"] {
            assert_eq!(chosen(choice).unwrap(), here, "{choice}");
        }
        for choice in ["nothing0", "203.0.113.1", "203.0.113.0/24", "127.0.0.0/99", "/8", ""] {
            let error = chosen(choice).unwrap_err().to_string();
            assert!(error.contains("lo 127.0.0.1"), "{choice}: {error}");
        }
        assert!(is_within("fd00::5".parse().unwrap(), "fd00::/8") && !is_within(here, "fd00::/8"));
    }

    #[test]
    fn a_name_that_leads_nowhere_is_named() {
        let error = towards("no-such-host.invalid").unwrap_err();
        assert!(matches!(error, InterfaceError::Unresolved { .. }), "{error}");
    }
}
