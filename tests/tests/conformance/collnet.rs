//! All-reduce, reduce-scatter and all-gather along chains and through a network that reduces, which is a plugin as other people write them; hosts are texts.

use super::drawn;
use oxccl::net::coll::{CollConfig, CollNet};
use oxccl::net::loopback::Loopback;
use oxccl::net::{Net, plugin};
use oxccl::transport::Allowed;
use oxccl::{
    Algorithm, Communicator, Config, DataType, Error, Fault, Func, Rank, RedOp, ReduceOp, TransportKind,
    UniqueId,
};
use oxccl_tests::case::{By, Case, Placement};
use oxccl_tests::deadline::{Deadline, doing};
use oxccl_tests::deck::Deck;
use oxccl_tests::harness::{Settings, World, on_threads};
use oxccl_tests::net::{PluginFile, Tables};
use std::sync::Arc;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(280);
/// How long any rank may take to end when something is wrong.
const BOUND: Duration = Duration::from_secs(10);

/// The tests' network, with a version of NCCL's table; `fault` is the call that fails.
fn network(version: u32, fault: &str, flags: &[&str]) -> Arc<dyn CollNet> {
    let file = PluginFile::build(Tables::Coll, version, fault, flags);
    plugin::open_coll(file.name()).expect("a plugin that works")
}

/// The ways through a host to the network.
const WAYS: [Algorithm; 2] = [Algorithm::CollnetChain, Algorithm::CollnetDirect];

fn along_chains() -> Settings {
    by(Algorithm::CollnetChain)
}

fn by(algorithm: Algorithm) -> Settings {
    Settings { algorithm: Some(algorithm), ..Settings::default() }
}

/// `hosts` names each rank's host, and `nets` has what a host reduces by; the last one has that of all further hosts.
fn placed<'a>(hosts: &'a [u32], nets: &'a [Arc<dyn CollNet>]) -> impl Fn(u32, &mut Config) + Sync + 'a {
    move |rank, config| {
        let host = hosts[rank as usize];
        config.host_id = Some(format!("host {host}"));
        let own = nets.get(host as usize).or(nets.last()).cloned();
        config.net.coll = CollConfig { enabled: true, own, ..CollConfig::default() };
    }
}

/// The algorithm of an all-reduce.
fn chosen(rank: &Communicator, dtype: DataType, op: RedOp) -> Algorithm {
    chosen_for(rank, Func::AllReduce, dtype, op)
}

fn chosen_for(rank: &Communicator, func: Func, dtype: DataType, op: RedOp) -> Algorithm {
    let explained = rank.explain_with(func, dtype, op, 1000).expect("a collective");
    explained.expect("it is planned").choice.candidate.algorithm
}

/// Settings with `NCCL_ALGO` set to this.
fn ordered(algorithms: &str, config: &mut Config) {
    config.forced = config.forced.with_algorithms(algorithms).expect("algorithms");
}

/// Every type with every operator, scattered and gathered.
fn every_block(world: &mut World, random: &mut Deck) {
    for &dtype in DataType::ALL {
        drawn::call(world, random, Func::AllGather, dtype, RedOp::Sum);
        for &op in RedOp::ALL {
            drawn::call(world, random, Func::ReduceScatter, dtype, op);
        }
    }
}

/// Every type with every operator.
fn every_type_and_operator(world: &mut World, random: &mut Deck) {
    for &dtype in DataType::ALL {
        for &op in RedOp::ALL {
            drawn::all_reduce(world, random, dtype, op);
        }
    }
}

#[test]
fn every_number_of_hosts_and_ranks() {
    let _deadline = Deadline::start("every_number_of_hosts_and_ranks", LIMIT);
    let net = [network(12, "", &[])];
    let mut random = Deck::new(1 << 16, 11);
    for nhosts in 2..=4 {
        for (ranks_per_host, way) in (1..=3).flat_map(|ranks| WAYS.map(|way| (ranks, way))) {
            let hosts: Vec<u32> = (0..nhosts * ranks_per_host).map(|rank| rank / ranks_per_host).collect();
            let mut world = World::with(hosts.len() as u32, by(way), placed(&hosts, &net));
            every_type_and_operator(&mut world, &mut random);
            for rank in &world.ranks {
                assert_eq!(chosen(rank, DataType::F32, RedOp::Avg), way);
                // The network does not reduce these.
                assert_ne!(chosen(rank, DataType::F8E4M3, RedOp::Sum), way);
            }
        }
    }
}

