//! Sends and receives as kernels run them: a block for each end of each message.

use super::arith::{Arith, mix};
use super::block::{Quitter, Reason, Shape};
use super::buffer::Buffer;
use super::world::{Job, Shared, World};
use oxccl_device::coll::{direct, send_recv};
use oxccl_device::prims::{Bulk, Ll, Ll128, Proto, Simple};
use oxccl_shared::abi::{DataType, KernelMessage, MESSAGE_SENDS, Protocol, RedOp};
use proptest::prelude::*;
use std::ops::Range;
use std::time::Duration;

/// One message of a launch.
#[derive(Clone, Debug)]
pub struct Message {
    pub from: usize,
    pub to: usize,
    pub len_bytes: usize,
    /// What this channel carries of it.
    pub part: Range<usize>,
    pub misaligned: [usize; 2],
    /// Over Simple: whether it is sent, and received, by bulk copies.
    pub tiles: [bool; 2],
    /// Over Simple: whether the sender asks where it goes, and the receiver says so.
    pub direct: [bool; 2],
}

/// Sends all messages at once. No two have the same ends.
pub fn check(world: &mut World, shape: Shape, protocol: Protocol, tag: u32, messages: &[Message]) {
    match shape.line_threads() {
        4 => check_with::<4>(world, shape, protocol, tag, messages),
        2 => check_with::<2>(world, shape, protocol, tag, messages),
        _ => check_with::<1>(world, shape, protocol, tag, messages),
    }
}

fn check_with<const LINE: usize>(
    world: &mut World,
    shape: Shape,
    protocol: Protocol,
    tag: u32,
    messages: &[Message],
) {
    let content = |i: usize, len: usize| -> Vec<u8> {
        (0..len).map(|at| mix(u64::from(tag) << 40 | (i as u64) << 32 | at as u64) as u8).collect()
    };
    let fill = |(i, message): (usize, &Message)| {
        let [from, to] = message.misaligned;
        let sent = Buffer::holding(&content(i, message.len_bytes), from);
        [sent, Buffer::new(message.len_bytes, to)]
    };
    let mut buffers: Vec<[Buffer; 2]> = messages.iter().enumerate().map(fill).collect();
    let mut jobs = Vec::new();
    for (message, buffers) in messages.iter().zip(&mut buffers) {
        for (is_send, buffer) in [true, false].into_iter().zip(buffers) {
            jobs.push(job::<LINE>(world, protocol, tag, message, is_send, buffer, None));
        }
    }
    for ended in world.launch(shape, jobs) {
        assert!(ended.is_ok(), "{ended:?}: {messages:?}");
    }
    for ((i, message), [sent, received]) in messages.iter().enumerate().zip(&buffers) {
        let part = message.part.clone();
        let content = content(i, message.len_bytes);
        assert_eq!(sent.bytes(), content);
        assert_eq!(received.bytes()[part.clone()], content[part.clone()], "{message:?}");
        let untouched = Buffer::new(message.len_bytes, 0);
        assert_eq!(received.bytes()[..part.start], untouched.bytes()[..part.start]);
        assert_eq!(received.bytes()[part.end..], untouched.bytes()[part.end..]);
    }
}

fn job<'a, const LINE: usize>(
    world: &World,
    protocol: Protocol,
    tag: u32,
    message: &Message,
    is_send: bool,
    buffer: &mut Buffer,
    quitter: Option<Quitter>,
) -> Job<'a, LINE> {
    let conns = if is_send {
        world.some_of(message.from, [message.to].into_iter(), [].into_iter())
    } else {
        world.some_of(message.to, [].into_iter(), [message.from].into_iter())
    };
    let kernel_message = KernelMessage {
        buffer: buffer.as_mut_ptr().0,
        len_bytes: message.len_bytes as u64,
        conn: 0,
        reached: if message.direct[1] { buffer.as_mut_ptr().0.expose_provenance() as u64 } else { 0 },
        flags: if is_send { MESSAGE_SENDS } else { 0 },
        tag,
        lane: 0,
    };
    let (whole, part) = (Shared(kernel_message), message.part.clone());
    let tiles = message.tiles[usize::from(!is_send)];
    let asks = message.direct[0];
    Job {
        conns,
        arith: Arith::new(DataType::U8, RedOp::Sum, 1, 0),
        quitter,
        slow: None,
        abort_delay: Duration::ZERO,
        // SAFETY: the buffer is as long as the message and lives on; the connection is alone in its direction.
        body: Box::new(move |block, conns| unsafe {
            let part = part.clone();
            match protocol {
                Protocol::LL => send_recv::run_part::<_, Ll<1>>(block, conns, &whole.0, part),
                Protocol::LL128 => send_recv::run_part::<_, Ll128>(block, conns, &whole.0, part),
                Protocol::Simple => {
                    let is_direct = match is_send {
                        true => asks && direct::send_part(block, conns, &whole.0, part.clone())?,
                        false => direct::receive_part(block, conns, &whole.0, part.clone())?,
                    };
                    if is_direct {
                        return Ok(());
                    }
                    // A peer cannot tell by which copies slots are moved.
                    if tiles {
                        let ran = send_recv::run_part::<_, Bulk>(block, conns, &whole.0, part);
                        return Bulk::close(block, conns, ran);
                    }
                    send_recv::run_part::<_, Simple>(block, conns, &whole.0, part)
                }
            }
        }),
    }
}

