//! Keys of a job's nodes, derived from the job's secret, and TLS 1.3 that accepts no others.
//!
//! Node `i` has the Ed25519 key whose seed is HKDF-SHA256(secret, "forebay peer 1", kind, i). Each node computes the
//! public keys of all and compares: the node that is asked must have the key of that very node, so that a port taken
//! over by another job or node fails the handshake; a node that asks is known by its key. No certificate, no
//! authority, no validity, and so no clock (fault F46). A process that has the secret can be any node: the job is
//! what is trusted.

use std::{collections::HashMap, fmt, sync::Arc};

use ring::{
    hkdf,
    signature::{Ed25519KeyPair, KeyPair},
};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, PeerIncompatible, ServerConfig, SignatureScheme,
    client::{
        AlwaysResolvesClientRawPublicKeys,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring as provider, verify_tls13_signature_with_raw_key},
    pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime},
    server::{
        AlwaysResolvesServerRawPublicKeys,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    sign::CertifiedKey,
    version::TLS13,
};
use zeroize::Zeroizing;

use crate::wire::Kind;

/// Length of a job's secret in bytes.
pub const SECRET_BYTES: usize = 32;

/// Bytes before an Ed25519 public key in its `SubjectPublicKeyInfo` (RFC 8410).
const SPKI_HEAD: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
/// Bytes before an Ed25519 seed in its `PrivateKeyInfo` (RFC 8410).
const PKCS8_HEAD: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

/// The secret of a job, which all of its nodes have and nobody else.
#[derive(Clone)]
pub struct Secret(Zeroizing<[u8; SECRET_BYTES]>);

impl Secret {
    /// Takes 32 random bytes.
    pub fn new(bytes: [u8; SECRET_BYTES]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// Returns the TLS settings of two bare sockets of a job of two nodes, for comparison with the data plane.
    ///
    /// # Errors
    /// Keys can't be made.
    #[doc(hidden)]
    pub fn bare_configs(&self) -> Result<(Arc<ServerConfig>, Arc<ClientConfig>), Error> {
        let keys = Keys::new(self, Kind::Samples, 2, 1)?;
        Ok((keys.for_serving()?, Keys::new(self, Kind::Samples, 2, 0)?.for_asking(1)?))
    }

    fn seed(&self, kind: Kind, node: u16) -> Zeroizing<[u8; 32]> {
        let salt = hkdf::Salt::new(hkdf::HKDF_SHA256, b"forebay peer 1");
        let mut seed = Zeroizing::new([0; 32]);
        let info = [kind.name().as_bytes(), &node.to_le_bytes()];
        let key = salt.extract(&*self.0);
        // The length is the hash's own.
        if let Ok(okm) = key.expand(&info, hkdf::HKDF_SHA256) {
            let _ = okm.fill(&mut *seed);
        }
        seed
    }

    fn key_pair(&self, kind: Kind, node: u16) -> Result<Ed25519KeyPair, Error> {
        Ed25519KeyPair::from_seed_unchecked(&*self.seed(kind, node)).map_err(|error| Error::General(error.to_string()))
    }

    /// Returns the public key of a node, as `SubjectPublicKeyInfo`.
    fn public_key(&self, kind: Kind, node: u16) -> Result<Vec<u8>, Error> {
        Ok([&SPKI_HEAD[..], self.key_pair(kind, node)?.public_key().as_ref()].concat())
    }

    pub(crate) fn certified_key(&self, kind: Kind, node: u16) -> Result<Arc<CertifiedKey>, Error> {
        let private = Zeroizing::new([&PKCS8_HEAD[..], &*self.seed(kind, node)].concat());
        let key = provider::sign::any_eddsa_type(&PrivatePkcs8KeyDer::from(private.as_slice()))?;
        let public = CertificateDer::from(self.public_key(kind, node)?);
        Ok(Arc::new(CertifiedKey::new(vec![public], key)))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Secret")
    }
}

/// The keys of all nodes of one kind of server.
pub(crate) struct Keys {
    provider: Arc<CryptoProvider>,
    /// Public keys, by node.
    of_node: Vec<Vec<u8>>,
    node_of: HashMap<Vec<u8>, u16>,
    own: Arc<CertifiedKey>,
}

impl fmt::Debug for Keys {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Keys({} nodes)", self.of_node.len())
    }
}

