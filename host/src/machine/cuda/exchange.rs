//! Sends and receives, and what is made of them.

use super::driver::StreamRef;
use super::engine::{DeviceEngine, EnqueueError, copy};
use crate::launch::messages::{self, Message};
use crate::launch::{Fault, RawCall};
use crate::plan::device::{Arrangement, Batch, MessageWant, arrange};
use oxccl_shared::abi::{Func, KERNEL_MESSAGES_MAX, KernelMessage, MessageArgs};
use std::ffi::c_void;

/// Memory for the messages of the group being enqueued, kept from one to the next.
#[derive(Default)]
pub(super) struct Exchange {
    /// Each with its tag.
    messages: Vec<(Message, u32)>,
    wants: Vec<MessageWant>,
    arrangement: Arrangement,
}

const NO_MESSAGE: KernelMessage =
    KernelMessage { buffer: std::ptr::null_mut(), len_bytes: 0, conn: 0, is_send: 0, tag: 0, lane: 0 };

impl DeviceEngine {
    /// Everything that is made of messages between pairs.
    ///
    /// # Safety
    /// 1. As [`Self::enqueue`].
    pub(super) unsafe fn all_messages(
        &mut self,
        calls: &[RawCall],
        stream: StreamRef<'_>,
    ) -> Result<(), EnqueueError> {
        let mut exchange = std::mem::take(&mut self.exchange);
        self.collect(calls, &mut exchange);
        // SAFETY: obligation 1.
        let put = unsafe { self.copy_to_self(&exchange.messages, stream) }
            // SAFETY: obligation 1.
            .and_then(|()| unsafe { self.launch_messages(&mut exchange, stream) });
        self.exchange = exchange;
        put
    }

    /// Splits calls into messages, each with its tag.
    fn collect(&mut self, calls: &[RawCall], exchange: &mut Exchange) {
        let (me, n) = (self.parts.rank, self.parts.facts.nranks);
        exchange.messages.clear();
        for raw in calls {
            if !self.goes_as_messages(raw) {
                continue;
            }
            let tag = match raw.call.func {
                Func::Send | Func::Recv => messages::tag(&raw.call),
                _ => {
                    self.history.begin(&raw.call, &self.parts.health);
                    self.history.tag()
                }
            };
            messages::split(raw, me, n, |message| exchange.messages.push((message, tag)));
        }
    }

    /// The k-th send to ourselves goes to the k-th receive from ourselves.
    ///
    /// # Safety
    /// 1. As [`Self::enqueue`].
    unsafe fn copy_to_self(
        &self,
        messages: &[(Message, u32)],
        stream: StreamRef<'_>,
    ) -> Result<(), EnqueueError> {
        let rank = self.parts.rank;
        let own = |is_send| {
            let messages = messages.iter().map(|(message, _)| message);
            messages.filter(move |message| message.peer == rank && message.is_send == is_send)
        };
        if !own(true).map(|message| message.len_bytes).eq(own(false).map(|message| message.len_bytes)) {
            let fault = Fault::Mismatch { rank, theirs: None };
            return Err(EnqueueError::Stopped(self.fail(fault)));
        }
        for (from, to) in own(true).zip(own(false)) {
            // SAFETY: obligation 1: both are valid for the length.
            unsafe { copy(from.buffer, to.buffer, from.len_bytes, stream)? };
        }
        Ok(())
    }

    /// # Safety
    /// 1. As [`Self::enqueue`].
    unsafe fn launch_messages(
        &mut self,
        exchange: &mut Exchange,
        stream: StreamRef<'_>,
    ) -> Result<(), EnqueueError> {
        let (facts, rank) = (self.parts.facts, self.parts.rank);
        let Exchange { messages, wants, arrangement } = exchange;
        messages.retain(|(message, _)| message.peer != rank);
        wants.clear();
        wants.extend(messages.iter().map(|(message, _)| MessageWant {
            is_send: message.is_send,
            peer: message.peer,
            len_bytes: message.len_bytes as u64,
        }));
        for batch in arrange(wants, rank, &facts, arrangement) {
            let mut args = self.message_args(&batch, messages);
            self.order_messages(&batch, messages, &args);
            let is_told = self.tell_proxy(stream)?;
            let function = self.function(batch.kernel, batch.threads)?;
            let mut params = [(&raw mut args).cast::<c_void>()];
            let (grid, block) = ([batch.lanes * batch.channels, 1, 1], [batch.threads, 1, 1]);
            // SAFETY: the entry takes one `MessageArgs`; buffers are valid by obligation 1, everything else lives until `close` has
            // seen every operation end.
            let launched = unsafe { function.launch(grid, block, 0, stream, &mut params) };
            let launched = launched.map_err(|error| error.in_kernel(function.name()));
            launched.map_err(|error| self.launch_refused(error, is_told, stream))?;
        }
        Ok(())
    }

    /// What the proxy must do for a launch's messages, those of a connection in the order in which the kernel carries them.
    fn order_messages(&mut self, batch: &Batch<'_>, messages: &[(Message, u32)], args: &MessageArgs) {
        let Some(net) = &mut self.parts.net else { return };
        for (placed, message) in batch.placed.iter().zip(&args.messages) {
            let (Message { peer, .. }, _) = messages[placed.index];
            net.message(message, peer, batch.kernel, batch.channels);
        }
    }

    fn message_args(&self, batch: &Batch<'_>, messages: &[(Message, u32)]) -> MessageArgs {
        let mut launch = self.launch(&self.parts.tables.mesh, batch.channels);
        launch.nmessages = batch.placed.len() as u32;
        let mut args = MessageArgs { launch, messages: [NO_MESSAGE; KERNEL_MESSAGES_MAX] };
        for (to, placed) in args.messages.iter_mut().zip(batch.placed) {
            let (message, tag) = messages[placed.index];
            *to = KernelMessage {
                buffer: message.buffer,
                len_bytes: message.len_bytes as u64,
                conn: message.peer - u32::from(message.peer > self.parts.rank),
                is_send: message.is_send.into(),
                tag,
                lane: placed.lane,
            };
        }
        args
    }
}
