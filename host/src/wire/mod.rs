//! Layer: host / wire, beside the operating system.
//! Takes: plain serde types, each with a version and a size limit ([`Message`]).
//! Gives: control messages as bytes, and back; digests of such types. [`fixed`] is for the few layouts that are
//! defined byte by byte: handshakes, the unique id, handles of networks.
//! Never: reads past the end, reserves memory for a merely announced length, or decodes two byte strings to the same
//! message.
//!
//! ```text
//! byte   0         1 ..
//!        version   the fields in their order, by postcard (variable-length little-endian numbers)
//! ```
//! A peer's message is not trusted: [`Message::is_sound`] checks the decoded values, and the caller checks what only
//! it can know.

pub(crate) mod bytes;
mod digest;
pub mod fixed;

pub use digest::digest;

use postcard::ser_flavors::Flavor;
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

/// Why bytes are not the expected message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum WireError {
    /// More bytes than such a message may have; none of them were decoded.
    #[error("{len_bytes} bytes, where a message of this kind has at most {max_bytes}")]
    TooLong {
        /// Number of bytes.
        len_bytes: usize,
        /// The limit.
        max_bytes: usize,
    },
    /// The first byte is another version, or there is none.
    #[error("a message of version {found:?} where version {expected} is expected; use one OxCCL everywhere")]
    Version {
        /// The version that this library reads.
        expected: u8,
        /// The version found.
        found: Option<u8>,
    },
    /// The fields end too early, are followed by further bytes, or are not in the encoding that this library writes.
    #[error("a message that is cut short, damaged or too long")]
    Form,
    /// The fields decode but contradict each other or are out of range.
    #[error("a message that contradicts itself")]
    Unsound,
}

/// A control message.
pub trait Message: Serialize + DeserializeOwned {
    /// Raised whenever fields or their meaning change.
    const VERSION: u8;
    /// Size limit of a message of this type, version included.
    const BYTES_MAX: usize;

    /// Whether the values are possible.
    fn is_sound(&self) -> bool {
        true
    }

    /// Encodes the message for another rank. A message beyond its size limit is a defect of the sender: it is logged,
    /// and the result is empty, which no rank decodes as a message.
    fn to_bytes(&self) -> Vec<u8> {
        let written = postcard::to_extend(self, vec![Self::VERSION]).ok();
        written.filter(|bytes| bytes.len() <= Self::BYTES_MAX).unwrap_or_else(|| {
            tracing::error!(
                kind = std::any::type_name::<Self>(),
                "a control message exceeds its bound and is not sent"
            );
            Vec::new()
        })
    }

    /// Decodes a message from another rank.
    ///
    /// # Errors
    /// [`WireError`]: these bytes are not what [`Self::to_bytes`] returns for any sound message.
    fn from_bytes(bytes: &[u8]) -> Result<Self, WireError> {
        if bytes.len() > Self::BYTES_MAX {
            return Err(WireError::TooLong { len_bytes: bytes.len(), max_bytes: Self::BYTES_MAX });
        }
        match Self::split_from(bytes)? {
            (message, []) => Ok(message),
            _ => Err(WireError::Form),
        }
    }

    /// Decodes the message at the start of `bytes`; also returns the bytes after it, of any number.
    ///
    /// # Errors
    /// As [`Self::from_bytes`].
    fn split_from(bytes: &[u8]) -> Result<(Self, &[u8]), WireError> {
        let found = bytes.first().copied();
        let Some((_, fields)) = bytes.split_first().filter(|(version, _)| **version == Self::VERSION) else {
            return Err(WireError::Version { expected: Self::VERSION, found });
        };
        let fields_max = fields.len().min(Self::BYTES_MAX - 1);
        let (message, rest) =
            postcard::take_from_bytes::<Self>(&fields[..fields_max]).map_err(|_| WireError::Form)?;
        let (used, rest) = fields.split_at(fields_max - rest.len());
        // Numbers and lengths have more than one possible encoding.
        postcard::serialize_with_flavor(&message, Equals { rest: used }).map_err(|_| WireError::Form)?;
        if !message.is_sound() {
            return Err(WireError::Unsound);
        }
        Ok((message, rest))
    }
}