impl Keys {
    /// Computes the keys of `nodes` nodes; `here` is this one.
    pub(crate) fn new(secret: &Secret, kind: Kind, nodes: u16, here: u16) -> Result<Arc<Self>, Error> {
        let of_node: Vec<Vec<u8>> = (0..nodes).map(|node| secret.public_key(kind, node)).collect::<Result<_, _>>()?;
        Ok(Arc::new(Self {
            provider: Arc::new(provider::default_provider()),
            node_of: of_node.iter().cloned().zip(0..).collect(),
            of_node,
            own: secret.certified_key(kind, here)?,
        }))
    }

    /// Returns the node that has a public key.
    pub(crate) fn node_of(&self, public_key: &[u8]) -> Option<u16> {
        self.node_of.get(public_key).copied()
    }

    /// Returns the TLS settings of a server that speaks with nodes of the job only.
    pub(crate) fn for_serving(self: &Arc<Self>) -> Result<Arc<ServerConfig>, Error> {
        let mut config = ServerConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(Arc::new(Pinned {
                keys: Arc::clone(self),
                node: None,
            }))
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(Arc::clone(&self.own))));
        // Connections live long, and a ticket would outlive the table of members.
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }

    /// Returns the TLS settings for asking one node, and nobody else in its place.
    pub(crate) fn for_asking(self: &Arc<Self>, node: u16) -> Result<Arc<ClientConfig>, Error> {
        self.for_asking_as(Arc::clone(&self.own), node)
    }

    /// Returns the TLS settings for asking one node with the key of any.
    pub(crate) fn for_asking_as(self: &Arc<Self>, own: Arc<CertifiedKey>, node: u16) -> Result<Arc<ClientConfig>, Error> {
        let mut config = ClientConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Pinned {
                keys: Arc::clone(self),
                node: Some(node),
            }))
            .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(own)));
        config.resumption = rustls::client::Resumption::disabled();
        config.enable_sni = false;
        Ok(Arc::new(config))
    }
}

/// Accepts the key of one node, or of any node of the job.
#[derive(Debug)]
struct Pinned {
    keys: Arc<Keys>,
    node: Option<u16>,
}

impl Pinned {
    fn check(&self, public_key: &CertificateDer<'_>) -> Result<(), Error> {
        let is_known = match self.node {
            Some(node) => self
                .keys
                .of_node
                .get(usize::from(node))
                .is_some_and(|key| key.as_slice() == public_key.as_ref()),
            None => self.keys.node_of(public_key).is_some(),
        };
        is_known
            .then_some(())
            .ok_or(Error::InvalidCertificate(CertificateError::UnknownIssuer))
    }

    fn algorithms(&self) -> &WebPkiSupportedAlgorithms {
        &self.keys.provider.signature_verification_algorithms
    }

    fn verify(&self, message: &[u8], key: &CertificateDer<'_>, signed: &DigitallySignedStruct) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature_with_raw_key(message, &SubjectPublicKeyInfoDer::from(key.as_ref()), signed, self.algorithms())
    }
}

fn no_tls12<T>() -> Result<T, Error> {
    Err(Error::PeerIncompatible(PeerIncompatible::Tls12NotOfferedOrEnabled))
}

/// The methods that rustls wants of both sides alike: signatures by raw Ed25519 keys of TLS 1.3, nothing else.
macro_rules! raw_ed25519_signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            no_tls12()
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            key: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            self.verify(message, key, signed)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ED25519]
        }

        fn requires_raw_public_keys(&self) -> bool {
            true
        }
    };
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(end_entity).map(|()| ServerCertVerified::assertion())
    }

    raw_ed25519_signatures!();
}

impl ClientCertVerifier for Pinned {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(end_entity).map(|()| ClientCertVerified::assertion())
    }

    raw_ed25519_signatures!();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_and_kind_has_a_key_of_its_own() {
        let secret = Secret::new([7; SECRET_BYTES]);
        let keys = Keys::new(&secret, Kind::Samples, 3, 0).unwrap();
        assert_eq!(keys.node_of.len(), 3);
        assert_eq!(keys.node_of(&keys.of_node[2]), Some(2));
        let of_files = Keys::new(&secret, Kind::Files, 3, 0).unwrap();
        assert_eq!(keys.node_of(&of_files.of_node[2]), None);
        let of_another_job = Keys::new(&Secret::new([8; SECRET_BYTES]), Kind::Samples, 3, 0).unwrap();
        assert_eq!(keys.node_of(&of_another_job.of_node[2]), None);
    }

    #[test]
    fn a_secret_is_not_shown() {
        assert_eq!(format!("{:?}", Secret::new([7; SECRET_BYTES])), "Secret");
    }
}
