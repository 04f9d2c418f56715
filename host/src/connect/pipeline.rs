//! Init: from a bootstrap to connections, in the same steps for the ranks of every machine.

use super::error::ConnectError;
use super::settings::{self, Setting};
use super::vote::{agree, vote};
use crate::bootstrap::Bootstrap;
use crate::log::Laps;
use crate::net::NetConfig;
use crate::transport::PeerInfo;
use crate::wire::Message;
use oxccl_shared::abi::Rank;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// What all ranks say of themselves, in rank order.
pub(crate) struct Ranks<U> {
    /// Their processes.
    pub peers: Vec<PeerInfo>,
    /// Their units of the machine.
    pub units: Vec<U>,
}

/// What a rank tells the others before anything is connected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Introduction<U> {
    info: PeerInfo,
    unit: U,
}

impl<U: Serialize + DeserializeOwned> Message for Introduction<U> {
    /// 2: ranks whose settings differ exchange them.
    const VERSION: u8 = 2;
    const BYTES_MAX: usize = PeerInfo::BYTES_MAX + 64;
}

/// What a machine does in each step of [`connect`], with the settings of one rank.
///
/// All ranks are in the same step at the same time. A step that can fail on one rank alone ends with a vote, so that it fails on all:
/// on the rank at fault with its own error, elsewhere with one that names it.
pub(crate) trait Steps {
    /// What a rank says of its unit of the machine, in at most 64 bytes.
    type Unit: Serialize + DeserializeOwned;
    /// Who neighbours whom, by what, and how the connections lie in memory: the same on all ranks.
    type Plan<'s>
    where
        Self: 's;
    /// The plan, with this rank's memory of connections and that of the ranks that it shares memory with.
    type Memory<'s>
    where
        Self: 's;
    /// All connections.
    type Connected;

    /// This process.
    fn info(&self) -> &PeerInfo;

    /// Those whose digest `info().settings` is.
    fn settings(&self) -> &[Setting];

    /// Where a network is to be found.
    fn net(&self) -> &NetConfig;

    /// This rank's unit, or why it has none.
    fn unit(&self) -> Result<Self::Unit, ConnectError>;

    /// Whether rank `rank` can be connected with the others.
    fn check(&self, rank: Rank, ranks: &Ranks<Self::Unit>) -> Result<(), ConnectError>;

    /// Plans the connections.
    fn plan<'s>(
        &'s self,
        bootstrap: &Bootstrap,
        ranks: Ranks<Self::Unit>,
    ) -> Result<Self::Plan<'s>, ConnectError>;

    /// Allocates this rank's memory and exchanges it. One step, because a machine that cannot open what was allocated in one way
    /// allocates in another.
    fn share<'s>(
        &'s self,
        bootstrap: &Bootstrap,
        plan: Self::Plan<'s>,
    ) -> Result<Self::Memory<'s>, ConnectError>;

    /// Connects the ranks that share no memory, and completes the ends of all connections.
    fn connect<'s>(
        &'s self,
        bootstrap: &Bootstrap,
        memory: Self::Memory<'s>,
    ) -> Result<Self::Connected, ConnectError>;

    /// Removes what a failed step may have left behind, on this rank or another.
    fn give_up(&self, _peers: &[PeerInfo]) {}
}

/// Connects this rank with all others. Every rank calls it at the same time.
///
/// # Errors
/// The same step fails on every rank: on the rank at fault with its own error, elsewhere with one that names it.
pub(crate) fn connect<S: Steps>(bootstrap: &Bootstrap, steps: &S) -> Result<S::Connected, ConnectError> {
    let mut laps = Laps::start(bootstrap.rank());
    let ranks = meet(bootstrap, steps)?;
    laps.done("ranks met");
    // A rank may have come farther than this one before it died: it has passed votes that this one sees fail.
    let peers = ranks.peers.clone();
    take(bootstrap, steps, ranks, laps).inspect_err(|_| steps.give_up(&peers))
}

fn take<S: Steps>(
    bootstrap: &Bootstrap,
    steps: &S,
    ranks: Ranks<S::Unit>,
    mut laps: Laps,
) -> Result<S::Connected, ConnectError> {
    // All ranks see the same settings, but must not leave before all others have seen them.
    let settings = settings::compare(bootstrap, &ranks.peers, steps.settings(), steps.net());
    vote(bootstrap, settings.and_then(|()| steps.check(bootstrap.rank(), &ranks)))?;
    laps.done("settings compared");
    let plan = steps.plan(bootstrap, ranks)?;
    laps.done("planned");
    let memory = steps.share(bootstrap, plan)?;
    laps.done("memory shared");
    let connected = steps.connect(bootstrap, memory)?;
    laps.done("connected");
    Ok(connected)
}

/// Every rank learns what every rank says of itself.
fn meet<S: Steps>(bootstrap: &Bootstrap, steps: &S) -> Result<Ranks<S::Unit>, ConnectError> {
    let said = steps.unit().map(|unit| Introduction { info: *steps.info(), unit }.to_bytes());
    let mut ranks = Ranks { peers: Vec::new(), units: Vec::new() };
    for (peer, block) in (0..).map(Rank).zip(agree(bootstrap, said)?) {
        let introduction = Introduction::from_bytes(&block);
        let Introduction { info, unit } = introduction.map_err(|_| ConnectError::Malformed { peer })?;
        ranks.peers.push(info);
        ranks.units.push(unit);
    }
    Ok(ranks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn introductions_round_trip_and_nothing_else_is_one() {
        let said = Introduction { info: PeerInfo::default(), unit: [7u8; 16] };
        let bytes = said.to_bytes();
        assert_eq!(Introduction::from_bytes(&bytes), Ok(said));
        assert!(Introduction::<[u8; 16]>::from_bytes(&bytes[1..]).is_err());
        assert!(Introduction::<()>::from_bytes(&bytes).is_err());
    }
}
