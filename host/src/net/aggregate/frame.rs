//! Frames between a head and an aggregator. All numbers are little-endian.

use crate::net::HANDLE_BYTES;
use crate::net::coll::{Head, Window};
use crate::wire::fixed::{Malformed, Reader};
use core::fmt;
use core::ops::Range;
use oxccl_shared::abi::{DataType, RedOp};

/// Bytes of a [`Header`] without a [`Span`].
pub const HEADER_BYTES: usize = 16;
/// Bytes of a [`Header`] with one.
pub const HEADER_MAX_BYTES: usize = 32;
/// Most bytes of a fragment: a multiple of every element.
pub const FRAGMENT_MAX: usize = 128 << 10;
/// Fragments, but for an operation's last, are multiples of this, and so of every element.
pub const FRAGMENT_MIN: usize = 4 << 10;
/// Most fragments of a head in flight, on each server.
pub const WINDOW: u64 = 16;
/// Most bytes of a text that says why a job is over.
pub const TEXT_MAX: usize = 512;
/// Bytes of a [`Join`].
pub const JOIN_BYTES: usize = 32;
/// Bytes of a [`JobId`].
pub const JOB_BYTES: usize = 16;

const MAGIC: [u8; 4] = *b"OxAg";
const VERSION: u16 = 3;

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
    /// It does not lie in any whole of elements of its type.
    #[error("a fragment at byte {} of blocks of {} bytes", .0.start, .0.head_bytes)]
    Span(Span),
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

/// Where a fragment of a gather or scatter lies: in the whole of all heads' blocks, in the order of the heads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// Bytes of a head's block, at least one.
    pub head_bytes: u64,
    /// Where the fragment begins in the whole.
    pub start: u64,
}

/// What a frame is. A fragment's length is that of all heads' together; how many of its bytes a head sends, and gets, is [`Header::input`]
/// and [`Header::output`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A fragment of an all-reduce.
    Reduce(DataType, RedOp),
    /// A fragment of an all-gather: each head sends what of its block lies in it, and gets all.
    Gather(Span),
    /// A fragment of a reduce-scatter: each head sends all, and gets what of its block lies in it.
    Scatter(DataType, RedOp, Span),
    /// The next bytes of what a head gets of a fragment; all of it is one frame or several.
    Result,
    /// The job is over; the data says why.
    Failed,
    /// All heads have come.
    Welcome,
    /// The server's handle follows, of the network by which data go.
    Handle,
}

/// The beginning of every frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// What it is.
    pub kind: Kind,
    /// Bytes that follow; of a fragment, those of all heads together.
    pub len_bytes: u32,
    /// The fragment's number, from 0 on each connection.
    pub seq: u64,
}

impl Span {
    /// The window of so many bytes, if there are blocks, and all of it can be counted.
    pub fn window(&self, len_bytes: usize) -> Option<Window> {
        let [head_bytes, start] = [self.head_bytes, self.start].map(|bytes| usize::try_from(bytes).ok());
        let window = Window { head_bytes: head_bytes?, start: start?, len_bytes };
        (window.head_bytes > 0 && window.start.checked_add(len_bytes).is_some()).then_some(window)
    }

    /// What of a fragment of so many bytes lies in a head's block, counted from the fragment's beginning.
    fn share(&self, len_bytes: usize, head: u32) -> Range<usize> {
        self.window(len_bytes).map_or(0..0, |window| window.share(head))
    }
}

impl Kind {
    /// Of gathers and scatters.
    pub fn span(&self) -> Option<Span> {
        match *self {
            Kind::Gather(span) | Kind::Scatter(_, _, span) => Some(span),
            Kind::Reduce(..) | Kind::Result | Kind::Failed | Kind::Welcome | Kind::Handle => None,
        }
    }

    /// Whether it is a head's fragment.
    pub fn is_fragment(&self) -> bool {
        matches!(self, Kind::Reduce(..)) || self.span().is_some()
    }

