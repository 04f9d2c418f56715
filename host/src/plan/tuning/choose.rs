//! Who decides about a call.

use super::candidate::{Candidate, Candidates};
use super::machine::Machine;
use super::model::estimate;
use super::restrict::Forced;
use super::table::{TuneRow, TuneTable};
use crate::plan::Call;
use oxccl_shared::algo::registry::spec_of;
use oxccl_shared::algo::spec::Connections;

/// Everything that a choice is made from.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'a> {
    /// The call.
    pub call: &'a Call,
    /// The machine.
    pub machine: &'a Machine,
    /// What the communicator can do: what there is a kernel of, and connections for.
    pub offered: Candidates,
    /// Of these, what data may go wrong by on machines like this: taken only where the user names its protocol, LL128. That a table has
    /// it is not enough, for who measured it looked at the time that it took, and not at what arrived.
    pub risky: Candidates,
    /// Of these, what was slow on machines like this, or nobody has measured there: taken only where the user names its protocol, or what was
    /// measured here has it for this call.
    pub doubtful: Candidates,
    /// The user's restrictions.
    pub forced: &'a Forced,
    /// What a plugin of the user's wants for this call.
    pub advice: Option<Advice>,
    /// What `oxccl tune` measured here.
    pub table: Option<&'a TuneTable>,
    /// What was measured on machines of this kind, for this call.
    pub measured: Option<Measured>,
    /// What stands for the second of these wherever the model finds the second fastest, if both are allowed: between the two a measured
    /// threshold decides.
    pub instead: Option<[Candidate; 2]>,
    /// Of what is offered, what that measurement did not have: it depends on what no table can know. Of these the model's word holds
    /// against the best that was measured.
    pub unmeasured: Candidates,
}

/// What a tuner plugin wants for a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Advice {
    /// Algorithm and protocol.
    pub candidate: Candidate,
    /// Channels, if it says.
    pub channels: Option<u32>,
}

/// What is built in about a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Measured {
    /// Where it was measured.
    pub source: &'static str,
    /// From best to worst. A protocol that is not allowed is replaced by the nearest.
    pub order: [Candidate; 4],
}

/// What was chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Choice {
    /// Algorithm and protocol.
    pub candidate: Candidate,
    /// Channels, if a table says.
    pub channels: Option<u32>,
    /// Who decided.
    pub reason: Reason,
}

/// Who decided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// There was one candidate left.
    Only,
    /// A tuner plugin.
    Advised,
    /// A row of the tuning file, by number from 0.
    Tuned {
        /// Its number among the function's rows.
        row: usize,
    },
    /// The built-in table.
    Measured {
        /// Where it was measured.
        source: &'static str,
    },
    /// The model: the least time.
    Model,
}

impl Scope<'_> {
    /// What the user leaves of what is offered.
    pub fn allowed(&self) -> Candidates {
        let left = self.forced.narrow(self.call.func, self.offered);
        if self.risky.or_also(self.doubtful).and(left).is_empty() {
            return left;
        }
        let is_named = |candidate: Candidate| self.forced.names_protocol(self.call.func, candidate.protocol);
        let row = self.row().map(|(_, row)| row.candidate);
        // Only Simple goes through a network that reduces, so to name Simple is not to ask for the network.
        let by_protocol = |candidate: Candidate| {
            is_named(candidate) && !spec_of(candidate.algorithm).connections.has_network()
        };
        let is_known = |candidate: Candidate| by_protocol(candidate) || row == Some(candidate);
        left.without(self.risky.that(|candidate| !is_named(candidate)))
            .without(self.doubtful.that(|candidate| !is_known(candidate)))
            .or(left)
    }

    /// What the model finds fastest of what is allowed.
    pub fn fastest(&self) -> Option<Candidate> {
        self.faster(None, self.allowed())
    }

    /// What the model finds fastest of these: of equals the first, on every rank.
    fn faster(&self, first: Option<Candidate>, others: Candidates) -> Option<Candidate> {
        let time = |candidate| estimate(candidate, self.call, self.machine).time_us;
        first.into_iter().chain(others.iter()).reduce(
            |best, next| {
                if time(next) < time(best) { next } else { best }
            },
        )
    }

    fn settled(&self, fastest: Candidate, allowed: Candidates) -> Candidate {
        match self.instead {
            Some([better, worse]) if fastest == worse && allowed.has(better) => better,
            _ => fastest,
        }
    }

    /// The table's row for the call, whether it is possible or not.
    fn row(&self) -> Option<(usize, TuneRow)> {
        self.table?.row(self.call.func, self.call.buffer_bytes(self.machine.nranks))
    }
}

/// Chooses. Every rank of a communicator that makes the same call gets the same choice.
pub fn choose(scope: &Scope<'_>) -> Choice {
    let allowed = scope.allowed();
    let by = |candidate, reason| Choice { candidate, channels: None, reason };
    if let Some(Advice { candidate, channels }) = scope.advice.filter(|advice| allowed.has(advice.candidate))
    {
        return Choice { candidate, channels, reason: Reason::Advised };
    }
    if let Some((row, TuneRow { candidate, channels, .. })) =
        scope.row().filter(|(_, row)| allowed.has(row.candidate))
    {
        return Choice { candidate, channels: channels.map(u32::from), reason: Reason::Tuned { row } };
    }
    if let Some(only) = allowed.only() {
        return by(only, Reason::Only);
    }
    if let Some(measured) = scope.measured
        && let Some(best) = measured.order.iter().find_map(|wanted| allowed.nearest(*wanted))
    {
        return match scope.faster(Some(best), allowed.and(scope.unmeasured)) {
            Some(faster) if faster != best => by(faster, Reason::Model),
            _ => by(best, Reason::Measured { source: measured.source }),
        };
    }
    let fastest = scope.fastest().unwrap_or_else(fallback);
    by(scope.settled(fastest, allowed), Reason::Model)
}

/// What every communicator has, should nothing have been offered: rings, by whole slots.
fn fallback() -> Candidate {
    let rings = Candidates::over(Connections::Ring);
    rings.iter().find(|ring| ring.protocol.is_counted()).expect("the registry has such a ring")
}
