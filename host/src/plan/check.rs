//! Whether what the user orders can be had.

use super::choose::HOPS;
use super::collnet::Unserved;
use super::facts::Facts;
use super::tuning::{Candidate, Candidates, Forced, Impossible};
use oxccl_shared::abi::{Algorithm, Func};
use oxccl_shared::algo::registry::{SPECS, spec_of};
use oxccl_shared::algo::spec::{Connections, Processor, Spec};

/// What a communicator has not, and why: what is not named is there, or not known yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lacks<'a> {
    /// A network that reduces.
    pub collnet: Option<&'a str>,
    /// What the network that reduces has no operation for.
    pub unserved: &'a [Unserved],
    /// Stars to the network that reduces.
    pub stars: Option<&'a str>,
    /// Hosts of equally many ranks.
    pub levels: Option<&'a str>,
    /// Connections of all pairs that carry any length: what reduces by rank.
    pub mesh: Option<&'a str>,
}

impl<'a> Lacks<'a> {
    /// Why a function that this algorithm has cannot go by it.
    fn why_not(&self, func: Func, algorithm: Algorithm) -> Option<&'a str> {
        let network = || {
            let unserved = self.unserved.iter().find(|(of, _)| *of == func);
            self.collnet.or(unserved.map(|(_, why)| *why))
        };
        match spec_of(algorithm).connections {
            Connections::Chain => network(),
            Connections::Star => network().or(self.stars),
            Connections::Levels => self.levels,
            Connections::Ring | Connections::Tree | Connections::Mesh => None,
        }
    }
}

impl Facts {
    /// Whether what the user orders can be done by so many ranks, except for what they lack.
    ///
    /// # Errors
    /// The first function for which it cannot.
    pub fn check(on: Processor, nranks: u32, forced: &Forced, lacks: Lacks<'_>) -> Result<(), Impossible> {
        let has_room = |algorithm| on == Processor::Cpu || spec_of(algorithm).has_room(nranks);
        let among = match on {
            Processor::Cpu => "ranks on CPUs",
            Processor::Gpu if HOPS.into_iter().all(has_room) => "GPUs",
            Processor::Gpu => "more than 8 GPUs",
        };
        let why = |func| {
            let is_ordered = |spec: &&Spec| {
                let has = spec.offered(on).iter().any(|offered| offered.func == func);
                has && forced.names_algorithm(func, spec.algorithm)
            };
            let why_not = |spec: &Spec| Some((spec.name(), lacks.why_not(func, spec.algorithm)?));
            match SPECS.into_iter().filter(is_ordered).find_map(why_not) {
                Some((name, why)) => format!(" among {among} ({name}: {why})"),
                None => format!(" among {among}"),
            }
        };
        let there = |func| {
            Candidates::offered(func, on).that(|Candidate { algorithm, .. }| {
                has_room(algorithm) && lacks.why_not(func, algorithm).is_none()
            })
        };
        if !forced.is_deterministic() {
            return forced.check(there, why);
        }
        // Of every operator and type.
        let has_bits = |func: Func, candidate: Candidate| {
            let Spec { order, connections, .. } = spec_of(candidate.algorithm);
            let is_there = lacks.mesh.is_none() || *connections != Connections::Mesh;
            !func.is_reduction() || is_there && order.is_as_by_rank(nranks, false)
        };
        let lack = lacks.mesh.map_or(String::new(), |why| format!(" ({why})"));
        let offered = |func| there(func).that(|one| has_bits(func, one));
        forced.check(offered, |func| format!("{}{lack}, in rank order", why(func)))
    }
}
