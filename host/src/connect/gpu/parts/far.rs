//! A rank's connections over a network, as far as operations have needed them. Each end makes its half, and waits for no other rank.

use crate::connect::gpu::layout::DeviceLayout;
use crate::connect::gpu::net::{FarLinks, PlacedConn, Source};
use crate::connect::gpu::part::Part;
use crate::connect::gpu::tables::Tables;
use crate::gpu::Gpu;
use crate::launch::Health;
use crate::machine::NetEnds;
use oxccl_shared::abi::Rank;
use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

/// Which there are, and what makes the others.
pub struct FarParts {
    links: FarLinks,
    made: HashSet<Part>,
    /// By rank: bytes of connections from there, and to there.
    bytes: Vec<[usize; 2]>,
}

impl FarParts {
    /// With these parts, whose connections are these.
    pub(in crate::connect::gpu) fn new(
        links: FarLinks,
        nranks: u32,
        made: &[Part],
        conns: &[PlacedConn],
    ) -> FarParts {
        let made = made.iter().copied().collect();
        let mut far = FarParts { links, made, bytes: vec![[0; 2]; nranks as usize] };
        far.count(conns);
        far
    }

    /// Begins those of these parts that have not begun yet, and adds them to the tables.
    ///
    /// # Errors
    /// Why this rank cannot.
    pub fn begin(
        &mut self,
        parts: &[Part],
        (layout, tables): (&DeviceLayout, &Mutex<Tables>),
        device: &dyn Gpu,
        health: &Arc<Health>,
    ) -> Result<NetEnds, String> {
        let mut all = NetEnds::default();
        for part in parts {
            if !self.made.insert(*part) {
                continue;
            }
            let (layout, source): (_, &dyn Source) = (layout.of_part(*part), &device);
            let begun = self.links.begin(source, &layout, health).map_err(|error| error.to_string())?;
            self.count(&begun.conns);
            let mut tables = tables.lock().unwrap_or_else(PoisonError::into_inner);
            let conns = begun.conns.iter().map(|conn| (conn.name, conn.site));
            tables.add(&layout, self.links.rank(), device, conns).map_err(|error| error.to_string())?;
            all.ends.extend(begun.made.ends);
            all.memory.extend(begun.made.memory);
        }
        Ok(all)
    }

    /// Bytes of connections from a rank, and to it.
    pub fn bytes_with(&self, peer: Rank) -> [usize; 2] {
        self.bytes[peer.index()]
    }

    fn count(&mut self, conns: &[PlacedConn]) {
        for PlacedConn { name, len_bytes, .. } in conns {
            self.bytes[name.peer.index()][usize::from(name.is_send)] += len_bytes;
        }
    }
}
