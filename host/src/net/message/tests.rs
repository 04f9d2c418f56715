//! Both ends over a stream that splits, stalls, ends and lies, and what they cost.

use super::header::HEADER_BYTES;
use super::stage::STAGE_BYTES;
use super::{Ends, Receiver, Sender};
use crate::net::io::{Piece, StreamIo};
use crate::net::{Comm, NetError, RecvComm, Registration, Request, SendComm};
use proptest::prelude::*;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// A stream in memory that moves at most so many bytes at a time as its script says; zero is `AGAIN`. When the script has
/// ended it starts over.
#[derive(Default)]
struct Stream {
    bytes: VecDeque<u8>,
    is_closed: bool,
    script: Vec<usize>,
    turn: usize,
    /// How often either end has called.
    calls: usize,
}

/// One end of it.
#[derive(Clone)]
struct Pipe(Arc<Mutex<Stream>>);

impl Stream {
    fn allowed(&mut self) -> Result<usize, Errno> {
        self.turn += 1;
        match self.script[(self.turn - 1) % self.script.len()] {
            0 => Err(Errno::AGAIN),
            n => Ok(n),
        }
    }
}

impl StreamIo for Pipe {
    unsafe fn write(&mut self, pieces: &[Piece]) -> Result<usize, Errno> {
        let mut stream = self.0.lock().unwrap();
        stream.calls += 1;
        if stream.is_closed {
            return Err(Errno::PIPE);
        }
        let (allowed, before) = (stream.allowed()?, stream.bytes.len());
        for piece in pieces {
            let n = piece.iov_len.min(allowed - (stream.bytes.len() - before));
            // SAFETY: the caller's pieces are readable.
            stream.bytes.extend(unsafe { std::slice::from_raw_parts(piece.iov_base.cast::<u8>(), n) });
        }
        Ok(stream.bytes.len() - before)
    }

    unsafe fn read(&mut self, pieces: &mut [Piece]) -> Result<usize, Errno> {
        let mut stream = self.0.lock().unwrap();
        stream.calls += 1;
        if stream.bytes.is_empty() {
            return if stream.is_closed { Ok(0) } else { Err(Errno::AGAIN) };
        }
        let (allowed, mut moved) = (stream.allowed()?, 0);
        for piece in pieces {
            let n = piece.iov_len.min(allowed - moved).min(stream.bytes.len());
            for (i, byte) in stream.bytes.drain(..n).enumerate() {
                // SAFETY: the caller's pieces are writable.
                unsafe { piece.iov_base.cast::<u8>().add(i).write(byte) };
            }
            moved += n;
        }
        Ok(moved)
    }
}

/// Both ends of a connection and what lies between.
struct Link {
    sender: Sender<Pipe>,
    pipe: Pipe,
    receiver: Receiver<Pipe>,
}

/// Receives are as long as this.
const MAX_BYTES: usize = 16384;

fn ends() -> Ends {
    Ends { device: "here".to_owned(), peer: "there".to_owned() }
}

/// Recognisable bytes.
fn message(number: usize, len_bytes: usize) -> Vec<u8> {
    (0..len_bytes).map(|i| (i * 31 + number) as u8).collect()
}

impl Link {
    fn new(script: Vec<usize>) -> Self {
        let pipe = Pipe(Arc::new(Mutex::new(Stream { script, ..Stream::default() })));
        let (sender, receiver) =
            (Sender::new(ends(), vec![pipe.clone()]), Receiver::new(ends(), vec![pipe.clone()]));
        Link { sender, pipe, receiver }
    }

    fn calls(&self) -> usize {
        self.pipe.0.lock().unwrap().calls
    }

    fn left(&self) -> usize {
        self.pipe.0.lock().unwrap().bytes.len()
    }

    fn isend(&mut self, bytes: &[u8]) -> Request {
        // SAFETY: every test keeps what it sends until it is sent, or relocates it.
        unsafe { self.sender.isend(bytes.as_ptr(), bytes.len(), Registration(0)) }.unwrap().expect("room")
    }