    /// Bytes of a header of this kind.
    pub fn header_bytes(&self) -> usize {
        if self.span().is_some() { HEADER_MAX_BYTES } else { HEADER_BYTES }
    }
}

/// Bytes of the header that begins so: [`HEADER_BYTES`] until so many are there.
pub fn header_bytes(begin: &[u8]) -> usize {
    let has_span = begin.len() >= HEADER_BYTES && (begin[0] == GATHER || begin[0] == SCATTER);
    if has_span { HEADER_MAX_BYTES } else { HEADER_BYTES }
}

const REDUCE: u8 = 1;
const RESULT: u8 = 2;
const FAILED: u8 = 3;
const WELCOME: u8 = 4;
const GATHER: u8 = 5;
const SCATTER: u8 = 6;
const HANDLE: u8 = 7;

impl Header {
    /// As bytes, of which the first [`Kind::header_bytes`] count.
    pub fn to_bytes(self) -> [u8; HEADER_MAX_BYTES] {
        let begin = match self.kind {
            Kind::Reduce(dtype, op) => [REDUCE, dtype as u8, op as u8],
            Kind::Result => [RESULT, 0, 0],
            Kind::Failed => [FAILED, 0, 0],
            Kind::Welcome => [WELCOME, 0, 0],
            Kind::Handle => [HANDLE, 0, 0],
            Kind::Gather(_) => [GATHER, 0, 0],
            Kind::Scatter(dtype, op, _) => [SCATTER, dtype as u8, op as u8],
        };
        let mut bytes = [0; HEADER_MAX_BYTES];
        bytes[..3].copy_from_slice(&begin);
        bytes[4..8].copy_from_slice(&self.len_bytes.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.seq.to_le_bytes());
        if let Some(Span { head_bytes, start }) = self.kind.span() {
            bytes[16..24].copy_from_slice(&head_bytes.to_le_bytes());
            bytes[24..].copy_from_slice(&start.to_le_bytes());
        }
        bytes
    }

    /// From bytes: as many as [`header_bytes`] says.
    ///
    /// # Errors
    /// They are no header, or of an impossible length.
    pub fn from_bytes(bytes: &[u8]) -> Result<Header, BadFrame> {
        let mut reader = Reader::new(bytes);
        let [kind, dtype, op, zero] = reader.array()?;
        let (len_bytes, seq) = (reader.u32()?, reader.u64()?);
        let kind = match [kind, dtype, op, zero] {
            [REDUCE, dtype, op, 0] => {
                let (dtype, op) = element(dtype, op)?;
                Kind::Reduce(dtype, op)
            }
            [RESULT, 0, 0, 0] => Kind::Result,
            [FAILED, 0, 0, 0] => Kind::Failed,
            [WELCOME, 0, 0, 0] => Kind::Welcome,
            [HANDLE, 0, 0, 0] => Kind::Handle,
            [GATHER, 0, 0, 0] => Kind::Gather(Span { head_bytes: reader.u64()?, start: reader.u64()? }),
            [SCATTER, dtype, op, 0] => {
                let (dtype, op) = element(dtype, op)?;
                Kind::Scatter(dtype, op, Span { head_bytes: reader.u64()?, start: reader.u64()? })
            }
            _ => return Err(BadFrame::Unknown),
        };
        let header = Header { kind, len_bytes, seq };
        header.check().map(|()| header)
    }

