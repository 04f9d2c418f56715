//! Whether what the user orders can be had.

use super::choose::{BY_STARS, HOPS, IN_LEVELS, IN_NETWORK};
use super::collnet::Unserved;
use super::facts::Facts;
use super::tuning::{Candidate, Candidates, Forced, Impossible};
use oxccl_shared::abi::{Algorithm, Func};
use oxccl_shared::algo::registry::spec_of;
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
    /// Why a function that is ordered to go through a network that reduces, by this algorithm, cannot.
    fn of_network(&self, algorithm: Algorithm, is_ordered: impl Fn(Func) -> bool) -> Option<&'a str> {
        let mut offered = spec_of(algorithm).on_cpus.iter().map(|offered| offered.func);
        let unserved = self.unserved.iter().find(|(func, _)| is_ordered(*func)).map(|(_, why)| *why);
        let stars = self.stars.filter(|_| spec_of(algorithm).connections == Connections::Star);
        let any = self.collnet.or(stars).filter(|_| offered.any(is_ordered));
        any.or(unserved)
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
        let orders = |func, algorithm| forced.names_algorithm(func, algorithm);
        let network = [Algorithm::CollnetChain, Algorithm::CollnetDirect].map(|algorithm| {
            let lack = lacks.of_network(algorithm, |func| orders(func, algorithm));
            lack.map(|why| format!(" among {among} ({}: {why})", algorithm.name()))
        });
        let levels = lacks.levels.filter(|_| orders(Func::AllReduce, Algorithm::TwoLevel));
        let levels = levels.map(|why| format!(" among {among} (twolevel: {why})"));
        let [chains, stars] = network;
        let why = chains.or(stars).or(levels).unwrap_or_else(|| format!(" among {among}"));
        let there = |func| {
            let has_network = lacks.collnet.is_none() && lacks.unserved.iter().all(|(of, _)| *of != func);
            Candidates::offered(func, on).that(|candidate| {
                has_room(candidate.algorithm)
                    && (has_network || !IN_NETWORK.has(candidate))
                    && (lacks.stars.is_none() || !BY_STARS.has(candidate))
                    && (lacks.levels.is_none() || !IN_LEVELS.has(candidate))
            })
        };
        if !forced.is_deterministic() {
            return forced.check(there, &why);
        }
        // Of every operator and type.
        let has_bits = |func: Func, candidate: Candidate| {
            let Spec { order, connections, .. } = spec_of(candidate.algorithm);
            let is_there = lacks.mesh.is_none() || *connections != Connections::Mesh;
            !func.is_reduction() || is_there && order.is_as_by_rank(nranks, false)
        };
        let lack = lacks.mesh.map_or(String::new(), |why| format!(" ({why})"));
        let offered = |func| there(func).that(|one| has_bits(func, one));
        forced.check(offered, &format!("{why}{lack}, in rank order"))
    }
}
