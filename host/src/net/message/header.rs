//! The 16 bytes before every message on the control stream.

use super::MESSAGE_MAX_BYTES;

/// Bytes of a header.
pub(super) const HEADER_BYTES: usize = 16;

const MAGIC: [u8; 2] = *b"On";
const VERSION: u8 = 2;

/// The place of a message's body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Body {
    /// After the header.
    Inline = 0,
    /// On the data streams.
    Striped = 1,
}

/// Precedes a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Header {
    pub body: Body,
    /// The message's number, its low half.
    pub number: u32,
    /// The operation that it is of.
    pub tag: u32,
    /// At most [`MESSAGE_MAX_BYTES`].
    pub len_bytes: usize,
}

/// Why a header is invalid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum HeaderFault {
    /// The stream is out of step, or another program is at the other end.
    Magic([u8; 2]),
    Version(u8),
    /// An unknown kind of body, or an impossible one on a connection with these streams.
    Body(u8),
    Number {
        expected: u32,
        found: u32,
    },
    /// The two ends are in different operations.
    Tag {
        expected: u32,
        found: u32,
    },
    /// More bytes than the receive's buffer has.
    Length {
        max_bytes: usize,
        found: u32,
    },
}

impl HeaderFault {
    /// The expected and the actual value, as text.
    pub(super) fn words(self) -> (String, String) {
        match self {
            HeaderFault::Magic(found) => {
                ("a message".to_owned(), format!("bytes that begin with {found:02x?}"))
            }
            HeaderFault::Version(found) => {
                (format!("version {VERSION} of the message header"), format!("version {found}"))
            }
            HeaderFault::Body(found) => {
                ("a body on lanes that there are".to_owned(), format!("kind {found}"))
            }
            HeaderFault::Number { expected, found } => {
                (format!("message {expected:#x}"), format!("message {found:#x}"))
            }
            HeaderFault::Tag { expected, found } => {
                (format!("a message of operation {expected:#010x}"), format!("one of {found:#010x}"))
            }
            HeaderFault::Length { max_bytes, found } => {
                (format!("a message of at most {max_bytes} bytes"), format!("one of {found}"))
            }
        }
    }
}

impl Header {
    /// Encodes it: magic, version, body, number, tag, length, little-endian.
    pub(super) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..2].copy_from_slice(&MAGIC);
        bytes[2] = VERSION;
        bytes[3] = self.body as u8;
        bytes[4..8].copy_from_slice(&self.number.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.tag.to_le_bytes());
        bytes[12..].copy_from_slice(&(self.len_bytes as u32).to_le_bytes());
        bytes
    }

    /// Decodes the header of message `number` of operation `tag`, whose receive has `max_bytes`. `has_data_lanes`: whether a body can
    /// be striped.
    #[inline]
    pub(super) fn decode(
        bytes: &[u8; HEADER_BYTES],
        number: u32,
        tag: u32,
        max_bytes: usize,
        has_data_lanes: bool,
    ) -> Result<Header, HeaderFault> {
        let [m0, m1, version, body, n0, n1, n2, n3, t0, t1, t2, t3, len @ ..] = *bytes;
        if [m0, m1] != MAGIC {
            return Err(HeaderFault::Magic([m0, m1]));
        }
        if version != VERSION {
            return Err(HeaderFault::Version(version));
        }
        let body = match body {
            0 => Body::Inline,
            1 if has_data_lanes => Body::Striped,
            other => return Err(HeaderFault::Body(other)),
        };
        let found = u32::from_le_bytes([n0, n1, n2, n3]);
        if found != number {
            return Err(HeaderFault::Number { expected: number, found });
        }
        let found = u32::from_le_bytes([t0, t1, t2, t3]);
        if found != tag {
            return Err(HeaderFault::Tag { expected: tag, found });
        }
        let (found, max_bytes) = (u32::from_le_bytes(len), max_bytes.min(MESSAGE_MAX_BYTES));
        if found as usize > max_bytes {
            return Err(HeaderFault::Length { max_bytes, found });
        }
        Ok(Header { body, number, tag, len_bytes: found as usize })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: Header =
        Header { body: Body::Striped, number: 0x0403_0201, tag: 0xa4a3_a2a1, len_bytes: 0x15_1413 };

    #[test]
    fn the_wire_form_is_fixed() {
        let bytes = *b"On\x02\x01\x01\x02\x03\x04\xa1\xa2\xa3\xa4\x13\x14\x15\0";
        assert_eq!(GOOD.encode(), bytes);
        assert_eq!(Header::decode(&bytes, GOOD.number, GOOD.tag, usize::MAX, true), Ok(GOOD));
    }

    #[test]
    fn each_fault_is_named() {
        let decode = |at: usize, value: u8| {
            let mut bytes = GOOD.encode();
            bytes[at] = value;
            Header::decode(&bytes, GOOD.number, GOOD.tag, GOOD.len_bytes, true)
        };
        assert_eq!(decode(15, 0), Ok(GOOD));
        assert_eq!(decode(0, b'x'), Err(HeaderFault::Magic(*b"xn")));
        assert_eq!(decode(2, 9), Err(HeaderFault::Version(9)));
        assert_eq!(decode(3, 2), Err(HeaderFault::Body(2)));
        let expected = GOOD.number;
        assert_eq!(decode(4, 2), Err(HeaderFault::Number { expected, found: 0x0403_0202 }));
        assert_eq!(decode(8, 0), Err(HeaderFault::Tag { expected: GOOD.tag, found: 0xa4a3_a200 }));
        let found = GOOD.len_bytes as u32 + 1;
        assert_eq!(decode(12, 0x14), Err(HeaderFault::Length { max_bytes: GOOD.len_bytes, found }));
        let garbage = HeaderFault::Length { max_bytes: GOOD.len_bytes, found: 0xff15_1413 };
        assert_eq!(decode(15, 0xff), Err(garbage));
        let one_lane = Header::decode(&GOOD.encode(), GOOD.number, GOOD.tag, usize::MAX, false);
        assert_eq!(one_lane, Err(HeaderFault::Body(1)));
    }
}
