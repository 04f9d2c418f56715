//! What a user's thread tells a proxy: one record for an operation, and the memory through which it does.

use oxccl_shared::abi::{
    Algorithm, DataType, Func, KERNEL_MESSAGE_GRAIN_BYTES, KernelMessage, Protocol, Rank, RedOp,
};
use oxccl_shared::algo::registry::spec_of;
use oxccl_shared::fifo::OrderFifo;
use oxccl_shared::reduce::CombineKind;
use oxccl_shared::sync::{Line128, Sys, Word};
use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

/// What keeps the shared memory alive.
pub type Keep = Arc<dyn Any + Send + Sync>;

/// Orders that may wait to be looked at.
pub const ORDERS_WAITING_MAX: usize = 64;

/// An operation, as plain numbers: it may cross a border between processes, so the proxy checks what it says.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ProxyOrder {
    /// Elements, as the call has them; bytes of a message.
    pub count: u64,
    /// Elements of a block that travel in one hop. Messages: unused.
    pub chunk_elems: u64,
    /// Elements of a slot. Messages: unused, a slot is filled.
    pub slice_elems: u64,
    /// Borders between channels fall on multiples of this.
    pub grain_elems: u64,
    /// Digest of the call.
    pub tag: u32,
    /// The root of a rooted collective; the other rank of a message.
    pub rank: Rank,
    /// The first of the channels that the operation uses.
    pub first_channel: u32,
    /// How many.
    pub nchannels: u32,
    /// A [`Func`]. Messages are sends or receives.
    pub func: u8,
    /// An [`Algorithm`]. Messages: unused.
    pub algorithm: u8,
    /// A [`Protocol`].
    pub protocol: u8,
    /// What a network that reduces adds up, see [`Elements`]; zero where none does.
    pub elements: u8,
    /// Ranks of each host, as kernels have it.
    pub host_ranks: u32,
}

/// A decoded order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Operation {
    pub(super) func: Func,
    pub(super) algorithm: Algorithm,
    pub(super) protocol: Protocol,
    pub(super) elements: Elements,
    pub(super) order: ProxyOrder,
}

/// What a network that reduces does with a slot's elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Elements {
    /// Their type.
    pub dtype: DataType,
    /// The network's operator: sum, product, maximum or minimum.
    pub op: RedOp,
}

/// Bits of a type in an [`Elements`] byte.
const TYPE_BITS: u32 = 4;

impl Elements {
    /// Elements of this type, combined so.
    pub fn new(dtype: DataType, kind: CombineKind) -> Elements {
        let op = match kind {
            CombineKind::Sum => RedOp::Sum,
            CombineKind::Prod => RedOp::Prod,
            CombineKind::Max => RedOp::Max,
            CombineKind::Min => RedOp::Min,
        };
        Elements { dtype, op }
    }

    /// For an order.
    pub fn to_byte(self) -> u8 {
        (self.op as u8) << TYPE_BITS | self.dtype as u8
    }

    fn from_byte(byte: u8) -> Option<Elements> {
        let dtype = DataType::try_from(u32::from(byte) & ((1 << TYPE_BITS) - 1)).ok()?;
        let kind = CombineKind::ALL.into_iter().find(|kind| Elements::new(dtype, *kind).to_byte() == byte)?;
        Some(Elements::new(dtype, kind))
    }
}

const _: () = assert!(DataType::ALL.len() <= 1 << TYPE_BITS);

/// What the owner of a proxy wants of it, if not that it goes on: to end when everything ordered is done.
pub(super) const WISH_STOP: u32 = 1;
/// End now.
pub(super) const WISH_ABORT: u32 = 2;

/// What the two threads share. Zeroes are its beginning.
#[repr(C)]
#[derive(Default)]
pub struct ProxyShared {
    /// From the user's thread.
    pub(super) orders: OrderFifo<ProxyOrder, ORDERS_WAITING_MAX>,
    /// Written by the user's thread: see the `WISH` numbers.
    pub(super) wish: Line128<Word<u32, Sys>>,
    /// Written by the proxy: so many orders are done, and all before them.
    pub(super) completed: Line128<Word<u64, Sys>>,
    /// Written by the proxy: not zero when a connection has failed.
    pub(super) failed: Line128<Word<u32, Sys>>,
}

const _: () = {
    use core::mem::{align_of, offset_of, size_of};
    assert!(size_of::<ProxyOrder>() == 56 && align_of::<ProxyOrder>() == 8);
    assert!(offset_of!(ProxyOrder, chunk_elems) == 8);
    assert!(offset_of!(ProxyOrder, slice_elems) == 16);
    assert!(offset_of!(ProxyOrder, grain_elems) == 24);
    assert!(offset_of!(ProxyOrder, tag) == 32);
    assert!(offset_of!(ProxyOrder, rank) == 36);
    assert!(offset_of!(ProxyOrder, first_channel) == 40);
    assert!(offset_of!(ProxyOrder, nchannels) == 44);
    assert!(offset_of!(ProxyOrder, func) == 48);
    assert!(offset_of!(ProxyOrder, algorithm) == 49);
    assert!(offset_of!(ProxyOrder, protocol) == 50);
    assert!(offset_of!(ProxyOrder, elements) == 51);
    assert!(offset_of!(ProxyOrder, host_ranks) == 52);
    assert!(size_of::<ProxyShared>() == 256 + 64 * 56 + 3 * 128 && align_of::<ProxyShared>() == 128);
    assert!(offset_of!(ProxyShared, wish) == 256 + 64 * 56);
};

impl ProxyOrder {
    /// The same with what a network that reduces is to know.
    pub fn with_elements(self, elements: Elements) -> ProxyOrder {
        ProxyOrder { elements: elements.to_byte(), ..self }
    }

    /// What the proxy must do for a message that kernels divide among these channels.
    pub fn of_message(
        message: &KernelMessage,
        peer: Rank,
        protocol: Protocol,
        channels: Range<u32>,
    ) -> ProxyOrder {
        ProxyOrder {
            count: message.len_bytes,
            grain_elems: KERNEL_MESSAGE_GRAIN_BYTES as u64,
            tag: message.tag,
            rank: peer,
            first_channel: channels.start,
            nchannels: channels.end - channels.start,
            func: Func::of_message(message.is_send()) as u8,
            protocol: protocol as u8,
            ..ProxyOrder::default()
        }
    }

    /// What the numbers mean; `None` if they mean nothing.
    pub(super) fn decode(self) -> Option<Operation> {
        let func = Func::try_from(u32::from(self.func)).ok()?;
        let algorithm = Algorithm::try_from(u32::from(self.algorithm)).ok()?;
        let protocol = Protocol::try_from(u32::from(self.protocol)).ok()?;
        let is_cut = func.is_message() || self.chunk_elems > 0 && self.slice_elems > 0;
        let is_reduced = spec_of(algorithm).connections.has_network() && !func.is_message();
        let elements = Elements::from_byte(self.elements)?;
        let is_whole = is_cut && self.nchannels > 0 && (is_reduced || self.elements == 0);
        is_whole.then_some(Operation { func, algorithm, protocol, elements, order: self })
    }
}
