//! The address of this node that other nodes are told.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket},
};

/// No address can be told.
#[derive(Debug, thiserror::Error)]
pub enum InterfaceError {
    /// The first node's name leads nowhere.
    #[error("the address of {host} can't be found ({source}): check the name, or give --peers-interface")]
    Unresolved {
        /// The name.
        host: String,
        /// Error of the resolver.
        source: io::Error,
    },
    /// No way leads there.
    #[error("no network leads to {host} ({source}): give --peers-interface")]
    Unreachable {
        /// The name.
        host: String,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The way there does not leave this host, although the job has others.
    #[error("the way to {host} is {address}, which other hosts can't reach: give --peers-interface, or mend {host} in /etc/hosts")]
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
    fn a_name_that_leads_nowhere_is_named() {
        let error = towards("no-such-host.invalid").unwrap_err();
        assert!(matches!(error, InterfaceError::Unresolved { .. }), "{error}");
    }
}
