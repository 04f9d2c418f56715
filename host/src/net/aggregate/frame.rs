//! Frames between a head and an aggregator. All numbers are little-endian.

use crate::net::coll::Head;
use crate::wire::fixed::{Malformed, Reader};
use core::fmt;
use oxccl_shared::abi::{DataType, RedOp};

/// Bytes of a [`Header`].
pub const HEADER_BYTES: usize = 16;
/// Most bytes of a fragment: a multiple of every element.
pub const FRAGMENT_MAX: usize = 256 << 10;
/// Most fragments of a head in flight, on each server.
pub const WINDOW: u64 = 8;
/// Most bytes of a text that says why a job is over.
pub const TEXT_MAX: usize = 512;
/// Bytes of a [`Join`].
pub const JOIN_BYTES: usize = 32;
/// Bytes of a [`JobId`].
pub const JOB_BYTES: usize = 16;

const MAGIC: [u8; 4] = *b"OxAg";
const VERSION: u16 = 1;

/// A communicator's random number, which only its heads know.
pub type JobId = [u8; JOB_BYTES];

/// The first message of a head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Join {
    /// Its communicator.
    pub job: JobId,
    /// Its place among the communicator's heads.
    pub head: Head,
}

/// Why a message is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadFrame {
    /// The message is none of this protocol.
    #[error("no message of an aggregator")]
    Unknown,
    /// The other side is of another version.
    #[error("a message of version {0} of the aggregator's protocol; this is version {VERSION}")]
    Version(u16),
    /// Its head is not among the heads.
    #[error("a head that no job has")]
    Head,
    /// Its length is none of a fragment of its type.
    #[error("a length of {0} bytes")]
    Length(u32),
}

impl From<Malformed> for BadFrame {
    fn from(_: Malformed) -> BadFrame {
        BadFrame::Unknown
    }
}

impl Join {
    /// As bytes.
    pub fn to_bytes(self) -> [u8; JOIN_BYTES] {
        let mut bytes = [0; JOIN_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[8..24].copy_from_slice(&self.job);
        bytes[24..28].copy_from_slice(&self.head.index.to_le_bytes());
        bytes[28..].copy_from_slice(&self.head.count.to_le_bytes());
        bytes
    }

    /// From bytes.
    ///
    /// # Errors
    /// They are no such message.
    pub fn from_bytes(bytes: &[u8; JOIN_BYTES]) -> Result<Join, BadFrame> {
        let mut reader = Reader::new(bytes);
        if reader.array()? != MAGIC {
            return Err(BadFrame::Unknown);
        }
        match (reader.u16()?, reader.u16()?) {
            (VERSION, 0) => {}
            (VERSION, _) => return Err(BadFrame::Unknown),
            (other, _) => return Err(BadFrame::Version(other)),
        }
        let join = Join { job: reader.array()?, head: Head { index: reader.u32()?, count: reader.u32()? } };
        if join.head.index >= join.head.count { Err(BadFrame::Head) } else { Ok(join) }
    }
}

/// What a frame is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A head's fragment.
    Reduce(DataType, RedOp),
    /// The reduction of all heads' fragments.
    Result,
    /// The job is over; the data says why.
    Failed,
    /// All heads have come.
    Welcome,
}

/// The beginning of every frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// What it is.
    pub kind: Kind,
    /// Bytes that follow.
    pub len_bytes: u32,
    /// The fragment's number, from 0 on each connection.
    pub seq: u64,
}

