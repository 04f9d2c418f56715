//! Every network that needs no special hardware keeps every promise of the contract, with injected faults too.

mod stranger;
mod faults;
mod plugins;
mod coll_plugins;
mod aggregators;
mod aggregator_carriages;

use oxccl::net::fault::{FaultNet, FaultPlan};
use oxccl::net::loopback::Loopback;
use oxccl::net::socket::{self, SocketConfig};
use oxccl::net::{Net, NetError};
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

/// The same, encrypted.
fn sealed(data_sockets: u32) -> Arc<dyn Net> {
    let interfaces = oxccl::bootstrap::InterfaceFilter::parse("=lo");
    let ipv6 = Some(false);
    let config = SocketConfig { interfaces, ipv6, data_sockets, encrypt: true, ..SocketConfig::default() };
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

/// Sockets whose bytes are encrypted keep the same promises.
#[test]
fn sealed_sockets() {
    let _deadline = Deadline::start("sealed_sockets", LIMIT);
    for data_sockets in [0, 1, 3] {
        run_all(&format!("encrypted, {data_sockets} data sockets"), &sealed(data_sockets));
    }
    run_all("faulty encrypted sockets", &unlucky(sealed(2), 78));
}

/// One end encrypts, the other does not: neither sends data.
#[test]
fn ends_that_do_not_agree_whether_to_encrypt_are_told_so() {
    let _deadline = Deadline::start("ends_that_do_not_agree", LIMIT);
    for (listens, connects) in [(sealed(0), sockets(0, false)), (sockets(0, false), sealed(0))] {
        let (handle, _listener) = listens.listen(0).expect("device 0 listens");
        let error = connects.connect(0, &handle).err().expect("it is refused");
        let here = connects.encrypts();
        assert!(matches!(&error, NetError::Encryption { here: found, .. } if *found == here), "{error}");
        assert!(error.to_string().contains("OXCCL_ENCRYPT"), "{error}");
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
