//! The first page of a shared segment: an opener checks it before it trusts the rest.

use super::error::{MemError, ShmProperty};
use super::name::ShmName;

const MAGIC: u64 = u64::from_le_bytes(*b"OxCCLshm");
const VERSION: u32 = 3;

/// Written once by the creator, before the bootstrap announces the file to any peer.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ShmHeader {
    magic: u64,
    version: u32,
    rank: u32,
    token: u64,
    len_bytes: u64,
}

const _: () = {
    use core::mem::{align_of, offset_of, size_of};
    assert!(size_of::<ShmHeader>() == 32 && align_of::<ShmHeader>() == 8);
    assert!(offset_of!(ShmHeader, magic) == 0);
    assert!(offset_of!(ShmHeader, version) == 8);
    assert!(offset_of!(ShmHeader, rank) == 12);
    assert!(offset_of!(ShmHeader, token) == 16);
    assert!(offset_of!(ShmHeader, len_bytes) == 24);
};

impl ShmHeader {
    pub(super) fn new(name: &ShmName, len: usize) -> Self {
        ShmHeader {
            magic: MAGIC,
            version: VERSION,
            rank: name.rank().0,
            token: name.token(),
            len_bytes: len as u64,
        }
    }

    /// Checks that this is the header that the creator of `name` writes for `len` bytes.
    pub(super) fn verify(&self, name: &ShmName, len: usize) -> Result<(), MemError> {
        let want = ShmHeader::new(name, len);
        let pairs = [
            (ShmProperty::Magic, want.magic, self.magic),
            (ShmProperty::Version, want.version.into(), self.version.into()),
            (ShmProperty::Rank, want.rank.into(), self.rank.into()),
            (ShmProperty::Token, want.token, self.token),
            (ShmProperty::Length, want.len_bytes, self.len_bytes),
        ];
        pairs.into_iter().try_for_each(|(property, expected, found)| expect(name, property, expected, found))
    }
}

/// Fails unless `found` equals `expected`.
pub(super) fn expect(
    name: &ShmName,
    property: ShmProperty,
    expected: u64,
    found: u64,
) -> Result<(), MemError> {
    if expected == found {
        return Ok(());
    }
    Err(MemError::ShmForeign { path: name.path().to_owned(), property, expected, found })
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxccl_shared::abi::Rank;

    #[test]
    fn each_field_is_compared() {
        let name = ShmName::of(7, 0, Rank(3));
        let good = ShmHeader::new(&name, 4096);
        good.verify(&name, 4096).unwrap();
        let property = |h: ShmHeader| match h.verify(&name, 4096) {
            Err(MemError::ShmForeign { property, .. }) => property,
            other => panic!("{other:?}"),
        };
        assert_eq!(property(ShmHeader { magic: 0, ..good }), ShmProperty::Magic);
        assert_eq!(property(ShmHeader { version: VERSION + 1, ..good }), ShmProperty::Version);
        assert_eq!(property(ShmHeader { rank: 4, ..good }), ShmProperty::Rank);
        assert_eq!(property(ShmHeader { token: 8, ..good }), ShmProperty::Token);
        assert_eq!(property(ShmHeader { len_bytes: 8192, ..good }), ShmProperty::Length);
    }
}
