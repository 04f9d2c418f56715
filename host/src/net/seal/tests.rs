//! Both ends over a stream that splits, stalls and lies.

use super::record::{HEAD_BYTES, record_bytes};
use super::{SealedReader, SealedWriter};
use crate::bootstrap::secret::Secret;
use crate::net::io::{Piece, StreamIo, piece};
use crate::net::message::{Ends, Receiver, Sender};
use crate::net::{Comm, NetError, RecvComm, Registration, Request, SendComm};
use proptest::prelude::*;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// A stream in memory that moves at most so many bytes at a time as its script says, over and over; zero is `AGAIN`.
#[derive(Default)]
struct Wire {
    bytes: VecDeque<u8>,
    /// All that has ever been written.
    seen: Vec<u8>,
    is_closed: bool,
    script: Vec<usize>,
    turn: usize,
    /// The bit to change, counted from the first byte written.
    flip: Option<usize>,
}

#[derive(Clone)]
struct Pipe(Arc<Mutex<Wire>>);

impl Wire {
    fn allowed(&mut self) -> Result<usize, Errno> {
        self.turn += 1;
        match self.script[(self.turn - 1) % self.script.len()] {
            0 => Err(Errno::AGAIN),
            n => Ok(n),
        }
    }

    fn put(&mut self, byte: u8) {
        let at = self.seen.len();
        self.seen.push(byte);
        let changed = self.flip.filter(|bit| bit / 8 == at).map_or(0, |bit| 1 << (bit % 8));
        self.bytes.push_back(byte ^ changed);
    }
}

impl StreamIo for Pipe {
    unsafe fn write(&mut self, pieces: &[Piece]) -> Result<usize, Errno> {
        let mut wire = self.0.lock().unwrap();
        let allowed = wire.allowed()?;
        let [piece] = pieces else { panic!("{} pieces", pieces.len()) };
        let n = piece.iov_len.min(allowed);
        // SAFETY: the caller's piece is readable.
        let bytes = unsafe { std::slice::from_raw_parts(piece.iov_base.cast::<u8>(), n) };
        bytes.iter().for_each(|byte| wire.put(*byte));
        Ok(n)
    }

    unsafe fn read(&mut self, pieces: &mut [Piece]) -> Result<usize, Errno> {
        let mut wire = self.0.lock().unwrap();
        if wire.bytes.is_empty() {
            return if wire.is_closed { Ok(0) } else { Err(Errno::AGAIN) };
        }
        let allowed = wire.allowed()?;
        let [piece] = pieces else { panic!("{} pieces", pieces.len()) };
        let n = piece.iov_len.min(allowed).min(wire.bytes.len());
        for (i, byte) in wire.bytes.drain(..n).enumerate() {
            // SAFETY: the caller's piece is writable.
            unsafe { piece.iov_base.cast::<u8>().add(i).write(byte) };
        }
        Ok(n)
    }
}

fn key() -> Secret {
    Secret::from_seed(b"one direction")
}

fn pipe(script: Vec<usize>) -> Pipe {
    Pipe(Arc::new(Mutex::new(Wire { script, ..Wire::default() })))
}

fn ends() -> Ends {
    Ends { device: "here".to_owned(), peer: "there".to_owned() }
}

/// Messages from one end to the other, through streams that are encrypted.
struct Link {
    sender: Sender<SealedWriter<Pipe>>,
    pipe: Pipe,
    receiver: Receiver<SealedReader<Pipe>>,
}

impl Link {
    fn new(script: Vec<usize>) -> Link {
        let pipe = pipe(script);
        // Four messages are two records: every test lives through many keys.
        let writer = SealedWriter::new(pipe.clone(), key()).rekeying_after(4);
        let reader = SealedReader::new(pipe.clone(), key()).rekeying_after(4);
        Link {
            sender: Sender::new(ends(), vec![writer]),
            pipe,
            receiver: Receiver::new(ends(), vec![reader]),
        }
    }

