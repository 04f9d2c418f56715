//! Layer: host / connect / gpu.
//! Takes: each rank's view of its host, settings and files.
//! Gives: [`Survey`]: rings and trees over all ranks, the same on every rank, or the same error.
//! Never: fails for lack of facts: if a rank cannot detect its host's topology, the host's ranks are used in rank
//! order.
//!
//! ```text
//! each rank    Found: its GPU, and what leads to it          all-gather
//! each host    one Inventory -> System -> Paths -> Graphs    by every rank of it, alike
//! each rank    Summary: channels, speeds, kinds; the lanes   all-gather
//! all          the least of all, lanes joined over hosts     by every rank, alike
//! ```

mod error;
mod wanted;
mod machine;
#[cfg(test)]
mod tests;

pub use error::{FileError, SurveyError};
pub use wanted::SurveyWanted;

use crate::bootstrap::Bootstrap;
use crate::connect::ConnectError;
use crate::connect::vote::{agree, vote};
use crate::log::Laps;
use crate::topology::detect::{Found, Own};
use crate::topology::xml::{read_text, read_topology};
use crate::topology::{Agreed, Channels, Gate, Inventory, agree as agree_on};
use machine::Machine;
use oxccl_shared::abi::Rank;

/// The names of the devices by which a ring comes to a rank, and leaves from it to another host.
pub type RingNics = [Option<String>; 2];

/// The result.
#[derive(Clone, PartialEq, Debug)]
pub struct Survey {
    /// Rings and trees over all ranks.
    pub channels: Channels,
    /// For each ring, the devices by which it comes to this rank and leaves from it, where the search gave it any.
    pub ring_nics: Vec<RingNics>,
    /// The common properties of all hosts' machines; speeds of 0 are unknown.
    pub agreed: Agreed,
    /// Ranks of this host whose GPUs are too far away for access to their memory.
    pub refused: Vec<Rank>,
    /// This rank's host, as its ranks see it together, if they can.
    pub machine: Option<Inventory>,
}

/// Finds the channels of a communicator. Every rank calls it at the same time.
///
/// # Errors
/// On every rank: on the rank at fault its own error, elsewhere one that names it.
pub fn survey(bootstrap: &Bootstrap, wanted: &SurveyWanted<'_>) -> Result<Survey, ConnectError> {
    let rank = bootstrap.rank();
    let mut laps = Laps::start(rank);
    let found = look(rank, wanted).map(|found| found.map_or(Vec::new(), |found| found.to_bytes()));
    laps.done("this GPU's machine looked at");
    let found = agree(bootstrap, found.map_err(ConnectError::from))?;
    let host = wanted.hosts[rank.index()];
    let ranks: Vec<Rank> = (0..)
        .map(Rank)
        .zip(wanted.hosts)
        .filter(|(_, other)| **other == host)
        .map(|(rank, _)| rank)
        .collect();
    let is_first = ranks[0] == rank;
    let machine = Machine::new(rank, ranks, &found, wanted).and_then(|machine| {
        machine.dump(rank, wanted.settings)?;
        Ok(machine)
    });
    let said = machine.as_ref().map(|machine| machine.summary().to_bytes(is_first));
    laps.done("channels of this host searched");
    let said = agree(bootstrap, said.map_err(|error| error.clone().into()))?;
    let machine = machine?;
    let joined = agree_on(&said, wanted.hosts).map_err(|error| ConnectError::from(SurveyError::from(error)));
    let joined = joined.and_then(|agreed| Ok((Channels::join(&agreed.hosts)?, agreed)));
    // All ranks see the same, but must not leave before all others have seen it.
    let (mut channels, agreed) = vote(bootstrap, joined)?;
    if let Some(rings) = &wanted.settings.rings {
        channels = channels.with_rings(rings);
    }
    let ring_nics = ring_nics(rank, &channels, &machine);
    tracing::debug!(%rank, hosts = agreed.hosts.len(), rings = ?agreed.reach[0], "channels found");
    laps.done("channels of all hosts joined");
    let refused = machine.refused(rank);
    Ok(Survey { channels, ring_nics, refused, agreed, machine: machine.inventory() })
}

/// The devices by which each ring comes to this rank and leaves from it, if the search gave it any.
fn ring_nics(rank: Rank, channels: &Channels, machine: &Machine) -> Vec<RingNics> {
    let of_ring = |channel| {
        let gate = |is_here: fn(&Gate, Rank) -> bool| {
            channels.gates(channel).iter().find(|gate| is_here(gate, rank)).map(|gate| gate.nets)
        };
        let enters = gate(|gate, rank| gate.first == rank).and_then(|[net, _]| machine.net_name(net));
        let leaves = gate(|gate, rank| gate.last == rank).and_then(|[_, net]| machine.net_name(net));
        [enters, leaves]
    };
    (0..channels.rings.len()).map(of_ring).collect()
}

/// This rank's view; none if its machine cannot be inspected and the user states nothing.
fn look(rank: Rank, wanted: &SurveyWanted<'_>) -> Result<Option<Found>, SurveyError> {
    let skeleton = match &wanted.settings.file {
        None => Inventory::new(),
        Some(path) => {
            let failed = |why| SurveyError::file(rank, "NCCL_TOPO_FILE", path, why);
            let text = read_text(path).map_err(|error| failed(error.into()))?;
            read_topology(&text).map_err(|error| failed(error.into()))?
        }
    };
    let first_of_host = wanted.hosts.iter().position(|host| *host == wanted.hosts[rank.index()]);
    let own = Own { rank, gpu: wanted.gpu, tells_nets: first_of_host == Some(rank.index()) };
    match (wanted.look)(skeleton, own) {
        Ok(found) => Ok(Some(found)),
        Err(error) => {
            tracing::warn!(%rank, gpu = %wanted.gpu, %error, "the topology is unknown; ranks are taken in their order");
            Ok(None)
        }
    }
}