/// Hosts with other numbers of ranks than others, and ranks that lie here and there; the oldest table too.
#[test]
fn uneven_and_interleaved_hosts() {
    let _deadline = Deadline::start("uneven_and_interleaved_hosts", LIMIT);
    let mut random = Deck::new(1 << 16, 12);
    for (version, hosts) in [(8, vec![0, 1, 1, 2, 2, 2]), (9, vec![1, 0, 2, 0, 1]), (10, vec![3, 3, 0])] {
        let net = [network(version, "", &[])];
        for way in WAYS {
            let mut world = World::with(hosts.len() as u32, by(way), placed(&hosts, &net));
            every_type_and_operator(&mut world, &mut random);
            assert_eq!(chosen(&world.ranks[0], DataType::I32, RedOp::Max), way);
        }
    }
}

/// Blocks of every rank, wherever it is: hosts of one to four ranks, even, uneven and interleaved, in every version of the table.
#[test]
fn reduce_scatter_and_all_gather() {
    let _deadline = Deadline::start("reduce_scatter_and_all_gather", LIMIT);
    let mut random = Deck::new(1 << 16, 15);
    let even = |nhosts: u32, each: u32| (0..nhosts * each).map(|rank| rank / each).collect::<Vec<u32>>();
    let hosts = [even(2, 1), even(2, 4), even(3, 2), even(4, 1), vec![0, 1, 1, 2, 2, 2], vec![1, 0, 2, 0, 1]];
    for ((version, hosts), way) in (8..).zip(hosts).flat_map(|host| WAYS.map(|way| (host.clone(), way))) {
        let net = [network(version.min(12), "", &[])];
        let mut world = World::with(hosts.len() as u32, by(way), placed(&hosts, &net));
        for rank in &world.ranks {
            assert_eq!(chosen_for(rank, Func::ReduceScatter, DataType::F32, RedOp::Avg), way);
            assert_eq!(chosen_for(rank, Func::AllGather, DataType::F8E4M3, RedOp::Sum), way);
            // The network does not reduce these.
            let unreduced = chosen_for(rank, Func::ReduceScatter, DataType::F8E4M3, RedOp::Sum);
            assert_ne!(unreduced, way);
        }
        every_block(&mut world, &mut random);
    }
}

/// One element for each rank, odd counts, and as many slots as go round many times, in every placement, beside other operations.
#[test]
fn blocks_of_any_length() {
    let _deadline = Deadline::start("blocks_of_any_length", LIMIT);
    let (hosts, net) = ([0, 0, 1, 1, 1], [network(12, "", &[])]);
    // In the last one calls of both ways share a head's end of the network.
    for ways in
        ["collnetchain", "collnetdirect", "collnetchain;allreduce:collnetdirect;reducescatter:collnetdirect"]
    {
        let mut world = World::with(5, Settings::default(), |rank, config| {
            placed(&hosts, &net)(rank, config);
            ordered(ways, config);
        });
        blocks_of_any_length_in(&mut world);
    }
}

fn blocks_of_any_length_in(world: &mut World) {
    for (k, placement) in Placement::ALL.into_iter().enumerate() {
        for count in [1, 7, 2_049, 100_003] {
            for func in [Func::ReduceScatter, Func::AllGather, Func::AllReduce, Func::Broadcast] {
                let (dtype, op, seed) = (DataType::I64, RedOp::Sum, k as u64);
                let case = Case { func, dtype, op, root: 0, count, placement, seed };
                for by in [By::Threads, By::Fibers] {
                    doing(|| format!("{case:?} by {by:?}"));
                    case.check(world, by).unwrap();
                }
            }
        }
    }
}

