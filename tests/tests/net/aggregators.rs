//! Reduction by aggregators: the contract, what they promise beyond it, and what ends them or their jobs.

use oxccl::bootstrap::Cancel;
use oxccl::bootstrap::handshake::{Handshake, Hello, Purpose, ROOT};
use oxccl::bootstrap::secret::{Ephemeral, Secret};
use oxccl::net::aggregate::frame::{FRAGMENT_MAX, HEADER_BYTES, Header, Join, Kind, Span};
use oxccl::net::aggregate::{AggregatorConfig, Carriage, Server, ServerConfig, open};
use oxccl::net::coll::{CollConfig, CollNet, Head};
use oxccl::net::plugin::PluginConfig;
use oxccl::{Algorithm, DataType, Func, Rank, RedOp};
use oxccl_tests::case::{By, Case, Placement};
use oxccl_tests::deadline::{Deadline, doing};
use oxccl_tests::harness::{Settings, World};
use oxccl_tests::net::coll::{End, What, bad_windows, gather, heads, run_all, windows};
use oxccl_tests::net::until;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub(super) const LIMIT: Duration = Duration::from_secs(240);
/// How soon an end must have been noticed.
pub(super) const BOUND: Duration = Duration::from_secs(5);
/// The number in the handshake of a head that does not encrypt.
const IN_THE_CLEAR: u32 = 0x4f78_4167;
pub(super) const CLEAR: Carriage = Carriage::Tcp { encrypt: false };

/// A server on a thread; stopped when dropped.
pub(super) struct Running {
    pub(super) addr: SocketAddr,
    stop: Cancel,
    thread: Option<JoinHandle<()>>,
}

fn secret() -> Secret {
    Secret::from_seed(b"a test of aggregators")
}

pub(super) fn server(adapt: impl FnOnce(&mut ServerConfig)) -> Running {
    let mut config = ServerConfig::new("127.0.0.1:0".parse().unwrap(), secret());
    adapt(&mut config);
    let server = Server::bind(config).expect("a port");
    let (addr, stop) = (server.local_addr(), Cancel::default());
    let until = stop.clone();
    let thread = Some(std::thread::spawn(move || server.serve(&until).expect("poll works")));
    Running { addr, stop, thread }
}

impl Running {
    pub(super) fn stop(&mut self) {
        self.stop.cancel();
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(ended.is_none_or(|ended| ended.is_ok()), "the server panicked");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
    }
}

pub(super) fn config(servers: &[&Running]) -> AggregatorConfig {
    AggregatorConfig {
        servers: servers.iter().map(|server| server.addr.to_string()).collect(),
        secret: Ok(secret()),
        connect_timeout: BOUND,
        peer_dead_after: BOUND,
        net: None,
    }
}

fn network(servers: &[&Running]) -> Arc<dyn CollNet> {
    open(&config(servers), CLEAR).expect("addresses and a secret")
}

pub(super) fn sum(count: usize) -> What {
    What::all_reduce(count, DataType::F32, RedOp::Sum)
}

pub(super) fn floats(values: impl Iterator<Item = f32>) -> Vec<u8> {
    values.flat_map(f32::to_le_bytes).collect()
}

pub(super) fn post(end: &mut End, what: &What, input: &[u8]) {
    assert_eq!(end.post(what, input, input.len()), Ok(true));
}

pub(super) fn result(end: &mut End) -> Vec<u8> {
    until("a result", || end.oldest().expect("all are there"))
}

#[test]
fn aggregators_keep_the_contract() {
    let _deadline = Deadline::start("aggregators_keep_the_contract", LIMIT);
    let [one, other, third] = [0; 3].map(|_| server(|_| {}));
    run_all("one aggregator", &network(&[&one]));
    run_all("three aggregators", &network(&[&one, &other, &third]));
}

#[test]
fn any_window_is_gathered_and_scattered() {
    let _deadline = Deadline::start("any_window_is_gathered_and_scattered", LIMIT);
    let [one, other, third] = [0; 3].map(|_| server(|_| {}));
    for net in [network(&[&one]), network(&[&one, &other, &third])] {
        windows(&net, 60, 11);
        bad_windows(&net);
    }
}

