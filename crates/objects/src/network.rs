//! Network of a site: the proxy to a store, and the trusted certificates, from the variables that other tools read.

use std::{fmt, net::IpAddr, path::Path};

use ureq::{
    Proxy, ProxyProtocol,
    tls::{Certificate, RootCerts},
};
use url::Url;

use crate::{Error, variables::VariableLookup};

/// Proxies and certificates for a store.
pub(crate) struct Network {
    /// Proxy to the store; `None`: a direct connection.
    pub(crate) proxy: Option<Proxy>,
    /// Proxy to the service that lends credentials, if there is one that is not local.
    pub(crate) lender_proxy: Option<Proxy>,
    /// Trusted authorities: the system's, unless others are named: sites have authorities of their own.
    pub(crate) roots: RootCerts,
}

impl fmt::Debug for Network {
    // Without a possible password.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Network({self})")
    }
}

impl fmt::Display for Network {
    /// Shows the addition to an endpoint's name.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.proxy {
            Some(proxy) => write!(formatter, ", by the proxy {}:{}", proxy.host(), proxy.port()),
            None => Ok(()),
        }
    }
}

impl Network {
    /// Finds the proxies to a store at this host and to the service that lends credentials for it. `bundle` is the
    /// profile's setting of certificates.
    ///
    /// # Errors
    /// [`Error::Input`], which names the variable and the remedy.
    pub(crate) fn find(
        endpoint: &Url,
        host: &str,
        lender: Option<&Url>,
        bundle: Option<String>,
        variables: VariableLookup<'_>,
    ) -> Result<Self, Error> {
        let at_lender = |lender: &Url| proxy(lender, lender.host_str().unwrap_or_default(), variables);
        let lender_proxy = lender.map(at_lender).transpose()?.flatten();
        let proxy = proxy(endpoint, host, variables)?;
        let is_secure = |proxy: &Proxy| proxy.protocol() == ProxyProtocol::Https;
        let is_any_secure = [&proxy, &lender_proxy].into_iter().flatten().any(is_secure)
            || [Some(endpoint), lender].into_iter().flatten().any(|url| url.scheme() == "https");
        let roots = if is_any_secure {
            roots(bundle, variables)?
        } else {
            RootCerts::PlatformVerifier
        };
        Ok(Self {
            proxy,
            lender_proxy,
            roots,
        })
    }
}

/// Returns the first of these variables that is set, and its value.
fn first<'a>(names: &[&'a str], variables: VariableLookup<'_>) -> Option<(&'a str, String)> {
    names.iter().find_map(|name| Some((*name, variables(name)?)))
}

fn proxy(endpoint: &Url, host: &str, variables: VariableLookup<'_>) -> Result<Option<Proxy>, Error> {
    let names = if endpoint.scheme() == "https" {
        ["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"]
    } else {
        ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"]
    };
    let Some((name, text)) = first(&names, variables) else {
        return Ok(None);
    };
    let port = endpoint.port_or_known_default().unwrap_or_default();
    if first(&["no_proxy", "NO_PROXY"], variables).is_some_and(|(_, list)| is_excepted(&list, host, port)) {
        return Ok(None);
    }
    let url = if text.contains("://") {
        text.trim().to_owned()
    } else {
        format!("http://{}", text.trim())
    };
    // Url parses more strictly than Proxy, which ignores an invalid port.
    let is_url = url
        .parse()
        .is_ok_and(|url: Url| url.has_host() && matches!(url.scheme(), "http" | "https"));
    Proxy::new(&url).ok().filter(|_| is_url).map(Some).ok_or_else(|| {
        // The part before an @ may be a password, and this line is logged.
        let shown = if text.contains('@') {
            "its value".to_owned()
        } else {
            format!("'{text}'")
        };
        Error::Input(format!("${name}: {shown} is not a proxy for HTTP; write http://HOST:PORT"))
    })
}