/// A star is not taken unasked, whatever the model finds of it.
#[test]
fn a_star_is_not_taken_unasked() {
    let _deadline = Deadline::start("a_star_is_not_taken_unasked", LIMIT);
    let (hosts, nets) = ([0, 0, 1, 1], [network(12, "", &[])]);
    let world = World::with(4, Settings::default(), placed(&hosts, &nets));
    for (func, k) in [Func::AllReduce, Func::ReduceScatter, Func::AllGather]
        .into_iter()
        .flat_map(|func| (0..24).map(move |k| (func, k)))
    {
        let explained = world.ranks[0].explain(func, DataType::F32, 1 << k).expect("a collective");
        let algorithm = explained.expect("it is planned").choice.candidate.algorithm;
        assert_ne!(algorithm, Algorithm::CollnetDirect, "{func} {k}");
    }
}

/// Without an order by name they stay what they are, also where an all-reduce would go through the network.
#[test]
fn blocks_go_through_a_network_only_where_it_is_asked_for() {
    let _deadline = Deadline::start("blocks_go_through_a_network_only_where_it_is_asked_for", LIMIT);
    let (hosts, nets) = ([0, 1, 2, 3], [network(12, "", &[])]);
    // The protocol by which all goes through a network is no order of the network.
    for protocols in ["", "Simple"] {
        let world = World::with(4, Settings::default(), |rank, config| {
            placed(&hosts, &nets)(rank, config);
            if !protocols.is_empty() {
                config.forced = config.forced.with_protocols(protocols).unwrap();
            }
        });
        for func in [Func::ReduceScatter, Func::AllGather] {
            for count in (0..24).map(|k| 1 << k) {
                let explained = world.ranks[0].explain(func, DataType::F32, count).expect("a collective");
                let algorithm = explained.expect("it is planned").choice.candidate.algorithm;
                assert_ne!(algorithm, Algorithm::CollnetChain, "{func} {count} {protocols}");
            }
        }
    }
    let world = World::with(4, Settings::default(), |rank, config| {
        placed(&hosts, &nets)(rank, config);
        ordered("reducescatter:collnetchain", config);
    });
    let of = |func| chosen_for(&world.ranks[0], func, DataType::F32, RedOp::Sum);
    assert_eq!(of(Func::ReduceScatter), Algorithm::CollnetChain);
    assert_ne!(of(Func::AllGather), Algorithm::CollnetChain);
}

/// A plugin may lack both operations: what is only wished goes another way, what is ordered is refused with the reason.
#[test]
fn a_network_that_only_reduces_is_not_asked_for_blocks() {
    let _deadline = Deadline::start("a_network_that_only_reduces_is_not_asked_for_blocks", LIMIT);
    let (hosts, nets) = ([0, 0, 1], [network(12, "", &[]), network(12, "", &["-DREDUCES_ONLY"])]);
    let mut world = World::with(3, along_chains(), placed(&hosts, &nets));
    for rank in &world.ranks {
        assert_eq!(chosen(rank, DataType::F32, RedOp::Sum), Algorithm::CollnetChain);
        for (func, why) in
            [(Func::AllGather, "has no all-gather"), (Func::ReduceScatter, "has no reduce-scatter")]
        {
            assert_ne!(chosen_for(rank, func, DataType::F32, RedOp::Sum), Algorithm::CollnetChain);
            let explained = rank.explain(func, DataType::F32, 10).expect("a collective");
            let explained = explained.expect("it is planned").to_string();
            assert!(explained.contains(why), "{explained}");
        }
    }
    every_block(&mut world, &mut Deck::new(1 << 16, 16));
    for (order, why) in [
        ("ring;allgather:collnetchain", "(collnetchain: a host's network has no all-gather)"),
        ("ring;reducescatter:collnetchain", "(collnetchain: a host's network has no reduce-scatter)"),
    ] {
        let results = join(3, Settings::default(), |rank, config| {
            placed(&hosts, &nets)(rank, config);
            ordered(order, config);
        });
        for (rank, result) in results.into_iter().enumerate() {
            let error = result.expect_err("it was ordered");
            assert!(error.contains("NCCL_ALGO") && error.contains(why), "rank {rank}: {error}");
        }
    }
}