/// Sums of floats whose order matters, of several fragments, whoever comes first.
#[test]
fn bits_do_not_depend_on_who_comes_first() {
    let _deadline = Deadline::start("bits_do_not_depend_on_who_comes_first", LIMIT);
    let running = server(|_| {});
    let net = network(&[&running]);
    let count = FRAGMENT_MAX / 2 + 4;
    let value =
        |head: usize, i: usize| ((i * 7919 + head * 104_729) % 1_000_003) as f32 * 1.37 - 6e5 * head as f32;
    let expected = floats((0..count).map(|i| (1..4).fold(value(0, i), |sum, head| sum + value(head, i))));
    let orders = [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]];
    for (order, is_scattered) in orders.iter().flat_map(|order| [(order, false), (order, true)]) {
        let mut ends = heads(&net, 4);
        let what = match is_scattered {
            false => sum(count),
            true => What { func: Func::ReduceScatter, ..sum(count / 4) },
        };
        let mut got: Vec<Option<Vec<u8>>> = vec![None; 4];
        for &head in order {
            let input = floats((0..count).map(|i| value(head, i)));
            assert_eq!(ends[head].post(&what, &input, what.reduction.len_bytes()), Ok(true));
            for _ in 0..50 {
                // The last one may have its result at once.
                if got[head].is_none() {
                    got[head] = ends[head].oldest().expect("a result or none yet");
                }
                assert!(got[head].is_none() || head == order[3], "{head} of {order:?} has a result already");
            }
        }
        until("all results", || {
            for (end, got) in ends.iter_mut().zip(&mut got).filter(|(end, _)| end.under_way() > 0) {
                *got = end.oldest().expect("all are there");
            }
            ends.iter().all(|end| end.under_way() == 0).then_some(())
        });
        match is_scattered {
            false => assert!(got.iter().all(|got| got.as_ref() == Some(&expected)), "{order:?}"),
            true => assert!(got.into_iter().flatten().flatten().eq(expected.iter().copied()), "{order:?}"),
        }
    }
}

/// A head that sends nothing, and one that does not fetch its results, stop their own job only.
#[test]
fn a_stalled_job_does_not_stop_another() {
    let _deadline = Deadline::start("a_stalled_job_does_not_stop_another", LIMIT);
    let running = server(|_| {});
    let net = network(&[&running]);
    let mut stalled = heads(&net, 3);
    let long = vec![0; 8 << 20];
    for _ in 0..4 {
        post(&mut stalled[0], &sum(long.len() / 4), &long);
        post(&mut stalled[2], &sum(long.len() / 4), &long);
    }
    let mut ends = heads(&net, 2);
    for k in 0..50 {
        for end in &mut ends {
            post(end, &sum(70_001), &floats((0..70_001).map(|i| (i + k) as f32)));
        }
        let results = [0, 1].map(|head| result(&mut ends[head]));
        assert!(results.iter().all(|got| *got == floats((0..70_001).map(|i| 2.0 * (i + k) as f32))));
        assert_eq!(stalled[0].oldest(), Ok(None));
    }
    // The stalled one goes on when its last head does.
    for _ in 0..4 {
        post(&mut stalled[1], &sum(long.len() / 4), &long);
    }
    until("the stalled job", || {
        for end in &mut stalled {
            assert!(end.oldest().expect("all are there").is_none_or(|got| got == long));
        }
        stalled.iter().all(|end| end.under_way() == 0).then_some(())
    });
}

/// Results that are complete reach a head that asks late, after another has gone: also those of the second server, though the first one's
/// connection has ended by then.
#[test]
fn a_head_that_is_done_may_leave_before_the_others_have_asked() {
    let _deadline = Deadline::start("a_head_that_is_done_may_leave_before_the_others_have_asked", LIMIT);
    let [one, other, third] = [0; 3].map(|_| server(|_| {}));
    for servers in [vec![&one], vec![&one, &other, &third]] {
        let mut ends = heads(&network(&servers), 2);
        let (late, early) = (&mut ends.remove(1), &mut ends);
        for k in 0..8 {
            let input = floats((0..1000).map(|i| (i * k) as f32));
            post(late, &sum(1000), &input);
            post(&mut early[0], &sum(1000), &input);
        }
        (0..8).for_each(|_| _ = result(&mut early[0]));
        early.clear();
        std::thread::sleep(Duration::from_millis(200));
        for k in 0..8 {
            assert_eq!(result(late), floats((0..1000).map(|i| 2.0 * (i * k) as f32)));
        }
        post_until_error(late, &[0; 4], "head 0 of 2");
    }
}

