//! The parts of a rank, and how each is made.

use super::far::FarParts;
use super::note::{PartNote, Said};
use super::state::{Known, Phase, State};
use super::vote::Members;
use super::waiting::Waiting;
use crate::bootstrap::{Agreement, Bootstrap, BootstrapError};
use crate::connect::gpu::layout::DeviceLayout;
use crate::connect::gpu::part::Part;
use crate::connect::gpu::tables::{ConnSite, Tables};
use crate::gpu::Gpu;
use crate::launch::{Fault, Health, LinkError, Notify, announce};
use crate::machine::{Connector, Need, NetEnds};
use crate::plan::CallRecord;
use crate::transport::p2p::{Agreed, Arena, Circle, Domain, Domains, FurtherWanted, P2pError};
use crate::wire::{Message, digest};
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
    rank: Rank,
    layout: DeviceLayout,
    agreed: Option<Agreed>,
    far: Option<Mutex<FarParts>>,
    timeout: Duration,
    tables: Mutex<Tables>,
    state: Mutex<State>,
    changed: Condvar,
    open: OnceLock<PartsOpen>,
    this: Weak<Parts>,
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

    /// The communicator is ready: starts what other ranks have asked for by now. Once.
    pub fn open(&self, open: PartsOpen) {
        if self.open.set(open).is_ok() {
            let heard: Vec<Part> = {
                let state = self.lock();
                let is_heard = |(_, known): &(&Part, &Known)| known.phase == Phase::Heard;
                state.parts.iter().filter(is_heard).map(|(part, _)| *part).collect()
            };
            heard.into_iter().for_each(|part| self.start(part));
        }
    }

    /// A note of another rank, from the bootstrap's thread. Notes about other things are not for here.
    pub fn note(&self, from: Rank, note: &[u8]) {
        let Ok(note) = PartNote::from_bytes(note) else { return };
        let part = note.part;
        let is_near = !self.layout.routes.is_net(self.rank, from);
        if self.layout.has_part(part) && is_near && part.has(from) && part.has(self.rank) {
            self.heard(from, &note);
            self.start(part);
        }
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

    /// Starts to make a part, unless this rank has done so.
    fn start(&self, part: Part) {
        let (Some(open), Some(this)) = (self.open.get(), self.this.upgrade()) else { return };
        let nranks = self.layout.nranks;
        let mut state = self.lock();
        if state.is_closing || open.health.is_stopped() {
            return;
        }
        let known = state.parts.entry(part).or_insert_with(|| Known::new(Phase::Heard, nranks));
        if known.phase != Phase::Heard {
            return;
        }
        known.phase = Phase::Running;
        state.running += 1;
        drop(state);
        let name = format!("oxccl conn {}", self.rank);
        let started = std::thread::Builder::new().name(name).spawn(move || this.make(part, open_of(&this)));
        if let Err(error) = started {
            let why = format!("no thread for it: {}", crate::os::describe(&error));
            self.gives_up(part, &why);
            self.ended(part, Err(refused(self.rank, &why)));
        }
    }

    /// A step, on its thread.
    fn make(&self, part: Part, open: &PartsOpen) {
        let made = self.try_to_make(part, &*open.device).map_err(|error| self.fault(open, part, error));
        match &made {
            Ok(_) => tracing::debug!(rank = %self.rank, ?part, "connected"),
            Err(fault) => tracing::debug!(rank = %self.rank, ?part, ?fault, "not connected"),
        }
        self.ended(part, made);
    }

    fn ended(&self, part: Part, made: Result<Arena, Fault>) {
        let mut state = self.lock();
        let phase = match made {
            Ok(arena) => {
                state.arenas.push(arena);
                Phase::Ready
            }
            Err(fault) => Phase::Failed(fault),
        };
        state.parts.entry(part).or_insert_with(|| Known::new(phase, self.layout.nranks)).phase = phase;
        state.running -= 1;
        drop(state);
        self.changed.notify_all();
    }

    fn try_to_make(&self, part: Part, device: &dyn Gpu) -> Result<Arena, P2pError> {
        let (rank, members) = (self.rank, self.members(part));
        let agreed = self.agreed.as_ref().expect("ranks that share memory have agreed how");
        let circle = Members::new(self, part, &members);
        let layout = self.layout.of_part(part);
        let lens = |domains: &Domains, rank: Rank| match members.contains(&rank) {
            true => layout.clone().with_domains(domains.clone()).len_bytes(rank),
            false => [0; 2],
        };
        let number = digest(&part);
        let wanted = FurtherWanted { rank, device, agreed, members: (&members, number), lens: &lens };
        let arena = Arena::connect_further(&circle, &wanted)?;
        let base = |peer: Rank, domain: Domain| {
            arena.base(peer, domain).expect("members of a part reach each other's memory")
        };
        let added = {
            let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
            let site = |name| ConnSite::new(layout.in_memory(rank, name, &base), layout.slots(name.kind));
            tables.add(&layout, rank, device, layout.conns_in_memory(rank).map(|name| (name, site(name))))
        };
        let added = added.map_err(|source| P2pError::Device { rank, source });
        match circle.agree(added.as_ref().map(|()| &[][..]))? {
            Agreement::All(_) => Ok(arena),
            Agreement::Failed { peer, why, .. } => {
                Err(added.err().unwrap_or(P2pError::PeerFailed { peer, why }))
            }
        }
    }

    /// What becomes of whoever needs a part that could not be made. The communicator ends by it, unless it is ending anyway.
    fn fault(&self, open: &PartsOpen, part: Part, error: P2pError) -> Fault {
        if let Some(outstanding) = open.health.fault() {
            return outstanding.fault;
        }
        let fault = match error {
            // Who needs it hears of that; nobody else minds.
            P2pError::Bootstrap(BootstrapError::PeerLeft { rank }) => return Fault::PeerLeft { rank },
            P2pError::Bootstrap(BootstrapError::Aborted) => return Fault::Aborted,
            P2pError::Bootstrap(BootstrapError::Timeout { ranks, waited, .. }) => {
                let rank = ranks.named().first().copied().unwrap_or(self.rank);
                Fault::Timeout { rank, waited }
            }
            P2pError::Bootstrap(BootstrapError::PeerAborted { rank, reason }) => refused(rank, &reason),
            P2pError::PeerFailed { peer, why } => refused(peer, &why),
            own => {
                let why = own.to_string();
                self.gives_up(part, &why);
                return open.health.fault().map_or(refused(self.rank, &why), |outstanding| outstanding.fault);
            }
        };
        let outstanding = open.health.fail(fault, open.health.present());
        announce(&*open.notify, &outstanding);
        outstanding.fault
    }
}

