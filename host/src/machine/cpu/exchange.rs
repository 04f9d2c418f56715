//! A group of one message to a rank and one from a rank, of a slot at most, without what only other groups need.

use super::state::{Cpu, CpuParts};
use crate::launch::Message;
use oxccl_device::coll::send_recv::{self, BriefExchange};
use oxccl_device::gpu::Stop;
use oxccl_device::gpu::cpu::CpuBlock;
use oxccl_device::prims::brief::Brief;
use oxccl_shared::abi::{DataType, Protocol, RedOp};
use oxccl_shared::reduce;

impl Cpu {
    /// Carries out the messages, if they are such, and no network and no message in flight is driven beside them. Returns whether it did;
    /// if not, nothing was done.
    ///
    /// # Safety
    /// 1. As [`Machine::messages`](crate::launch::Machine::messages).
    #[inline]
    pub(super) unsafe fn exchange(&mut self, messages: &[(Message, u32)]) -> Result<bool, Stop> {
        let CpuParts { send_to, recv_from, mesh, wait, .. } = &self.parts;
        let ((to, to_tag), (from, from_tag)) = match messages {
            [to, from] if to.0.is_send && !from.0.is_send => (to, from),
            [from, to] if to.0.is_send && !from.0.is_send => (to, from),
            _ => return Ok(false),
        };
        if !wait.drives().is_empty()
            || self.message_protocol != Protocol::Simple
            || self.queue.running_that_joins().is_some()
        {
            return Ok(false);
        }
        let work = BriefExchange {
            send: send_to[to.peer.index()],
            src: to.buffer,
            sent: Brief { tag: *to_tag, len_bytes: to.len_bytes },
            recv: recv_from[from.peer.index()],
            dst: from.buffer,
            received: Brief { tag: *from_tag, len_bytes: from.len_bytes },
        };
        let operator = reduce::resolve(RedOp::Sum, DataType::U8, 1, 0);
        let block = CpuBlock::new(wait, DataType::U8, &operator);
        // SAFETY: (1) obligation 1; (2) those of the mesh, where nothing else is under way; a block of the caller's thread.
        unsafe { send_recv::exchange_brief(&block, mesh.view().0, &work) }
    }
}