    fn irecv(&mut self, room: &mut Vec<u8>) -> Request {
        room.resize(MAX_BYTES, 0xee);
        // SAFETY: every test keeps what it receives into until that is done or the link gone.
        unsafe { self.receiver.irecv(room.as_mut_ptr(), MAX_BYTES, Registration(0)) }
            .unwrap()
            .expect("a free request")
    }

    /// Sends a message, as much of it as the stream takes at once.
    fn send(&mut self, bytes: &[u8]) -> Result<Option<usize>, NetError> {
        let request = self.isend(bytes);
        self.sender.test(request)
    }

    /// Receives the next message, if it has come.
    fn recv(&mut self) -> Option<Vec<u8>> {
        let mut room = Vec::new();
        let request = self.irecv(&mut room);
        let len_bytes = self.receiver.test(request).unwrap()?;
        room.truncate(len_bytes);
        Some(room)
    }

    /// Carries all messages, eight at a time. `pace` says which end moves when: bit 0 sends begin, 1 sender, 2 receiver.
    fn carry(&mut self, messages: &[Vec<u8>], pace: &[u8]) -> Vec<Vec<u8>> {
        let (mut sends, mut receives, mut received) = (VecDeque::new(), VecDeque::new(), Vec::new());
        let (mut sent, mut posted) = (0, 0);
        let mut pace = pace.iter().copied().chain(std::iter::repeat(7));
        for _ in 0..4_000_000 {
            let turn = pace.next().unwrap();
            if turn & 1 != 0 && sent < messages.len() && sends.len() < 8 {
                sends.push_back(self.isend(&messages[sent]));
                sent += 1;
            }
            if turn & 2 != 0
                && let Some(request) = sends.front()
                && self.sender.test(*request).unwrap().is_some()
            {
                sends.pop_front();
            }
            if turn & 4 != 0 {
                if posted < messages.len() && receives.len() < 8 {
                    let mut room = Vec::new();
                    let request = self.irecv(&mut room);
                    receives.push_back((request, room));
                    posted += 1;
                }
                if let Some((request, _)) = receives.front()
                    && let Some(len_bytes) = self.receiver.test(*request).unwrap()
                {
                    let (_, mut room) = receives.pop_front().unwrap();
                    assert!(len_bytes <= MAX_BYTES);
                    room.truncate(len_bytes);
                    received.push(room);
                }
            }
            if received.len() == messages.len() {
                return received;
            }
        }
        panic!("{} of {} messages arrived", received.len(), messages.len());
    }
}