/// Returns whether a list of hosts, of domains (with their subdomains) and of networks contains this host.
fn is_excepted(list: &str, host: &str, port: u16) -> bool {
    let bare = host.trim_matches(['[', ']']).to_ascii_lowercase();
    let address: Option<IpAddr> = bare.parse().ok();
    list.split([',', ' ']).filter(|entry| !entry.is_empty()).any(|entry| {
        let (name, its_port) = match entry.rsplit_once(':') {
            // In IPv6 there are colons elsewhere.
            Some((name, digits)) if !name.contains(':') || name.ends_with(']') => (name, digits.parse().ok()),
            _ => (entry, None),
        };
        if its_port.is_some_and(|its_port: u16| its_port != port) {
            return false;
        }
        let name = name.trim_matches(['[', ']']).to_ascii_lowercase();
        if let (Some(address), Some((network, bits))) = (address, name.split_once('/')) {
            return is_within(address, network, bits);
        }
        let domain = name.strip_prefix('*').unwrap_or(&name);
        let domain = domain.strip_prefix('.').unwrap_or(domain);
        let is_below = |above: &str| above.is_empty() || above.ends_with('.');
        name == "*" || (!domain.is_empty() && bare.strip_suffix(domain).is_some_and(is_below))
    })
}

/// Returns whether an address belongs to a network written as `10.0.0.0/8`.
fn is_within(address: IpAddr, network: &str, bits: &str) -> bool {
    let parts = |address: IpAddr| match address {
        IpAddr::V4(four) => (u128::from(four.to_bits()), 32),
        IpAddr::V6(six) => (six.to_bits(), 128),
    };
    let (Ok(network), Ok(bits)) = (network.parse::<IpAddr>(), bits.parse::<u32>()) else {
        return false;
    };
    let ((one, length), (other, its_length)) = (parts(address), parts(network));
    length == its_length && bits <= length && (one ^ other).checked_shr(length - bits).unwrap_or(0) == 0
}