impl Header {
    /// As bytes.
    pub fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let [kind, dtype, op] = match self.kind {
            Kind::Reduce(dtype, op) => [1, dtype as u8, op as u8],
            Kind::Result => [2, 0, 0],
            Kind::Failed => [3, 0, 0],
            Kind::Welcome => [4, 0, 0],
        };
        let mut bytes = [0; HEADER_BYTES];
        bytes[..3].copy_from_slice(&[kind, dtype, op]);
        bytes[4..8].copy_from_slice(&self.len_bytes.to_le_bytes());
        bytes[8..].copy_from_slice(&self.seq.to_le_bytes());
        bytes
    }

    /// From bytes.
    ///
    /// # Errors
    /// They are no header, or of an impossible length.
    pub fn from_bytes(bytes: &[u8; HEADER_BYTES]) -> Result<Header, BadFrame> {
        let mut reader = Reader::new(bytes);
        let kind = match reader.array::<4>()? {
            [1, dtype, op, 0] => {
                let dtype = DataType::try_from(dtype).map_err(|_| BadFrame::Unknown)?;
                let op = RedOp::try_from(op).map_err(|_| BadFrame::Unknown)?;
                if !is_reduced(op) {
                    return Err(BadFrame::Unknown);
                }
                Kind::Reduce(dtype, op)
            }
            [2, 0, 0, 0] => Kind::Result,
            [3, 0, 0, 0] => Kind::Failed,
            [4, 0, 0, 0] => Kind::Welcome,
            _ => return Err(BadFrame::Unknown),
        };
        let header = Header { kind, len_bytes: reader.u32()?, seq: reader.u64()? };
        let len_bytes = header.len_bytes as usize;
        let is_fragment = (1..=FRAGMENT_MAX).contains(&len_bytes);
        let is_sound = match kind {
            Kind::Reduce(dtype, _) => is_fragment && len_bytes.is_multiple_of(dtype.size_bytes()),
            Kind::Result => is_fragment,
            Kind::Failed => len_bytes <= TEXT_MAX,
            Kind::Welcome => len_bytes == 0,
        };
        if is_sound { Ok(header) } else { Err(BadFrame::Length(header.len_bytes)) }
    }
}

/// Whether an aggregator reduces by this operator: sum, product, maximum or minimum.
pub fn is_reduced(op: RedOp) -> bool {
    matches!(op, RedOp::Sum | RedOp::Prod | RedOp::Max | RedOp::Min)
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Header { kind, len_bytes, seq } = self;
        match kind {
            Kind::Reduce(dtype, op) => write!(f, "fragment {seq}: {op} of {len_bytes} bytes of {dtype}"),
            Kind::Result => write!(f, "result {seq} of {len_bytes} bytes"),
            Kind::Failed => f.write_str("a failure"),
            Kind::Welcome => f.write_str("a welcome"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_reads_as_a_frame_writes_back_the_same(mut bytes: [u8; HEADER_BYTES], small: bool, mut join: [u8; JOIN_BYTES]) {
            if small {
                bytes[0] %= 5;
                bytes[1] %= 12;
                bytes[2] %= 5;
                bytes[3] = 0;
                bytes[6..8].fill(0);
                join[..8].copy_from_slice(b"OxAg\x01\0\0\0");
            }
            if let Ok(header) = Header::from_bytes(&bytes) {
                prop_assert_eq!(header.to_bytes(), bytes);
                prop_assert!(header.len_bytes as usize <= FRAGMENT_MAX);
            }
            if let Ok(read) = Join::from_bytes(&join) {
                prop_assert_eq!(read.to_bytes(), join);
                prop_assert!(read.head.index < read.head.count);
            }
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        let good = Header { kind: Kind::Reduce(DataType::F32, RedOp::Sum), len_bytes: 8, seq: 3 };
        assert_eq!(Header::from_bytes(&good.to_bytes()), Ok(good));
        for len_bytes in [0, 7, FRAGMENT_MAX as u32 + 4, u32::MAX] {
            let bad = Header { len_bytes, ..good };
            assert_eq!(Header::from_bytes(&bad.to_bytes()), Err(BadFrame::Length(len_bytes)));
        }
        let average = Header { kind: Kind::Reduce(DataType::F32, RedOp::Avg), ..good };
        assert_eq!(Header::from_bytes(&average.to_bytes()), Err(BadFrame::Unknown));
        let join = Join { job: [7; JOB_BYTES], head: Head { index: 1, count: 2 } };
        assert_eq!(Join::from_bytes(&join.to_bytes()), Ok(join));
        let none = Join { head: Head { index: 2, count: 2 }, ..join };
        assert_eq!(Join::from_bytes(&none.to_bytes()), Err(BadFrame::Head));
        let mut newer = join.to_bytes();
        newer[4] = 2;
        assert_eq!(Join::from_bytes(&newer), Err(BadFrame::Version(2)));
    }
}
