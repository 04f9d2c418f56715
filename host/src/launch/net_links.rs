//! A communicator's connections over a network: its proxy, which is told of every operation and driven by whoever waits.

use super::collective_order::collective_order;
use super::drive::{Collective, Drive, DriveFailure, NetMessage};
use super::link_error::{Direction, LinkError};
use crate::net::bypass::Expected;
use crate::plan::Plan;
use crate::proxy::{EndFault, Progress, ProxyEnd, ProxyFailure, ProxyOrder, ProxyParts, driven_proxy};
use oxccl_device::gpu::Wait;
use oxccl_shared::abi::{ChannelId, Func, Rank};
use oxccl_shared::algo::registry::spec_of;
use std::collections::VecDeque;

/// Orders that a group of messages may leave waiting before memory for more is taken.
const BACKLOG: usize = 256;

/// Connections over a network.
pub struct NetLinks {
    progress: Progress,
    me: Rank,
    /// Orders for which the proxy had no room, and their turns.
    backlog: VecDeque<(Turn, ProxyOrder)>,
    /// Whether messages have been added to the backlog that are not in their places.
    is_unsorted: bool,
    /// By rank: messages of the group under way, to it and from it.
    messages: Box<[[u32; 2]]>,
    /// Whether there are any.
    has_messages: bool,
    /// The channel that stands for the mesh.
    mesh: u32,
    /// By rank: whether this network reaches it.
    reaches: Box<[bool]>,
    /// Whether an operation is under way, which may have the user's memory.
    has_memory: bool,
    failure: Option<DriveFailure>,
}

/// When a message of a group has its turn, in an order that sender and receiver share: which of its pair's messages it is, and how
/// far the receiver is from the sender. What is sent goes first: to look for what comes costs a call of the system, for which what
/// is sent would wait.
///
/// A proxy has room for so many orders. Given them as its rank happened to add them, it could be full of messages that the other
/// ranks' proxies, full of others, come to last; and all would wait. In an order that all share, the first message that is not done
/// is the next one at both of its ends.
type Turn = (u32, u32, bool);

impl NetLinks {
    /// The connections in `parts`, whose last channel is the mesh; `reaches` says, by rank, to whom they go.
    pub fn new(parts: ProxyParts, reaches: Box<[bool]>) -> NetLinks {
        let mesh = parts.channels.len().saturating_sub(1) as u32;
        let me = parts.rank;
        NetLinks {
            progress: driven_proxy(parts),
            me,
            backlog: VecDeque::with_capacity(BACKLOG),
            is_unsorted: false,
            messages: reaches.iter().map(|_| [0; 2]).collect(),
            has_messages: false,
            mesh,
            reaches,
            has_memory: false,
            failure: None,
        }
    }

    /// A collective begins.
    fn collective(&mut self, plan: &Plan, root: Rank, tag: u32) {
        self.has_memory = true;
        let is_mesh = spec_of(plan.algorithm).connections.is_of_pairs();
        let first_channel = if is_mesh { self.mesh } else { 0 };
        let order = ProxyOrder { tag, first_channel, ..collective_order(plan, root) };
        if !self.backlog.is_empty() || self.progress.offer(order).is_err() {
            self.backlog.push_back((Turn::default(), order));
        }
    }

    /// Counts a message, and says when its turn is.
    fn turn(&mut self, message: &NetMessage) -> Turn {
        let NetMessage { is_send, peer, .. } = *message;
        let count = &mut self.messages[peer.index()][usize::from(is_send)];
        let before = *count;
        *count += 1;
        let (from, to) = if is_send { (self.me, peer) } else { (peer, self.me) };
        let nranks = self.messages.len() as u32;
        (before, (to.0 + nranks - from.0) % nranks, !is_send)
    }

    /// Gives the proxy what it has room for.
    fn hand_over(&mut self) {
        if std::mem::take(&mut self.is_unsorted) {
            self.backlog.make_contiguous().sort_unstable_by_key(|(turn, _)| *turn);
        }
        while let Some((turn, order)) = self.backlog.pop_front() {
            if let Err(order) = self.progress.offer(order) {
                return self.backlog.push_front((turn, order));
            }
        }
    }
}

impl Drive for NetLinks {
    fn add_connection(&mut self, end: &mut Option<ProxyEnd>) {
        end.take().into_iter().for_each(|end| self.progress.add(end));
    }

