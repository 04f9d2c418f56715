//! Layer: host / bootstrap.
//! Takes: the root's address and the job's secret.
//! Gives: [`UniqueId`], the 128 bytes with which the ranks of one communicator find each other.
//! Never: shows the secret in `Debug`.

use std::fmt;
use std::net::SocketAddr;

use thiserror::Error;

use super::credentials::{Credentials, OwnKey};
use super::secret::{KEY_BYTES, Secret};
use crate::wire::fixed::{ADDR_BYTES, Malformed, Reader, addr_bytes};

/// The size of a [`UniqueId`]; NCCL's has the same.
pub const UNIQUE_ID_BYTES: usize = 128;

const MAGIC: [u8; 8] = *b"OxCCL id";
const VERSION: u16 = 1;
const ADDR_AT: usize = 11;
const SECRET_AT: usize = ADDR_AT + ADDR_BYTES;
const END: usize = SECRET_AT + KEY_BYTES;

const _: () = assert!(END + OwnKey::BYTES <= UNIQUE_ID_BYTES);

/// Identifies a future communicator: its root's address, and the secret that only its ranks share.
///
/// Create one on one rank ([`UniqueId::create`]) and distribute it over a channel that strangers cannot read (MPI, a
/// file with mode 0600): any process that has it can join, as any rank. [`UniqueId::create_each`] makes one for each rank instead. If the ranks can agree on an address beforehand,
/// [`UniqueId::from_address`] needs no distribution.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct UniqueId {
    addr: SocketAddr,
    secret: Secret,
    kind: RootKind,
    /// Of an id that is one rank's.
    own: Option<OwnKey>,
}

/// The process that runs the root.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RootKind {
    /// The root ran before the id existed.
    Created = 0,
    /// Rank 0 starts it when it connects, so the others may have to wait for it.
    ByRankZero = 1,
    /// The same, and the secret is the same for all jobs of a user that meet at this address.
    ByRankZeroOfAnyJob = 2,
}

/// In the place of a [`RootKind`]: created, and of one rank.
const OF_ONE_RANK: u8 = 3;

/// Why 128 bytes are not a unique id.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum UniqueIdError {
    /// The text is not 256 hexadecimal digits.
    #[error("a unique id is written as 256 hexadecimal digits")]
    NotHex,
    /// The bytes do not start as an OxCCL id does.
    #[error("these bytes are no unique id of OxCCL (all zero, cut short, or made by another library?)")]
    NotAnId,
    /// The id is of another version.
    #[error("the unique id has version {theirs}, this library reads {VERSION}; use one OxCCL everywhere")]
    Version {
        /// Its version.
        theirs: u16,
    },
    /// The id has an address that cannot be connected to, or stray bytes.
    #[error("the unique id is damaged")]
    Damaged,
}

impl UniqueId {
    pub(crate) fn new(addr: SocketAddr, secret: Secret, kind: RootKind) -> UniqueId {
        UniqueId { addr, secret, kind, own: None }
    }

    /// The id of the rank that has this key; a root that was created has its maker.
    pub(crate) fn of_rank(addr: SocketAddr, shared: Secret, own: OwnKey) -> UniqueId {
        UniqueId { own: Some(own), ..UniqueId::new(addr, shared, RootKind::Created) }
    }

    /// How who has it shows the root which rank it is.
    pub(super) fn credentials(&self) -> Credentials {
        self.own.map_or(Credentials::Believed, Credentials::Own)
    }

    /// An id that every rank derives from an address and a seed agreed on beforehand (`NCCL_COMM_ID=host:port`). Rank
    /// 0 runs the root there when it connects; the others retry until it answers or their timeout passes. The secret
    /// is as hard to guess as `seed`: a job id keeps other jobs out, not an attacker.
    pub fn from_address(addr: SocketAddr, seed: &[u8]) -> UniqueId {
        UniqueId::new(addr, Secret::from_seed(seed), RootKind::ByRankZero)
    }

    /// This id where nothing but the address tells the job from others.
    #[must_use]
    pub(crate) fn of_any_job(self) -> UniqueId {
        UniqueId { kind: RootKind::ByRankZeroOfAnyJob, ..self }
    }

    /// This id for ranks that share a key besides it: only who has both joins, and all keys of the communicator follow from both.
    #[must_use]
    pub fn with_key(&self, key: &[u8]) -> UniqueId {
        UniqueId { secret: self.secret.with_key(key), ..*self }
    }

