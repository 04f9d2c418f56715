//! After the handshake a stream is cut into frames.

use crate::input::Input;
use oxccl::bootstrap::frame::{self, Decoder, Frame, FrameError};

const PAYLOAD_MAX: usize = 300;

/// However a stream is cut into reads, the frames and the error are the same, and no frame is longer than allowed.
pub fn frames(data: &[u8]) {
    let mut input = Input(data);
    let piece_len = 1 + input.u8() as usize;
    let whole = decode(std::iter::once(input.0));
    let pieces = decode(input.0.chunks(piece_len));
    assert_eq!(whole, pieces);
    let mut again = Vec::new();
    for frame in &whole.0 {
        assert!(frame.payload.len() <= PAYLOAD_MAX);
        frame::push(&mut again, frame.kind, &[&frame.payload]);
    }
    assert!(input.0.starts_with(&again), "frames are written as they were read");
}

fn decode<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<Frame>, Option<FrameError>) {
    let mut decoder = Decoder::new(PAYLOAD_MAX);
    let mut frames = Vec::new();
    for mut piece in pieces {
        loop {
            match decoder.feed(&mut piece) {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => return (frames, Some(error)),
            }
        }
        assert!(piece.is_empty(), "nothing is left behind");
        assert!(decoder.wanted_bytes() > 0);
    }
    (frames, None)
}