    fn isend(&mut self, bytes: &[u8]) -> Request {
        // SAFETY: every test keeps what it sends until it is sent.
        unsafe { self.sender.isend(bytes.as_ptr(), bytes.len(), Registration(0)) }.unwrap().expect("room")
    }

    fn irecv(&mut self, room: &mut [u8]) -> Request {
        // SAFETY: every test keeps what it receives into until that is done or the link gone.
        unsafe { self.receiver.irecv(room.as_mut_ptr(), room.len(), Registration(0)) }.unwrap().expect("room")
    }
}

fn message(number: usize, len_bytes: usize) -> Vec<u8> {
    (0..len_bytes).map(|i| (i * 31 + number * 7 + i / 251) as u8).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// However the stream splits records, and wherever it stalls: every message arrives whole and in order, and nothing of it is seen.
    #[test]
    fn messages_survive_any_splits_and_stalls(
        lens in prop::collection::vec(prop_oneof![0usize..100, 100usize..5000, 60_000usize..200_000], 1..8),
        script in prop::collection::vec(prop_oneof![Just(0usize), 1usize..100, 1000usize..300_000], 1..8),
    ) {
        prop_assume!(script.iter().any(|n| *n > 30));
        let mut link = Link::new(script);
        let sent: Vec<Vec<u8>> = lens.iter().enumerate().map(|(i, len)| message(i, *len)).collect();
        let mut rooms: Vec<Vec<u8>> = lens.iter().map(|len| vec![0xee; *len]).collect();
        let sends: Vec<Request> = sent.iter().map(|bytes| link.isend(bytes)).collect();
        let receives: Vec<Request> = rooms.iter_mut().map(|room| link.irecv(room)).collect();
        let (mut sends_done, mut receives_done) = (0, 0);
        while receives_done < receives.len() {
            if sends_done < sends.len() && link.sender.test(sends[sends_done]).unwrap().is_some() {
                sends_done += 1;
            }
            if let Some(len) = link.receiver.test(receives[receives_done]).unwrap() {
                prop_assert_eq!(len, lens[receives_done]);
                receives_done += 1;
            }
        }
        prop_assert_eq!(&rooms, &sent);
        // A send that has been reported complete has left altogether: nobody writes the rest of its record.
        while sends_done < sends.len() {
            prop_assert!(link.sender.test(sends[sends_done]).unwrap().is_some());
            sends_done += 1;
        }
        let wire = link.pipe.0.lock().unwrap();
        for bytes in sent.iter().filter(|bytes| bytes.len() >= 64) {
            prop_assert!(!wire.seen.windows(16).any(|window| window == &bytes[..16]), "it went by in the clear");
        }
    }

    /// Wherever a bit is changed, the receiver says so, and gives out nothing from there on. Messages before are whole.
    #[test]
    fn a_changed_bit_is_found_wherever_it_is(at in 0.0f64..1.0, bit in 0usize..8, lens in prop::collection::vec(1usize..3000, 1..5)) {
        let mut link = Link::new(vec![1 << 20]);
        // Each message is a record with its header.
        let records: Vec<usize> = lens.iter().map(|len| record_bytes(len + 16)).collect();
        let byte = (at * records.iter().sum::<usize>() as f64) as usize;
        link.pipe.0.lock().unwrap().flip = Some(byte * 8 + bit);
        let sent: Vec<Vec<u8>> = lens.iter().enumerate().map(|(i, len)| message(i, *len)).collect();
        for bytes in &sent {
            let request = link.isend(bytes);
            prop_assert!(link.sender.test(request).unwrap().is_some());
        }
        let mut end = 0;
        for (bytes, record) in sent.iter().zip(records) {
            end += record;
            let mut room = vec![0xee; bytes.len()];
            let request = link.irecv(&mut room);
            let outcome = link.receiver.test(request);
            if byte < end {
                let altered = NetError::Altered { device: ends().device, peer: ends().peer };
                prop_assert_eq!(&outcome, &Err(altered.clone()));
                prop_assert_eq!(link.receiver.test(request), Err(altered));
                prop_assert!(room.iter().all(|byte| *byte == 0xee), "part of a changed record was given out");
                break;
            }
            prop_assert_eq!(outcome, Ok(Some(bytes.len())));
            prop_assert_eq!(&room, bytes);
        }
    }
}

