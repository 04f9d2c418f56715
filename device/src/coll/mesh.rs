//! Hops of a mesh, which all one-shot and two-shot algorithms are made of: with all peers at once, or one peer after the other.

use super::work::{CollWork, MeshEnds};
use crate::conn::{Conns, RecvConn, SendConn};
use crate::gpu::{Block, Lines, Stop, Words};
use crate::prims::{
    Exchange, LineExchange, Ll, Ll128, Proto, Short, Slice, Span, Then, exchange, exchange_lines, run_slice,
};
use core::marker::PhantomData;
use core::ops::Range;
use core::slice::from_ref;
use oxccl_shared::abi::{Rank, SlotHeader};
use oxccl_shared::algo::Action;
use oxccl_shared::algo::chunk::Loop;
use oxccl_shared::algo::mesh::{Keep, MeshHop, Others, Part, Sent, peers, place_from, place_to, sources};

/// What the hops of one round are about. A message of each fits a slot.
#[derive(Clone, Copy)]
pub struct Round {
    pub(super) src: *const u8,
    pub(super) dst: *mut u8,
    blocks: Span,
}

impl Round {
    /// Elements `range` of every rank's block.
    #[inline(always)]
    pub fn of_ranks(work: &CollWork, range: Range<usize>) -> Round {
        let size = work.elem_bytes();
        let (len, at, stride) = (range.len() * size, range.start * size, work.count * size);
        Round {
            src: work.src.wrapping_add(at),
            dst: work.dst.wrapping_add(at),
            blocks: Span::blocks(stride, len),
        }
    }

    /// The blocks of a loop.
    #[inline(always)]
    pub fn of_loop(work: &CollWork, round: &Loop) -> Round {
        let size = work.elem_bytes();
        let (at, stride_bytes) = (round.base * size, round.chunk * size);
        let end_bytes = (round.end - round.base) * size;
        Round {
            src: work.src.wrapping_add(at),
            dst: work.dst.wrapping_add(at),
            blocks: Span { stride_bytes, len_bytes: stride_bytes, end_bytes },
        }
    }

    /// Where the messages of all peers are.
    #[inline(always)]
    fn span(&self, part: Part) -> Span {
        match part {
            Part::Whole => Span::same(self.blocks.len_bytes),
            Part::Block => self.blocks,
        }
    }

    /// Whether all messages are brief.
    #[cfg(feature = "cpu")]
    #[inline(always)]
    pub(super) fn is_brief(&self) -> bool {
        crate::prims::brief::is_brief(self.blocks.len_bytes)
    }

    /// Where the message of one rank is: its offset and its length.
    #[inline(always)]
    pub(super) fn of(&self, part: Part, rank: Rank) -> (usize, usize) {
        self.span(part).mine(rank)
    }
}

/// A way to carry out the hops of a schedule.
pub trait Meet<B: Block> {
    /// Carries out the hops of one round.
    ///
    /// # Safety
    /// 1. `work.src` and `work.dst` are valid for what the hops read and write of the round.
    /// 2. `ends` are what [`MeshEnds`] says.
    unsafe fn run<const HOPS: usize>(
        block: &B,
        ends: &MeshEnds<'_>,
        work: &CollWork,
        hops: [MeshHop; HOPS],
        round: &Round,
    ) -> Result<(), Stop>;
}

/// With all peers at once, of which there are at most `PEERS`.
pub struct AtOnce<P, const PEERS: usize>(PhantomData<P>);

/// With one peer after the other, and whole slots.
pub struct InTurn<P>(PhantomData<P>);

/// Words of all peers at once.
impl<B: Words, const PEERS: usize> Meet<B> for AtOnce<Ll<1>, PEERS> {
    #[inline(always)]
    unsafe fn run<const HOPS: usize>(
        block: &B,
        ends: &MeshEnds<'_>,
        work: &CollWork,
        hops: [MeshHop; HOPS],
        round: &Round,
    ) -> Result<(), Stop> {
        const { assert!(HOPS == 1 || HOPS == 2) };
        let words = |index: usize| words_of(ends.conns, work, &hops[index], round);
        if HOPS == 1 {
            // SAFETY: obligation 1. In place, a thread writes words of our block that only it reads, here and below.
            return unsafe { exchange::<B, PEERS>(block, &words(0)) };
        }
        // In a loop, so that both run the same instructions: on a GPU the second hop finds them in the instruction cache.
        for hop in [words(0), words(HOPS - 1)] {
            // SAFETY: obligation 1.
            unsafe { exchange::<B, PEERS>(block, &hop)? };
        }
        Ok(())
    }
}

