//! The local halves of connections whose other half is on another host, and what is put behind them.

use super::{Conn, Wiring};
use crate::connect::ConnectError;
use crate::connect::cpu::inbox::ConnKey;
use crate::connect::cpu::wanted::CpuWanted;
use crate::launch::NetLinks;
use crate::mem::{MemError, Segment};
use crate::net::{RecvComm, SendComm};
use crate::proxy::{EndId, ProxyBlock, ProxyChannel, ProxyEnd, ProxyParts, ProxyPlace, RecvEnd, SendEnd};
use crate::transport::Transport;
use oxccl_device::conn::{RecvConn, SendConn};
use oxccl_shared::abi::{ChannelId, ConnLayout, Rank};
use oxccl_shared::algo::collnet::Shape;
use std::ptr::NonNull;
use std::sync::Arc;

/// The local halves of connections, one after the other, zeroed and 128-byte aligned.
pub(in crate::connect::cpu) struct Halves {
    pub(in crate::connect::cpu) segment: Arc<Segment>,
    used_bytes: usize,
}

impl Halves {
    /// Room for those of these layouts.
    pub(in crate::connect::cpu) fn of(layouts: impl Iterator<Item = ConnLayout>) -> Result<Halves, MemError> {
        let len_bytes = layouts.map(|layout| layout.total_bytes()).sum();
        Ok(Halves { segment: Arc::new(Segment::private(len_bytes)?), used_bytes: 0 })
    }

    /// The next one's.
    pub(in crate::connect::cpu) fn place(&mut self, layout: ConnLayout) -> NonNull<u8> {
        let base = self.segment.base().wrapping_add(self.used_bytes);
        self.used_bytes += layout.total_bytes();
        // SAFETY: an address within a mapping is not null.
        unsafe { NonNull::new_unchecked(base) }
    }
}

impl Wiring<'_> {
    /// Memory for the local halves of connections, if there are any.
    pub(super) fn halves(
        &self,
        transport: &dyn Transport,
        to: &[Conn],
        from: &[Conn],
    ) -> Result<Option<Halves>, ConnectError> {
        if to.is_empty() && from.is_empty() {
            return Ok(None);
        }
        let layouts = to.iter().chain(from).map(|(key, _)| self.layout(transport, *key));
        Halves::of(layouts).map(Some).map_err(|error| self.memory_error(error))
    }

    /// Puts a proxy behind communicators of a network.
    pub(super) fn attach_network(
        &mut self,
        transport: &dyn Transport,
        halves: &mut Halves,
        to: Vec<(Conn, Box<dyn SendComm>)>,
        from: Vec<(Conn, Box<dyn RecvComm>)>,
    ) -> Result<(), ConnectError> {
        let rank = self.wanted.rank;
        let refused =
            |peer: Rank, source| ConnectError::Net { rank, peer: Some(peer), source: Box::new(source) };
        let mut ends = Vec::new();
        for ((key, peer), comm) in to {
            let (layout, place) = (self.layout(transport, key), self.place_of(key, peer, true));
            let base = halves.place(layout);
            // SAFETY: `halves` has room for every connection, zeroed and 128-byte aligned; `memory` keeps it mapped as long as the
            // ends. The kernel is its only producer, the proxy's end its only consumer.
            let (mut conn, end) = unsafe {
                let block = ProxyBlock::in_host(base, layout);
                (SendConn::new(peer, base.as_ptr(), layout), SendEnd::new(comm, block, place))
            };
            conn.is_streamed = true;
            let end = end.map_err(|source| refused(peer, source))?;
            ends.push(ProxyEnd::Send(end.keeping(halves.segment.clone())));
            self.outbound_bytes[peer.index()] += layout.total_bytes();
            self.channel(key).send.push(conn);
        }
        for ((key, peer), comm) in from {
            let (layout, place) = (self.layout(transport, key), self.place_of(key, peer, false));
            let base = halves.place(layout);
            // SAFETY: as above, with the proxy's end as producer and the kernel as consumer.
            let (conn, end) = unsafe {
                let block = ProxyBlock::in_host(base, layout);
                (RecvConn::new(peer, base.as_ptr(), layout), RecvEnd::new(comm, block, place))
            };
            let end = end.map_err(|source| refused(peer, source))?;
            ends.push(ProxyEnd::Recv(end.keeping(halves.segment.clone())));
            self.inbound_bytes[peer.index()] += layout.total_bytes();
            self.channel(key).recv.push(conn);
        }
        self.link_network(transport, ends);
        Ok(())
    }

    /// Has these ends driven, of the ranks that this transport reaches.
    pub(super) fn link_network(&mut self, transport: &dyn Transport, ends: Vec<ProxyEnd>) {
        let CpuWanted { rank, nranks, .. } = *self.wanted;
        let channels = self.proxy_channels();
        let parts = ProxyParts { rank, nranks, channels, ends, timeout: None };
        let reaches =
            (0..nranks).map(Rank).map(|peer| peer != rank && self.kind(rank, peer) == transport.kind());
        self.net_links = Some(NetLinks::new(parts, reaches.collect()));
    }

    /// A connection's name for the proxy.
    fn place_of(&self, key: ConnKey, peer: Rank, is_send: bool) -> EndId {
        place_of(self.channels.len(), (key, peer), is_send)
    }

    /// This rank's places in rings and trees, as the proxy wants them.
    fn proxy_channels(&self) -> Box<[ProxyChannel]> {
        let channel = |index: u32| {
            let mut channel = ProxyChannel::default();
            if index < self.graph.ring_channels() {
                channel.ring = self.graph.ring(index).into();
            }
            if index < self.graph.tree_channels() {
                channel.tree = self.graph.tree(self.wanted.rank, index);
            }
            channel
        };
        let (chain, star) = (self.proxy_place(Shape::Chain), self.proxy_place(Shape::Star));
        let mesh = ProxyChannel { chain, star, ..ProxyChannel::default() };
        (0..self.graph.channels()).map(channel).chain([mesh]).collect()
    }

    /// This rank's place in its host.
    pub(super) fn proxy_place(&self, shape: Shape) -> ProxyPlace {
        ProxyPlace::of(shape, self.own_host(), self.wanted.rank)
    }

    /// The ranks of this one's host, from the head on.
    pub(in crate::connect::cpu) fn own_host(&self) -> &[Rank] {
        let rank = self.wanted.rank;
        self.graph.hosts().iter().find(|host| host.contains(&rank)).map_or(&[], Vec::as_slice)
    }
}

/// A connection's name for the proxy, which numbers the mesh behind the channels.
pub(in crate::connect::cpu) fn place_of(channels: usize, (key, peer): Conn, is_send: bool) -> EndId {
    let channel = match key {
        ConnKey::Channel(channel) => channel,
        ConnKey::Mesh => channels as u32,
    };
    EndId { peer, channel: ChannelId(channel), is_send }
}