/// A record that is left out, played twice, or comes before another does not open.
#[test]
fn records_open_in_their_order_only() {
    let pipe = pipe(vec![1 << 20]);
    let mut writer = SealedWriter::new(pipe.clone(), key());
    let contents = [message(1, 40), message(2, 40), message(3, 40)];
    for content in &contents {
        // SAFETY: the content outlives the call.
        let written = unsafe { writer.write(&[piece(content.as_ptr(), content.len())]) };
        assert_eq!(written, Ok(40));
    }
    let records: Vec<Vec<u8>> =
        pipe.0.lock().unwrap().seen.chunks(record_bytes(40)).map(<[u8]>::to_vec).collect();
    for (order, opened) in
        [(vec![0, 1, 2], 3), (vec![0, 2], 1), (vec![1, 0], 0), (vec![0, 0], 1), (vec![0, 1, 1], 2)]
    {
        let pipe = self::pipe(vec![1 << 20]);
        for record in &order {
            pipe.0.lock().unwrap().bytes.extend(&records[*record]);
        }
        let mut reader = SealedReader::new(pipe, key());
        let mut room = [0u8; 200];
        // SAFETY: the room outlives the call.
        let first = unsafe { reader.read(&mut [piece(room.as_mut_ptr(), room.len())]) };
        if opened == 0 {
            assert_eq!(first, Err(crate::net::io::ALTERED), "{order:?}");
        } else {
            assert_eq!(first, Ok(opened * 40), "{order:?}");
            assert_eq!(room[..40], contents[0][..]);
        }
    }
}

/// The other direction's key opens nothing: what one side has sent cannot be sent back to it.
#[test]
fn a_reflected_record_does_not_open() {
    let pipe = pipe(vec![1 << 20]);
    let mut writer = SealedWriter::new(pipe.clone(), key());
    // SAFETY: the bytes are constant.
    assert_eq!(unsafe { writer.write(&[piece(b"to there".as_ptr(), 8)]) }, Ok(8));
    let mut reader = SealedReader::new(pipe, Secret::from_seed(b"the other direction"));
    let mut room = [0u8; 8];
    // SAFETY: the room outlives the call.
    let read = unsafe { reader.read(&mut [piece(room.as_mut_ptr(), room.len())]) };
    assert_eq!(read, Err(crate::net::io::ALTERED));
}

/// A stream that ends within a record ends: nothing of the record is given out.
#[test]
fn a_cut_record_is_an_end() {
    let pipe = pipe(vec![1 << 20]);
    let mut writer = SealedWriter::new(pipe.clone(), key());
    // SAFETY: the bytes are constant.
    assert_eq!(unsafe { writer.write(&[piece(b"whole".as_ptr(), 5)]) }, Ok(5));
    for left in [HEAD_BYTES - 1, HEAD_BYTES, record_bytes(5) - 1] {
        let cut = self::pipe(vec![1 << 20]);
        cut.0.lock().unwrap().bytes.extend(&pipe.0.lock().unwrap().seen[..left]);
        cut.0.lock().unwrap().is_closed = true;
        let mut reader = SealedReader::new(cut, key());
        let mut room = [0u8; 8];
        // SAFETY: the room outlives the call.
        let read = unsafe { reader.read(&mut [piece(room.as_mut_ptr(), room.len())]) };
        assert_eq!(read, Err(Errno::AGAIN), "the short read has emptied the stream");
        // SAFETY: as before.
        let read = unsafe { reader.read(&mut [piece(room.as_mut_ptr(), room.len())]) };
        assert_eq!(read, Ok(0));
    }
}
