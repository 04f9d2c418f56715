//! Trees over several hosts, whose links inside a host are to carry more than those between hosts.

use super::odd::{AMD, SAPPHIRE_RAPIDS, SKYLAKE, Shelf};
use oxccl::topology::search::{Graphs, SearchConfig};
use oxccl::topology::{Inventory, PathPolicy, Paths, System, Tables};

/// A host of one or two sockets with 2, 4 or 8 GPUs and 1 to 12 NICs, drawn by number.
fn drawn(number: u64) -> Inventory {
    let mut state = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut pick = |count: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        ((state >> 11) % count) as usize
    };
    let cpu = [AMD, SKYLAKE, SAPPHIRE_RAPIDS][pick(3)];
    let sm = [70, 80, 90, 90, 100][pick(5)];
    let gpus = [2, 4, 8][pick(3)];
    let nics = 1 + pick(12);
    let gbits = [100, 200, 400][pick(3)];
    let sockets = 1 + pick(2);
    let kind = pick(3);
    let links = 1 + pick(3) as u32;
    let mut shelf = Shelf::new(cpu, sm);
    for socket in 0..sockets {
        let nics = nics / sockets + if socket == 0 { nics % sockets } else { 0 };
        let switches = 1 + pick(2);
        let mut devices = Vec::new();
        for switch in 0..switches {
            let is_below = |at: &usize| at % switches == switch;
            let mut below: Vec<_> = (0..gpus / sockets).filter(is_below).map(|_| shelf.gpu()).collect();
            below.extend((0..nics).filter(is_below).map(|_| shelf.nic(gbits)));
            match switches {
                1 => devices.extend(below),
                _ => devices.push(shelf.switch(below)),
            }
        }
        shelf.socket(0, devices);
    }
    match kind {
        0 => shelf.without_nvlinks(),
        1 => shelf.with_nvlinks(|_, _| links),
        _ => shelf.with_nv_switches(if sm >= 90 { 18 } else { 12 }),
    }
}

/// Their rings are found at once, their trees only after more steps than a search has. What is found then had the speed of the links
/// between hosts inside hosts as well. Expected is what NCCL's rules find, this search without a limit.
#[test]
fn trees_that_are_hard_to_find_have_their_speed_inside() {
    for (number, intra, inter) in [(10, 20.0, 10.0), (51, 20.0, 10.0), (112, 80.0, 40.0)] {
        let system = System::new(&drawn(number), Tables::Current).unwrap();
        let paths = Paths::new(&system, &PathPolicy::default());
        let Graphs { ring, tree, .. } = Graphs::search(&system, &paths, &SearchConfig::default());
        println!("{number}: {} GPUs, {} NICs\n  {ring}\n  {tree}", system.gpus.len(), system.nets.len());
        assert_eq!(tree.lanes.len(), ring.lanes.len(), "{number}: {tree}");
        assert_eq!((tree.bw_intra, tree.bw_inter), (intra, inter), "{number}: {tree}");
    }
}
