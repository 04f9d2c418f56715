//! Ranks that meet in the memory of a test: connections between all pairs, with buffers that change hands.

use oxccl_device::conn::{Outboxes, RecvConn, SendConn, buffers_bytes, share_buffers};
use oxccl_device::gpu::cpu::Waiter;
use oxccl_device::gpu::{Stop, Wait};
use oxccl_shared::abi::{ConnLayout, Rank, SlotHeader};
use oxccl_shared::algo::mesh::peers;
use std::alloc::{Layout, alloc_zeroed, dealloc};

pub const LAYOUT: ConnLayout =
    ConnLayout { ll_slot_bytes: 256, ll128_slot_bytes: 256, simple_slot_bytes: 16 << 10 };

/// Of each buffer that changes hands: longer than a slot.
pub const BUFFER_BYTES: usize = 40 << 10;

/// Waits for ever.
pub struct Patience;

impl Waiter for Patience {
    fn spins(&self) -> u32 {
        4
    }

    fn wait(&self, _: Wait, _: u32) -> Result<(), Stop> {
        std::thread::yield_now();
        Ok(())
    }

    fn refuse(&self, on: Wait, expected: SlotHeader, found: SlotHeader) -> Stop {
        panic!("{on:?}: {found:?} instead of {expected:?}");
    }
}

/// The memory of the connections between all pairs: that of rank `i` to rank `j` at `i * n + j`. Then the ranks' outboxes, if they have some: in as
/// much memory.
pub struct Memory {
    n: u32,
    bases: Vec<*mut u8>,
    has_outboxes: bool,
}

impl Memory {
    const LAYOUT: Layout =
        match Layout::from_size_align(LAYOUT.total_bytes() + buffers_bytes(BUFFER_BYTES), 128) {
            Ok(layout) => layout,
            Err(_) => panic!("a valid layout"),
        };

    /// Zeroed, for so many ranks.
    pub fn new(n: u32, has_outboxes: bool) -> Memory {
        // SAFETY: the layout has bytes.
        let bases = (0..n * n + n).map(|_| unsafe { alloc_zeroed(Self::LAYOUT) }).collect();
        Memory { n, bases, has_outboxes }
    }

    fn outboxes(&self, rank: u32, peer: u32) -> Option<Outboxes> {
        let [own, theirs] = [rank, peer].map(|rank| self.bases[(self.n * self.n + rank) as usize]);
        self.has_outboxes.then_some(Outboxes { own, theirs, len_bytes: LAYOUT.simple_slot_bytes as usize })
    }

    /// A rank's ends: to peers in the order of `peers`, from others in rank order. The rank may send in buffers that change hands.
    pub fn ends(&self, rank: u32, uses: bool) -> (Vec<SendConn>, Vec<RecvConn>) {
        let base = |from: u32, to: u32| self.bases[(from * self.n + to) as usize];
        let mut send: Vec<SendConn> = peers(Rank(rank), self.n)
            // SAFETY: zeroed and aligned until the memory goes, after all ends; the only producer.
            .map(|peer| unsafe { SendConn::new(peer, base(rank, peer.0), LAYOUT) })
            .collect();
        let others = (0..self.n).filter(|peer| *peer != rank);
        let mut recv: Vec<RecvConn> =
            // SAFETY: as above; the only consumer.
            others.map(|peer| unsafe { RecvConn::new(Rank(peer), base(peer, rank), LAYOUT) }).collect();
        for out in &mut send {
            let back = recv.iter_mut().find(|conn| conn.peer() == out.peer()).unwrap();
            out.spread();
            back.spread();
            let outboxes = self.outboxes(rank, out.peer().0);
            // SAFETY: there is room for the buffers behind either connection, and for an outbox in as much memory as a connection has.
            unsafe { share_buffers(out, back, BUFFER_BYTES, uses, outboxes) };
        }
        (send, recv)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout; the ends are gone.
        self.bases.iter().for_each(|base| unsafe { dealloc(*base, Self::LAYOUT) });
    }
}