    fn check(&self) -> Result<(), BadFrame> {
        let len_bytes = self.len_bytes as usize;
        let is_fragment = (1..=FRAGMENT_MAX).contains(&len_bytes);
        let is_sound = match self.kind {
            Kind::Reduce(dtype, _) | Kind::Scatter(dtype, ..) => {
                is_fragment && len_bytes.is_multiple_of(dtype.size_bytes())
            }
            Kind::Gather(_) => is_fragment,
            Kind::Result => len_bytes <= FRAGMENT_MAX,
            Kind::Failed => len_bytes <= TEXT_MAX,
            Kind::Welcome => len_bytes == 0,
            Kind::Handle => len_bytes == HANDLE_BYTES,
        };
        if !is_sound {
            return Err(BadFrame::Length(self.len_bytes));
        }
        let Some(span) = self.kind.span() else { return Ok(()) };
        let size_bytes = if let Kind::Scatter(dtype, ..) = self.kind { dtype.size_bytes() as u64 } else { 1 };
        let is_whole = [span.head_bytes, span.start].iter().all(|bytes| bytes.is_multiple_of(size_bytes));
        if is_whole && span.window(len_bytes).is_some() { Ok(()) } else { Err(BadFrame::Span(span)) }
    }

    /// Whether it lies in the whole of so many heads.
    pub fn is_inside(&self, nheads: u32) -> bool {
        let window = |span: Span| span.window(self.len_bytes as usize);
        self.kind.span().is_none_or(|span| window(span).is_some_and(|window| window.is_inside(nheads)))
    }

    /// Which bytes of a fragment a head sends, counted from the fragment's beginning.
    pub fn input(&self, head: u32) -> Range<usize> {
        let len_bytes = self.len_bytes as usize;
        match self.kind {
            Kind::Gather(span) => span.share(len_bytes, head),
            _ => 0..len_bytes,
        }
    }

    /// Which bytes of a fragment a head gets.
    pub fn output(&self, head: u32) -> Range<usize> {
        let len_bytes = self.len_bytes as usize;
        match self.kind {
            Kind::Scatter(_, _, span) => span.share(len_bytes, head),
            _ => 0..len_bytes,
        }
    }
}

