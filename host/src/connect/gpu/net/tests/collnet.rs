//! All-reduces, reduce-scatters and all-gathers through a network that reduces: an aggregator.

use super::cases::{call, every_function};
use super::graphs::graphs_and_calls;
use super::*;
use crate::bootstrap::Cancel;
use crate::bootstrap::secret::Secret;
use crate::launch::Fault;
use crate::net::aggregate::{AggregatorConfig, Carriage, Server, ServerConfig, open};
use crate::net::coll::{
    CollComm, CollConnector, CollListener, CollPart, Reduction, Started, Window, Windows,
};
use crate::net::{Comm, NetHandle, NetMemory, Registration, Request};

/// Has `play` use an aggregator, which serves as long as it plays.
fn with_aggregator(play: impl FnOnce(Arc<dyn CollNet>)) {
    let secret = || Secret::from_seed(b"chains of GPUs");
    let server = Server::bind(ServerConfig::new("127.0.0.1:0".parse().unwrap(), secret())).unwrap();
    let config = AggregatorConfig {
        servers: vec![server.local_addr().to_string()],
        secret: Ok(secret()),
        connect_timeout: Duration::from_secs(20),
        peer_dead_after: Duration::from_secs(20),
        net: None,
    };
    let stop = Cancel::default();
    std::thread::scope(|scope| {
        // However the play ends.
        let _stops = Stops(&stop);
        scope.spawn(|| server.serve(&stop).unwrap());
        play(open(&config, Carriage::Tcp { encrypt: false }).unwrap());
    });
}

struct Stops<'a>(&'a Cancel);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

const THROUGH: [Func; 3] = [Func::AllReduce, Func::ReduceScatter, Func::AllGather];

/// The ways through a host to the network.
const WAYS: [Algorithm; 2] = [Algorithm::CollnetChain, Algorithm::CollnetDirect];

fn scene(hosts: &[u64], reducing: &Arc<dyn CollNet>) -> Scene {
    by(WAYS[0], hosts, reducing)
}

fn by(way: Algorithm, hosts: &[u64], reducing: &Arc<dyn CollNet>) -> Scene {
    Scene { forced: Forced::only(Some(way), None), reducing: Some(reducing.clone()), ..Scene::new(hosts) }
}

/// Everything, and what a network reduces or gathers goes where it was ordered to.
fn everything(player: &mut Player) {
    for func in THROUGH {
        let way = plan(&call(func, 5), &player.facts).algorithm;
        assert!(player.facts.forced.names_algorithm(func, way) && WAYS.contains(&way));
    }
    every_function(player);
}

#[test]
fn heads_alone_and_chains_reduce_through_an_aggregator() {
    with_aggregator(|net| {
        Scene { memory: false, ..scene(&[1, 1, 1], &net) }.play(everything);
        scene(&[1, 2], &net).play(everything);
        Scene { threads: 4, ..scene(&[1, 1, 2, 2], &net) }.play(everything);
        // A ring in rank order enters the first host in the middle.
        scene(&[1, 2, 2, 1, 1], &net).play(everything);
    });
}

#[test]
fn stars_reduce_through_an_aggregator() {
    with_aggregator(|net| {
        let way = Algorithm::CollnetDirect;
        by(way, &[1, 2], &net).play(everything);
        Scene { threads: 4, ..by(way, &[1, 1, 2, 2], &net) }.play(everything);
        by(way, &[1, 2, 2, 1, 1], &net).play(everything);
        Scene { threads: 4, ..by(way, &[1, 1, 1, 2, 2, 2, 2], &net) }.play(everything);
    });
}

/// A function by chains and another by stars: both have connections and jobs of their own.
#[test]
fn chains_and_stars_go_beside_each_other() {
    with_aggregator(|net| {
        let forced = Forced::default().with_algorithms("collnetchain;allreduce:collnetdirect").unwrap();
        Scene { forced, ..scene(&[1, 1, 2, 2, 2], &net) }.play(|player| {
            let of = |func| plan(&call(func, 5), &player.facts).algorithm;
            assert_eq!(THROUGH.map(of), [WAYS[1], WAYS[0], WAYS[0]]);
            everything(player);
        });
    });
}

