//! The text by which a node announces itself, and the values that are derived from a secret.

use zeroize::Zeroizing;

use crate::members::Member;

/// First line of each value.
const HEAD: &str = "forebay peers 3";

/// A node's line.
pub(crate) struct Announcement<'a> {
    /// Random text of the node.
    pub(crate) token: &'a str,
    /// Version of the messages that the node speaks.
    pub(crate) version: u32,
    /// Smallest rank of the node.
    pub(crate) first_rank: u32,
    /// Number of its ranks.
    pub(crate) ranks: u32,
    /// Its name and address.
    pub(crate) member: Member,
}

impl<'a> Announcement<'a> {
    /// Reads a line; `None` if it is invalid.
    pub(crate) fn parse(line: &'a str) -> Option<Self> {
        let mut words = line.splitn(6, ' ');
        let token = words.next()?;
        let mut number = || words.next()?.parse::<u32>().ok();
        let (version, first_rank, ranks) = (number()?, number()?, number()?);
        let address = words.next()?.parse().ok()?;
        let name = words.next().filter(|name| !name.is_empty())?.to_owned();
        Some(Self {
            token,
            version,
            first_rank,
            ranks,
            member: Member { name, address },
        })
    }
}

/// Returns a value of these lines, with its head.
pub(crate) fn value_of(lines: &str) -> Zeroizing<Vec<u8>> {
    Zeroizing::new(format!("{HEAD}\n{lines}").into_bytes())
}

/// Returns the lines of a value after its head.
pub(crate) fn lines_of(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()?.strip_prefix(HEAD)?.strip_prefix('\n')
}

/// Returns a value by which nodes see that they have the same secret, and which does not tell it.
pub(crate) fn check_of(secret: &[u8], salt: &str) -> String {
    derived("forebay peers check 1", secret, salt.as_bytes()).to_string()
}

/// Returns 64 hexadecimal digits that only holders of a secret can compute.
pub(crate) fn derived(context: &str, secret: &[u8], of: &[u8]) -> Zeroizing<String> {
    let key = Zeroizing::new(blake3::derive_key(context, secret));
    Zeroizing::new(blake3::keyed_hash(&key, of).to_hex().to_string())
}

/// Returns 32 random bytes in hexadecimal digits.
pub(crate) fn random_hex() -> Result<Zeroizing<String>, rustix::io::Errno> {
    let mut bytes = Zeroizing::new([0_u8; 32]);
    // The kernel gives up to 256 bytes whole.
    rustix::rand::getrandom(bytes.as_mut_slice(), rustix::rand::GetRandomFlags::empty())?;
    let digit = |half: u8| char::from_digit(u32::from(half), 16).unwrap_or_default();
    Ok(Zeroizing::new(
        bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect(),
    ))
}