impl Parts {
    fn far(&self) -> Option<MutexGuard<'_, FarParts>> {
        self.far.as_ref().map(|far| far.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The members of a part with which this rank shares memory, itself included.
    fn members(&self, part: Part) -> Vec<Rank> {
        let all = part.members(self.layout.nranks).into_iter();
        all.filter(|member| !self.layout.routes.is_net(self.rank, *member)).collect()
    }

    /// Who has not done its part of the first of these parts that is not there.
    fn awaited(&self, parts: &[Part]) -> Option<Rank> {
        let state = self.lock();
        parts.iter().find_map(|part| state.parts.get(part)?.awaited(self.rank, &self.members(*part)))
    }

    /// Begins the connections of these parts that lead over a network. A rank that cannot ends the communicator.
    fn begin_far(&self, parts: &[Part]) -> Result<NetEnds, Fault> {
        let (Some(mut far), Some(open)) = (self.far(), self.open.get()) else {
            return Ok(NetEnds::default());
        };
        let begun = far.begin(parts, (&self.layout, &self.tables), &*open.device, &open.health);
        begun.map_err(|why| {
            let outstanding = open.health.fail(refused(self.rank, &why), open.health.latest());
            announce(&*open.notify, &outstanding);
            outstanding.fault
        })
    }
}

impl Connector for Parts {
    fn connect(&self, needs: &[Need], during: Option<CallRecord>) -> Result<NetEnds, Fault> {
        let of = |need: &Need| self.layout.parts_of(need, self.rank);
        let all: Vec<Part> = needs.iter().flat_map(of).collect();
        let is_shared = |part: &Part| self.members(*part).len() > 1;
        let parts: Vec<Part> = all.iter().copied().filter(is_shared).collect();
        parts.iter().for_each(|part| self.start(*part));
        let begun = self.begin_far(&all)?;
        let waiting = self.open.get().map(|open| Waiting::new(&open.health, during));
        loop {
            let outcome = self.wait_for(LOOKS_EVERY, |state| {
                let phase = |part: &Part| state.parts.get(part).map(|known| known.phase);
                let failed = |part: &Part| match phase(part) {
                    Some(Phase::Failed(fault)) => Some(fault),
                    _ => None,
                };
                let all_ready = parts.iter().all(|part| phase(part) == Some(Phase::Ready));
                parts.iter().find_map(failed).map(Err).or(all_ready.then_some(Ok(())))
            });
            if let Some(outcome) = outcome {
                return outcome.map(|()| begun);
            }
            if let Some(outstanding) = self.open.get().and_then(|open| open.health.fault()) {
                return Err(outstanding.fault);
            }
            if let Some(waiting) = &waiting {
                waiting.note(|| self.awaited(&parts));
            }
        }
    }

    fn close(&self, bootstrap: &Bootstrap) {
        let mut state = self.lock();
        state.is_closing = true;
        self.changed.notify_all();
        while state.running > 0 {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let arenas = std::mem::take(&mut state.arenas);
        drop(state);
        Arena::close_all(arenas, bootstrap);
    }
}

/// How soon who needs a part sees that the communicator has failed.
const LOOKS_EVERY: Duration = Duration::from_millis(10);

/// What steps need: a step is started once it is there.
fn open_of(parts: &Parts) -> &PartsOpen {
    parts.open.get().expect("a step is started by parts that are open")
}

/// A rank could not do its part. The text is kept for the rest of the process: a communicator fails only once.
fn refused(rank: Rank, why: &str) -> Fault {
    Fault::Link { error: LinkError::Connect { rank, reason: Box::leak(why.to_owned().into_boxed_str()) } }
}
