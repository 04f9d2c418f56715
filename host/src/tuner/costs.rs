//! NCCL's table of what algorithms and protocols cost, for one call.

use super::abi::{ALGORITHMS, CostTable, IGNORE, PROTOCOLS};
use crate::plan::tuning::Candidate;
use crate::plan::{Call, Facts};
use core::ffi::c_int;
use oxccl_shared::abi::{Algorithm, Func, Protocol};
use oxccl_shared::algo::registry::spec_of;

/// This library's algorithms that NCCL has, with its numbers. Others have no entry: a plugin cannot order them, and takes their place where
/// it orders another.
const ROWS: [(usize, Algorithm); 4] =
    [(0, Algorithm::Tree), (1, Algorithm::Ring), (2, Algorithm::CollnetDirect), (3, Algorithm::CollnetChain)];
/// Protocols by NCCL's numbers.
const COLUMNS: [Protocol; PROTOCOLS] = [Protocol::LL, Protocol::LL128, Protocol::Simple];

/// Microseconds by algorithm and protocol; negative where the communicator has none, or the user has excluded it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Costs(pub CostTable);

/// `ncclFunc_t`
pub fn function(func: Func) -> c_int {
    match func {
        Func::Broadcast => 0,
        Func::Reduce => 1,
        Func::AllGather => 2,
        Func::ReduceScatter => 3,
        Func::AllReduce => 4,
        // Nobody asks for these.
        _ => -1,
    }
}

fn candidates() -> impl Iterator<Item = ((usize, usize), Candidate)> {
    ROWS.into_iter().flat_map(|(row, algorithm)| {
        let at = move |(column, protocol)| ((row, column), Candidate::new(algorithm, protocol));
        COLUMNS.into_iter().enumerate().map(at)
    })
}

impl Costs {
    /// What the model says of a call.
    pub fn of(facts: &Facts, call: &Call) -> Costs {
        let mut table = [[IGNORE; PROTOCOLS]; ALGORITHMS];
        let times = facts.allowed_times(call);
        for ((row, column), candidate) in candidates() {
            if let Some((_, time_us)) = times.iter().find(|(allowed, _)| *allowed == candidate) {
                table[row][column] = *time_us as f32;
            }
        }
        Costs(table)
    }

    /// Whether a network reduces.
    pub fn has_collnet(&self) -> bool {
        let by_network = ROWS.iter().filter(|(_, algorithm)| spec_of(*algorithm).connections.has_network());
        by_network.flat_map(|(row, _)| self.0[*row]).any(|cost| cost >= 0.0)
    }

    /// Makes an entry by NCCL's numbers the cheapest. Nothing, if there is none.
    pub fn order(&mut self, algorithm: c_int, protocol: c_int) {
        let at = |number: c_int, count: usize| usize::try_from(number).ok().filter(|at| *at < count);
        if let (Some(row), Some(column)) = (at(algorithm, ALGORITHMS), at(protocol, PROTOCOLS))
            && self.0[row][column] >= 0.0
        {
            // The model's times are longer.
            self.0[row][column] = 0.0;
        }
    }

    /// What these, changed from `before` by a plugin, find cheapest of what was there: of equals the first, as in NCCL. `None` if nothing
    /// of that was changed.
    pub fn wanted(&self, before: &Costs) -> Option<Candidate> {
        let cost = |(row, column): (usize, usize)| self.0[row][column];
        let was = |(row, column): (usize, usize)| before.0[row][column];
        let is_there = |at: (usize, usize)| was(at) >= 0.0;
        if candidates().all(|(at, _)| !is_there(at) || cost(at) == was(at)) {
            return None;
        }
        let left = candidates().filter(|(at, _)| is_there(*at) && cost(*at) >= 0.0);
        let best = left.reduce(|best, next| if cost(next.0) < cost(best.0) { next } else { best });
        best.map(|(_, candidate)| candidate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tuning::{Architecture, Forced};
    use oxccl_shared::abi::{ConnLayout, DataType, Rank, RedOp};

    const LAYOUT: ConnLayout =
        ConnLayout { ll_slot_bytes: 4096, ll128_slot_bytes: 8192, simple_slot_bytes: 65536 };

    fn costs(forced: Forced) -> Costs {
        let facts = Facts::of_cpus(4, Architecture::Cpu, forced, [LAYOUT; 2], [1, 2]);
        let (func, dtype, op) = (Func::AllReduce, DataType::F32, RedOp::Sum);
        Costs::of(&facts, &Call { func, dtype, op, root: Rank(0), count: 1 << 16 })
    }

    fn excluded(costs: &Costs) -> Vec<(usize, usize)> {
        let at = (0..ALGORITHMS).flat_map(|row| (0..PROTOCOLS).map(move |column| (row, column)));
        at.filter(|(row, column)| costs.0[*row][*column] < 0.0).collect()
    }

    #[test]
    fn what_there_is_has_times_and_what_the_user_excludes_has_none() {
        let all = costs(Forced::default());
        for (row, _) in ROWS {
            // There is one host: no network reduces.
            assert_eq!(all.0[row][2] > 0.0, row < 2, "{all:?}");
        }
        assert!([2, 3, 4, 5, 6].into_iter().all(|row| all.0[row] == [IGNORE; PROTOCOLS]));
        let rings = costs(Forced::default().with_algorithms("ring").unwrap());
        assert!(excluded(&rings).contains(&(0, 2)) && rings.0[1][2] > 0.0, "{rings:?}");
    }

    #[test]
    fn the_cheapest_of_what_there_is_is_wanted_if_anything_was_changed() {
        let before = costs(Forced::default());
        assert_eq!(before.wanted(&before), None);
        for (row, algorithm) in [(0, Algorithm::Tree), (1, Algorithm::Ring)] {
            let mut after = before;
            after.0[row][2] = 0.0;
            assert_eq!(after.wanted(&before), Some(Candidate::new(algorithm, Protocol::Simple)));
            let mut after = before;
            after.order(row as c_int, 2);
            assert_eq!(after.wanted(&before), Some(Candidate::new(algorithm, Protocol::Simple)));
            // Excluding all others is an order too.
            let mut after = before;
            after
                .0
                .iter_mut()
                .enumerate()
                .filter(|(at, _)| *at != row)
                .for_each(|(_, costs)| *costs = [IGNORE; 3]);
            assert_eq!(after.wanted(&before).map(|wanted| wanted.algorithm), Some(algorithm));
        }
        // What there is not stays away, whatever it costs; and nonsense is nothing.
        let mut after = before;
        (after.0[4][2], after.0[3][2]) = (0.0, 0.0);
        assert_eq!(after.wanted(&before), None);
        for (row, column) in [(4, 2), (-1, 2), (1, 9), (c_int::MAX, c_int::MIN), (3, 2)] {
            let mut after = before;
            after.order(row, column);
            assert_eq!(after, before);
        }
        let nothing = Costs([[IGNORE; PROTOCOLS]; ALGORITHMS]);
        assert_eq!(nothing.wanted(&before), None);
        let mut after = before;
        after.0[1][2] = f32::NAN;
        assert!(after.wanted(&before).is_some());
    }
}