fn scripts() -> impl Strategy<Value = Vec<usize>> {
    let script = prop::collection::vec(prop_oneof![Just(0), 1usize..40, 1usize..9000, Just(1 << 20)], 1..20);
    script.prop_filter("moves nothing", |script| script.iter().any(|n| *n > 0))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn messages_arrive_whole_and_in_order_however_the_stream_splits(
        lens in prop::collection::vec(
            prop_oneof![Just(0), 1usize..64, 3000usize..5000, 0usize..=MAX_BYTES, Just(MAX_BYTES)], 1..40),
        script in scripts(),
        pace in prop::collection::vec(0u8..8, 0..400),
    ) {
        let messages: Vec<_> = lens.iter().enumerate().map(|(i, len)| message(i, *len)).collect();
        prop_assert_eq!(Link::new(script).carry(&messages, &pace), messages);
    }

    /// Bytes arrive as they were when they were sent, whether all, some or none of them have left when their memory is wanted back.
    #[test]
    fn what_was_relocated_arrives_whatever_becomes_of_its_memory(
        lens in prop::collection::vec(1usize..=MAX_BYTES, 1..20),
        script in scripts(),
        turns in prop::collection::vec(0usize..4, 1..20),
    ) {
        let mut link = Link::new(script);
        let messages: Vec<_> = lens.iter().enumerate().map(|(i, len)| message(i, *len)).collect();
        for (i, message) in messages.iter().enumerate() {
            let mut memory = message.clone();
            let request = link.isend(&memory);
            let mut has_left = false;
            for _ in 0..turns[i % turns.len()] {
                has_left = has_left || link.sender.test(request).unwrap().is_some();
            }
            // SAFETY: the same bytes, which outlive the link.
            let is_moved = unsafe { link.sender.relocate(request, message.as_ptr()) };
            prop_assert!(is_moved);
            memory.fill(0xee);
            let mut room = Vec::new();
            let receive = link.irecv(&mut room);
            let len_bytes = loop {
                has_left = has_left || link.sender.test(request).unwrap().is_some();
                if let Some(len_bytes) = link.receiver.test(receive).unwrap() {
                    break len_bytes;
                }
            };
            prop_assert_eq!(&room[..len_bytes], &message[..]);
            while !has_left {
                has_left = link.sender.test(request).unwrap().is_some();
            }
        }
    }

    /// Whatever a peer sends, the receiver says what is wrong or waits, and no receive is done.
    #[test]
    fn garbage_is_an_error_and_never_a_message(bytes in prop::collection::vec(any::<u8>(), 1..100), split in 1usize..9) {
        let mut link = Link::new(vec![split]);
        link.pipe.0.lock().unwrap().bytes.extend(&bytes);
        let mut room = Vec::new();
        let request = link.irecv(&mut room);
        let outcome = (0..1000).try_for_each(|_| match link.receiver.test(request) {
            Ok(None) => Ok(()),
            other => Err(other),
        });
        if bytes.len() >= HEADER_BYTES && !bytes.starts_with(b"On\x02") {
            prop_assert!(matches!(outcome, Err(Err(NetError::Protocol { .. }))), "{outcome:?}");
        }
        prop_assert!(!matches!(outcome, Err(Ok(_))) || bytes.starts_with(b"On\x02"));
    }

    /// A stream cut anywhere ends in "closed", after every whole message before the cut; and the end stays.
    #[test]
    fn a_cut_stream_delivers_what_was_whole(cut in 0usize..300) {
        let mut link = Link::new(vec![1 << 20]);
        let bytes = message(5, 100);
        for _ in 0..2 {
            prop_assert_eq!(link.send(&bytes), Ok(Some(100)));
        }
        let frame_bytes = link.left() / 2;
        let kept = cut.min(2 * frame_bytes);
        {
            let mut stream = link.pipe.0.lock().unwrap();
            stream.bytes.truncate(cut);
            stream.is_closed = true;
        }
        let mut rooms: [Vec<u8>; 3] = Default::default();
        let requests: Vec<Request> = rooms.iter_mut().map(|room| link.irecv(room)).collect();
        for at in 0..kept / frame_bytes {
            prop_assert_eq!(link.receiver.test(requests[at]), Ok(Some(100)));
            prop_assert_eq!(&rooms[at][..100], &bytes[..]);
        }
        let next = requests[kept / frame_bytes];
        let closed = NetError::Closed {
            device: ends().device,
            peer: ends().peer,
            mid_message: !kept.is_multiple_of(frame_bytes),
        };
        prop_assert_eq!((0..9).find_map(|_| link.receiver.test(next).err()), Some(closed.clone()));
        prop_assert_eq!(link.receiver.test(next), Err(closed));
    }
}

#[test]
fn one_byte_at_a_time_with_a_refusal_before_each() {
    let messages: Vec<_> = (0..20).map(|i| message(i, i * 41)).collect();
    assert_eq!(Link::new(vec![0, 1]).carry(&messages, &[]), messages);
}

/// The sender finds out only by writing; what could not leave is not done.
#[test]
fn a_sender_whose_peer_is_gone_says_so() {
    let mut link = Link::new(vec![7]);
    let bytes = message(1, 100);
    let request = link.isend(&bytes);
    assert_eq!(link.sender.test(request), Ok(None));
    link.pipe.0.lock().unwrap().is_closed = true;
    let closed = NetError::Closed { device: ends().device, peer: ends().peer, mid_message: true };
    assert_eq!(link.sender.test(request), Err(closed.clone()));
    assert_eq!(link.sender.test(request), Err(closed));
}

/// What the receives that are begun do not need stays in the stream, but for what is read ahead of a header.
#[test]
fn a_receiver_reads_for_the_receives_that_are_begun() {
    let mut link = Link::new(vec![1 << 20]);
    let bytes = message(1, 8192);
    for _ in 0..12 {
        assert_eq!(link.send(&bytes), Ok(Some(8192)));
    }
    for _ in 0..8 {
        assert_eq!(link.recv().as_ref(), Some(&bytes));
    }
    assert!(link.left() >= 4 * 8192 + 3 * HEADER_BYTES - STAGE_BYTES, "{}", link.left());
    assert_eq!(link.recv().as_ref(), Some(&bytes));
}

