//! Digests of layouts: each module lists its own, `layout.rs` digests all of them.

/// Lists the size of a type and the offsets of its fields.
macro_rules! layout {
    ($type:ty: $($field:ident),+) => {
        &[size_of::<$type>() as u64, $(core::mem::offset_of!($type, $field) as u64),+]
    };
}
pub(crate) use layout;

/// Continues an FNV-1a digest.
pub(crate) const fn digest_of(mut digest: u64, bytes: &[u8]) -> u64 {
    let mut at = 0;
    while at < bytes.len() {
        digest = (digest ^ bytes[at] as u64).wrapping_mul(0x0100_0000_01B3);
        at += 1;
    }
    digest
}
