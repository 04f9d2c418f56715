//! Reduction by an aggregator whose data go over InfiniBand: the conformance suite of networks that reduce, and what ends a job.

use super::infiniband;
use oxccl::bootstrap::Cancel;
use oxccl::bootstrap::secret::Secret;
use oxccl::net::Net;
use oxccl::net::aggregate::{AggregatorConfig, Carriage, Server, ServerConfig, open};
use oxccl::net::coll::CollNet;
use oxccl::{DataType, RedOp};
use oxccl_tests::deadline::Deadline;
use oxccl_tests::net::coll::{What, bad_windows, heads, run_all, windows};
use oxccl_tests::net::until;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// The guest is emulated.
const LIMIT: Duration = Duration::from_secs(120);
const PATIENCE: Duration = Duration::from_secs(60);

/// A server on a thread, over this network.
fn server(net: Arc<dyn Net>) -> (SocketAddr, Cancel) {
    let usual = ServerConfig::new("127.0.0.1:0".parse().expect("an address"), secret());
    let config = ServerConfig { net: Some(net), handshake_timeout: PATIENCE, ..usual };
    let server = Server::bind(config).expect("a port");
    let (addr, stop) = (server.local_addr(), Cancel::default());
    let until = stop.clone();
    std::thread::spawn(move || server.serve(&until).expect("poll works"));
    (addr, stop)
}

fn secret() -> Secret {
    Secret::from_seed(b"an aggregator over a cable")
}

/// Heads at the other end of the cable.
fn network(addr: SocketAddr, net: Arc<dyn Net>) -> Arc<dyn CollNet> {
    let config = AggregatorConfig {
        servers: vec![addr.to_string()],
        secret: Ok(secret()),
        connect_timeout: PATIENCE,
        peer_dead_after: PATIENCE,
        net: Some("IB".to_owned()),
    };
    open(&config, Carriage::Network(net)).expect("an address and a secret")
}

#[test]
#[ignore = "needs two RoCE devices: cargo xtask test --only softroce"]
fn an_aggregator_keeps_every_promise() {
    let _deadline = Deadline::start("an_aggregator_keeps_every_promise", LIMIT);
    let [here, there] = ["=rxe0", "=rxe1"].map(|port| infiniband(&[("NCCL_IB_HCA", port)]));
    assert_eq!((here.devices(), there.devices()), (1, 1), "two ends of a cable");
    let (addr, _stop) = server(there);
    let net = network(addr, here);
    assert!(net.properties(0).expect("device 0").name.contains("rxe0"));
    run_all("an aggregator over InfiniBand", &net);
    windows(&net, 12, 21);
    bad_windows(&net);
}

#[test]
#[ignore = "needs two RoCE devices: cargo xtask test --only softroce"]
fn an_aggregator_that_stops_says_so() {
    let _deadline = Deadline::start("an_aggregator_that_stops_says_so", LIMIT);
    let [here, there] = ["=rxe0", "=rxe1"].map(|port| infiniband(&[("NCCL_IB_HCA", port)]));
    let (addr, stop) = server(there);
    let mut ends = heads(&network(addr, here), 2);
    let what = What::all_reduce(100_000, DataType::F32, RedOp::Sum);
    let input = vec![0; 400_000];
    assert_eq!(ends[0].post(&what, &input, input.len()), Ok(true));
    stop.cancel();
    let error = until("an error", || ends[0].oldest().err()).to_string();
    assert!(error.contains("the aggregator was stopped") && error.contains(&addr.to_string()), "{error}");
}
