//! Connections over a network that an operation is the first to need.
//!
//! What it needs follows from its plan, so both ends of a connection need it for the same operation, and neither tells the other. A half has
//! its memory when the operation is launched; what lies between the halves comes while the operation waits, and its proxy drives it.

use super::counted::CountedSlots;
use super::devices::Devices;
use super::gdr::Gdr;
use super::memory::{PlacedConn, Source};
use super::places::{NetPlace, NetPlaces};
use crate::connect::gpu::layout::DeviceLayout;
use crate::gpu::CudaError;
use crate::launch::Health;
use crate::machine::{NetChannels, NetEnds};
use crate::net::{NetError, RecvComm, SendComm};
use crate::proxy::{EndId, Keep, OpenEnd, OpeningEnd, Patience, ProxyBlock, ProxyEnd, RecvEnd, SendEnd};
use crate::transport::net::{DeviceOf, Handles};
use crate::transport::{Asking, Opener, Opening, Openings, TransportError};
use oxccl_shared::abi::Rank;
use std::sync::Arc;
use std::time::{Duration, Instant};
use thiserror::Error;

/// What makes a rank's connections over a network one by one.
pub struct FarLinks {
    pub(super) rank: Rank,
    pub(super) handles: Handles,
    pub(super) channels: NetChannels,
    /// Whether the NIC uses the GPU's memory.
    pub(super) gdr: Option<Gdr>,
}

/// Connections that have been begun.
#[derive(Default)]
pub(in crate::connect::gpu) struct Begun {
    /// What the proxy is to drive.
    pub made: NetEnds,
    /// Where kernels find them.
    pub conns: Vec<PlacedConn>,
}

/// Why connections cannot even begin.
#[derive(Clone, PartialEq, Debug, Error)]
pub(in crate::connect::gpu) enum FarRefused {
    #[error("no memory for connections over a network: {0}")]
    Memory(CudaError),
    #[error(transparent)]
    Net(#[from] TransportError),
}

impl FarLinks {
    /// Whose they are.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Begins the connections of a layout that lead over the network. Waits for no other rank.
    pub(in crate::connect::gpu) fn begin(
        &self,
        source: &dyn Source,
        layout: &DeviceLayout,
        health: &Arc<Health>,
    ) -> Result<Begun, FarRefused> {
        let places = NetPlaces::new(layout, self.rank);
        if places.places.is_empty() {
            return Ok(Begun::default());
        }
        let counted = self.gdr.and_then(|gdr| CountedSlots::allocate(source, gdr, (self.rank, &places)));
        let counted = counted.map(Arc::new);
        let places = places.with_counted(|at| counted.as_ref()?.address(at));
        let memory = source.host(places.len_bytes).map_err(FarRefused::Memory)?;
        let keep: Keep = Arc::new((memory.keep(), counted.as_ref().map(|counted| counted.keep())));
        let asking = |is_send| -> Vec<Asking> {
            let names = places.one_way(is_send).map(|place| place.name);
            names
                .map(|name| self.channels.end(name.kind, name.channel, name.peer, is_send))
                .map(asking_of)
                .collect()
        };
        let Openings { to, from } = self.handles.open(&asking(true), &asking(false))?;
        let (mut to, mut from) = (to.into_iter(), from.into_iter());
        let mut ends = Vec::new();
        for (at, place) in places.places.iter().enumerate() {
            let name = place.name;
            // SAFETY: (1) every place is walked once, and its end keeps the memory; (2) an open end's block is told of it.
            let block = unsafe { memory.block(place) };
            let half = Half {
                at,
                place: *place,
                id: self.channels.end(name.kind, name.channel, name.peer, name.is_send),
                block,
                counted: counted.clone(),
                keep: keep.clone(),
                left: Left { health: health.clone(), since: None },
            };
            let (id, slots) = (half.id, place.slots);
            let (open, patience) = match name.is_send {
                true => (half.sending(to.next().expect("one for each")), Patience::UntilFilled(block)),
                false => (half.receiving(from.next().expect("one for each")), Patience::OfKernel),
            };
            let opening = OpeningEnd::new(id, slots, open).with_patience(patience);
            ends.push(ProxyEnd::Opening(Box::new(opening)));
        }
        let conns = memory.conns(&places);
        Ok(Begun { made: NetEnds { ends, memory: vec![keep] }, conns })
    }
}

/// Both ends of a connection know its channel.
fn asking_of(EndId { peer, channel, .. }: EndId) -> Asking {
    Asking { tag: channel.0.into(), peer }
}

/// What opens a network's listeners and connectors on these devices.
pub(super) fn device_of(devices: Devices) -> DeviceOf {
    Arc::new(move |asking, is_send| devices.of(asking.tag as u32, is_send))
}

/// A half that waits for its communicator.
struct Half {
    at: usize,
    place: NetPlace,
    id: EndId,
    block: ProxyBlock,
    counted: Option<Arc<CountedSlots>>,
    keep: Keep,
    left: Left,
}

impl Half {
    fn sending(mut self, mut opening: Opening<Box<dyn SendComm>>) -> OpenEnd<ProxyEnd> {
        Box::new(move || {
            let Some(mut comm) = opening().map_err(TransportError::into_net)? else {
                return self.left.check(self.place.name.peer).map(|()| None);
            };
            let block = self.block(&mut *comm)?;
            // SAFETY: (1) opened once, so that it is the block's only consumer; it keeps the block's memory.
            let end = unsafe { SendEnd::new(comm, block, self.id)? };
            Ok(Some(ProxyEnd::Send(end.keeping(self.keep.clone()))))
        })
    }