/// Hosts whose blocks differ in length, or that call different functions: no rank gets a result, and somebody says what is wrong.
#[test]
fn hosts_that_call_different_blocks_are_told() {
    let _deadline = Deadline::start("hosts_that_call_different_blocks_are_told", LIMIT);
    let (hosts, nets) = ([0, 0, 1, 1], [network(12, "", &[])]);
    let gather =
        |rank: &Communicator, count: usize| rank.all_gather(&vec![1f32; count], &mut vec![0f32; 4 * count]);
    let scatter = |rank: &Communicator, count: usize| {
        rank.reduce_scatter(&vec![1f32; 4 * count], &mut vec![0f32; count], ReduceOp::SUM)
    };
    type Call<'a> = &'a (dyn Fn(&Communicator) -> Result<(), Error> + Sync);
    let cases: [(&str, Call<'_>, Call<'_>); 3] = [
        ("count of a gather", &|rank| gather(rank, 100), &|rank| gather(rank, 101)),
        ("count of a scatter", &|rank| scatter(rank, 100), &|rank| scatter(rank, 10_000)),
        ("function", &|rank| scatter(rank, 100), &|rank| gather(rank, 100)),
    ];
    for (what, one, other) in cases {
        doing(|| what.to_owned());
        let mut world = World::with(4, along_chains(), placed(&hosts, &nets));
        let begin = Instant::now();
        let errors = world.each(|rank| if rank.rank() < 2 { one(rank) } else { other(rank) });
        assert!(begin.elapsed() < BOUND, "{what}: {errors:?}");
        let mismatches = errors.iter().filter(|result| {
            matches!(result.as_ref().err().and_then(Error::fault), Some(Fault::Mismatch { .. }))
        });
        assert!(mismatches.count() > 0 && errors.iter().all(Result::is_err), "{what}: {errors:?}");
    }
}

/// Many slots, many times round; other algorithms and messages in between use the same mesh.
#[test]
fn long_buffers_and_other_operations_between() {
    let _deadline = Deadline::start("long_buffers_and_other_operations_between", LIMIT);
    let (hosts, net) = ([0, 0, 1, 1, 2], [network(11, "", &[])]);
    let mut world = World::with(5, along_chains(), placed(&hosts, &net));
    for (k, placement) in Placement::ALL.into_iter().enumerate() {
        for (func, count) in
            [(Func::AllReduce, 150_011), (Func::AllGather, 3000), (Func::Send, 9000), (Func::AllReduce, 1)]
        {
            let (op, dtype, seed) = (RedOp::Avg, DataType::I32, k as u64);
            let op = if func == Func::AllReduce { op } else { RedOp::Sum };
            let case = Case { func, dtype, op, root: 0, count, placement, seed };
            for by in [By::Threads, By::Fibers] {
                doing(|| format!("{case:?} by {by:?}"));
                case.check(&mut world, by).unwrap();
            }
        }
    }
}

/// Hosts meet over streams or a network beside the one that reduces; ranks of a host over streams too.
#[test]
fn beside_every_transport() {
    let _deadline = Deadline::start("beside_every_transport", LIMIT);
    let (hosts, nets) = ([0, 0, 1, 1], [network(12, "", &[])]);
    let mut random = Deck::new(1 << 16, 14);
    for (way, hosts) in WAYS.into_iter().flat_map(|way| [(way, &hosts[..]), (way, &[0, 0, 0, 1])]) {
        let streams = Settings { transport: Some(TransportKind::Tcp), ..by(way) };
        let mut world = World::with(4, streams, placed(hosts, &nets));
        assert_eq!(chosen(&world.ranks[1], DataType::F32, RedOp::Sum), way);
        every_type_and_operator(&mut world, &mut random);
        every_block(&mut world, &mut random);
    }

    let other: Arc<dyn Net> = Arc::new(Loopback::new(0));
    let mut world = World::with(4, along_chains(), |rank, config| {
        placed(&hosts, &nets)(rank, config);
        config.transports.tcp = false;
        config.net.own = Some(other.clone());
    });
    let kinds = world.ranks[0].memory().peers.iter().map(|peer| peer.transport).collect::<Vec<_>>();
    assert_eq!(kinds, [TransportKind::InProcess, TransportKind::Net, TransportKind::Net]);
    assert_eq!(chosen(&world.ranks[1], DataType::F32, RedOp::Sum), Algorithm::CollnetChain);
    every_type_and_operator(&mut world, &mut random);
    every_block(&mut world, &mut random);
    // And what goes over that network comes between.
    for by in [By::Threads, By::Fibers] {
        for func in [Func::Broadcast, Func::AllReduce, Func::AllToAll, Func::AllReduce] {
            let (dtype, op, placement) = (DataType::I64, RedOp::Sum, Placement::Apart);
            let case = Case { func, dtype, op, root: 3, count: 5000, placement, seed: 1 };
            doing(|| format!("{case:?} by {by:?}"));
            case.check(&mut world, by).unwrap();
        }
    }
}