/// Begins sums of `input` until there is an error, which the first may be.
pub(super) fn post_until_error(end: &mut End, input: &[u8], part: &str) {
    let post = |end: &mut End| end.post(&sum(input.len() / 4), input, input.len());
    let error = match post(end) {
        Err(error) => error,
        Ok(_) => until("an error", || end.oldest().err()),
    };
    assert!(error.to_string().contains(part), "{error}");
}

#[test]
fn what_ends_a_server_or_keeps_it_away_is_said() {
    let _deadline = Deadline::start("what_ends_a_server_or_keeps_it_away_is_said", LIMIT);
    let mut running = server(|_| {});
    let net = network(&[&running]);
    let mut ends = heads(&net, 2);
    post(&mut ends[0], &sum(10), &[0; 40]);
    let begin = Instant::now();
    running.stop();
    assert!(begin.elapsed() < BOUND, "{:?}", begin.elapsed());
    for end in &mut ends {
        post_until_error(end, &[0; 40], "the aggregator was stopped");
    }
    // Nobody listens there any more.
    let (mut listeners, handles) = gather(&net, 1);
    let mut joining = listeners.remove(0).join(&handles, 0).expect("a handle");
    let error = until("a refusal", || joining.poll_join().err()).to_string();
    assert!(error.contains("oxccl aggregate") && error.contains(&running.addr.to_string()), "{error}");
    let none = AggregatorConfig { secret: Err("no secret".to_owned()), ..config(&[&running]) };
    assert!(open(&none, CLEAR).expect_err("there is none").to_string().contains("no secret"));
}

/// The error of joining one head alone, or of two.
fn refused(net: &Arc<dyn CollNet>, count: u32) -> String {
    let (mut listeners, handles) = gather(net, count);
    let mut joining = listeners.remove(0).join(&handles, 0).expect("a handle");
    until("a refusal", || joining.poll_join().err()).to_string()
}

#[test]
fn strangers_the_greedy_and_the_lonely_are_refused() {
    let _deadline = Deadline::start("strangers_the_greedy_and_the_lonely_are_refused", LIMIT);
    let running = server(|config| {
        config.memory_max_bytes = 8 << 20;
        config.join_timeout = Duration::from_millis(300);
    });
    let net = network(&[&running]);
    let mut ends = heads(&net, 2);
    let wrong = AggregatorConfig { secret: Ok(Secret::from_seed(b"another")), ..config(&[&running]) };
    let error = refused(&open(&wrong, CLEAR).expect("it is a secret"), 1);
    assert!(error.contains("another secret"), "{error}");
    let error = refused(&net, 3);
    assert!(error.contains("--memory") && error.contains("4 of 8 MiB"), "{error}");
    let error = refused(&net, 2);
    assert!(error.contains("1 of 2 heads") && error.contains("head 1 did not"), "{error}");
    // Other servers than the other head's.
    let other = server(|_| {});
    let (mut listeners, mut handles) = gather(&net, 2);
    handles[1] = gather(&network(&[&other]), 1).1[0];
    let error = listeners.remove(0).join(&handles, 0).err().expect("it differs").to_string();
    assert!(error.contains("head 1's handle") && error.contains("OXCCL_AGGREGATOR"), "{error}");
    // None of that touched the job that was there.
    for end in &mut ends {
        post(end, &sum(2), &floats([1.0, 2.0].into_iter()));
    }
    assert_eq!([0, 1].map(|head| result(&mut ends[head])), [(); 2].map(|()| floats([2.0, 4.0].into_iter())));
}

/// A connection that has proved the secret and says what it likes.
fn raw(addr: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(addr).expect("it listens");
    stream.set_read_timeout(Some(BOUND)).unwrap();
    let hello = Hello { purpose: Purpose::Stream(IN_THE_CLEAR), from: Rank(0), to: ROOT, tag: 0 };
    let mut handshake = Handshake::initiator(secret(), hello, Ephemeral::random().unwrap());
    loop {
        let sent = stream.write(handshake.output()).unwrap();
        handshake.sent(sent);
        if let Some(outcome) = handshake.outcome() {
            outcome.expect("it is the secret");
            return stream;
        }
        let mut bytes = vec![0; handshake.wanted_bytes()];
        stream.read_exact(&mut bytes).unwrap();
        handshake.feed(&bytes);
    }
}

