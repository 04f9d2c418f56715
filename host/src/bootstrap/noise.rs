//! Layer: host / bootstrap.
//! Takes: the job's secret, a connection's own private key.
//! Gives: the Noise handshake `NNpsk0` of one side, ready for its first message.
//! Never: draws random bytes: the caller passes the private key.

use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::types::{Cipher, Dh, Hash, Random};
use snow::{Builder, Error, HandshakeState};

use super::secret::{Ephemeral, KEY_BYTES, Secret};

/// Both sides hold the secret (psk) and mix it in before anything else (0); neither has a key pair that lasts (N, N).
const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// The size of a public key.
pub const PUBLIC_BYTES: usize = 32;

/// The connecting or the accepting side's state. Both sides pass the same `prologue`; if theirs differ, neither can read a message.
pub fn handshake(
    secret: &Secret,
    prologue: &[u8],
    ephemeral: Ephemeral,
    is_initiator: bool,
) -> HandshakeState {
    let psk = secret.derive(&[b"noise psk"]);
    let params = PATTERN.parse().expect("a pattern that snow is built with");
    let resolver = Box::new(OneKey(ephemeral));
    let build = || {
        let builder = Builder::with_resolver(params, resolver).psk(0, psk.bytes())?.prologue(prologue)?;
        if is_initiator { builder.build_initiator() } else { builder.build_responder() }
    };
    build().expect("all that the pattern needs")
}

/// Noise's usual parts, but for random bytes those of one private key.
struct OneKey(Ephemeral);

impl CryptoResolver for OneKey {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(Once(Some(*self.0.bytes()))))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        DefaultResolver.resolve_dh(choice)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        DefaultResolver.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        DefaultResolver.resolve_cipher(choice)
    }
}

/// Gives its bytes once.
struct Once(Option<[u8; KEY_BYTES]>);

impl Random for Once {
    fn try_fill_bytes(&mut self, out: &mut [u8]) -> Result<(), Error> {
        match self.0.take() {
            Some(key) if key.len() == out.len() => out.copy_from_slice(&key),
            _ => return Err(Error::Rng),
        }
        Ok(())
    }
}