fn any_messages() -> impl Strategy<Value = Vec<Message>> {
    // 120, 240 and 256 bytes are what slots hold.
    let len = prop_oneof![Just(0usize), 0usize..20, 110usize..130, 235usize..260, 2300usize..2700];
    let ways = any::<([bool; 2], [bool; 2])>();
    let message = (0usize..3, 1usize..3, len, 0usize..3, (0usize..17, 0usize..17), ways);
    prop::collection::vec(message, 1..7).prop_map(|list| {
        let mut messages: Vec<Message> = Vec::new();
        for (from, distance, len_bytes, piece, (src, dst), (tiles, direct)) in list {
            let to = (from + distance) % 3;
            let part = [0..len_bytes, 0..len_bytes / 2, len_bytes / 3..len_bytes][piece].clone();
            if messages.iter().all(|other| (other.from, other.to) != (from, to)) {
                messages.push(Message { from, to, len_bytes, part, misaligned: [src, dst], tiles, direct });
            }
        }
        messages
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    #[cfg_attr(miri, ignore = "too much for miri; see `tiny`")]
    fn messages_arrive(
        workers in prop::sample::select(&[1usize, 2, 5, 8][..]),
        poster: bool,
        rounds in prop::collection::vec((any_messages(), prop::sample::select(Protocol::ALL)), 1..4),
    ) {
        let mut world = World::new(3);
        for (tag, (messages, protocol)) in (1..).zip(&rounds) {
            let poster = poster && *protocol == Protocol::Simple;
            check(&mut world, Shape { workers, poster }, *protocol, tag, messages);
        }
    }

    /// One thread of one end gives up: while it asks, with tiles loaded ahead, or after it has said where to. Everybody ends, and who
    /// succeeds all the same has the message.
    #[test]
    #[cfg_attr(miri, ignore = "too much for miri; see `tiny`")]
    fn a_message_ends_when_one_thread_of_an_end_gives_up(
        workers in prop::sample::select(&[1usize, 2, 5, 8][..]),
        poster: bool,
        is_sender: bool,
        thread in 0usize..9,
        patience in 0u32..60,
        len_bytes in 1usize..2700,
        direct: [bool; 2],
        tiles: [bool; 2],
    ) {
        let shape = Shape { workers, poster };
        let quitter = Quitter { thread: thread % shape.threads(), patience };
        let message = Message { from: 0, to: 1, len_bytes, part: 0..len_bytes, misaligned: [0; 2], tiles, direct };
        match shape.line_threads() {
            4 => give_up::<4>(shape, &message, is_sender, quitter),
            2 => give_up::<2>(shape, &message, is_sender, quitter),
            _ => give_up::<1>(shape, &message, is_sender, quitter),
        }
    }
}

fn give_up<const LINE: usize>(shape: Shape, message: &Message, is_sender: bool, quitter: Quitter) {
    let mut world = World::new(2);
    let content: Vec<u8> = (0..message.len_bytes).map(|at| mix(at as u64) as u8).collect();
    let mut buffers = [Buffer::holding(&content, 0), Buffer::new(message.len_bytes, 0)];
    let jobs = [true, false].into_iter().zip(&mut buffers).map(|(is_send, buffer)| {
        let quitter = (is_send == is_sender).then_some(quitter);
        job::<LINE>(&world, Protocol::Simple, 1, message, is_send, buffer, quitter)
    });
    let jobs = jobs.collect();
    let ended = world.launch(shape, jobs);
    for end in &ended {
        assert!(end.reasons.first().is_none_or(|reason| *reason == Reason::Aborted), "{end:?}");
        assert!(end.is_ok() || end.results.iter().all(Result::is_err), "one stops, all do: {end:?}");
    }
    if ended[1].is_ok() {
        assert_eq!(buffers[1].bytes(), content);
    }
}
