//! A server of in-network reduction in this process, for tests of those who use it.

use oxccl::bootstrap::Cancel;
use oxccl::bootstrap::secret::Secret;
use oxccl::net::aggregate::{AggregatorConfig, Server, ServerConfig};
use oxccl::net::coll::CollConfig;
use std::net::SocketAddr;
use std::thread::JoinHandle;
use std::time::Duration;

/// How soon ranks must have reached it.
const BOUND: Duration = Duration::from_secs(20);

/// A server on a thread; stopped when dropped.
pub struct Aggregator {
    addr: SocketAddr,
    stop: Cancel,
    thread: Option<JoinHandle<()>>,
}

fn secret() -> Secret {
    Secret::from_seed(b"an aggregator for tests")
}

impl Aggregator {
    /// Starts one.
    ///
    /// # Panics
    /// Without a port.
    pub fn start() -> Aggregator {
        let server = Server::bind(ServerConfig::new("127.0.0.1:0".parse().expect("an address"), secret()));
        let server = server.expect("a port");
        let (addr, stop) = (server.local_addr(), Cancel::default());
        let until = stop.clone();
        let thread = Some(std::thread::spawn(move || server.serve(&until).expect("poll works")));
        Aggregator { addr, stop, thread }
    }

    /// What a rank needs to use it.
    pub fn config(&self) -> CollConfig {
        let aggregators = AggregatorConfig {
            servers: vec![self.addr.to_string()],
            secret: Ok(secret()),
            connect_timeout: BOUND,
            peer_dead_after: BOUND,
            net: None,
        };
        CollConfig { enabled: true, aggregators: Some(aggregators), ..CollConfig::default() }
    }
}

impl Drop for Aggregator {
    fn drop(&mut self) {
        self.stop.cancel();
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || ended.is_none_or(|ended| ended.is_ok()), "the server panicked");
    }
}
