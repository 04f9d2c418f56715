//! Layer: host / bootstrap.
//! Takes: a byte stream that has passed the handshake.
//! Gives: frames: a kind and a payload, bounded in length and versioned. Sans-IO.
//! Never: reserves memory for an announced length, or accepts one above the limit.
//!
//! ```text
//! byte   0         1      2 3    4 .. 8          8 ..
//!        version   kind   zero   length (LE)     payload
//! ```

/// The version of everything inside frames.
pub const FRAME_VERSION: u8 = 1;
/// The size of a frame's head.
pub const HEAD_BYTES: usize = 8;

/// A message: its kind and its content.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    /// Its kind; the protocol that uses frames assigns the numbers.
    pub kind: u8,
    /// Its content.
    pub payload: Vec<u8>,
}

/// Why a stream is unreadable from here on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FrameError {
    /// The head has another version or reserved bits set.
    #[error("a message of another version")]
    Version,
    /// The announced length is above the limit.
    #[error("a message longer than allowed")]
    TooLong,
}

/// Appends a frame with the payload made of `parts`.
pub fn push(out: &mut Vec<u8>, kind: u8, parts: &[&[u8]]) {
    let len_bytes: usize = parts.iter().map(|part| part.len()).sum();
    debug_assert!(u32::try_from(len_bytes).is_ok(), "payloads are bounded far below 4 GiB by every caller");
    out.reserve(HEAD_BYTES + len_bytes);
    out.extend_from_slice(&[FRAME_VERSION, kind, 0, 0]);
    out.extend_from_slice(&(len_bytes as u32).to_le_bytes());
    parts.iter().for_each(|part| out.extend_from_slice(part));
}

/// Splits a byte stream into frames.
#[derive(Debug)]
pub struct Decoder {
    head: [u8; HEAD_BYTES],
    head_filled: usize,
    payload: Vec<u8>,
    payload_max: usize,
}

impl Decoder {
    /// Accepts payloads of at most `payload_max` bytes.
    pub fn new(payload_max: usize) -> Decoder {
        Decoder { head: [0; HEAD_BYTES], head_filled: 0, payload: Vec::new(), payload_max }
    }

    /// Consumes bytes from the front of `bytes` up to the end of one frame; returns that frame if it is complete.
    /// Call it until it returns none. After an error the stream is lost.
    pub fn feed(&mut self, bytes: &mut &[u8]) -> Result<Option<Frame>, FrameError> {
        let take = (HEAD_BYTES - self.head_filled).min(bytes.len());
        self.head[self.head_filled..self.head_filled + take].copy_from_slice(&bytes[..take]);
        self.head_filled += take;
        *bytes = &bytes[take..];
        let [version, kind, zero_a, zero_b, a, b, c, d] = self.head;
        if self.head_filled > 0 && version != FRAME_VERSION {
            return Err(FrameError::Version);
        }
        if self.head_filled < HEAD_BYTES {
            return Ok(None);
        }
        if (zero_a, zero_b) != (0, 0) {
            return Err(FrameError::Version);
        }
        let len_bytes = u32::from_le_bytes([a, b, c, d]) as usize;
        if len_bytes > self.payload_max {
            return Err(FrameError::TooLong);
        }
        let take = (len_bytes - self.payload.len()).min(bytes.len());
        self.payload.extend_from_slice(&bytes[..take]);
        *bytes = &bytes[take..];
        if self.payload.len() < len_bytes {
            return Ok(None);
        }
        self.head_filled = 0;
        Ok(Some(Frame { kind, payload: std::mem::take(&mut self.payload) }))
    }

    /// Bytes that the current frame still needs at least: reading no more than this never takes bytes of the
    /// connection's next user.
    pub fn wanted_bytes(&self) -> usize {
        if self.head_filled < HEAD_BYTES {
            return HEAD_BYTES - self.head_filled;
        }
        let [.., a, b, c, d] = self.head;
        (u32::from_le_bytes([a, b, c, d]) as usize).saturating_sub(self.payload.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decode(decoder: &mut Decoder, mut bytes: &[u8]) -> Result<Vec<Frame>, FrameError> {
        let mut frames = Vec::new();
        while let Some(frame) = decoder.feed(&mut bytes)? {
            frames.push(frame);
        }
        Ok(frames)
    }

    proptest! {
        #[test]
        fn frames_survive_any_cutting(
            frames in proptest::collection::vec((any::<u8>(), proptest::collection::vec(any::<u8>(), 0..64)), 0..8),
            cut in 1usize..40,
        ) {
            let mut stream = Vec::new();
            frames.iter().for_each(|(kind, payload)| push(&mut stream, *kind, &[payload]));
            let mut decoder = Decoder::new(64);
            let mut got = Vec::new();
            for piece in stream.chunks(cut) {
                got.extend(decode(&mut decoder, piece).expect("a good stream"));
            }
            let want: Vec<Frame> = frames.into_iter().map(|(kind, payload)| Frame { kind, payload }).collect();
            prop_assert_eq!(got, want);
        }

        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&mut Decoder::new(100), &bytes);
        }
    }

    #[test]
    fn an_announced_length_reserves_nothing_and_is_limited() {
        let mut head = Vec::new();
        push(&mut head, 1, &[&[0; 100]]);
        assert_eq!(decode(&mut Decoder::new(99), &head), Err(FrameError::TooLong));
        let mut decoder = Decoder::new(usize::MAX);
        let announced = [FRAME_VERSION, 1, 0, 0, 0xff, 0xff, 0xff, 0xff];
        assert_eq!(decode(&mut decoder, &announced), Ok(vec![]));
        assert_eq!(decoder.payload.capacity(), 0);
    }

    #[test]
    fn garbage_is_refused_at_its_first_byte() {
        assert_eq!(decode(&mut Decoder::new(99), b"G"), Err(FrameError::Version));
    }
}
