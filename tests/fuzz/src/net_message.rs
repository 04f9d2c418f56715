//! What the other end of a network connection sends after authentication: headers, bodies and stripes of messages.

use crate::input::Input;
use oxccl::net::io::{Piece, StreamIo};
use oxccl::net::message::{Ends, Receiver};
use oxccl::net::{Comm, RecvComm, Registration, Request};
use rustix::io::Errno;

/// Room of every receive.
const MAX_BYTES: usize = 200_000;
const RECEIVES: usize = 4;
/// Over all streams.
const SENT_BYTES_MAX: usize = 1 << 20;

/// A byte stream that yields its bytes in pieces of changing length, then ends.
struct FuzzStream {
    bytes: Vec<u8>,
    at: usize,
    pieces: Vec<u8>,
    turn: usize,
}

impl StreamIo for FuzzStream {
    unsafe fn write(&mut self, _: &[Piece]) -> Result<usize, Errno> {
        unreachable!("a receiver never writes")
    }

    unsafe fn read(&mut self, pieces: &mut [Piece]) -> Result<usize, Errno> {
        self.turn += 1;
        let allowed = match self.pieces.get(self.turn % self.pieces.len().max(1)) {
            Some(0) if self.turn % 2 == 0 => return Err(Errno::AGAIN),
            Some(piece) => usize::from(*piece) * 97 + 1,
            None => usize::MAX,
        };
        let mut moved = 0;
        for piece in pieces {
            let len = piece.iov_len.min(allowed - moved).min(self.bytes.len() - self.at);
            // SAFETY: the caller's pieces are writable, and no longer than they say.
            unsafe {
                piece.iov_base.cast::<u8>().copy_from_nonoverlapping(self.bytes[self.at..].as_ptr(), len)
            };
            moved += len;
            self.at += len;
        }
        Ok(moved)
    }
}

/// Whatever arrives stays inside its receive, which the sanitizer watches; what is well formed arrives whole; what is not
/// breaks the connection for good, with an error.
pub fn net_message(data: &[u8]) {
    let (streams, whole) = streams_of(Input(data));
    let ends = Ends { device: "a device".to_owned(), peer: "a peer".to_owned() };
    let mut receiver = Receiver::new(ends, streams);
    let mut memory: Vec<Vec<u8>> = (0..RECEIVES).map(|_| vec![0; MAX_BYTES]).collect();
    let mut posted: Vec<(Request, usize)> = Vec::new();
    let mut free: Vec<usize> = (0..RECEIVES).rev().collect();
    let mut got = 0;
    let error = loop {
        while let Some(place) = free.pop() {
            let start = memory[place].as_mut_ptr();
            // SAFETY: the memory outlives the receiver, which is dropped first, and stays alone until the request is done.
            match unsafe { receiver.irecv(start, MAX_BYTES, Registration(0)) } {
                Ok(Some(request)) => posted.push((request, place)),
                Ok(None) | Err(_) => break,
            }
        }
        let Some((request, place)) = posted.first().copied() else { break receiver.test(Request(0)).err() };
        match receiver.test(request) {
            Ok(None) => {}
            Ok(Some(len_bytes)) => {
                assert!(len_bytes <= MAX_BYTES);
                if let Some(expected) = whole.get(got) {
                    assert_eq!(len_bytes, *expected, "message {got}");
                    assert!(memory[place][..len_bytes].iter().all(|byte| *byte == got as u8));
                }
                got += 1;
                let _ = posted.remove(0);
                free.push(place);
            }
            Err(error) => break Some(error),
        }
    };
    assert!(error.is_some() && got >= whole.len(), "{got} of {}: {error:?}", whole.len());
    if let Some((request, _)) = posted.first() {
        assert_eq!(receiver.test(*request).err(), error, "a broken connection stays broken");
    }
    drop(receiver);
}

/// The streams, and the lengths of the messages before anything is wrong with them.
fn streams_of(mut input: Input<'_>) -> (Vec<FuzzStream>, Vec<usize>) {
    let count = 1 + usize::from(input.u8() % 4);
    let pieces_len = usize::from(input.u8() % 8);
    let pieces = input.piece(pieces_len).to_vec();
    let mut streams: Vec<Vec<u8>> = vec![Vec::new(); count];
    let (mut whole, mut is_clean, mut number, mut total) = (Vec::new(), true, 0u32, 0);
    while !input.is_empty() && total < SENT_BYTES_MAX {
        let choice = input.u8();
        if choice.is_multiple_of(8) {
            let len = usize::from(input.u8());
            let piece = input.piece(len);
            is_clean &= piece.is_empty();
            streams[usize::from(choice >> 3) % count].extend_from_slice(piece);
            continue;
        }
        let len_bytes = (usize::from(input.u8()) << 8 | usize::from(input.u8())) << (choice & 3);
        let is_striped = choice & 64 != 0;
        streams[0].extend_from_slice(&[b'O', b'n', 2, u8::from(is_striped)]);
        streams[0].extend_from_slice(&number.to_le_bytes());
        streams[0].extend_from_slice(&0u32.to_le_bytes());
        streams[0].extend_from_slice(&(len_bytes as u32).to_le_bytes());
        let (first, last) = if is_striped { (1, count) } else { (0, 1) };
        for stream in &mut streams[first..last] {
            // Of a stripe at most as much; too much is garbage before the next one.
            stream.resize(stream.len() + len_bytes, number as u8);
            total += len_bytes;
        }
        is_clean &= !is_striped && len_bytes <= MAX_BYTES;
        if is_clean {
            whole.push(len_bytes);
        }
        number += 1;
        total += 16;
    }
    let stream = |bytes| FuzzStream { bytes, at: 0, pieces: pieces.clone(), turn: 0 };
    (streams.into_iter().map(stream).collect(), whole)
}