/// Why the server has ended the connection.
fn farewell(mut stream: TcpStream) -> String {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("an end in order");
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn malformed_frames_end_their_own_job() {
    let _deadline = Deadline::start("malformed_frames_end_their_own_job", LIMIT);
    let running = server(|_| {});
    let net = network(&[&running]);
    let mut bystanders = heads(&net, 2);
    let mut older = Join { job: [0; 16], head: Head { index: 0, count: 1 } }.to_bytes();
    older[4] = 1;
    let older = (older, "version 1 of the aggregator's protocol; this is version 3");
    for (bytes, said) in [([0x55; 32], "no message of an aggregator"), older] {
        let mut stream = raw(running.addr);
        stream.write_all(&bytes).unwrap();
        assert!(farewell(stream).contains(said));
    }
    let reduce = Header { kind: Kind::Reduce(DataType::F32, RedOp::Sum), len_bytes: 8, seq: 0 };
    let bytes = |header: Header| header.to_bytes()[..header.kind.header_bytes()].to_vec();
    let mut damaged = bytes(reduce);
    damaged[1] = 200;
    let huge = Header { len_bytes: u32::MAX, ..reduce };
    let gather =
        |head_bytes, start| bytes(Header { kind: Kind::Gather(Span { head_bytes, start }), ..reduce });
    let scatter = |head_bytes, start| {
        let kind = Kind::Scatter(DataType::F32, RedOp::Sum, Span { head_bytes, start });
        bytes(Header { kind, ..reduce })
    };
    let bad: [(Vec<u8>, &str); 12] = [
        (damaged.clone(), "no message of an aggregator"),
        (bytes(huge), "a length of 4294967295 bytes"),
        (bytes(Header { seq: 7, ..reduce }), "where fragment 0 was due"),
        (bytes(Header { kind: Kind::Result, ..reduce }), "where fragment 0 was due"),
        (bytes(Header { len_bytes: 4, ..reduce }), "not all do the same"),
        (vec![0xff; 4096], "no message of an aggregator"),
        (gather(4, 0), "not all do the same"),
        (gather(4, 1), "not within the heads' blocks"),
        (gather(0, 0), "blocks of 0 bytes"),
        (scatter(4, 0), "not all do the same"),
        (scatter(6, 0), "blocks of 6 bytes"),
        (scatter(u64::MAX - 3, u64::MAX - 3), "blocks of 18446744073709551612 bytes"),
    ];
    for (number, (bytes, said)) in (0u8..).zip(bad) {
        let mut both = [0, 1].map(|index| {
            let mut stream = raw(running.addr);
            let join = Join { job: [number; 16], head: Head { index, count: 2 } };
            stream.write_all(&join.to_bytes()).unwrap();
            stream
        });
        for stream in &mut both {
            stream.read_exact(&mut [0; HEADER_BYTES]).expect("a welcome");
        }
        both[0].write_all(&reduce.to_bytes()[..HEADER_BYTES]).unwrap();
        both[0].write_all(&[0; 8]).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        both[1].write_all(&bytes).unwrap();
        for text in both.map(farewell) {
            assert!(text.contains(said) && text.contains("head 1 of 2"), "{text}");
        }
    }
    for end in &mut bystanders {
        post(end, &sum(1), &[0; 4]);
    }
    bystanders.iter_mut().for_each(|end| _ = result(end));
}

/// A server that kept a fragment until all of it had come made an operation take its way up and its way down one after the other.
#[test]
fn the_beginning_of_a_result_comes_while_heads_send_the_rest() {
    let _deadline = Deadline::start("the_beginning_of_a_result_comes_while_heads_send_the_rest", LIMIT);
    let running = server(|_| {});
    let mut heads = [0, 1].map(|index| {
        let mut stream = raw(running.addr);
        let join = Join { job: [9; 16], head: Head { index, count: 2 } };
        stream.write_all(&join.to_bytes()).unwrap();
        stream
    });
    let kind = Kind::Reduce(DataType::U8, RedOp::Sum);
    let fragment = Header { kind, len_bytes: FRAGMENT_MAX as u32, seq: 0 };
    let half = vec![1; FRAGMENT_MAX / 2];
    for stream in &mut heads {
        stream.read_exact(&mut [0; HEADER_BYTES]).expect("a welcome");
        stream.write_all(&fragment.to_bytes()[..HEADER_BYTES]).unwrap();
        stream.write_all(&half).unwrap();
    }
    let mut results = [0, 0];
    for (stream, result) in heads.iter_mut().zip(&mut results) {
        *result += part(stream);
        assert!((1..=half.len()).contains(result), "{result}");
    }
    heads.iter_mut().for_each(|stream| stream.write_all(&half).unwrap());
    for (stream, result) in heads.iter_mut().zip(&mut results) {
        while *result < FRAGMENT_MAX {
            *result += part(stream);
        }
        assert_eq!(*result, FRAGMENT_MAX);
    }
}

/// Reads a frame of the result of fragment 0, whose bytes are 2. Returns its length.
fn part(stream: &mut TcpStream) -> usize {
    let mut header = [0; HEADER_BYTES];
    stream.read_exact(&mut header).expect("a part of the result");
    let header = Header::from_bytes(&header).expect("a header");
    assert_eq!((header.kind, header.seq), (Kind::Result, 0));
    let mut bytes = vec![0; header.len_bytes as usize];
    stream.read_exact(&mut bytes).expect("its bytes");
    assert!(bytes.iter().all(|byte| *byte == 2));
    bytes.len()
}

/// A head that dies in the middle of a fragment.
#[test]
fn a_head_that_is_cut_is_named() {
    let _deadline = Deadline::start("a_head_that_is_cut_is_named", LIMIT);
    let running = server(|_| {});
    let mut ends = heads(&network(&[&running]), 3);
    let long = vec![0; 32 << 20];
    post(&mut ends[1], &sum(long.len() / 4), &long);
    ends.remove(1);
    let begin = Instant::now();
    for end in &mut ends {
        post_until_error(end, &long, "head 1 of 3");
    }
    assert!(begin.elapsed() < BOUND, "{:?}", begin.elapsed());
}

/// All-reduces, reduce-scatters and all-gathers of communicators on three hosts, every type and operator against the oracle, over two
/// aggregators.
#[test]
fn communicators_reduce_through_aggregators() {
    let _deadline = Deadline::start("communicators_reduce_through_aggregators", LIMIT);
    let (one, other) = (server(|_| {}), server(|_| {}));
    let aggregators = Some(config(&[&one, &other]));
    let hosts = [0, 0, 1, 2, 2];
    for encrypt in [false, true] {
        let settings = Settings { algorithm: Some(Algorithm::CollnetChain), ..Settings::default() };
        let world = World::with(5, settings, |rank, config| {
            config.host_id = Some(format!("host {}", hosts[rank as usize]));
            let aggregators = aggregators.clone();
            config.net.coll = CollConfig { enabled: true, aggregators, ..CollConfig::default() };
            config.net.plugins = PluginConfig::parse("none");
            config.net.socket.encrypt = encrypt;
        });
        reduce(world);
    }
}

fn reduce(mut world: World) {
    for &dtype in DataType::ALL {
        for &op in RedOp::ALL {
            for (seed, count) in [(1, 1), (2, 150_011)] {
                let placement = Placement::ALL[(op as usize + seed) % Placement::ALL.len()];
                let func = Func::AllReduce;
                let case = Case { func, dtype, op, root: 0, count, placement, seed: seed as u64 };
                doing(|| format!("{case:?}"));
                case.check(&mut world, By::Threads).unwrap();
                let case = Case { func: Func::ReduceScatter, count: count.div_ceil(5), ..case };
                doing(|| format!("{case:?}"));
                case.check(&mut world, By::Threads).unwrap();
                if op == RedOp::Sum {
                    let case = Case { func: Func::AllGather, ..case };
                    doing(|| format!("{case:?}"));
                    case.check(&mut world, By::Threads).unwrap();
                }
            }
        }
    }
    for func in [Func::AllReduce, Func::ReduceScatter, Func::AllGather] {
        let explained = world.ranks[0].explain_with(func, DataType::F16, RedOp::Sum, 1000);
        let plan = explained.expect("a collective").expect("it is planned");
        assert_eq!(plan.choice.candidate.algorithm, Algorithm::CollnetChain);
    }
}
