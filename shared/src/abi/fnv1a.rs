//! FNV-1a of 64 bits: a digest that is the same in every build and on every machine.

/// Where it begins.
pub const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x100_0000_01b3;

/// The digest of what gave `digest`, and of these bytes after it.
pub const fn extend(digest: u64, bytes: &[u8]) -> u64 {
    let mut digest = digest;
    let mut i = 0;
    while i < bytes.len() {
        digest = (digest ^ bytes[i] as u64).wrapping_mul(PRIME);
        i += 1;
    }
    digest
}
