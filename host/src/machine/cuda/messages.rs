//! Messages between ranks, as kernels.

use super::driver::StreamRef;
use super::state::{Cuda, MessageScratch};
use crate::launch::{Message, RunError};
use crate::machine::ConnKind;
use crate::plan::{Batch, arrange};
use oxccl_shared::abi::{KERNEL_MESSAGES_MAX, KernelMessage, MessageArgs};
use std::ffi::c_void;

const NO_MESSAGE: KernelMessage =
    KernelMessage { buffer: std::ptr::null_mut(), len_bytes: 0, conn: 0, is_send: 0, tag: 0, lane: 0 };

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
            let tiles = self.parts.tiles.of(batch.kernel);
            let mut args = self.message_args(&batch, messages);
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
            self.launch(self.parts.tables.of(ConnKind::Pair, batch.kernel.protocol()), batch.channels);
        launch.nmessages = batch.placed.len() as u32;
        let mut args = MessageArgs { launch, messages: [NO_MESSAGE; KERNEL_MESSAGES_MAX] };
        for (to, placed) in args.messages.iter_mut().zip(batch.placed) {
            let (message, tag) = messages[placed.index];
            *to = KernelMessage {
                buffer: message.buffer,
                len_bytes: message.len_bytes as u64,
                conn: message.peer.0 - u32::from(message.peer > self.parts.rank),
                is_send: message.is_send.into(),
                tag,
                lane: placed.lane,
            };
        }
        args
    }
}
