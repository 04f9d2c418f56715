//! Worlds: all ranks of a communicator in this process, run by one thread as fibers or by a thread each.

use oxccl::bootstrap::BootstrapConfig;
use oxccl::net::NetConfig;
use oxccl::plan::Forced;
use oxccl::transport::Allowed;
use oxccl::{Algorithm, Cma, Communicator, Config, Error, Func, Protocol, TransportKind, UniqueId};
use oxccl_shared::algo::registry::spec_of;
use oxccl_shared::algo::spec::Processor;
use std::net::Ipv4Addr;
use std::time::Duration;

/// What differs from world to world.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Insist on an algorithm.
    pub algorithm: Option<Algorithm>,
    /// Insist on a protocol.
    pub protocol: Option<Protocol>,
    /// Insist on a transport.
    pub transport: Option<TransportKind>,
    /// Bytes of a Simple buffer. Small ones wrap often.
    pub buffer_bytes: usize,
    /// How long a rank waits for another.
    pub timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            algorithm: None,
            protocol: None,
            transport: None,
            buffer_bytes: 8 << 10,
            timeout: Duration::from_secs(60),
        }
    }
}

impl Settings {
    /// An algorithm over a protocol.
    pub fn forced(algorithm: Algorithm, protocol: Protocol) -> Settings {
        Settings { algorithm: Some(algorithm), protocol: Some(protocol), ..Settings::default() }
    }

    /// The lists that leave what is insisted on. Of all-reduce a list without a function is an order: where GPUs do not have it, the
    /// algorithm is for the others.
    pub fn lists(&self) -> Forced {
        let forced = Forced::only(self.algorithm, self.protocol);
        match (self.algorithm.map(spec_of), self.protocol) {
            (Some(spec), Some(protocol))
                if !spec.protocols(Func::AllReduce, Processor::Gpu).has(protocol) =>
            {
                let list = format!("{};allreduce:^{}", spec.name(), spec.name());
                forced.with_algorithms(&list).expect("a list")
            }
            _ => forced,
        }
    }

    /// As the library's settings; the environment is ignored.
    pub fn config(&self) -> Config {
        Config {
            timeout: self.timeout,
            bootstrap: BootstrapConfig {
                timeout: self.timeout,
                bind_addr: Some(Ipv4Addr::LOCALHOST.into()),
                ..BootstrapConfig::default()
            },
            forced: Forced::only(self.algorithm, self.protocol),
            transports: self.transport.map_or(Allowed::ALL, Allowed::only),
            buffer_bytes: self.buffer_bytes,
            // Of the networks, the one that every machine has.
            net: NetConfig { name: Some("Socket".to_owned()), ..NetConfig::default() },
            // Also where it is not faster.
            cma: Cma::Permit,
            ping_pong: true,
            outbox: Some(true),
            ..Config::default()
        }
    }
}

/// Every rank of a communicator, in rank order.
pub struct World {
    /// How it was set up.
    pub settings: Settings,
    /// The ranks.
    pub ranks: Vec<Communicator>,
}

impl World {
    /// Sets up `nranks` ranks.
    ///
    /// # Panics
    /// If that fails.
    pub fn new(nranks: u32, settings: Settings) -> World {
        World::with(nranks, settings, |_, _| {})
    }

    /// The same; `adapt` changes a rank's settings as the library has them.
    ///
    /// # Panics
    /// As [`Self::new`].
    pub fn with(nranks: u32, settings: Settings, adapt: impl Fn(u32, &mut Config) + Sync) -> World {
        let config = settings.config();
        let id = UniqueId::create_by(&config.bootstrap).expect("a root on the loopback interface");
        let join = |rank| {
            let mut config = config.clone();
            adapt(rank, &mut config);
            Communicator::builder().unique_id(id).rank(rank).ranks(nranks).config(config).build()
        };
        let ranks = on_threads(0..nranks, join);
        let ranks = ranks.into_iter().map(|rank| rank.expect("all ranks join")).collect();
        World { settings, ranks }
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.ranks.len()
    }

    /// Every rank does its part on a thread of its own.
    pub fn each<R: Send>(&mut self, part: impl Fn(&Communicator) -> R + Sync) -> Vec<R> {
        on_threads(self.ranks.iter_mut(), |rank| part(rank))
    }

    /// As [`Self::each`], with something of its own for each rank.
    pub fn each_with<I: Send, R: Send>(
        &mut self,
        items: &mut [I],
        part: impl Fn(&Communicator, &mut I) -> R + Sync,
    ) -> Vec<R> {
        on_threads(self.ranks.iter_mut().zip(items), |(rank, item)| part(rank, item))
    }
}

/// Does `part` for every item at the same time, a thread each.
///
/// # Panics
/// If one of them does.
pub fn on_threads<I: Send, R: Send>(items: impl Iterator<Item = I>, part: impl Fn(I) -> R + Sync) -> Vec<R> {
    let part = &part;
    std::thread::scope(|scope| {
        let threads: Vec<_> = items.map(|item| scope.spawn(move || part(item))).collect();
        threads.into_iter().map(|thread| thread.join().expect("the rank's thread panicked")).collect()
    })
}

/// The error of the first rank that has one.
pub fn first_error(results: Vec<Result<(), Error>>) -> Result<(), Error> {
    results.into_iter().collect()
}