#[test]
fn a_repeated_number_and_another_operation_are_faults() {
    let mut link = Link::new(vec![1 << 20]);
    assert!(link.sender.set_tag(7) && link.receiver.set_tag(7));
    assert_eq!(link.send(&[]), Ok(Some(0)));
    let frame: Vec<u8> = link.pipe.0.lock().unwrap().bytes.iter().copied().collect();
    link.pipe.0.lock().unwrap().bytes.extend(frame);
    let mut rooms: [Vec<u8>; 2] = Default::default();
    let [first, second] = rooms.each_mut().map(|room| link.irecv(room));
    assert_eq!(link.receiver.test(first), Ok(Some(0)));
    assert!(matches!(link.receiver.test(second), Err(NetError::Protocol { .. })));

    let mut link = Link::new(vec![1 << 20]);
    assert!(link.sender.set_tag(8) && link.receiver.set_tag(9));
    // However long it is.
    let bytes = message(1, MAX_BYTES + 1);
    assert_eq!(link.send(&bytes), Ok(Some(MAX_BYTES + 1)));
    let mut room = Vec::new();
    let request = link.irecv(&mut room);
    let other = NetError::OtherOperation { device: ends().device, peer: ends().peer, expected: 9, found: 8 };
    assert_eq!(link.receiver.test(request), Err(other));
}

/// System calls are most of a small message's cost: one at either end, and none to hear that there is nothing more.
#[test]
fn a_message_costs_one_call_at_each_end() {
    let mut link = Link::new(vec![1 << 20]);
    let bytes = message(1, 8);
    for round in 1..=20 {
        assert_eq!(link.send(&bytes), Ok(Some(8)));
        assert_eq!(link.calls(), 2 * round - 1);
        assert_eq!(link.recv().as_ref(), Some(&bytes));
        assert_eq!(link.calls(), 2 * round);
    }
}

/// A run of long messages, one at a time, costs one read each, though their lengths differ a little; and a receiver that
/// expects a long one takes several short ones apart.
#[test]
fn a_run_of_long_messages_costs_one_read_each() {
    let mut link = Link::new(vec![1 << 20]);
    for (reads, len) in [(2, 16384), (1, 16384), (1, 16000), (1, 9000), (1, 16384), (1, 100), (2, 16384)] {
        let (before, bytes) = (link.calls(), message(1, len));
        assert_eq!(link.send(&bytes), Ok(Some(len)));
        assert_eq!(link.recv(), Some(bytes));
        assert_eq!(link.calls() - before - 1, reads, "{len}");
    }
    let messages = [5000, 17, 0, 4500, 8, 3].map(|len| message(2, len));
    let sends = messages.each_ref().map(|bytes| link.isend(bytes));
    for (send, bytes) in sends.into_iter().zip(&messages) {
        assert_eq!(link.sender.test(send), Ok(Some(bytes.len())));
    }
    let before = link.calls();
    for bytes in &messages {
        assert_eq!(link.recv().as_ref(), Some(bytes));
    }
    assert_eq!(link.calls() - before, 1);
}

/// In a stream of long messages whose receives are begun, every read but the first brings a whole one, and the header after it.
#[test]
fn a_stream_of_long_messages_costs_one_read_each() {
    let mut link = Link::new(vec![1 << 20]);
    let bytes = message(1, MAX_BYTES);
    let sends: Vec<Request> = (0..6).map(|_| link.isend(&bytes)).collect();
    for send in sends {
        assert_eq!(link.sender.test(send), Ok(Some(MAX_BYTES)));
    }
    let mut rooms = vec![Vec::new(); 6];
    let requests: Vec<Request> = rooms.iter_mut().map(|room| link.irecv(room)).collect();
    let before = link.calls();
    for request in requests {
        assert_eq!(link.receiver.test(request), Ok(Some(MAX_BYTES)));
    }
    assert_eq!(link.calls() - before, 1 + 6);
    assert!(rooms.iter().all(|room| *room == bytes));
}