/// Each channel has its share, its head of each host, and its job on the server.
#[test]
fn channels_of_chains_have_their_shares_and_their_heads() {
    with_aggregator(|net| {
        let all = [&[1, 2][..], &[1, 1, 2, 2], &[1, 1, 1, 2]];
        for (hosts, way) in all.into_iter().flat_map(|hosts| WAYS.map(|way| (hosts, way))) {
            Scene { threads: 4, ..by(way, hosts, &net) }.play(|player| {
                let heads = player.layout.heads(ConnKind::of(spec_of(way).connections)).unwrap();
                let of_first = |host: &&Vec<Rank>| host.contains(&Rank(0));
                let head = |channel: usize| heads.channels[channel].iter().find(of_first).unwrap()[0];
                assert_eq!(head(0) == head(1), hosts.len() == 2, "a host of several ranks has two heads");
                for (tag, count) in (1..).zip([1, 16_384, 40_000, 60_001, 300_007, 1_000_003]) {
                    let call = call(Func::AllReduce, count);
                    let channels = plan(&call, &player.facts).channels;
                    assert!(
                        (count > 16_384 || channels == 1) && (count < 1_000_000 || channels == 3),
                        "{count}"
                    );
                    assert!(player.collective(&call, tag).is_ok(), "{:?}", player.health.fault());
                }
                for (tag, count) in (100..).zip([1, 5_000, 20_001, 100_003]) {
                    for (func, tag) in [(Func::ReduceScatter, tag), (Func::AllGather, tag + 100)] {
                        let call = call(func, count);
                        let channels = plan(&call, &player.facts).channels;
                        assert!(count < 100_000 || channels > 1, "{func} {count}: {channels}");
                        assert!(player.collective(&call, tag).is_ok(), "{:?}", player.health.fault());
                    }
                }
                player.finish();
            });
        }
    });
}

/// What is captured runs many times, between calls.
#[test]
fn graphs_reduce_through_an_aggregator() {
    with_aggregator(|net| {
        // Each is a head: others give no orders for a chain.
        scene(&[1, 2], &net).play(graphs_and_calls);
        Scene { threads: 4, memory: false, ..scene(&[1, 1, 1], &net) }.play(graphs_and_calls);
        by(Algorithm::CollnetDirect, &[1, 1, 2], &net).play(graphs_and_calls);
    });
}

/// Where the user names nothing, rings go on: nobody has measured chains of GPUs.
#[test]
fn a_network_that_reduces_is_not_taken_unasked() {
    with_aggregator(|net| {
        Scene { forced: Forced::default(), ..scene(&[1, 2], &net) }.play(|player| {
            assert!(matches!(player.facts.collnet, Collnet::There(_)));
            for (func, count) in
                THROUGH.into_iter().flat_map(|func| [1, 1 << 12, 1 << 20, 1 << 28].map(|count| (func, count)))
            {
                let algorithm = plan(&call(func, count), &player.facts).algorithm;
                assert!(!WAYS.contains(&algorithm), "{func} {count}");
            }
        });
    });
}

/// Heads that call different things: the check finds it, whatever the lengths.
#[test]
fn heads_that_call_different_things_are_told() {
    with_aggregator(|net| {
        for func in THROUGH {
            Scene { step_timeout: Duration::from_secs(30), ..scene(&[1, 2], &net) }.play(|player| {
                let tag = 5 + player.rank.0;
                assert!(player.collective(&call(func, 100), tag).is_err());
                let fault = player.health.fault().map(|was| was.fault);
                let is_told = match player.rank {
                    Rank(0) => matches!(fault, Some(Fault::Mismatch { rank: Rank(1), .. })),
                    _ => matches!(fault, Some(Fault::Mismatch { rank: Rank(0), .. } | Fault::Link { .. })),
                };
                assert!(is_told, "{func}: {fault:?}");
            });
        }
    });
}