    fn receiving(mut self, mut opening: Opening<Box<dyn RecvComm>>) -> OpenEnd<ProxyEnd> {
        Box::new(move || {
            let Some(mut comm) = opening().map_err(TransportError::into_net)? else {
                return self.left.check(self.place.name.peer).map(|()| None);
            };
            // The proxy's threads do nothing else, and it is kernels that wait.
            comm.be_prompt();
            let block = self.block(&mut *comm)?;
            // SAFETY: (1) opened once, so that it is the block's only producer; it keeps the block's memory.
            let end = unsafe { RecvEnd::new(comm, block, self.id)? };
            Ok(Some(ProxyEnd::Recv(end.keeping(self.keep.clone()))))
        })
    }

    /// The block, with its slots on the GPU registered. Kernels may use these already, so that there is no way back to the host's memory.
    fn block(&self, comm: &mut dyn crate::net::Comm) -> Result<ProxyBlock, NetError> {
        let Some(counted) = &self.counted else { return Ok(self.block) };
        let slots = counted.register(self.at, comm, &self.place).map_err(|error| {
            let reason = format!("{error}; NCCL_NET_GDR_LEVEL=LOC leaves slots in the host's memory");
            NetError::of_call("network", "register memory of the GPU", reason)
        })?;
        // SAFETY: (1) the end keeps the memory; (2) `comm` has registered it, and is the end's.
        Ok(slots.map_or(self.block, |slots| unsafe { self.block.with_counted_slots(slots) }))
    }
}

/// How long what a rank did before it left may take to be seen.
const LEFT_GRACE: Duration = Duration::from_secs(1);

/// Ends the wait for a rank that has left.
struct Left {
    health: Arc<Health>,
    since: Option<Instant>,
}

impl Left {
    fn check(&mut self, peer: Rank) -> Result<(), NetError> {
        if !self.health.has_left(peer) || self.since.get_or_insert_with(Instant::now).elapsed() < LEFT_GRACE {
            return Ok(());
        }
        let reason = format!("rank {peer} has closed the communicator");
        Err(NetError::of_call("network", "connect", reason))
    }
}