    fn begin_collective(&mut self, collective: &Collective<'_>) {
        self.collective(collective.plan, collective.call.root, collective.tag);
    }

    fn begin_messages(&mut self) {
        self.has_memory = true;
        self.progress.forget_arrived();
    }

    /// One of the group that begins, or of one that is under way.
    fn message(&mut self, message: NetMessage) {
        if !self.reaches[message.peer.index()] {
            return;
        }
        let order = ProxyOrder {
            count: message.len_bytes as u64,
            grain_elems: 1,
            tag: message.tag,
            rank: message.peer,
            first_channel: self.mesh,
            nchannels: 1,
            func: Func::of_message(message.is_send) as u8,
            protocol: message.protocol as u8,
            ..ProxyOrder::default()
        };
        let turn = self.turn(&message);
        self.backlog.push_back((turn, order));
        (self.is_unsorted, self.has_messages) = (true, true);
    }

    unsafe fn expect(&mut self, peer: Rank, message: Expected) {
        // SAFETY: the same obligations.
        unsafe { self.progress.expect(ChannelId(self.mesh), peer, message) };
    }

    fn end(&mut self) {
        self.has_memory = false;
        if std::mem::take(&mut self.has_messages) {
            self.messages.fill([0; 2]);
        }
    }

    unsafe fn lend(&mut self, slot: *mut u8, body: *const u8, len_bytes: usize) -> bool {
        // SAFETY: the same obligations.
        self.has_memory && unsafe { self.progress.lend(slot, body, len_bytes) }
    }

    fn lent(&mut self, slot: *const u8) -> Option<*const u8> {
        self.progress.lent(slot)
    }

    fn return_loans(&mut self, start: *const u8, len_bytes: usize) {
        self.progress.return_loans(&(start.addr()..start.addr() + len_bytes));
    }

    fn take_arrived(&mut self, slot: *const u8) -> Option<*mut u8> {
        if self.has_memory { self.progress.take_arrived(slot) } else { None }
    }

    #[inline]
    fn drive(&mut self, _on: Wait) -> usize {
        if !self.backlog.is_empty() {
            self.hand_over();
        }
        self.progress.do_work()
    }

    #[inline]
    fn failure(&mut self, _on: Wait) -> Option<DriveFailure> {
        if self.failure.is_none() {
            self.failure = self.progress.failure().map(describe);
        }
        self.failure
    }

    fn post_mortem(&self) -> Option<&str> {
        self.progress.failure().map(|failure| failure.post_mortem.as_str())
    }
}

