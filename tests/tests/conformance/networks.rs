//! Collectives over networks that only a test has: in process, late by plan, failing by plan.

use super::transports::over_with;
use oxccl::net::fault::{FaultNet, FaultPlan};
use oxccl::net::loopback::Loopback;
use oxccl::net::{Net, NetConfig};
use oxccl::{Config, Error, Fault, ReduceOp, TransportKind};
use oxccl_tests::deadline::{Deadline, doing};
use oxccl_tests::harness::{Settings, World};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long any rank may take to end when a link fails: a closed connection is believed after a second.
const BOUND: Duration = Duration::from_secs(10);

/// All ranks of a world on one network.
fn on(net: Arc<dyn Net>) -> impl Fn(u32, &mut Config) + Sync {
    move |_, config| config.net = NetConfig { own: Some(net.clone()), ..NetConfig::default() }
}

#[test]
fn over_a_network_in_process() {
    over_with("over_a_network_in_process", TransportKind::Net, 3, on(Arc::new(Loopback::new(2))));
}

#[test]
fn over_a_network_that_is_late_by_plan() {
    let plan = FaultPlan {
        seed: 11,
        late_per_mille: 300,
        held_per_mille: 100,
        held_max: Duration::from_micros(200),
        stall_at: Some(40),
        stall: Duration::from_millis(5),
        ..FaultPlan::default()
    };
    let net = FaultNet::new(Arc::new(Loopback::new(0)), plan);
    over_with("over_a_network_that_is_late_by_plan", TransportKind::Net, 2, on(Arc::new(net)));
}

/// Calls until every rank has failed; their faults.
fn failures(plan: FaultPlan) -> Vec<(Error, Duration)> {
    let net = FaultNet::new(Arc::new(Loopback::new(0)), plan);
    let settings = Settings { transport: Some(TransportKind::Net), ..Settings::default() };
    let mut world = World::with(3, settings, on(Arc::new(net)));
    let begin = Instant::now();
    world.each(|rank| {
        let mut buffer = vec![1f32; 30_000];
        loop {
            if let Err(error) = rank.all_reduce_in_place(&mut buffer, ReduceOp::MAX) {
                return (error, begin.elapsed());
            }
        }
    })
}

/// With three ranks each has two outbound and two inbound connections of the mesh and some of rings and trees; all come to the
/// same number of requests sooner or later.
#[test]
fn an_error_names_the_link_and_ends_every_rank() {
    let _deadline = Deadline::start("an_error_names_the_link_and_ends_every_rank", Duration::from_secs(120));
    let plans = [
        ("fail", FaultPlan { fail_at: Some(200), ..FaultPlan::default() }),
        ("cut", FaultPlan { cut_at: Some(200), ..FaultPlan::default() }),
        ("short", FaultPlan { short_at: Some(201), ..FaultPlan::default() }),
    ];
    for (name, plan) in plans {
        doing(|| format!("a network that has a planned {name}"));
        let failures = failures(plan);
        let mut links = 0;
        for (rank, (error, took)) in failures.iter().enumerate() {
            assert!(*took < BOUND, "{name}: rank {rank} ended after {took:?}: {error}");
            let Error::Operation(operation) = error else { panic!("{name}: rank {rank}: {error}") };
            let text = error.to_string();
            // The rank with the failure names the link; the others name the rank that failed first.
            assert!(text.contains("rank "), "{name}: {text}");
            links += usize::from(matches!(operation.fault(), Fault::Link { .. } | Fault::Mismatch { .. }));
        }
        assert!(links > 0, "{name}: {failures:?}");
    }
}
