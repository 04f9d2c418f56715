//! Layer: device / prims.
//! Takes: connections (`conn`), a block (`gpu`) and one slice of an operation.
//! Gives: the primitives: send, recv, recv_reduce_send, ... each an [`Action`] carried out over one protocol.
//! Never: knows the order in which an algorithm calls them.
//!
//! One function per protocol does them all: a primitive is the combination of *receive?*, *read the user's input?*,
//! *send?* and *write the user's output?* that an [`Action`] spells out, and fan-in and fan-out are lists of connections.

mod ll;
mod ll128;
mod simple;
mod words;

pub use ll::Ll;
pub use ll128::Ll128;
pub use simple::Simple;

use crate::conn::{Conns, RecvConn};
use crate::gpu::{Awaited, Block, Stop, Wait, wait_for};
use core::borrow::Borrow;
use oxccl_shared::abi::{ConnEnd, ConnLayout, Protocol, SlotHeader};
use oxccl_shared::algo::Action;
use oxccl_shared::proto;

/// One slice: at most one slot of each connection named.
#[derive(Clone, Copy)]
pub struct Slice<'a> {
    /// What to do.
    pub action: Action,
    /// The operation's tag and the bytes of this slice, as every slot's header must say.
    pub header: SlotHeader,
    /// Connections received from, in reduction order, when `action.recv`.
    pub recv: &'a [u16],
    /// Connections sent to when `action.send`.
    pub send: &'a [u16],
    /// Where the user's own input stands in the reduction order: before `recv[src_position]`, or last.
    pub src_position: usize,
    /// The user's input, when `action.src`.
    pub src: *const u8,
    /// The user's output, when `action.dst`.
    pub dst: *mut u8,
    /// The user's output is too large to stay in a cache.
    pub stream: bool,
}

impl Slice<'_> {
    #[inline]
    fn len_bytes(&self) -> usize {
        self.header.len_bytes as usize
    }
    #[inline]
    fn recv(&self) -> &[u16] {
        if self.action.recv { self.recv } else { &[] }
    }
    #[inline]
    fn send(&self) -> &[u16] {
        if self.action.send { self.send } else { &[] }
    }
}

/// A protocol as kernels use it.
pub trait Proto {
    /// Its number.
    const PROTOCOL: Protocol;

    /// Whether every thread waits for the peers itself, because what it waits for is in the lines that it reads anyway, or
    /// one waits for all.
    const EACH_WAITS: bool;

    /// The header of the slot to be consumed next, once it is there.
    fn poll_header<E: Borrow<ConnEnd>>(conn: &mut RecvConn<E>) -> Option<SlotHeader>;

    /// Moves and reduces one slice whose credits and headers are at hand.
    ///
    /// # Safety
    /// 1. The slice's `src` and `dst` are valid for its length as its action uses them, and the same or disjoint.
    /// 2. Every connection named has a credit, or a header that said so many bytes.
    /// 3. The thread is a worker.
    unsafe fn transfer<B: Block>(
        block: &B,
        conns: &mut Conns<'_, B::End>,
        slice: &Slice<'_>,
    ) -> Result<(), Stop>;

    /// Hands the slots on, when all threads have moved their parts.
    fn finish<B: Block>(block: &B, conns: &mut Conns<'_, B::End>, slice: &Slice<'_>);

    /// Payload bytes of one slot.
    fn payload_bytes(layout: &ConnLayout) -> usize {
        proto::payload_bytes(Self::PROTOCOL, layout)
    }
}

/// Carries out one slice: waits for headers and credits, refuses a peer that is in another operation, moves the data, hands
/// the slots on.
///
/// # Safety
/// 1. The slice's `src` and `dst` are valid for its length as its action uses them, and the same or disjoint.
#[cfg_attr(target_arch = "nvptx64", inline(always))]
pub unsafe fn run_slice<B: Block, P: Proto>(
    block: &B,
    conns: &mut Conns<'_, B::End>,
    slice: &Slice<'_>,
) -> Result<(), Stop> {
    let mut wait = || wait_for_peers::<B, P>(block, conns, slice);
    if P::EACH_WAITS {
        wait()?;
        // SAFETY: obligation 1 is passed on; `wait` established the second; such blocks have no posters.
        unsafe { P::transfer(block, conns, slice)? };
        block.sync();
    } else {
        let mut moved = block.lead(wait);
        if moved.is_ok() && block.works() {
            // SAFETY: obligation 1 is passed on; `lead` established the second; we are a worker.
            moved = unsafe { P::transfer(block, conns, slice) };
        }
        block.close(moved)?;
    }
    P::finish(block, conns, slice);
    Ok(())
}

/// Returns when everything that the slice receives from is full, with what this operation expects, and everything that it
/// sends to is empty.
#[inline(always)]
fn wait_for_peers<B: Block, P: Proto>(
    block: &B,
    conns: &mut Conns<'_, B::End>,
    slice: &Slice<'_>,
) -> Result<(), Stop> {
    for &index in slice.recv() {
        let conn = &mut conns.recv[index as usize];
        let on = Wait { peer: conn.peer(), what: Awaited::Data };
        let found = wait_for(block, on, || P::poll_header(conn))?;
        if found != slice.header {
            return Err(block.refuse(on, slice.header, found));
        }
    }
    for &index in slice.send() {
        let conn = &mut conns.send[index as usize];
        let on = Wait { peer: conn.peer(), what: Awaited::Credit };
        wait_for(block, on, || conn.poll_credit().then_some(()))?;
    }
    Ok(())
}
