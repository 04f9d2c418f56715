//! Layer: host / topology / search.
//! Takes: the state of a lane.
//! Gives: the GPUs and network devices to try next, most promising first: the search has a budget, so the order
//! decides how good its answer is.
//! Never: checks whether the links have the bandwidth.

use super::Pattern;
use super::capacity::Capacity;
use super::machine::Machine;
use std::cmp::Reverse;

/// The order of the next GPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wanted {
    /// Nearest to this GPU first.
    Near,
    /// Nearest to the lane's NIC first, since the next GPU uses it.
    NearNet(usize),
    /// Nearest to the lane's NIC first, but in reverse among GPUs at the same distance.
    NearNetLater(usize),
}

/// Passes the GPUs that may follow `gpu`, by index, to `add`.
#[expect(clippy::too_many_arguments, reason = "where a lane stands, and what is wanted of it")]
pub(super) fn next_gpus(
    machine: &Machine<'_>,
    capacity: &Capacity<'_>,
    pattern: Pattern,
    gpu: usize,
    wanted: Wanted,
    used: &[u64],
    lane: u64,
    add: impl FnMut(usize),
) {
    let gpus = &machine.system.gpus;
    let near = machine.choices.neighbours[gpu].iter().filter(|(next, _)| used[*next] & lane == 0);
    if machine.system.nv_switch.is_some() {
        let is_free = |next: &usize| near.clone().any(|near| near.0 == *next);
        return next_in_number(pattern, gpu, gpus.len()).filter(is_free).for_each(add);
    }
    let net = match wanted {
        Wanted::Near => return near.map(|near| near.0).for_each(add),
        Wanted::NearNet(net) | Wanted::NearNetLater(net) => machine.system.nets[net],
    };
    let score = |(place, (next, group)): (usize, &(usize, usize))| {
        let route = machine.paths.between(net, gpus[*next]);
        let pci = capacity.pci_left(gpus[*next]);
        ((Reverse(route.bw as i32), Reverse(pci as i32), route.links.len()), place, *group, *next)
    };
    let mut scored: Vec<_> = near.enumerate().map(score).collect();
    let is_equal = scored.first().map(|first| first.2) == scored.last().map(|last| last.2);
    scored.sort_unstable();
    if is_equal && matches!(wanted, Wanted::NearNetLater(_)) {
        scored.reverse();
    }
    scored.into_iter().map(|score| score.3).for_each(add);
}

/// NVSwitches do best where each GPU has few peers: try only neighbours by index.
fn next_in_number(pattern: Pattern, gpu: usize, count: usize) -> impl Iterator<Item = usize> {
    let (after, before) = ((gpu + 1) % count, (gpu + count - 1) % count);
    let (first, second) = match pattern {
        Pattern::Ring => (before, Some(after)),
        Pattern::BalancedTree | Pattern::SplitTree => (after, Some(before)),
        Pattern::Tree | Pattern::Nvls | Pattern::CollnetDirect => (after, None),
    };
    // With two GPUs, the next and the previous one are the same.
    std::iter::once(first).chain(second.filter(|second| *second != first))
}