/// A head whose kernel does not run keeps the others waiting: an error that names it, from the proxy and in time.
#[test]
fn a_head_that_does_not_call_is_named() {
    with_aggregator(|net| {
        for func in THROUGH {
            Scene { step_timeout: Duration::from_secs(1), ..scene(&[1, 2], &net) }.play(|player| {
                if player.rank == Rank(1) {
                    return std::thread::sleep(Duration::from_secs(4));
                }
                assert!(player.collective(&call(func, 100), 1).is_err());
                let fault = player.health.fault().map(|was| was.fault);
                assert!(matches!(fault, Some(Fault::Timeout { rank: Rank(1), .. })), "{func}: {fault:?}");
            });
        }
    });
}

/// A network that takes everything and gives nothing.
#[derive(Clone, Debug)]
struct Silent;

impl CollNet for Silent {
    fn name(&self) -> &str {
        "silent"
    }
    fn devices(&self) -> u32 {
        1
    }
    fn properties(&self, _: u32) -> Result<NetProperties, NetError> {
        crate::net::loopback::Loopback::new(0).properties(0)
    }
    fn reduces(&self, _: DataType, _: RedOp) -> Result<bool, NetError> {
        Ok(true)
    }
    fn windows(&self) -> Windows {
        Windows::ALL
    }
    fn listen(&self, _: u32) -> Result<(NetHandle, Box<dyn CollListener>), NetError> {
        Ok((NetHandle([0; crate::net::HANDLE_BYTES]), Box::new(Silent)))
    }
}

impl CollListener for Silent {
    fn join(self: Box<Self>, _: &[NetHandle], _: u32) -> Result<Box<dyn CollConnector>, NetError> {
        Ok(self)
    }
}

impl CollConnector for Silent {
    fn poll_join(&mut self) -> Result<Option<Box<dyn CollComm>>, NetError> {
        Ok(Some(Box::new(Silent)))
    }
}

impl Comm for Silent {
    unsafe fn register(&mut self, _: NetMemory<'_>) -> Result<Registration, NetError> {
        Ok(Registration(0))
    }
    fn deregister(&mut self, _: Registration) -> Result<(), NetError> {
        Ok(())
    }
    fn test(&mut self, _: Request) -> Result<Option<usize>, NetError> {
        Ok(None)
    }
}

impl CollComm for Silent {
    unsafe fn iallreduce(&mut self, _: CollPart, _: CollPart, _: Reduction) -> Started {
        Ok(Some(Request(0)))
    }
    unsafe fn iallgather(&mut self, _: CollPart, _: CollPart, _: Window) -> Started {
        Ok(Some(Request(0)))
    }
    unsafe fn ireduce_scatter(
        &mut self,
        _: CollPart,
        _: CollPart,
        _: (DataType, RedOp),
        _: Window,
    ) -> Started {
        Ok(Some(Request(0)))
    }
    unsafe fn flush(&mut self, _: CollPart, _: usize) -> Started {
        Ok(None)
    }
    fn awaited(&self) -> String {
        "the silent switch".to_owned()
    }
}

/// Every head waits for the network: no rank is to blame, and each proxy says so.
#[test]
fn a_network_that_gives_no_result_is_named() {
    let net: Arc<dyn CollNet> = Arc::new(Silent);
    for func in THROUGH {
        Scene { step_timeout: Duration::from_secs(3), ..scene(&[1, 2, 3], &net) }.play(|player| {
            assert!(player.collective(&call(func, 100), 1).is_err());
            let fault = player.health.fault().map(|was| format!("{:?}", was.fault)).unwrap_or_default();
            assert!(fault.contains("the silent switch gave no result within"), "{func}: {fault}");
        });
    }
}
