//! Every network that needs no special hardware keeps every promise of the contract, with injected faults too.

mod stranger;
mod faults;
mod plugins;
mod coll_plugins;
mod aggregators;

use oxccl::net::Net;
use oxccl::net::fault::{FaultNet, FaultPlan};
use oxccl::net::loopback::Loopback;
use oxccl::net::socket::{self, SocketConfig};
use oxccl_tests::deadline::Deadline;
use oxccl_tests::net::run_all;
use std::sync::Arc;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(240);

/// Sockets over the loopback interface with so many data sockets per connection.
fn sockets(data_sockets: u32, ipv6: bool) -> Arc<dyn Net> {
    let interfaces = oxccl::bootstrap::InterfaceFilter::parse("=lo");
    let config = SocketConfig { interfaces, ipv6: Some(ipv6), data_sockets, ..SocketConfig::default() };
    socket::open(&config).expect("the kernel lists its interfaces")
}

/// Late answers and held-back requests.
fn unlucky(inner: Arc<dyn Net>, seed: u64) -> Arc<dyn Net> {
    let plan = FaultPlan {
        seed,
        late_per_mille: 200,
        held_per_mille: 100,
        held_max: Duration::from_micros(300),
        ..FaultPlan::default()
    };
    Arc::new(FaultNet::new(inner, plan))
}

#[test]
fn loopback() {
    let _deadline = Deadline::start("loopback", LIMIT);
    for lanes in [0, 1, 3] {
        run_all(&format!("loopback, {lanes} data lanes"), &(Arc::new(Loopback::new(lanes)) as Arc<dyn Net>));
    }
}

#[test]
fn socket_ipv4() {
    let _deadline = Deadline::start("socket_ipv4", LIMIT);
    for data_sockets in [0, 1, 2, 4] {
        run_all(&format!("IPv4, {data_sockets} data sockets"), &sockets(data_sockets, false));
    }
}

#[test]
fn socket_ipv6() {
    let _deadline = Deadline::start("socket_ipv6", LIMIT);
    let net = sockets(2, true);
    if net.devices() == 0 {
        eprintln!("skipped: the loopback interface has no IPv6 address here");
        return;
    }
    run_all("IPv6", &net);
}

#[test]
fn with_ill_luck() {
    let _deadline = Deadline::start("with_ill_luck", LIMIT);
    for seed in 0..3 {
        run_all(&format!("faulty loopback, seed {seed}"), &unlucky(Arc::new(Loopback::new(2)), seed));
    }
    run_all("faulty sockets", &unlucky(sockets(2, false), 77));
}
