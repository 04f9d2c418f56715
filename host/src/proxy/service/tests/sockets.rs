//! The service over real sockets, with a real transport, and and with strangers that dial it.

use super::messages::only_frame;
use crate::bootstrap::secret::Secret;
use crate::net::loopback::Loopback;
use crate::net::{HANDLE_BYTES, Net};
use crate::proxy::progress::{ProxyChannel, ProxyEnd, ProxyOrder, ProxyParts, proxy};
use crate::proxy::service::*;
use crate::transport::p2p::{Mailbox, Party};
use oxccl_shared::abi::{ChannelId, ConnLayout, Func, Protocol, Rank, SlotHeader};
use oxccl_shared::fifo::split;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(30);
const LAYOUT: ConnLayout = ConnLayout { ll_slot_bytes: 512, ll128_slot_bytes: 1024, simple_slot_bytes: 4096 };
const SECRET: Secret = Secret::from_bytes([7; 32]);

fn start(net: &Arc<dyn Net>, rank: Rank, ranks: &[Rank]) -> (ProxyServer, MadeEnds) {
    let (transport, made) = NetTransport::new(net.clone(), 0, rank, LAYOUT).unwrap();
    let config = ProxyServerConfig {
        rank,
        ranks: ranks.into(),
        secret: SECRET,
        handshake_timeout: Duration::from_secs(5),
    };
    (ProxyServer::start(&config, Box::new(transport)).unwrap(), made)
}

fn client(server: &ProxyServer, rank: u32, proxy: u32) -> ProxyClient {
    ProxyClient::connect(server.addr(), Rank(rank), Rank(proxy), &SECRET, TIMEOUT).unwrap()
}

fn init(client: &mut ProxyClient, peer: Rank, is_send: bool) -> ConnectionId {
    let info = ConnectionInfo { peer, channel: ChannelId(0), is_send };
    match client.call(&Request::Init(info), TIMEOUT).unwrap() {
        Reply::Connection(connection) => connection,
        other => panic!("{other:?}"),
    }
}

fn set_up(client: &mut ProxyClient, connection: ConnectionId) -> Vec<u8> {
    match client.call(&Request::Setup { connection, data: vec![] }, TIMEOUT).unwrap() {
        Reply::Data(data) => data,
        other => panic!("{other:?}"),
    }
}

/// Maps the block of a connection that has been set up, as a rank of another process than its proxy does.
fn map_block(
    client: &mut ProxyClient,
    [rank, proxy]: [Rank; 2],
    connection: ConnectionId,
    layout: ConnLayout,
) -> Result<SharedBlock, BlockError> {
    let token = getrandom::u64().unwrap();
    let mailbox = Mailbox::bind(token).unwrap();
    let request = Request::GetFd { connection, handle: BLOCK_HANDLE, mailbox: token };
    let Reply::Number(from) = client.call(&request, TIMEOUT).unwrap() else { panic!("no descriptor") };
    let sender = Party { rank: proxy, token: from, pid: None };
    let fds = mailbox.exchange(rank, &[], &[sender], TIMEOUT, || true).unwrap();
    SharedBlock::open(fds.into_iter().next().unwrap(), layout)
}

fn take_end(made: &MadeEnds, connection: ConnectionId) -> ProxyEnd {
    made.lock().unwrap().remove(&connection).unwrap()
}

fn message(func: Func, peer: Rank, len_bytes: u64) -> ProxyOrder {
    let protocol = *Protocol::ALL.iter().find(|protocol| !protocol.is_flagged()).unwrap();
    ProxyOrder {
        count: len_bytes,
        grain_elems: 1,
        tag: 5,
        rank: peer,
        nchannels: 1,
        func: func as u8,
        protocol: protocol as u8,
        ..ProxyOrder::default()
    }
}

fn parts(rank: Rank, end: ProxyEnd) -> ProxyParts {
    let channels = [ProxyChannel::default()].into();
    ProxyParts { rank, nranks: 4, channels, ends: vec![end], timeout: None }
}

