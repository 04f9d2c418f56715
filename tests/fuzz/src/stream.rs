//! What a peer on another host sends after authentication: frames that become slots of a connection in our memory.

use crate::input::Input;
use oxccl::net::stream::StreamRecv;
use oxccl_shared::abi::{ConnControl, ConnLayout, Protocol, Rank, SlotHeader, Step};
use oxccl_shared::{fifo, proto};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

const LAYOUT: ConnLayout = ConnLayout { ll_slot_bytes: 256, ll128_slot_bytes: 384, simple_slot_bytes: 512 };
/// Below what a fresh socket's buffers hold, so that writing cannot block.
const STREAM_BYTES_MAX: usize = 16 << 10;

/// How long the loopback may hold its bytes. A fuzzer's own clock shows only that an input is slow; this bound ends a
/// link or a kernel that makes no progress, and the message names it.
const QUIET_MAX: Duration = Duration::from_secs(5);

/// A connection's memory, exactly as long as its layout says: the sanitizer sees a byte too far.
struct Memory {
    base: NonNull<u8>,
    layout: Layout,
}

impl Memory {
    fn new() -> Memory {
        let layout = Layout::from_size_align(LAYOUT.total_bytes(), 128).expect("a valid layout");
        // SAFETY: the size is not zero.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).expect("memory");
        Memory { base, layout }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: from `alloc_zeroed` with this layout; the link that used it is gone.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}

/// Whatever arrives stays inside its slot; whole frames of the right step are all published, in order; the first wrong
/// one breaks the link for good.
pub fn stream(data: &[u8]) {
    let (bytes, frames, is_clean) = bytes_of(Input(data));
    let Some((mut peer, ours)) = socket_pair() else { return };
    let memory = Memory::new();
    // SAFETY: zeroed, aligned, as long as the layout says, alive until the end of this function; this is the connection's
    // only producer, and one thread does everything.
    let link = unsafe { StreamRecv::new(ours, Rank(1), memory.base, LAYOUT) };
    let mut link = link.expect("a fresh socket takes its options");
    // SAFETY: `memory` starts with a zeroed ConnControl.
    let control: &ConnControl = unsafe { memory.base.cast().as_ref() };
    let mut consumer = fifo::split(control).1;
    peer.write_all(&bytes).expect("the socket's buffers hold the stream");
    drop(peer);
    let mut last_moved = Instant::now();
    let error = loop {
        match link.progress() {
            Ok(0) => {
                let (step, frame) = (link.step(), link.frame());
                assert!(
                    last_moved.elapsed() < QUIET_MAX,
                    "no end of stream at {step:?} of {frames}, in {frame:?}"
                );
                // What is to come needs the processor too, which on a busy machine comes late to a low priority.
                std::thread::yield_now();
            }
            Ok(_) => {
                last_moved = Instant::now();
                while consumer.step() < link.step() {
                    consumer.release();
                }
            }
            Err(error) => break error,
        }
    };
    assert!(link.step().0 <= frames || !is_clean);
    if is_clean {
        assert_eq!(link.step(), Step(frames), "every whole frame becomes a slot: {error}");
    }
    assert_eq!(link.progress(), Err(error), "a broken link stays broken");
    while consumer.step() < link.step() {
        consumer.release();
    }
}

/// The stream, how many frames were put into it, and whether there is nothing else in it.
fn bytes_of(mut input: Input<'_>) -> (Vec<u8>, u64, bool) {
    let (mut bytes, mut frames, mut is_clean) = (Vec::new(), 0u64, true);
    while !input.is_empty() && bytes.len() < STREAM_BYTES_MAX - 2048 {
        let choice = input.u8();
        if choice.is_multiple_of(8) {
            let len = input.u8() as usize;
            let piece = input.piece(len);
            is_clean &= piece.is_empty();
            bytes.extend_from_slice(piece);
            continue;
        }
        let protocol = Protocol::ALL[choice as usize % Protocol::ALL.len()];
        let len_bytes = (u32::from(input.u8()) << 2 | u32::from(choice >> 6)) % 600;
        let slot = SlotHeader { tag: u32::from(input.u8()), len_bytes };
        let fits = len_bytes as usize <= proto::payload_bytes(protocol, &LAYOUT);
        is_clean &= fits;
        let step = Step(frames);
        bytes.extend_from_slice(b"Ox\x01");
        bytes.push(protocol as u8);
        bytes.extend_from_slice(&(step.0 as u32).to_le_bytes());
        bytes.extend_from_slice(&slot.tag.to_le_bytes());
        bytes.extend_from_slice(&slot.len_bytes.to_le_bytes());
        let body_bytes = if fits { proto::travel_bytes(protocol, &LAYOUT, step, slot) } else { 64 };
        bytes.resize(bytes.len() + body_bytes, choice);
        frames += 1;
    }
    (bytes, frames, is_clean)
}

/// Two ends over the loopback. They are reset on close: thousands of connections a second would otherwise use up all
/// ports. The reset could overtake data, so only our end, which closes last, does it.
fn socket_pair() -> Option<(TcpStream, TcpStream)> {
    thread_local! {
        static LISTENER: TcpListener = TcpListener::bind("127.0.0.1:0").expect("a port on the loopback");
    }
    LISTENER.with(|listener| {
        let peer = TcpStream::connect(listener.local_addr().ok()?).ok()?;
        let (ours, _) = listener.accept().ok()?;
        peer.set_write_timeout(Some(QUIET_MAX)).ok()?;
        rustix::net::sockopt::set_socket_linger(&ours, Some(std::time::Duration::ZERO)).ok()?;
        Some((peer, ours))
    })
}
