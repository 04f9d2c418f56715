//! Calls that are made of messages between pairs.

use super::call::RawCall;
use crate::plan::{Call, CallPlan, CallRecord, MessageWant};
use oxccl_shared::abi::{DataType, Func, Rank, RedOp};
use oxccl_shared::algo::pairwise;

/// One message, possibly to ourselves.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// Whether this rank sends it.
    pub is_send: bool,
    /// To whom, or from whom.
    pub peer: Rank,
    /// Only read when sending.
    pub buffer: *mut u8,
    /// Its length.
    pub len_bytes: usize,
    /// Whether it is of an all-to-all.
    pub is_exchange: bool,
}

/// A message of a rank to itself.
#[derive(Clone, Copy, Debug)]
pub struct OwnCopy {
    /// What is sent.
    pub from: *const u8,
    /// Where it is received: elsewhere, or the same place.
    pub to: *mut u8,
    /// Its length.
    pub len_bytes: usize,
}

impl OwnCopy {
    /// Whether there is anything to copy: in place there is not.
    pub(crate) fn moves(&self) -> bool {
        self.len_bytes > 0 && self.from != self.to.cast_const()
    }
}

impl Message {
    /// What kernels' plans ask of it.
    pub(crate) fn want(&self, is_far: bool) -> MessageWant {
        let Message { is_send, peer, is_exchange, .. } = *self;
        MessageWant { is_send, peer, is_far, is_exchange, len_bytes: self.len_bytes as u64 }
    }

    /// The only message of a send or a receive.
    #[inline]
    pub(crate) fn of(raw: &RawCall) -> Message {
        let is_send = raw.call.func == Func::Send;
        let buffer = if is_send { raw.send.cast_mut() } else { raw.recv };
        Message {
            is_send,
            peer: raw.call.root,
            buffer,
            len_bytes: raw.call.bytes() as usize,
            is_exchange: false,
        }
    }
}

/// The tag of a send's or receive's slots. Both ends compute the same: that of a send of so many bytes.
pub(crate) fn tag(call: &Call) -> u32 {
    let call =
        Call { func: Func::Send, dtype: DataType::U8, op: RedOp::Sum, root: Rank(0), count: call.bytes() };
    CallRecord { seq: 0, call }.tag()
}

/// Whether a call's messages go with those of all others of its group.
pub(super) fn is_among_messages(raw: &RawCall, plan: &CallPlan) -> bool {
    matches!(plan, CallPlan::Messages) && raw.call.func != Func::AllGather
}

/// The messages of `rank` in a call, in order; none for other functions.
pub(crate) fn split(raw: &RawCall, rank: Rank, nranks: u32, mut add: impl FnMut(Message)) {
    let len_bytes = raw.call.bytes() as usize;
    let (src, dst, root) = (raw.send.cast_mut(), raw.recv, raw.call.root);
    let block = |base: *mut u8, rank: Rank| base.wrapping_add(rank.index() * len_bytes);
    let gathers = raw.call.func == Func::AllGather;
    let is_exchange = raw.call.func == Func::AllToAll;
    let mut send = |peer, buffer| add(Message { is_send: true, peer, buffer, len_bytes, is_exchange });
    match raw.call.func {
        Func::Send => send(root, src),
        Func::Gather => send(root, src),
        Func::Scatter if rank == root => (0..nranks).map(Rank).for_each(|peer| send(peer, block(src, peer))),
        _ => {}
    }
    let mut recv = |peer, buffer| add(Message { is_send: false, peer, buffer, len_bytes, is_exchange });
    match raw.call.func {
        Func::Recv => recv(root, dst),
        Func::Gather if rank == root => (0..nranks).map(Rank).for_each(|peer| recv(peer, block(dst, peer))),
        Func::Scatter => recv(root, dst),
        _ => {}
    }
    if gathers || is_exchange {
        // An all-gather's own block is no message, which would be matched with the caller's to itself.
        let rounds = pairwise::rounds(rank, nranks, nranks).filter(|round| !gathers || round.send_to != rank);
        for round in rounds {
            let (to, from) = (round.send_to, round.recv_from);
            let sent = if gathers { src } else { block(src, to) };
            add(Message { is_send: true, peer: to, buffer: sent, len_bytes, is_exchange });
            add(Message { is_send: false, peer: from, buffer: block(dst, from), len_bytes, is_exchange });
        }
    }
}