/// What one host's network does not reduce goes another way on all ranks alike.
#[test]
fn what_some_host_does_not_reduce_goes_another_way() {
    let _deadline = Deadline::start("what_some_host_does_not_reduce_goes_another_way", LIMIT);
    let (hosts, nets) = ([0, 0, 1], [network(12, "", &[]), network(12, "product", &[])]);
    let mut world = World::with(3, along_chains(), placed(&hosts, &nets));
    for rank in &world.ranks {
        assert_eq!(chosen(rank, DataType::F32, RedOp::Sum), Algorithm::CollnetChain);
        assert_ne!(chosen(rank, DataType::F32, RedOp::Prod), Algorithm::CollnetChain);
        let why = rank.explain_with(Func::AllReduce, DataType::F32, RedOp::Prod, 10);
        let why = why.expect("an all-reduce").expect("it is planned").to_string();
        assert!(why.contains("does not reduce this type by this operator"), "{why}");
    }
    every_type_and_operator(&mut world, &mut Deck::new(1 << 16, 13));
}

/// Joins all ranks, which may fail.
fn join(nranks: u32, settings: Settings, adapt: impl Fn(u32, &mut Config) + Sync) -> Vec<Result<(), String>> {
    let config = settings.config();
    let id = UniqueId::create_by(&config.bootstrap).expect("a root on the loopback interface");
    on_threads(0..nranks, |rank| {
        let mut config = config.clone();
        adapt(rank, &mut config);
        let built = Communicator::builder().unique_id(id).rank(rank).ranks(nranks).config(config).build();
        built.map(|rank| rank.barrier().unwrap()).map_err(|error| error.to_string())
    })
}

