//! A rank's side of the parts: what there is, what it says of them and what it hears.

use super::far::FarParts;
use super::note::{PartNote, Said};
use super::state::{Known, Phase, State};
use crate::connect::gpu::layout::DeviceLayout;
use crate::connect::gpu::part::Part;
use crate::connect::gpu::tables::Tables;
use crate::gpu::Gpu;
use crate::launch::{Fault, Health, LinkError, Notify, announce};
use crate::transport::p2p::{Agreed, Arena};
use crate::wire::Message;
use oxccl_shared::abi::Rank;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

/// What is there after init.
pub struct PartsMade {
    /// This rank.
    pub rank: Rank,
    /// All connections that there may be.
    pub layout: DeviceLayout,
    /// The memory of the first part, where any ranks share some, and what they agreed on for it.
    pub arena: Option<(Arena, Agreed)>,
    /// The tables, with the ends that there are by now.
    pub(in crate::connect::gpu) tables: Tables,
    /// What makes connections over a network, where there are any.
    pub(in crate::connect::gpu) far: Option<FarParts>,
    /// How long a member may let the others wait.
    pub timeout: Duration,
}

/// Sends a note to all other ranks.
pub type Say = Box<dyn Fn(&[u8]) + Send + Sync>;

/// What steps need of the communicator.
pub struct PartsOpen {
    /// This rank's GPU.
    pub device: Arc<dyn Gpu>,
    /// The communicator's health.
    pub health: Arc<Health>,
    /// How the other ranks hear of a fault.
    pub notify: Arc<dyn Notify + Sync>,
    /// Sends a note to all other ranks.
    pub say: Say,
}

/// The connections of a rank on a GPU, which come into being as they are needed.
pub struct Parts {
    pub(super) rank: Rank,
    pub(super) layout: DeviceLayout,
    pub(super) agreed: Option<Agreed>,
    pub(super) far: Option<Mutex<FarParts>>,
    pub(super) timeout: Duration,
    pub(super) tables: Mutex<Tables>,
    pub(super) state: Mutex<State>,
    pub(super) changed: Condvar,
    pub(super) open: OnceLock<PartsOpen>,
    pub(super) this: Weak<Parts>,
}

impl Parts {
    /// With what every rank has from init on.
    pub fn new(made: PartsMade) -> Arc<Parts> {
        let PartsMade { rank, layout, arena, tables, far, timeout } = made;
        let (arena, agreed) = arena.unzip();
        let mut state = State { arenas: Vec::from_iter(arena), ..State::default() };
        state.parts.insert(layout.first(), Known::new(Phase::Ready, layout.nranks));
        let (tables, state, far) = (Mutex::new(tables), Mutex::new(state), far.map(Mutex::new));
        Arc::new_cyclic(|this| Parts {
            rank,
            layout,
            agreed,
            far,
            timeout,
            tables,
            state,
            changed: Condvar::new(),
            open: OnceLock::new(),
            this: this.clone(),
        })
    }

    /// Bytes of this rank's memory that connections from a rank take, and those to it.
    pub fn bytes_with(&self, peer: Rank) -> [usize; 2] {
        if self.layout.routes.is_net(self.rank, peer) {
            return self.far().map_or([0; 2], |far| far.bytes_with(peer));
        }
        let state = self.lock();
        let ready = state.parts.iter().filter(|(_, known)| known.phase == Phase::Ready);
        let layouts = ready.map(|(part, _)| self.layout.of_part(*part));
        let bytes =
            layouts.map(|part| [part.inbound_bytes(self.rank, peer), part.outbound_bytes(self.rank, peer)]);
        bytes.fold([0; 2], |sum, [inbound, outbound]| [sum[0] + inbound, sum[1] + outbound])
    }

    /// Bytes of all its memory of connections that lie in memory: drivers give it in whole pages.
    pub fn bytes(&self) -> usize {
        self.lock().arenas.iter().map(Arena::own_bytes).sum()
    }

    /// The tables as the device has them.
    #[cfg(test)]
    pub(super) fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap()
    }

    #[cfg(test)]
    pub(super) fn layout(&self) -> &DeviceLayout {
        &self.layout
    }

    pub(super) fn rank(&self) -> Rank {
        self.rank
    }

    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks, and if there is nothing to be seen once more after a change, or after a moment without one.
    pub(super) fn wait_for<T>(&self, moment: Duration, look: impl Fn(&State) -> Option<T>) -> Option<T> {
        let state = self.lock();
        look(&state).or_else(|| {
            let waited = self.changed.wait_timeout(state, moment);
            look(&waited.unwrap_or_else(PoisonError::into_inner).0)
        })
    }

    /// Whether nothing is made any more.
    pub(super) fn is_over(&self) -> bool {
        self.lock().is_closing || self.open.get().is_none_or(|open| open.health.is_stopped())
    }

    /// Whether a rank has closed the communicator.
    pub(super) fn has_left(&self, rank: Rank) -> bool {
        self.open.get().is_some_and(|open| open.health.has_left(rank))
    }

    pub(super) fn say(&self, note: &[u8]) {
        self.open.get().iter().for_each(|open| (open.say)(note));
    }

    /// Records what a member says; this rank answers one that asks.
    pub(super) fn heard(&self, from: Rank, note: &PartNote) {
        let mut state = self.lock();
        let nranks = self.layout.nranks;
        let known = state.parts.entry(note.part).or_insert_with(|| Known::new(Phase::Heard, nranks));
        let mut answer = None;
        match &note.said {
            Said::Done { round, block } => {
                let said = &mut known.said[usize::from(*round)];
                said[from.index()].get_or_insert_with(|| block.clone());
                let mine = said[self.rank.index()].as_ref().filter(|_| note.asks && from != self.rank);
                answer = mine.map(|block| Said::Done { round: *round, block: block.clone() });
            }
            Said::Failed { why } => {
                known.given_up.get_or_insert_with(|| (from, why.clone()));
            }
        }
        drop(state);
        self.changed.notify_all();
        if let (Said::Failed { why }, Some(open)) = (&note.said, self.open.get()) {
            // Before the abort arrives that follows, which says less.
            open.health.fail(refused(from, why), open.health.present());
        }
        if let Some(said) = answer {
            self.say(&PartNote { part: note.part, said, asks: false }.to_bytes());
        }
    }

    /// This rank gives up a part, and with it the communicator: others may have launched what needs it.
    pub(super) fn gives_up(&self, part: Part, why: &str) {
        let note = PartNote::failed(part, why);
        self.heard(self.rank, &note);
        self.say(&note.to_bytes());
        if let Some(open) = self.open.get()
            && let Some(outstanding) = open.health.fault()
        {
            announce(&*open.notify, &outstanding);
        }
    }

    pub(super) fn far(&self) -> Option<MutexGuard<'_, FarParts>> {
        self.far.as_ref().map(|far| far.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The members of a part with which this rank shares memory, itself included.
    pub(super) fn members(&self, part: Part) -> Vec<Rank> {
        let all = part.members(self.layout.nranks).into_iter();
        all.filter(|member| !self.layout.routes.is_net(self.rank, *member)).collect()
    }
}

/// A rank could not do its part. The text is kept for the rest of the process: a communicator fails only once.
pub(super) fn refused(rank: Rank, why: &str) -> Fault {
    Fault::Link { error: LinkError::Connect { rank, reason: Box::leak(why.to_owned().into_boxed_str()) } }
}