/// A hop as an exchange of words.
#[inline(always)]
fn words_of<'a>(conns: Conns<'a>, work: &CollWork, hop: &MeshHop, round: &Round) -> Exchange<'a> {
    let (send, recv) = chosen(conns, work.rank, hop);
    let (at, len) = round.blocks.mine(work.rank);
    let has_input = hop.takes_own || !matches!(hop.to, Others::None);
    let (src, to) = match hop.send {
        Sent::Result => (round.dst.wrapping_add(at).cast_const(), Span::same(len)),
        Sent::Input(part) => (round.src, if has_input { round.span(part) } else { Span::same(0) }),
    };
    let has_outcome = hop.takes_own || !matches!(hop.from, Others::None);
    let (dst, from) = match (hop.keep, hop.dst) {
        (Keep::Reduced, Part::Block) => (round.dst.wrapping_add(at), Span::same(len)),
        (_, part) => (round.dst, if has_outcome { round.span(part) } else { Span::same(0) }),
    };
    let (tag, rank, keep, takes_own) = (work.tag, work.rank, hop.keep, hop.takes_own);
    let is_mutual = work.is_direct && hop.to == Others::All && hop.from == Others::All;
    Exchange { tag, rank, send, recv, src, to, dst, from, keep, takes_own, is_mutual }
}

/// A hop in which all ranks send to all and receive from all, as an exchange that is all of a kernel.
#[inline(always)]
pub(super) fn short_of(work: &CollWork, hop: &MeshHop, round: &Round) -> Option<Short> {
    let Sent::Input(part) = hop.send else { return None };
    if hop.to != Others::All || hop.from != Others::All || !hop.takes_own {
        return None;
    }
    let stride = |part: Part| round.span(part).stride_bytes;
    Some(Short {
        tag: work.tag,
        rank: work.rank,
        npeers: work.nranks as usize - 1,
        len_bytes: round.blocks.len_bytes,
        src: round.src,
        to_stride_bytes: stride(part),
        dst: round.dst,
        from_stride_bytes: stride(hop.dst),
        keep: hop.keep,
    })
}

/// The connections of a hop.
#[inline(always)]
fn chosen<'a>(conns: Conns<'a>, rank: Rank, hop: &MeshHop) -> (&'a [SendConn], &'a [RecvConn]) {
    let send = match hop.to {
        Others::None => &[],
        Others::All => conns.send,
        Others::One(peer) => from_ref(&conns.send[place_from(rank, peer)]),
    };
    let recv = match hop.from {
        Others::None => &[],
        Others::All => conns.recv,
        Others::One(peer) => from_ref(&conns.recv[place_from(rank, peer)]),
    };
    (send, recv)
}

/// Whole lines of all peers at once: for sizes between the best ones of words and of a ring. A hop and the one that sends its result are
/// one exchange. All ranks send and receive in every hop.
impl<B: Lines, const PEERS: usize> Meet<B> for AtOnce<Ll128, PEERS> {
    #[inline(always)]
    unsafe fn run<const HOPS: usize>(
        block: &B,
        ends: &MeshEnds<'_>,
        work: &CollWork,
        hops: [MeshHop; HOPS],
        round: &Round,
    ) -> Result<(), Stop> {
        const { assert!(HOPS == 1 || HOPS == 2) };
        let to = match hops[0].send {
            Sent::Input(part) => round.span(part),
            Sent::Result => return Ok(()),
        };
        let then = match hops[0].keep {
            Keep::Each => Then::Keep,
            Keep::Reduced if is_shared(&hops, 0) => Then::ReduceAndShare,
            Keep::Reduced => Then::Reduce,
        };
        let (tag, rank, Conns { send, recv }) = (work.tag, work.rank, ends.conns);
        let (src, dst, from) = (round.src, round.dst, round.span(hops[0].dst));
        let is_direct = work.is_direct;
        // SAFETY: obligation 1.
        unsafe {
            exchange_lines::<B, PEERS>(
                block,
                &LineExchange { tag, rank, send, recv, src, to, dst, from, then, is_direct },
            )
        }
    }
}

/// Whether the hop after hop `index` sends its result.
#[inline(always)]
fn is_shared(hops: &[MeshHop], index: usize) -> bool {
    hops.get(index + 1).is_some_and(|next| next.send == Sent::Result)
}

/// Whole slots, one peer after the other. What is reduced and then sent is sent as it is reduced.
impl<B: Block, P: Proto<B>> Meet<B> for InTurn<P> {
    #[inline(always)]
    unsafe fn run<const HOPS: usize>(
        block: &B,
        ends: &MeshEnds<'_>,
        work: &CollWork,
        hops: [MeshHop; HOPS],
        round: &Round,
    ) -> Result<(), Stop> {
        let turn = Turn { ends, work, round };
        for (index, hop) in hops.iter().enumerate() {
            // SAFETY: obligations 1 and 2. In place, what a hop sends it sends before it receives.
            unsafe {
                turn.send::<B, P>(block, hop)?;
                match hop.keep {
                    Keep::Reduced => turn.reduce::<B, P>(block, hop, is_shared(&hops, index))?,
                    Keep::Each => turn.keep::<B, P>(block, hop)?,
                }
            }
        }
        Ok(())
    }
}

/// One round, one peer after the other.
struct Turn<'a> {
    ends: &'a MeshEnds<'a>,
    work: &'a CollWork,
    round: &'a Round,
}

