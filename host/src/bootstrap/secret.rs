//! Layer: host / bootstrap.
//! Takes: random bytes of the kernel, or a seed.
//! Gives: [`Secret`], the job's 256-bit key, with derivation of further keys; [`Ephemeral`], one connection's private key.
//! Never: shows a key in `Debug`, or compares codes in a time that depends on them.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;

use super::error::BootstrapError;

/// The size of keys and authentication codes.
pub const KEY_BYTES: usize = 32;
/// SHA-256 works on blocks of this size; a key padded to it with zeros is, by HMAC's definition, the same key.
const BLOCK_BYTES: usize = 64;

/// The secret that the ranks of one job share.
#[derive(Clone, Copy)]
pub struct Secret([u8; KEY_BYTES]);

/// One side's private key of one connection: random, used once, never stored.
pub struct Ephemeral([u8; KEY_BYTES]);

/// A message authentication code.
type Code = [u8; KEY_BYTES];

impl Secret {
    /// A key from the kernel's random source.
    pub fn random() -> Result<Secret, BootstrapError> {
        random_bytes().map(Secret)
    }

    /// The key derived from `seed`. It is as hard to guess as the seed.
    pub fn from_seed(seed: &[u8]) -> Secret {
        Secret([0; KEY_BYTES]).derive(&[b"oxccl seed", seed])
    }

    /// These bytes, as a key.
    pub const fn from_bytes(bytes: [u8; KEY_BYTES]) -> Secret {
        Secret(bytes)
    }

    /// The key itself, to be put into a unique id.
    pub(crate) const fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }

    /// HMAC-SHA256 over `parts`, each preceded by its length so that no two lists of parts look alike.
    fn code(&self, parts: &[&[u8]]) -> Code {
        let mut key = [0; BLOCK_BYTES];
        key[..KEY_BYTES].copy_from_slice(&self.0);
        let mut mac = Hmac::<Sha256>::new(&key.into());
        for part in parts {
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        mac.finalize().into_bytes().into()
    }

    /// The secret of who knows this one and a key besides.
    pub fn with_key(&self, key: &[u8]) -> Secret {
        self.derive(&[b"oxccl shared key", key])
    }

    /// Derives a key for the purpose in `parts`.
    pub fn derive(&self, parts: &[&[u8]]) -> Secret {
        Secret(self.code(parts))
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Secret) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Ephemeral {
    /// A fresh one from the kernel's random source.
    pub fn random() -> Result<Ephemeral, BootstrapError> {
        random_bytes().map(Ephemeral)
    }

    /// These bytes, for tests that need the same handshake again.
    #[doc(hidden)]
    pub const fn from_bytes(bytes: [u8; KEY_BYTES]) -> Ephemeral {
        Ephemeral(bytes)
    }

    /// The key itself.
    pub(super) const fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }
}

impl fmt::Debug for Ephemeral {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ephemeral(..)")
    }
}

fn random_bytes() -> Result<[u8; KEY_BYTES], BootstrapError> {
    let mut bytes = [0; KEY_BYTES];
    getrandom::fill(&mut bytes).map_err(|error| BootstrapError::Io {
        what: "read random bytes from the kernel",
        errno: error.raw_os_error().unwrap_or(libc::EIO),
    })?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_plain_hmac_sha256() {
        // RFC 4231, test case 1, with the key zero-padded; checks that padding to a block changes nothing.
        let mut key = [0; KEY_BYTES];
        key[..20].fill(0x0b);
        let mut block = [0; BLOCK_BYTES];
        block[..KEY_BYTES].copy_from_slice(&key);
        let mut mac = Hmac::<Sha256>::new(&block.into());
        mac.update(b"Hi There");
        let code: Code = mac.finalize().into_bytes().into();
        let want = [
            0xb0, 0x34, 0x4c, 0x61, 0xd8, 0xdb, 0x38, 0x53, 0x5c, 0xa8, 0xaf, 0xce, 0xaf, 0x0b, 0xf1, 0x2b,
            0x88, 0x1d, 0xc2, 0x00, 0xc9, 0x83, 0x3d, 0xa7, 0x26, 0xe9, 0x37, 0x6c, 0x2e, 0x32, 0xcf, 0xf7,
        ];
        assert_eq!(code, want);
    }

    #[test]
    fn parts_do_not_run_together_and_keys_matter() {
        let secret = Secret::from_seed(b"job 7");
        assert_ne!(secret.code(&[b"ab", b"c"]), secret.code(&[b"a", b"bc"]));
        assert_ne!(secret.code(&[b"ab"]), Secret::from_seed(b"job 8").code(&[b"ab"]));
        assert_eq!(secret, Secret::from_seed(b"job 7"));
    }

    #[test]
    fn debug_tells_nothing() {
        assert_eq!(format!("{:?}", Secret::from_seed(b"x")), "Secret(..)");
    }
}