/// Ranks 0 and 1 are on one host and use the proxy of rank 1; rank 2 is on another, with its own. Rank 0 sends to rank 2: its
/// block lies in memory that the proxy made and rank 0 maps by a descriptor.
#[test]
fn a_rank_sends_through_the_proxy_of_another() {
    let net: Arc<dyn Net> = Arc::new(Loopback::new(1));
    let ((near, near_made), (far, far_made)) =
        (start(&net, Rank(1), &[Rank(0), Rank(1)]), start(&net, Rank(2), &[Rank(2)]));
    let (mut zero, mut one, mut two) = (client(&near, 0, 1), client(&near, 1, 1), client(&far, 2, 2));
    let (from, to) = (init(&mut zero, Rank(2), true), init(&mut two, Rank(0), false));
    assert!(set_up(&mut zero, from).is_empty());
    let handle = set_up(&mut two, to);
    assert_eq!(handle.len(), HANDLE_BYTES);
    // Both at once: neither half is connected before the other begins.
    let receiving = two.ask(&Request::Connect { connection: to, data: vec![] }).unwrap();
    assert_eq!(two.poll(receiving).unwrap(), None);
    let wrong = zero.call(&Request::Connect { connection: from, data: vec![1] }, TIMEOUT);
    assert!(
        matches!(wrong, Err(ClientError::Refused { proxy: Rank(1), refusal: Refusal::Failed(_) })),
        "{wrong:?}"
    );
    assert_eq!(
        zero.call(&Request::Connect { connection: from, data: handle }, TIMEOUT).unwrap(),
        Reply::Done
    );
    assert_eq!(two.wait(receiving, TIMEOUT).unwrap(), Reply::Done);
    let length = zero.call(&Request::QueryFd { connection: from, handle: BLOCK_HANDLE }, TIMEOUT).unwrap();
    assert_eq!(length, Reply::Number(LAYOUT.total_bytes() as u64));
    let out = map_block(&mut zero, [Rank(0), Rank(1)], from, LAYOUT).unwrap();
    let into = map_block(&mut two, [Rank(2); 2], to, LAYOUT).unwrap();
    let other = ConnLayout { simple_slot_bytes: 8192, ..LAYOUT };
    let mapped = map_block(&mut zero, [Rank(0), Rank(1)], from, other);
    assert!(matches!(mapped, Err(BlockError::Length { .. })), "{mapped:?}");
    let (mut sender, mut sending) = proxy(parts(Rank(1), take_end(&near_made, from)));
    let (mut receiver, mut receiving) = proxy(parts(Rank(2), take_end(&far_made, to)));
    sender.give(message(Func::Send, Rank(2), 5000)).unwrap();
    receiver.give(message(Func::Recv, Rank(0), 5000)).unwrap();
    // SAFETY: page aligned and zeroed; the kernels that the test plays are the only others.
    let (out_control, in_control) = unsafe { (out.base().cast().as_ref(), into.base().cast().as_ref()) };
    let (mut producer, mut consumer) = (split(out_control).0, split(in_control).1);
    for len_bytes in [4096, 904] {
        producer.publish(SlotHeader { tag: 5, len_bytes });
    }
    let since = Instant::now();
    while !(sender.is_all_done() && receiver.is_all_done()) {
        sending.do_work();
        receiving.do_work();
        assert!(since.elapsed() < TIMEOUT, "{}{}", sending.post_mortem(), receiving.post_mortem());
    }
    for len_bytes in [4096, 904] {
        assert_eq!(consumer.poll(), Some(SlotHeader { tag: 5, len_bytes }));
        consumer.release();
    }
    // Rank 0 has ended; its proxy goes on for rank 1, who closes nothing and is not asked to.
    assert_eq!(zero.call(&Request::Stop, TIMEOUT).unwrap(), Reply::Done);
    let more = init(&mut one, Rank(2), false);
    assert_eq!(set_up(&mut one, more).len(), HANDLE_BYTES);
    for last in [&mut one, &mut two] {
        assert_eq!(last.call(&Request::Stop, TIMEOUT).unwrap(), Reply::Done);
    }
    near.join();
    far.join();
}