fn roots(bundle: Option<String>, variables: VariableLookup<'_>) -> Result<RootCerts, Error> {
    let named = first(&["AWS_CA_BUNDLE"], variables)
        .map(|(_, file)| ("$AWS_CA_BUNDLE", file))
        .or_else(|| Some(("the profile's ca_bundle", bundle?)));
    let (name, file, dirs) = match named {
        Some((name, file)) => (name, Some(file), None),
        None => (
            "$SSL_CERT_FILE or $SSL_CERT_DIR",
            variables("SSL_CERT_FILE"),
            variables("SSL_CERT_DIR"),
        ),
    };
    if file.is_none() && dirs.is_none() {
        return Ok(RootCerts::PlatformVerifier);
    }
    let of_file = file
        .iter()
        .map(|file| rustls_native_certs::load_certs_from_paths(Some(Path::new(file)), None));
    let dirs = dirs.iter().flat_map(|dirs| dirs.split(':')).filter(|dir| !dir.is_empty());
    let of_dirs = dirs.map(|dir| rustls_native_certs::load_certs_from_paths(None, Some(Path::new(dir))));
    let (mut found, mut why) = (Vec::new(), None);
    for loaded in of_file.chain(of_dirs) {
        found.extend(loaded.certs);
        why = why.or_else(|| loaded.errors.first().map(ToString::to_string));
    }
    if found.is_empty() {
        let why = why.unwrap_or_else(|| "no certificate is there".into());
        return Err(Error::Input(format!("{name}: {why}; name a file of certificates (PEM)")));
    }
    Ok(found.iter().map(|certificate| Certificate::from_der(certificate).to_owned()).into())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn find(endpoint: &str, set: &[(&str, &str)]) -> Result<Network, Error> {
        let known: BTreeMap<&str, &str> = set.iter().copied().collect();
        let endpoint: Url = endpoint.parse().unwrap();
        let host = endpoint.host_str().unwrap().to_owned();
        Network::find(&endpoint, &host, None, None, &|name| {
            known.get(name).map(|value| (*value).to_owned())
        })
    }

    #[test]
    fn the_proxy_is_that_of_the_endpoints_scheme() {
        let at = |endpoint: &str, set: &[(&str, &str)]| find(endpoint, set).unwrap().to_string();
        let by = |place: &str| format!(", by the proxy {place}");
        let both = [("HTTP_PROXY", "http://plain:1"), ("HTTPS_PROXY", "http://secret:word@secure")];
        assert_eq!(at("https://s3", &both), by("secure:80"));
        assert_eq!(at("http://s3", &both), by("plain:1"));
        assert_eq!(at("http://s3", &both[1..]), "");
        assert_eq!(at("http://s3", &[("all_proxy", "any:3")]), by("any:3"));
        assert_eq!(
            at("http://s3", &[("HTTP_PROXY", "http://upper:1"), ("http_proxy", "http://lower:1")]),
            by("lower:1")
        );
        assert!(!format!("{:?}", find("https://s3", &both).unwrap()).contains("word"));
        for bad in ["socks5://a:1", "http://", "a b", "http://a:99999", "ftp://a"] {
            let line = find("http://s3", &[("HTTP_PROXY", bad)]).unwrap_err().to_string();
            assert_eq!(
                line,
                format!("$HTTP_PROXY: '{bad}' is not a proxy for HTTP; write http://HOST:PORT")
            );
        }
        let line = find("http://s3", &[("ALL_PROXY", "socks5://key:word@a")]).unwrap_err().to_string();
        assert!(line.starts_with("$ALL_PROXY: ") && !line.contains("word"), "{line}");
    }

    #[test]
    fn what_is_excepted_is_reached_at_once() {
        let has = |list: &str, host: &str| is_excepted(list, host, 9000);
        for list in [
            "*",
            "s3.site.org",
            "a.org, S3.Site.org",
            "site.org",
            ".site.org",
            "*.site.org",
            "a.org site.org",
            "s3.site.org:9000",
        ] {
            assert!(has(list, "s3.site.org"), "{list}");
        }
        for list in ["", "te.org", "s3.site", "b.s3.site.org", "s3.site.org:80", ".", "10.0.0.0/8"] {
            assert!(!has(list, "s3.site.org"), "{list}");
        }
        for (list, host) in [
            ("10.0.0.0/8", "10.1.2.3"),
            ("127.0.0.1", "127.0.0.1"),
            ("0.0.0.0/0", "1.2.3.4"),
            ("::1", "[::1]"),
            ("[::1]:9000", "[::1]"),
            ("fd00::/8", "[fd12::1]"),
        ] {
            assert!(has(list, host), "{list}");
        }
        for (list, host) in [
            ("10.0.0.0/8", "11.0.0.1"),
            ("::/0", "1.2.3.4"),
            ("10.0.0.0/40", "10.0.0.1"),
            ("[::1]:1", "[::1]"),
        ] {
            assert!(!has(list, host), "{list}");
        }
    }

    #[test]
    fn certificates_that_are_none_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let empty = dir.path().join("empty.pem");
        std::fs::write(&empty, "").unwrap();
        let empty = empty.to_str().unwrap();
        let missing = dir.path().join("missing.pem");
        let missing = missing.to_str().unwrap();
        for (name, path, words) in [
            ("AWS_CA_BUNDLE", missing, missing),
            ("AWS_CA_BUNDLE", empty, "no certificate is there"),
            ("SSL_CERT_FILE", missing, missing),
            ("SSL_CERT_DIR", dir.path().to_str().unwrap(), "no certificate is there"),
        ] {
            let line = find("https://s3", &[(name, path)]).unwrap_err().to_string();
            assert!(
                line.contains(name) && line.contains(words) && line.ends_with("; name a file of certificates (PEM)"),
                "{line}"
            );
            assert!(find("http://s3", &[(name, path)]).is_ok(), "nothing is asked for them");
        }
    }
}
