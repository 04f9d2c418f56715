//! Messages between ranks, as kernels.

use super::driver::StreamRef;
use super::state::{Cuda, MessageScratch};
use super::tiles::Tiles;
use crate::launch::{Message, RunError};
use crate::machine::ConnKind;
use crate::plan::{Batch, arrange};
use oxccl_shared::abi::{
    KERNEL_MESSAGES_MAX, KernelMessage, MESSAGE_ASKS, MESSAGE_SENDS, MESSAGE_TILES, MessageArgs,
};
use oxccl_shared::algo::kernels::Kernel;
use std::ffi::c_void;

const NO_MESSAGE: KernelMessage = KernelMessage {
    buffer: std::ptr::null_mut(),
    len_bytes: 0,
    reached: 0,
    conn: 0,
    flags: 0,
    tag: 0,
    lane: 0,
};

/// Bulk copies begin at multiples of this.
const DIRECT_ALIGN_BYTES: u64 = 16;
/// What kernels without tiles for their slots get for messages straight into the receivers' buffers.
const DIRECT_TILE_BYTES: u32 = 32 << 10;

impl Cuda {
    /// Enqueues the kernels of messages to and from other ranks, each with its tag.
    ///
    /// # Safety
    /// 1. As [`Machine::messages`](crate::launch::Machine::messages).
    pub(super) unsafe fn launch_messages(
        &mut self,
        messages: &[(Message, u32)],
        stream: StreamRef<'_>,
    ) -> Result<(), RunError> {
        let mut scratch = std::mem::take(&mut self.scratch);
        // SAFETY: obligation 1.
        let put = unsafe { self.launch_with(messages, &mut scratch, stream) };
        self.scratch = scratch;
        put
    }

    /// # Safety
    /// 1. As [`Self::launch_messages`].
    unsafe fn launch_with(
        &mut self,
        messages: &[(Message, u32)],
        MessageScratch { wants, arrangement }: &mut MessageScratch,
        stream: StreamRef<'_>,
    ) -> Result<(), RunError> {
        let (facts, rank, clusters) = (self.parts.facts, self.parts.rank, self.parts.clusters);
        wants.clear();
        let net = self.parts.net.as_ref();
        let is_far = |peer| net.is_some_and(|net| net.is_far(peer));
        wants.extend(messages.iter().map(|(message, _)| message.want(is_far(message.peer))));
        for batch in arrange(wants, rank, &facts, arrangement) {
            let mut args = self.message_args(&batch, messages);
            let tiles = self.message_tiles(batch.kernel, &args);
            args.launch.tile_bytes = tiles.tile_bytes;
            self.order_messages(&batch, messages, &args);
            let has_orders = self.issue_orders(stream)?;
            let function = self.function(batch.kernel, batch.threads)?;
            let mut params = [(&raw mut args).cast::<c_void>()];
            let shape = clusters.shape(function.sm(), batch.lanes * batch.channels, batch.threads, tiles);
            // SAFETY: the entry takes one `MessageArgs`; buffers are valid by obligation 1, everything else lives until `close` has
            // seen every operation end.
            let launched = unsafe { function.launch(shape, stream, &mut params) };
            let launched = launched.map_err(|error| error.in_kernel(function.name()));
            launched.map_err(|error| self.launch_refused(error, has_orders, stream))?;
            self.has_enqueued = true;
        }
        Ok(())
    }

    /// The proxy orders of a launch's messages; those of a connection in the order in which the kernel carries them.
    fn order_messages(&mut self, batch: &Batch<'_>, messages: &[(Message, u32)], args: &MessageArgs) {
        let Some(net) = &mut self.parts.net else { return };
        for (placed, message) in batch.placed.iter().zip(&args.messages) {
            let (Message { peer, .. }, _) = messages[placed.index];
            net.message(message, peer, batch.kernel.protocol(), batch.channels);
        }
    }

    fn message_args(&self, batch: &Batch<'_>, messages: &[(Message, u32)]) -> MessageArgs {
        let mut launch =
            self.parts.launch(self.parts.tables.of(ConnKind::Pair, batch.kernel.protocol()), batch.channels);
        launch.nmessages = batch.placed.len() as u32;
        let mut args = MessageArgs { launch, messages: [NO_MESSAGE; KERNEL_MESSAGES_MAX] };
        let by_tiles = if self.parts.tiles.of(batch.kernel).tile_bytes > 0 { MESSAGE_TILES } else { 0 };
        for (to, placed) in args.messages.iter_mut().zip(batch.placed) {
            let (message, tag) = messages[placed.index];
            let (asks, reached) = if batch.kernel.has_tiles() { self.direct(&message) } else { (0, 0) };
            let sends = if message.is_send { MESSAGE_SENDS } else { 0 };
            *to = KernelMessage {
                buffer: message.buffer,
                len_bytes: message.len_bytes as u64,
                reached,
                conn: message.peer.0 - u32::from(message.peer > self.parts.rank),
                flags: sends | asks | by_tiles,
                tag,
                lane: placed.lane,
            };
        }
        args
    }

    /// Whether the receiver of a message is asked where it goes ([`MESSAGE_ASKS`]), and where its sender reaches a buffer that receives. Neither
    /// has to know what the other does.
    fn direct(&self, message: &Message) -> (u32, u64) {
        let Message { is_send, peer, buffer, len_bytes, is_exchange } = *message;
        let (address, len_bytes) = (buffer.addr() as u64, len_bytes as u64);
        let windows = self.copies.as_ref().map(|copies| copies.windows());
        // Both ends know whether such a message is asked about.
        let asks = self.parts.facts.asks(len_bytes, is_exchange);
        let Some(windows) = windows.filter(|_| asks) else { return (0, 0) };
        if is_send {
            let may_ask = address.is_multiple_of(DIRECT_ALIGN_BYTES) && windows.may_ask();
            return (if may_ask { MESSAGE_ASKS } else { 0 }, 0);
        }
        let reached = windows.reached_by(peer, self.parts.rank, address, len_bytes);
        (0, reached.filter(|reached| reached.is_multiple_of(DIRECT_ALIGN_BYTES)).unwrap_or_default())
    }

    /// The tiles of a launch, if it needs any.
    fn message_tiles(&self, kernel: Kernel, args: &MessageArgs) -> Tiles {
        let messages = &args.messages[..args.launch.nmessages as usize];
        let asks = messages.iter().any(|message| message.flags & MESSAGE_ASKS != 0);
        match self.parts.tiles.of(kernel) {
            Tiles { tile_bytes: 0, .. } if asks => {
                Tiles::on(&self.parts.device, self.parts.tile_bytes.unwrap_or(DIRECT_TILE_BYTES))
            }
            tiles => tiles,
        }
    }
}
