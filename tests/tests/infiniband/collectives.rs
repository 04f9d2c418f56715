//! Communicators whose ranks reach each other over InfiniBand only.

use super::infiniband;
use oxccl::net::NetConfig;
use oxccl::{DataType, RedOp, TransportKind};
use oxccl_tests::case::{By, Case, FUNCS, Placement};
use oxccl_tests::deadline::{Deadline, doing};
use oxccl_tests::harness::{Settings, World};
use std::time::Duration;

/// The ranks of a host take its devices in turn, so that every message goes over the cable between the two.
#[test]
#[ignore = "needs two RoCE devices: cargo xtask test --only softroce"]
fn every_collective_gives_the_oracles_bytes() {
    let _deadline = Deadline::start("every_collective_gives_the_oracles_bytes", Duration::from_secs(150));
    for nranks in [2, 3] {
        let settings = Settings { transport: Some(TransportKind::Net), ..Settings::default() };
        let net = infiniband(&[]);
        let mut world = World::with(nranks, settings, |_, config| {
            config.net = NetConfig { own: Some(net.clone()), ..NetConfig::default() };
        });
        for (at, &func) in FUNCS.iter().enumerate() {
            for count in [0, 1, 1000, 70_001] {
                let case = Case {
                    func,
                    dtype: if at % 2 == 0 { DataType::F32 } else { DataType::U8 },
                    op: RedOp::Sum,
                    root: at as u32 % nranks,
                    count,
                    placement: Placement::ALL[(at + count) % Placement::ALL.len()],
                    seed: count as u64,
                };
                doing(|| format!("{nranks} ranks: {case:?}"));
                case.check(&mut world, By::Threads).unwrap_or_else(|failure| panic!("{failure}"));
            }
        }
    }
}