/// A failure as the communicator's health has it, in few words.
#[cold]
fn describe(failure: &ProxyFailure) -> DriveFailure {
    let keep = |text: String| -> &'static str { Box::leak(text.into_boxed_str()) };
    let Some(error) = &failure.error else {
        let (peer, direction, reason) = (failure.rank, Direction::To, keep(failure.said.clone()));
        let error = LinkError::Net { peer, direction, reason };
        return DriveFailure { peer, is_of_network: false, is_mismatch: false, error };
    };
    let peer = error.place.peer;
    let direction = if error.place.is_send { Direction::To } else { Direction::From };
    DriveFailure {
        peer,
        is_of_network: matches!(error.why, EndFault::Net(_)) && !error.why.is_mismatch(),
        is_mismatch: error.why.is_mismatch(),
        error: LinkError::Net { peer, direction, reason: keep(error.why.to_string()) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::Segment;
    use crate::net::Net;
    use crate::net::bypass::{BYPASS_MIN_BYTES, EXPECTED_MAX};
    use crate::net::loopback::Loopback;
    use crate::proxy::{EndId, ProxyBlock, ProxyChannel, RecvEnd, SendEnd};
    use oxccl_device::gpu::Awaited;
    use oxccl_shared::abi::{ConnControl, ConnLayout, Protocol, SlotHeader, Step};
    use oxccl_shared::fifo::{StepConsumer, StepProducer, split};
    use oxccl_shared::proto;
    use std::ptr::NonNull;

    const ON: Wait = Wait { peer: Rank(1), what: Awaited::Data };
    /// A message to a slot.
    const LEN_BYTES: usize = BYPASS_MIN_BYTES;
    const LAYOUT: ConnLayout =
        ConnLayout { ll_slot_bytes: 512, ll128_slot_bytes: 1024, simple_slot_bytes: LEN_BYTES as u32 };

    /// Two ranks whose kernels the test plays: their links, what the first fills and what the second empties.
    struct Two {
        from: NetLinks,
        to: NetLinks,
        filled: StepProducer<'static>,
        emptied: StepConsumer<'static>,
        slots: NonNull<u8>,
    }

    /// A connection's memory; leaked, for tests are short.
    fn block() -> (NonNull<u8>, &'static ConnControl, ProxyBlock) {
        let segment = Box::leak(Box::new(Segment::private(LAYOUT.total_bytes()).unwrap()));
        let base = NonNull::new(segment.base()).unwrap();
        // SAFETY: leaked, zeroed, page aligned and long enough.
        let control = unsafe { base.cast::<ConnControl>().as_ref() };
        // SAFETY: as above.
        (base, control, unsafe { ProxyBlock::in_host(base, LAYOUT) })
    }

    fn links(me: Rank, end: ProxyEnd) -> NetLinks {
        let channels = [ProxyChannel::default()].into();
        let parts = ProxyParts { rank: me, nranks: 2, channels, ends: vec![end], timeout: None };
        NetLinks::new(parts, [me == Rank(1), me == Rank(0)].into())
    }

    impl Two {
        fn new() -> Two {
            let net = Loopback::new(1);
            let (handle, mut listener) = net.listen(0).unwrap();
            let mut connector = net.connect(0, &handle).unwrap();
            let send = connector.poll_connect().unwrap().expect("at once in one process");
            let recv = listener.poll_accept().unwrap().expect("it has connected");
            let ((_, here, near), (slots, there, far)) = (block(), block());
            let place = |is_send| EndId { peer: Rank(u32::from(is_send)), channel: ChannelId(0), is_send };
            // SAFETY: the block's only consumer.
            let send = unsafe { SendEnd::new(send, near, place(true)) }.unwrap();
            // SAFETY: the block's only producer.
            let recv = unsafe { RecvEnd::new(recv, far, place(false)) }.unwrap();
            let (from, to) = (links(Rank(0), ProxyEnd::Send(send)), links(Rank(1), ProxyEnd::Recv(recv)));
            Two { from, to, filled: split(here).0, emptied: split(there).1, slots }
        }

        /// A group of as many messages as can be expected, all of them for `wanted`; how many have arrived there.
        fn group(&mut self, tag: u32, wanted: &mut [u8]) -> usize {
            let protocol = Protocol::Simple;
            let message = |is_send| NetMessage {
                is_send,
                peer: Rank(u32::from(is_send)),
                len_bytes: LEN_BYTES,
                protocol,
                tag,
            };
            (0..EXPECTED_MAX).for_each(|_| self.from.message(message(true)));
            (0..EXPECTED_MAX).for_each(|_| self.to.message(message(false)));
            self.from.begin_messages();
            self.to.begin_messages();
            let steps = (self.emptied.step().0..).map(Step).take(EXPECTED_MAX);
            for first in steps.clone() {
                let message = Expected { first, dst: wanted.as_mut_ptr(), len_bytes: LEN_BYTES, tag };
                // SAFETY: the memory outlives the group, and is asked for below.
                unsafe { self.to.expect(Rank(0), message) };
            }
            let arrived = steps.filter(|step| {
                while !self.filled.poll_credit(protocol.slots()) {
                    self.from.drive(ON);
                }
                self.filled.publish(SlotHeader { tag, len_bytes: LEN_BYTES as u32 });
                while self.emptied.poll().is_none() {
                    self.from.drive(ON);
                    self.to.drive(ON);
                }
                let slot = proto::slot_offset(protocol, &LAYOUT, step.slot());
                let at = self.to.take_arrived(self.slots.as_ptr().wrapping_add(slot));
                self.emptied.release();
                at == Some(wanted.as_mut_ptr())
            });
            let arrived = arrived.count();
            self.from.end();
            self.to.end();
            arrived
        }
    }

    /// What has come of one group takes no place among what is expected of the next.
    #[test]
    fn all_messages_of_every_group_are_received_where_they_belong() {
        let (mut two, mut wanted) = (Two::new(), vec![0; LEN_BYTES]);
        assert_eq!([1, 2, 3].map(|tag| two.group(tag, &mut wanted)), [EXPECTED_MAX; 3]);
    }
}