/// Whatever comes to the port, the service goes on for its own.
#[test]
fn strangers_and_nonsense_leave_the_service_unharmed() {
    let net: Arc<dyn Net> = Arc::new(Loopback::new(1));
    let (server, _made) = start(&net, Rank(3), &[3, 5, 6, 7].map(Rank));
    let mut good = client(&server, 3, 3);
    let connection = init(&mut good, Rank(9), false);
    let dropped = |mut stream: TcpStream, bytes: &[u8]| {
        let _ = stream.write_all(bytes);
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut rest = Vec::new();
        // Its end, or a reset: not silence.
        let _ = stream.read_to_end(&mut rest);
    };
    dropped(TcpStream::connect(server.addr()).unwrap(), &[0xff; 4096]);
    let other = Secret::from_bytes([8; 32]);
    let refused = ProxyClient::connect(server.addr(), Rank(5), Rank(3), &other, TIMEOUT);
    assert!(matches!(refused, Err(ClientError::Connect { proxy: Rank(3), .. })), "{refused:?}");
    // Rank 4 is not of this host: it may prove who it is, and that is all.
    let mut stranger = client(&server, 4, 3);
    assert!(stranger.call(&Request::Stop, TIMEOUT).is_err());
    // Rank 3 again.
    let mut twice = client(&server, 3, 3);
    assert!(twice.call(&Request::Stop, TIMEOUT).is_err());
    // Ranks of this host that send what is no request: garbage, a request twice, one too long.
    let mut request = Vec::new();
    Request::Close { connection }.encode(OpId(1), &mut request);
    let repeated = [&request[..], &request[..]].concat();
    let mut long = vec![1, 3, 0, 0];
    long.extend((PAYLOAD_MAX as u32 + 1).to_le_bytes());
    for (rank, bytes) in [(5, &[1u8, 99, 0, 0, 1, 0, 0, 0, 0][..]), (6, &repeated), (7, &long)] {
        let answers = client(&server, rank, 3).answers_to(bytes, TIMEOUT);
        // The first of two is answered, if it was before the second came.
        let first = Response { op: OpId(1), result: Err(Refusal::NoConnection) };
        assert!(answers.is_empty() || Response::decode(&only_frame(&answers)) == Ok(first), "rank {rank}");
    }
    assert_eq!(set_up(&mut good, connection).len(), HANDLE_BYTES, "the good rank's connection is as it was");
    assert_eq!(good.call(&Request::Stop, TIMEOUT).unwrap(), Reply::Done);
    server.join();
}

/// A rank that dies while it waits for the network takes only its own connections with it.
#[test]
fn a_dead_rank_is_not_waited_for_and_an_abort_ends_what_waits() {
    let net: Arc<dyn Net> = Arc::new(Loopback::new(1));
    let (server, made) = start(&net, Rank(0), &[Rank(0), Rank(1)]);
    let (mut zero, mut one) = (client(&server, 0, 0), client(&server, 1, 0));
    let connections = [init(&mut zero, Rank(5), false), init(&mut one, Rank(5), false)];
    set_up(&mut zero, connections[0]);
    set_up(&mut one, connections[1]);
    let mine = zero.ask(&Request::Connect { connection: connections[0], data: vec![] }).unwrap();
    let dead = one.ask(&Request::Connect { connection: connections[1], data: vec![] }).unwrap();
    assert_eq!(one.poll(dead).unwrap(), None);
    drop(one);
    let busy = zero.call(&Request::Close { connection: connections[0] }, TIMEOUT);
    assert!(matches!(busy, Err(ClientError::Refused { refusal: Refusal::Busy, .. })), "{busy:?}");
    assert_eq!(zero.call(&Request::Abort, TIMEOUT).unwrap(), Reply::Done);
    let ended = zero.wait(mine, TIMEOUT);
    assert!(matches!(ended, Err(ClientError::Refused { refusal: Refusal::Failed(_), .. })), "{ended:?}");
    assert!(made.lock().unwrap().is_empty());
    zero.call(&Request::Stop, TIMEOUT).unwrap();
    server.join();
}

/// The last ranks to end leave connections behind whose other ends never came: one by dying, one by ending too early.
#[test]
fn a_server_ends_although_the_network_never_answers() {
    let net: Arc<dyn Net> = Arc::new(Loopback::new(1));
    let (server, made) = start(&net, Rank(0), &[Rank(0), Rank(1)]);
    let (mut zero, mut one) = (client(&server, 0, 0), client(&server, 1, 0));
    for client in [&mut zero, &mut one] {
        let connection = init(client, Rank(5), false);
        set_up(client, connection);
        let asked = client.ask(&Request::Connect { connection, data: vec![] }).unwrap();
        assert_eq!(client.poll(asked).unwrap(), None);
    }
    drop(one);
    assert_eq!(zero.call(&Request::Stop, TIMEOUT).unwrap(), Reply::Done);
    let (ended, end) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        server.join();
        ended.send(()).unwrap();
    });
    end.recv_timeout(TIMEOUT).expect("nobody is left to wait for");
    assert!(made.lock().unwrap().is_empty());
}

#[test]
fn a_server_that_is_dropped_ends_and_its_clients_learn_it() {
    let net: Arc<dyn Net> = Arc::new(Loopback::new(1));
    let (server, _made) = start(&net, Rank(0), &[Rank(0)]);
    let mut zero = client(&server, 0, 0);
    init(&mut zero, Rank(5), false);
    drop(server);
    let gone = zero.call(&Request::Stop, TIMEOUT).unwrap_err();
    assert!(matches!(gone, ClientError::Gone { proxy: Rank(0), .. }), "{gone}");
}