    /// The root's address.
    pub fn root_addr(&self) -> SocketAddr {
        self.addr
    }

    pub(crate) fn secret(&self) -> &Secret {
        &self.secret
    }

    pub(crate) fn kind(&self) -> RootKind {
        self.kind
    }

    /// The id as bytes; they contain the secret.
    pub fn to_bytes(&self) -> [u8; UNIQUE_ID_BYTES] {
        let mut bytes = [0; UNIQUE_ID_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        bytes[10] = self.own.map_or(self.kind as u8, |_| OF_ONE_RANK);
        bytes[ADDR_AT..SECRET_AT].copy_from_slice(&addr_bytes(self.addr));
        bytes[SECRET_AT..END].copy_from_slice(self.secret.bytes());
        if let Some(own) = self.own {
            bytes[END..END + OwnKey::BYTES].copy_from_slice(&own.to_bytes());
        }
        bytes
    }

    /// Decodes the bytes of [`to_bytes`](Self::to_bytes).
    pub fn from_bytes(bytes: &[u8; UNIQUE_ID_BYTES]) -> Result<UniqueId, UniqueIdError> {
        if bytes[..8] != MAGIC {
            return Err(UniqueIdError::NotAnId);
        }
        let mut reader = Reader::new(&bytes[8..]);
        let version = reader.u16().map_err(|Malformed| UniqueIdError::Damaged)?;
        if version != VERSION {
            return Err(UniqueIdError::Version { theirs: version });
        }
        Self::body(reader).map_err(|Malformed| UniqueIdError::Damaged)
    }

    fn body(mut reader: Reader<'_>) -> Result<UniqueId, Malformed> {
        let kind = reader.u8()?;
        let is_of_one_rank = kind == OF_ONE_RANK;
        let kind = match kind {
            0 | OF_ONE_RANK => RootKind::Created,
            1 => RootKind::ByRankZero,
            2 => RootKind::ByRankZeroOfAnyJob,
            _ => return Err(Malformed),
        };
        let addr = reader.addr()?;
        let secret = Secret::from_bytes(reader.array()?);
        let own = match is_of_one_rank {
            true => Some(OwnKey::from_parts(reader.array()?, reader.array()?)),
            false => None,
        };
        let stray = reader.rest().iter().any(|&byte| byte != 0);
        if stray || addr.port() == 0 || addr.ip().is_unspecified() {
            return Err(Malformed);
        }
        Ok(UniqueId { addr, secret, kind, own })
    }
}

impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UniqueId").field("root", &self.addr).field("kind", &self.kind).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn id() -> UniqueId {
        UniqueId::from_address("[2001:db8::1]:4711".parse().expect("an address"), b"seed")
    }

    #[test]
    fn damage_is_named() {
        let with = |at: usize, byte: u8| {
            let mut bytes = id().to_bytes();
            bytes[at] = byte;
            UniqueId::from_bytes(&bytes)
        };
        assert_eq!(UniqueId::from_bytes(&[0; 128]), Err(UniqueIdError::NotAnId));
        assert_eq!(with(0, b'X'), Err(UniqueIdError::NotAnId));
        assert_eq!(with(8, 2), Err(UniqueIdError::Version { theirs: 2 }));
        assert_eq!(with(10, 9), Err(UniqueIdError::Damaged));
        assert_eq!(with(ADDR_AT, 5), Err(UniqueIdError::Damaged));
        assert_eq!(with(127, 1), Err(UniqueIdError::Damaged));
        for addr in ["0.0.0.0:1", "1.2.3.4:0"] {
            let bad = UniqueId::from_address(addr.parse().expect("an address"), b"");
            assert_eq!(UniqueId::from_bytes(&bad.to_bytes()), Err(UniqueIdError::Damaged), "{addr}");
        }
    }

    #[test]
    fn debug_hides_the_secret() {
        let shown = format!("{:?}", id());
        assert!(shown.contains("4711") && !shown.contains("ecret"), "{shown}");
    }

    proptest! {
        #[test]
        fn any_128_bytes_are_an_id_or_an_error(bytes in any::<[u8; 32]>(), at in 0usize..97) {
            let mut raw = id().to_bytes();
            prop_assert_eq!(UniqueId::from_bytes(&raw), Ok(id()));
            raw[at..at + 32].copy_from_slice(&bytes);
            if let Ok(read) = UniqueId::from_bytes(&raw) {
                prop_assert_eq!(read.to_bytes(), raw);
            }
        }
    }
}