impl Turn<'_> {
    /// Sends a hop's messages. If all are our own part of the outcome, it is copied in the same pass.
    ///
    /// # Safety
    /// 1. As [`Meet::run`].
    #[cfg_attr(not(feature = "cpu"), inline(always))]
    unsafe fn send<B: Block, P: Proto<B>>(&self, block: &B, hop: &MeshHop) -> Result<(), Stop> {
        let (rank, n) = (self.work.rank, self.work.nranks);
        let part = match hop.send {
            Sent::Input(part) if n > 1 => part,
            _ => return Ok(()),
        };
        let action = if copies_while_sending(hop) { Action::COPY_SEND } else { Action::SEND };
        let to = |peer| from_ref(&self.ends.send[place_to(rank, peer, n)]);
        match (hop.to, part) {
            (Others::None, _) => Ok(()),
            // SAFETY: obligation 1.
            (Others::All, Part::Whole) => unsafe {
                self.slice::<B, P>(block, action, (&[], self.ends.send), (part, hop.dst), rank)
            },
            (Others::All, Part::Block) => peers(rank, n).try_for_each(|peer| {
                // SAFETY: obligation 1.
                unsafe { self.slice::<B, P>(block, action, (&[], to(peer)), (part, hop.dst), peer) }
            }),
            // SAFETY: obligation 1.
            (Others::One(peer), _) => unsafe {
                self.slice::<B, P>(block, action, (&[], to(peer)), (part, hop.dst), peer)
            },
        }
    }

    /// Reduces what all others send, with our own input.
    ///
    /// # Safety
    /// 1. As [`Meet::run`].
    #[cfg_attr(not(feature = "cpu"), inline(always))]
    unsafe fn reduce<B: Block, P: Proto<B>>(
        &self,
        block: &B,
        hop: &MeshHop,
        shares: bool,
    ) -> Result<(), Stop> {
        let Sent::Input(part) = hop.send else { return Ok(()) };
        if !hop.takes_own {
            return Ok(());
        }
        let reduce = if shares { Action::RECV_REDUCE_COPY_SEND } else { Action::RECV_REDUCE_COPY };
        let action = if self.work.nranks == 1 { Action::COPY_FINISH } else { reduce };
        let (recv, send) = (self.ends.recv, self.ends.send);
        // SAFETY: obligation 1.
        unsafe { self.slice::<B, P>(block, action, (recv, send), (part, hop.dst), self.work.rank) }
    }

    /// Copies our own part, and writes each message to its place.
    ///
    /// # Safety
    /// 1. As [`Meet::run`].
    #[cfg_attr(not(feature = "cpu"), inline(always))]
    unsafe fn keep<B: Block, P: Proto<B>>(&self, block: &B, hop: &MeshHop) -> Result<(), Stop> {
        let (rank, n) = (self.work.rank, self.work.nranks);
        if let Sent::Input(part) = hop.send
            && hop.takes_own
            && (n == 1 || !copies_while_sending(hop))
        {
            // SAFETY: obligation 1.
            unsafe { self.slice::<B, P>(block, Action::COPY, (&[], &[]), (part, hop.dst), rank)? };
        }
        let receive = |peer| {
            let from = from_ref(&self.ends.recv[place_from(rank, peer)]);
            // SAFETY: obligation 1.
            unsafe { self.slice::<B, P>(block, Action::RECV, (from, &[]), (hop.dst, hop.dst), peer) }
        };
        match hop.from {
            Others::None => Ok(()),
            Others::One(peer) => receive(peer),
            Others::All => sources(rank, n).try_for_each(receive),
        }
    }

    /// One slice: the message of `whose` block, or of all, in the parts that the action reads and writes.
    ///
    /// # Safety
    /// 1. As [`Meet::run`].
    #[cfg_attr(not(feature = "cpu"), inline(always))]
    unsafe fn slice<B: Block, P: Proto<B>>(
        &self,
        block: &B,
        action: Action,
        (recv, send): (&[u16], &[u16]),
        (src, dst): (Part, Part),
        whose: Rank,
    ) -> Result<(), Stop> {
        let Turn { ends, work, round } = *self;
        let ((src_at, len), (dst_at, _)) = (round.of(src, whose), round.of(dst, whose));
        let slice = Slice {
            action,
            header: SlotHeader { tag: work.tag, len_bytes: len as u32 },
            recv,
            send,
            src_position: work.rank.index(),
            src: round.src.wrapping_add(src_at),
            dst: round.dst.wrapping_add(dst_at),
            stream: work.stream,
        };
        // SAFETY: obligation 1: the slice is a part of the round.
        unsafe { run_slice::<B, P>(block, ends.conns, &slice) }
    }
}

/// Whether what goes to all others is also what goes to our own place.
#[inline(always)]
fn copies_while_sending(hop: &MeshHop) -> bool {
    let is_sent_whole = hop.send == Sent::Input(Part::Whole) && hop.to == Others::All;
    hop.keep == Keep::Each && hop.takes_own && is_sent_whole
}