/// An impossible binding choice is an error on every rank, with the reason; an impossible preference is ignored.
#[test]
fn an_order_that_cannot_be_obeyed_says_why() {
    let _deadline = Deadline::start("an_order_that_cannot_be_obeyed_says_why", LIMIT);
    let good = network(12, "", &[]);
    let nets = [good.clone(), network(12, "sum", &[])];
    let hosts = [0, 1, 1];
    let two_hosts = placed(&hosts, &nets);
    let one_host = placed(&[0, 0, 0], &nets);
    let without = |rank: u32, config: &mut Config| {
        placed(&hosts, &nets)(rank, config);
        config.net.coll.enabled = false;
    };
    let no_plugin = |rank: u32, config: &mut Config| {
        placed(&hosts, &nets)(rank, config);
        if rank == 1 {
            config.net.coll.own = None;
            config.net.plugins = plugin::PluginConfig::parse("none");
        }
    };
    let only_over_net = |rank: u32, config: &mut Config| {
        placed(&hosts, &nets)(rank, config);
        config.transports = Allowed::only(TransportKind::Net);
    };
    type Adapt<'a> = &'a (dyn Fn(u32, &mut Config) + Sync);
    let cases: [(Adapt<'_>, &str); 5] = [
        (&only_over_net, "ranks of one host reach each other over a network only"),
        (&one_host, "all ranks are on one host"),
        (&without, "NCCL_COLLNET_ENABLE is not 1"),
        (&no_plugin, "rank 1: network that reduces: NCCL_NET_PLUGIN names no plugin"),
        (&two_hosts, "rank 1: network Coll: it has no sum of uint64"),
    ];
    for (adapt, why) in cases {
        doing(|| why.to_owned());
        for (rank, result) in join(3, along_chains(), adapt).into_iter().enumerate() {
            let error = result.expect_err("it was ordered");
            assert!(error.contains("NCCL_ALGO") && error.contains(why), "rank {rank}: {error}");
        }
        assert_eq!(join(3, Settings::default(), adapt), [Ok(()), Ok(()), Ok(())], "{why}");
    }
}

/// A plugin that is there and fails ends init on every rank, with its words and the head's rank.
#[test]
fn a_network_that_does_not_come_together_is_named() {
    let _deadline = Deadline::start("a_network_that_does_not_come_together_is_named", LIMIT);
    let nets = [network(12, "", &[]), network(12, "connect", &[])];
    let begin = Instant::now();
    for (rank, result) in join(4, Settings::default(), placed(&[0, 0, 1, 1], &nets)).into_iter().enumerate() {
        let error = result.expect_err("one head cannot connect");
        let is_told = error.contains("coll0 (head 1 of 2): connect") && error.contains("told to fail");
        assert!(is_told && error.contains("rank 2"), "rank {rank}: {error}");
    }
    // No rank waited for the init timeout.
    assert!(begin.elapsed() < BOUND);
}

/// Every rank's error of a loop of all-reduces, and how long it took from `begin`.
fn errors(
    world: &mut World,
    begin: Instant,
    call: impl Fn(&Communicator) -> Result<(), Error> + Sync,
) -> Vec<Error> {
    let failures = world.each(|rank| {
        let error = (0..1_000_000).find_map(|_| call(rank).err()).expect("the network fails");
        (error, begin.elapsed())
    });
    for (rank, (error, took)) in failures.iter().enumerate() {
        assert!(*took < BOUND, "rank {rank} ended after {took:?}: {error}");
    }
    failures.into_iter().map(|(error, _)| error).collect()
}

fn sum(rank: &Communicator, count: usize) -> Result<(), Error> {
    rank.all_reduce_in_place(&mut vec![1f32; count], ReduceOp::SUM)
}

#[test]
fn a_plugin_that_errs_ends_every_rank_with_its_words() {
    let _deadline = Deadline::start("a_plugin_that_errs_ends_every_rank_with_its_words", LIMIT);
    let (hosts, nets) = ([0, 0, 1, 1], [network(12, "", &[]), network(12, "allreduce", &["-DFAULT_AT=40"])]);
    let mut world = World::with(4, along_chains(), placed(&hosts, &nets));
    let errors = errors(&mut world, Instant::now(), |rank| sum(rank, 3000));
    let text = errors[2].to_string();
    assert!(matches!(errors[2].fault(), Some(Fault::Link { .. })), "{text}");
    assert!(text.contains("coll0 (head 1 of 2): iallreduce") && text.contains("told to fail"), "{text}");
    for (rank, error) in errors.iter().enumerate().filter(|(rank, _)| *rank != 2) {
        assert!(error.to_string().contains("rank "), "rank {rank}: {error}");
    }
}

#[test]
fn a_network_that_is_silent_ends_within_the_timeout() {
    let _deadline = Deadline::start("a_network_that_is_silent_ends_within_the_timeout", LIMIT);
    let (hosts, nets) = ([0, 0, 1], [network(12, "silent", &["-DFAULT_AT=30"])]);
    let settings = Settings { timeout: Duration::from_secs(2), ..along_chains() };
    let mut world = World::with(3, settings, placed(&hosts, &nets));
    let errors = errors(&mut world, Instant::now(), |rank| sum(rank, 3000));
    // No rank is blamed, where the network keeps all heads waiting.
    let names_it = |error: &Error| {
        let text = error.to_string();
        text.contains("coll0 (head ") && text.contains("gave no result within 2 s")
    };
    assert!(errors.iter().any(names_it), "{errors:?}");
    for (rank, error) in errors.iter().enumerate() {
        let is_told = names_it(error) || matches!(error.fault(), Some(Fault::PeerAborted { .. }));
        assert!(is_told, "rank {rank}: {error}");
    }
}

/// A rank that does not come keeps its own host waiting, whose head keeps the network waiting, which keeps all others waiting.
#[test]
fn who_does_not_come_is_named_from_host_to_host() {
    let _deadline = Deadline::start("who_does_not_come_is_named_from_host_to_host", LIMIT);
    let (hosts, nets) = ([0, 0, 1, 1, 2], [network(12, "", &[])]);
    let settings = Settings { timeout: Duration::from_secs(2), ..along_chains() };
    let mut world = World::with(5, settings, placed(&hosts, &nets));
    let begin = Instant::now();
    let faults = world.each(|rank| {
        if rank.rank() == 3 {
            while rank.async_error().is_none() && begin.elapsed() < BOUND {
                std::thread::sleep(Duration::from_millis(5));
            }
            return None;
        }
        sum(rank, 10).expect_err("rank 3 does not come").fault()
    });
    assert!(begin.elapsed() < BOUND);
    for rank in [0, 1, 2, 4] {
        let fault = faults[rank];
        let named = match fault {
            Some(Fault::Timeout { rank, .. } | Fault::PeerAborted { rank }) => rank,
            other => panic!("rank {rank}: {other:?}"),
        };
        let timed_out = matches!(fault, Some(Fault::Timeout { .. }));
        assert!(named == Rank(3) || !timed_out, "rank {rank} blames {named}: {fault:?}");
    }
    assert!(
        faults.iter().flatten().any(|fault| matches!(fault, Fault::Timeout { rank: Rank(3), .. })),
        "{faults:?}"
    );
}

type Does = fn(&Communicator) -> Result<(), Error>;

/// Hosts that call different things: whatever the network makes of it, no rank gets a result.
#[test]
fn hosts_that_call_different_things_are_told() {
    let _deadline = Deadline::start("hosts_that_call_different_things_are_told", LIMIT);
    let (hosts, nets) = ([0, 0, 1, 1], [network(12, "", &[])]);
    let other: [(&str, Does); 3] = [
        ("count", |rank| sum(rank, 101)),
        ("operator", |rank| rank.all_reduce_in_place(&mut [1f32; 100], ReduceOp::MAX)),
        ("type", |rank| rank.all_reduce_in_place(&mut [1i32; 100], ReduceOp::SUM)),
    ];
    for (what, other) in other {
        doing(|| what.to_owned());
        let mut world = World::with(4, along_chains(), placed(&hosts, &nets));
        let begin = Instant::now();
        let errors = world.each(|rank| if rank.rank() < 2 { sum(rank, 100) } else { other(rank) });
        assert!(begin.elapsed() < BOUND, "{what}: {errors:?}");
        let mismatches = errors.iter().filter(|result| {
            matches!(result.as_ref().err().and_then(Error::fault), Some(Fault::Mismatch { .. }))
        });
        assert!(mismatches.count() > 0 && errors.iter().all(Result::is_err), "{what}: {errors:?}");
    }
}

/// Without an order the model decides, and only where a network reduces.
#[test]
fn the_model_takes_a_network_that_is_fast_enough() {
    let _deadline = Deadline::start("the_model_takes_a_network_that_is_fast_enough", LIMIT);
    let (hosts, nets) = ([0, 1, 2, 3], [network(12, "", &[])]);
    let mut world = World::with(4, Settings::default(), placed(&hosts, &nets));
    let by_size = |rank: &Communicator, count| {
        let explained = rank.explain(Func::AllReduce, DataType::F32, count).expect("an all-reduce");
        explained.expect("it is planned").choice.candidate.algorithm
    };
    let counts: Vec<u64> = (0..24).map(|k| 1 << k).collect();
    let choices: Vec<Vec<Algorithm>> =
        world.ranks.iter().map(|rank| counts.iter().map(|count| by_size(rank, *count)).collect()).collect();
    assert!(choices.iter().all(|of_rank| *of_rank == choices[0]));
    assert!(choices[0].contains(&Algorithm::CollnetChain), "{:?}", choices[0]);
    for _ in 0..3 {
        world.each(|rank| sum(rank, 100_000).unwrap());
    }
}