/// The longest prefix of a text that fits into a message, cut between two characters.
pub fn cut(text: &str, len_max: usize) -> &str {
    let end = (0..=text.len().min(len_max)).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

/// A sink that accepts exactly these bytes.
struct Equals<'a> {
    rest: &'a [u8],
}

impl Flavor for Equals<'_> {
    type Output = ();

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.try_extend(&[byte])
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.rest = self.rest.strip_prefix(bytes).ok_or(postcard::Error::SerializeBufferFull)?;
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        if self.rest.is_empty() { Ok(()) } else { Err(postcard::Error::SerializeBufferFull) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde::Deserialize;

    #[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
    struct Sample {
        kind: Option<u32>,
        number: u64,
        names: Vec<String>,
    }

    impl Message for Sample {
        const VERSION: u8 = 3;
        const BYTES_MAX: usize = 64;

        fn is_sound(&self) -> bool {
            self.number != 13
        }
    }

    fn sample() -> Sample {
        Sample { kind: Some(300), number: 1 << 40, names: vec!["a".into(), String::new()] }
    }

    #[test]
    fn what_is_wrong_is_said() {
        let good = sample().to_bytes();
        assert_eq!(Sample::from_bytes(&good), Ok(sample()));
        for cut in 1..good.len() {
            assert_eq!(Sample::from_bytes(&good[..cut]), Err(WireError::Form), "{cut}");
        }
        let version = |found| Err(WireError::Version { expected: 3, found });
        assert_eq!(Sample::from_bytes(&[]), version(None));
        assert_eq!(Sample::from_bytes(&[&[4], &good[1..]].concat()), version(Some(4)));
        assert_eq!(Sample::from_bytes(&[&good[..], &[0]].concat()), Err(WireError::Form));
        let long = WireError::TooLong { len_bytes: 65, max_bytes: 64 };
        assert_eq!(Sample::from_bytes(&[3; 65]), Err(long));
        let unlucky = Sample { number: 13, ..sample() };
        assert_eq!(Sample::from_bytes(&unlucky.to_bytes()), Err(WireError::Unsound));
    }

    #[test]
    fn a_number_has_one_form() {
        // None, 0 in two bytes instead of one, no names.
        assert_eq!(Sample::from_bytes(&[3, 0, 0x80, 0, 0]), Err(WireError::Form));
        assert!(Sample::from_bytes(&[3, 0, 0, 0]).is_ok());
    }

    #[test]
    fn what_is_announced_and_not_there_is_refused_before_memory_is_reserved() {
        // A list of 2^63 names.
        let announced = [3, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f];
        assert_eq!(Sample::from_bytes(&announced), Err(WireError::Form));
    }

    #[test]
    fn a_message_beyond_its_bound_is_no_message() {
        let long = Sample { names: vec!["n".repeat(64)], ..sample() };
        assert!(long.to_bytes().is_empty());
    }

    #[test]
    fn what_follows_a_message_is_left_alone() {
        let good = sample().to_bytes();
        let more = [&good[..], &[7; 100]].concat();
        assert_eq!(Sample::split_from(&more), Ok((sample(), &[7; 100][..])));
    }

    proptest! {
        #[test]
        fn what_is_read_is_written_back_the_same(bytes in proptest::collection::vec(any::<u8>(), 0..70), honest: bool) {
            let mut bytes = bytes;
            if let (true, Some(version)) = (honest, bytes.first_mut()) {
                *version = Sample::VERSION;
            }
            if let Ok(message) = Sample::from_bytes(&bytes) {
                prop_assert_eq!(message.to_bytes(), bytes);
            }
        }
    }
}
