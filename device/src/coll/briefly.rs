//! Hops of a mesh by one thread, message by message, for rounds of brief messages: without what only longer ones need.
//!
//! [`InTurn`] carries out any action between any connections, and decides at run time which. Among eight ranks with a processor each, an
//! all-gather of 8 bytes from each takes 2.5 us so, where a program that does nothing but exchange the lines takes 0.7
//! (docs/measurements/2026-11-29-cpu-many-ranks.md). Peers cannot tell.

use super::mesh::{InTurn, Meet, Round};
use super::work::{CollWork, MeshEnds};
use crate::gpu::{Block, Stop};
use crate::prims::Proto;
use crate::prims::brief::{self, Brief, Operands};
use core::marker::PhantomData;
use core::ptr::copy;
use oxccl_shared::abi::Rank;
use oxccl_shared::algo::mesh::{Keep, MeshHop, Others, Part, Sent, sources};

/// Rounds of brief messages so, if `P` [allows it](Proto::IS_PLAIN); others one peer after the other by slices.
pub struct Briefly<P>(PhantomData<P>);

impl<B: Block, P: Proto<B>> Meet<B> for Briefly<P> {
    #[inline(always)]
    unsafe fn run<const HOPS: usize>(
        block: &B,
        ends: &MeshEnds<'_>,
        work: &CollWork,
        hops: [MeshHop; HOPS],
        round: &Round,
    ) -> Result<(), Stop> {
        // Another thread would move a part of each message, and a poster would announce it.
        let is_alone = block.threads() == 1 && block.leads() && block.posts();
        if !P::IS_PLAIN || !is_alone || block.has_pre() || work.nranks == 1 || !round.is_brief() {
            // SAFETY: obligations 1 and 2 are passed on.
            return unsafe { InTurn::<P>::run(block, ends, work, hops, round) };
        }
        let turn = Turn { ends, work, round };
        for hop in &hops {
            // SAFETY: obligations 1 and 2. In place, what a hop sends it sends before it receives.
            unsafe {
                turn.send(block, hop)?;
                match hop.keep {
                    Keep::Reduced => turn.reduce(block, hop)?,
                    Keep::Each => turn.keep(block, hop)?,
                }
            }
        }
        Ok(())
    }
}

/// One round.
struct Turn<'a> {
    ends: &'a MeshEnds<'a>,
    work: &'a CollWork,
    round: &'a Round,
}

impl Turn<'_> {
    /// Sends a hop's messages.
    ///
    /// # Safety
    /// 1. As [`Meet::run`].
    unsafe fn send<B: Block>(&self, block: &B, hop: &MeshHop) -> Result<(), Stop> {
        let (rank, n) = (self.work.rank, self.work.nranks);
        let send_to = |peer: Rank| {
            let (src, len_bytes) = match hop.send {
                Sent::Input(part) => self.input(part, peer),
                Sent::Result => self.output(Part::Block, rank),
            };
            // SAFETY: obligation 1; a block of one thread, and a brief message fits a slot.
            unsafe { brief::send(block, self.ends.to(rank, peer, n), self.message(len_bytes), src) }
        };
        hop.to.ranks(rank, n).try_for_each(send_to)
    }

    /// Reduces what all others send, with our own input.
    ///
    /// # Safety
    /// 1. As [`Meet::run`].
    unsafe fn reduce<B: Block>(&self, block: &B, hop: &MeshHop) -> Result<(), Stop> {
        let Sent::Input(part) = hop.send else { return Ok(()) };
        if !hop.takes_own {
            return Ok(());
        }
        let rank = self.work.rank;
        let ((own, len_bytes), (dst, _)) = (self.input(part, rank), self.output(hop.dst, rank));
        let operands =
            Operands { conns: self.ends.conns.recv, from: self.ends.recv, own, own_at: rank.index() };
        // SAFETY: obligation 1; as in `send`.
        unsafe { brief::reduce_all(block, &operands, self.message(len_bytes), dst.cast_mut()) }
    }

    /// Copies our own part, and writes each message to its place.
    ///
    /// # Safety
    /// 1. As [`Meet::run`].
    unsafe fn keep<B: Block>(&self, block: &B, hop: &MeshHop) -> Result<(), Stop> {
        let (rank, n) = (self.work.rank, self.work.nranks);
        if let Sent::Input(part) = hop.send
            && hop.takes_own
        {
            let ((own, len_bytes), (dst, _)) = (self.input(part, rank), self.output(hop.dst, rank));
            // SAFETY: obligation 1; in place both may be the same.
            unsafe { copy(own, dst.cast_mut(), len_bytes) };
        }
        let receive = |peer: Rank| {
            let (dst, len_bytes) = self.output(hop.dst, peer);
            // SAFETY: obligation 1; as in `send`.
            unsafe { brief::recv(block, self.ends.from(rank, peer), self.message(len_bytes), dst.cast_mut()) }
        };
        match hop.from {
            Others::None => Ok(()),
            Others::One(peer) => receive(peer),
            Others::All => sources(rank, n).try_for_each(receive),
        }
    }

    /// A part of the input for a rank, and its length.
    #[inline(always)]
    fn input(&self, part: Part, whose: Rank) -> (*const u8, usize) {
        let (at, len) = self.round.of(part, whose);
        (self.round.src.wrapping_add(at), len)
    }

    /// A part of the output from a rank.
    #[inline(always)]
    fn output(&self, part: Part, whose: Rank) -> (*const u8, usize) {
        let (at, len) = self.round.of(part, whose);
        (self.round.dst.wrapping_add(at).cast_const(), len)
    }

    #[inline(always)]
    fn message(&self, len_bytes: usize) -> Brief {
        Brief { tag: self.work.tag, len_bytes }
    }
}