/// What is reduced, and how.
fn element(dtype: u8, op: u8) -> Result<(DataType, RedOp), BadFrame> {
    let dtype = DataType::try_from(dtype).map_err(|_| BadFrame::Unknown)?;
    let op = RedOp::try_from(op).map_err(|_| BadFrame::Unknown)?;
    if is_reduced(op) { Ok((dtype, op)) } else { Err(BadFrame::Unknown) }
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
            Kind::Gather(Span { head_bytes, start }) => {
                write!(f, "fragment {seq}: {len_bytes} bytes from {start} on of blocks of {head_bytes}")
            }
            Kind::Scatter(dtype, op, Span { head_bytes, start }) => write!(
                f,
                "fragment {seq}: {op} of {len_bytes} bytes of {dtype} from {start} on, to be scattered in blocks of {head_bytes}"
            ),
            Kind::Result => write!(f, "result {seq} of {len_bytes} bytes"),
            Kind::Failed => f.write_str("a failure"),
            Kind::Welcome => f.write_str("a welcome"),
            Kind::Handle => f.write_str("a network's handle"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_reads_as_a_frame_writes_back_the_same(
            mut bytes: [u8; HEADER_MAX_BYTES], small: bool, mut join: [u8; JOIN_BYTES],
        ) {
            if small {
                bytes[0] %= 8;
                bytes[1] %= 12;
                bytes[2] %= 5;
                bytes[3] = 0;
                bytes[6..8].fill(0);
                bytes[18..24].fill(0);
                bytes[27..].fill(0);
                join[..8].copy_from_slice(b"OxAg\x03\0\0\0");
            }
            let bytes = &bytes[..header_bytes(&bytes)];
            if let Ok(header) = Header::from_bytes(bytes) {
                prop_assert_eq!(&header.to_bytes()[..header.kind.header_bytes()], bytes);
                prop_assert!(header.len_bytes as usize <= FRAGMENT_MAX);
                prop_assert!((0..9).all(|head| header.input(head).end <= header.len_bytes as usize));
            }
            if let Ok(read) = Join::from_bytes(&join) {
                prop_assert_eq!(read.to_bytes(), join);
                prop_assert!(read.head.index < read.head.count);
            }
        }

        /// Every byte of a fragment is one head's, in the order of the heads.
        #[test]
        fn shares_make_the_fragment(head_bytes in 1u64..100, nheads in 1u32..9, at: u64, len: u64) {
            let whole = head_bytes * u64::from(nheads);
            let start = at % whole;
            let len_bytes = (1 + len % (whole - start)) as u32;
            let header = Header { kind: Kind::Gather(Span { head_bytes, start }), len_bytes, seq: 0 };
            prop_assert!(header.is_inside(nheads) && header.check().is_ok());
            let mut next = 0;
            for head in 0..nheads {
                let share = header.input(head);
                prop_assert_eq!(share.start, next);
                let block = head_bytes * u64::from(head)..head_bytes * u64::from(head + 1);
                prop_assert!(share.clone().all(|byte| block.contains(&(start + byte as u64))));
                prop_assert_eq!(header.output(head), 0..len_bytes as usize);
                next = share.end;
            }
            prop_assert_eq!(next, len_bytes as usize);
            let longer = Header { len_bytes: (whole - start) as u32 + 1, ..header };
            prop_assert!(!longer.is_inside(nheads));
        }
    }

    fn read(header: Header) -> Result<Header, BadFrame> {
        Header::from_bytes(&header.to_bytes()[..header.kind.header_bytes()])
    }

    #[test]
    fn what_is_wrong_is_said() {
        let good = Header { kind: Kind::Reduce(DataType::F32, RedOp::Sum), len_bytes: 8, seq: 3 };
        assert_eq!(read(good), Ok(good));
        for len_bytes in [0, 7, FRAGMENT_MAX as u32 + 4, u32::MAX] {
            assert_eq!(read(Header { len_bytes, ..good }), Err(BadFrame::Length(len_bytes)));
        }
        let average = Header { kind: Kind::Reduce(DataType::F32, RedOp::Avg), ..good };
        assert_eq!(read(average), Err(BadFrame::Unknown));
        let scatter = |head_bytes, start| {
            let span = Span { head_bytes, start };
            read(Header { kind: Kind::Scatter(DataType::F32, RedOp::Sum, span), ..good }).map(|_| span)
        };
        assert!(scatter(8, 4).is_ok());
        for (head_bytes, start) in [(0, 0), (6, 0), (8, 2), (8, u64::MAX - 3)] {
            assert_eq!(scatter(head_bytes, start), Err(BadFrame::Span(Span { head_bytes, start })));
        }
        let gather = Header { kind: Kind::Gather(Span { head_bytes: 3, start: 1 }), len_bytes: 7, seq: 0 };
        assert!(read(gather) == Ok(gather) && !gather.is_inside(2) && gather.is_inside(3));
        assert!(Header::from_bytes(&gather.to_bytes()[..HEADER_BYTES]).is_err());
        // Blocks whose whole cannot be counted: no host has them.
        let vast = Span { head_bytes: u64::MAX - 3, start: 0 };
        let vast = Header { kind: Kind::Gather(vast), len_bytes: 8, seq: 0 };
        assert!(read(vast) == Ok(vast) && vast.is_inside(1) && !vast.is_inside(2));
        let handle = Header { kind: Kind::Handle, len_bytes: HANDLE_BYTES as u32, seq: 0 };
        assert_eq!(read(handle), Ok(handle));
        let cut = Header { len_bytes: 127, ..handle };
        assert_eq!(read(cut), Err(BadFrame::Length(127)));
        let join = Join { job: [7; JOB_BYTES], head: Head { index: 1, count: 2 } };
        assert_eq!(Join::from_bytes(&join.to_bytes()), Ok(join));
        let none = Join { head: Head { index: 2, count: 2 }, ..join };
        assert_eq!(Join::from_bytes(&none.to_bytes()), Err(BadFrame::Head));
        let mut older = join.to_bytes();
        older[4] = 1;
        assert_eq!(Join::from_bytes(&older), Err(BadFrame::Version(1)));
    }
}
