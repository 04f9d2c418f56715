//! What is planned for the machine that a survey found.

use super::*;
use crate::plan::Call;
use crate::plan::tuning::{Forced, Machine, NetSpeed, Reason};
use crate::plan::{ChannelLimits, Facts, Nics};
use crate::topology::PathKind;
use oxccl_shared::abi::{DataType, Func, Protocol, RedOp};

/// What a communicator of these ranks plans with.
fn facts(scene: &Scene, sm: u32) -> Facts {
    let found = scene.agreed(|_, _| {});
    let nranks = scene.hosts.len() as u32;
    let facts = Facts::of_gpus(nranks, (sm, 80), Forced::default(), ChannelLimits::default(), None);
    facts.on(Machine::of_agreed(sm, &found.agreed), &found.channels.rings)
}

fn protocols(facts: &Facts) -> Vec<Protocol> {
    let call = |power| Call {
        func: Func::AllGather,
        dtype: DataType::U8,
        op: RedOp::Sum,
        root: Rank(0),
        count: 1u64 << power,
    };
    let mut all: Vec<_> = (0..30).map(|power| facts.choose(&call(power)).candidate.protocol).collect();
    all.dedup();
    all
}

/// A DGX-1V has no table of measured numbers: the model decides, by the links that were found. All of them are NVLinks, along which
/// LL128 is safe.
#[test]
fn plans_are_made_for_the_machine_that_was_found() {
    let facts = facts(&Scene::new("dgx1v", vec![1; 8]), 70);
    let machine = facts.machine;
    assert!(machine.is_searched);
    assert_eq!((machine.nranks, machine.nhosts, machine.tree_depth), (8, 1, [7, 0]));
    let ring = machine.ring;
    assert_eq!((ring.channels, ring.intra_bw, ring.intra), (6, 20.0, PathKind::Nvl));
    assert_eq!(facts.ring_channels, 24, "each of six orders four times");
    assert_eq!(protocols(&facts), [Protocol::LL, Protocol::LL128, Protocol::Simple]);
    // Over PCI 128 bytes may arrive in pieces.
    let pci = self::facts(&Scene::new("rtx3090x8", vec![1; 8]), 80);
    assert!(pci.machine.is_searched && pci.machine.ring.intra > PathKind::Nvb);
    assert!(!protocols(&pci).contains(&Protocol::LL128));
    // Nobody knows what is between ranks one of which sees nothing.
    let unseen = Scene { look: but_for_rank_2, ..Scene::new("dgx1v", vec![1; 4]) };
    let unseen = self::facts(&unseen, 70);
    assert!(!unseen.machine.is_searched);
    assert!(!protocols(&unseen).contains(&Protocol::LL128));
}

/// What was measured on H200 goes before the model there, and nowhere else.
#[test]
fn measured_numbers_go_before_the_model_where_they_were_measured() {
    let call =
        Call { func: Func::AllReduce, dtype: DataType::F32, op: RedOp::Sum, root: Rank(0), count: 1 << 20 };
    let reason = |machine, ranks| facts(&Scene::new(machine, vec![1; ranks]), 90).choose(&call).reason;
    assert!(matches!(reason("h200x4", 4), Reason::Measured { .. }));
    assert_eq!(reason("rtx3090x8", 8), Reason::Model);
}

#[test]
fn plans_over_several_hosts_know_how_many_and_what_is_between() {
    let hosts: Vec<u64> = (0..16).map(|rank| 1 + rank / 8).collect();
    let two = facts(&Scene::new("dgx1v", hosts), 70).machine;
    let (system, paths, graphs) = of_several("dgx1v");
    let agreed = Summary::new(&system, &paths, &graphs).of_hosts(2);
    assert_eq!(two, Machine::of_agreed(70, &agreed));
    assert_eq!((two.nranks, two.nhosts, two.tree_depth), (16, 2, [7, 1]));
    assert!(two.is_searched && two.ring.inter_bw > 0.0);
    // One of three hosts cannot be looked at: how many there are is known all the same.
    let mixed = Scene { look: but_for_rank_2, ..Scene::new("dgx1v", vec![1, 1, 2, 2, 3, 3]) };
    let mixed = facts(&mixed, 70).machine;
    assert_eq!((mixed.nranks, mixed.nhosts, mixed.is_searched), (6, 3, false));
}

/// Sixteen devices of eight GPUs: rings leave and enter by those of their lanes, two for each GPU, of which the nearest is only one.
#[test]
fn rings_have_the_devices_that_the_search_gave_them() {
    let hosts: Vec<u64> = (0..16).map(|rank| 1 + rank / 8).collect();
    let found: Vec<Survey> =
        Scene::new("oci-h100", hosts.clone()).survey(|_, _| {}).into_iter().map(Result::unwrap).collect();
    let (system, _, graphs) = of_several("oci-h100");
    let name =
        |id| system.nets.iter().map(|net| system.net(*net)).find(|net| net.id == id).unwrap().name.clone();
    let lanes = &graphs.ring.lanes;
    let mut leaving = std::collections::BTreeSet::new();
    for (channel, ring) in found[0].channels.rings.iter().enumerate() {
        let nets = lanes[channel % lanes.len()].nets.unwrap().map(name);
        for host in 0..2 {
            let of_host: Vec<usize> = (8 * host..8 * host + 8).collect();
            let having = |way: usize| -> Vec<usize> {
                of_host
                    .iter()
                    .copied()
                    .filter(|rank| found[*rank].ring_nics[channel][way].is_some())
                    .collect()
            };
            let at = |rank: usize| ring.iter().position(|other| other.index() == rank).unwrap();
            let [enters, leaves] = [0, 1].map(having);
            assert_eq!((enters.len(), leaves.len()), (1, 1));
            assert!(!of_host.contains(&ring[(at(leaves[0]) + 1) % 16].index()));
            assert!(!of_host.contains(&ring[(at(enters[0]) + 15) % 16].index()));
            assert_eq!(found[enters[0]].ring_nics[channel][0].as_ref(), Some(&nets[0]));
            assert_eq!(found[leaves[0]].ring_nics[channel][1].as_ref(), Some(&nets[1]));
        }
        leaving.insert(nets[1].clone());
    }
    assert_eq!(leaving.len(), 16);
    // So the model has twice what each GPU's own device carries.
    let facts = |channels: &Channels| {
        let nics = Nics::new(
            &hosts,
            (0..16).map(|rank| rank % 8).collect(),
            NetSpeed { gbytes: 22.5, latency_us: 1.0 },
            1,
        );
        Facts::of_gpus(16, (90, 132), Forced::default(), ChannelLimits::default(), None)
            .on(Machine::of_agreed(90, &found[0].agreed), &channels.rings)
            .over_nics(&nics, channels)
    };
    let by_search = facts(&found[0].channels);
    let by_nearest = facts(&found[0].channels.clone().with_rings(&found[0].channels.rings));
    assert_eq!((by_search.ring_channels, by_nearest.ring_channels), (64, 32));
    assert!(by_search.machine.rank_bw() > 1.9 * by_nearest.machine.rank_bw());
    // Who orders rings has ordered no devices.
    let rings = found[0].channels.rings.clone();
    let ordered = Scene::new("oci-h100", hosts).survey(|_, settings| settings.rings = Some(rings.clone()));
    assert!(ordered.into_iter().all(|found| found.unwrap().ring_nics.iter().flatten().all(Option::is_none)));
}
