//! How each part of a rank is made.

use super::note::PartNote;
use super::side::{Parts, PartsOpen, refused};
use super::state::{Known, Phase};
use super::vote::Members;
use super::waiting::Waiting;
use crate::bootstrap::{Agreement, Bootstrap, BootstrapError};
use crate::connect::gpu::part::Part;
use crate::connect::gpu::tables::ConnSite;
use crate::gpu::Gpu;
use crate::launch::{Fault, announce};
use crate::machine::{Connector, Need, NetEnds};
use crate::plan::CallRecord;
use crate::transport::p2p::{Arena, Circle, Domain, Domains, FurtherWanted, P2pError};
use crate::wire::{Message, digest};
use oxccl_shared::abi::Rank;
use std::sync::PoisonError;
use std::time::Duration;

impl Parts {
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
            P2pError::Bootstrap(BootstrapError::Timeout { ranks, limit, .. }) => {
                let rank = ranks.named().first().copied().unwrap_or(self.rank);
                Fault::Timeout { rank, limit }
            }
            // That member says so to all. Who hears of this rank first would take it for the one that failed.
            P2pError::Bootstrap(BootstrapError::PeerAborted { rank, reason: why })
            | P2pError::PeerFailed { peer: rank, why } => {
                return open.health.fail(refused(rank, &why), open.health.present()).fault;
            }
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
