//! Collectives over encrypted sockets, past a relay that changes what ranks say.

use oxccl::bootstrap::InterfaceFilter;
use oxccl::net::socket::{self, SocketConfig};
use oxccl::net::{Connector, Listener, Net, NetConfig, NetError, NetHandle, NetProperties};
use oxccl::{Error, Fault, ReduceOp, TransportKind};
use oxccl_tests::deadline::{Deadline, doing};
use oxccl_tests::harness::{Settings, World};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

const BOUND: Duration = Duration::from_secs(10);
/// HELLO and PROOF of the handshake: what the connecting side says before its first record.
const HANDSHAKE_BYTES: usize = 80 + 16;
/// Where a handle has the listener's port, and its address of IPv4.
const PORT_AT: usize = 7;
const IP_AT: usize = 9;

/// Sockets to whose listeners only a relay leads, which changes one bit of every connection.
#[derive(Debug)]
struct Relayed {
    inner: Arc<dyn Net>,
    flip_at: usize,
}

impl Net for Relayed {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn devices(&self) -> u32 {
        self.inner.devices()
    }

    fn encrypts(&self) -> bool {
        self.inner.encrypts()
    }

    fn properties(&self, device: u32) -> Result<NetProperties, NetError> {
        self.inner.properties(device)
    }

    fn listen(&self, device: u32) -> Result<(NetHandle, Box<dyn Listener>), NetError> {
        let (mut handle, listener) = self.inner.listen(device)?;
        let port = u16::from_le_bytes([handle.0[PORT_AT], handle.0[PORT_AT + 1]]);
        assert_eq!(handle.0[IP_AT..IP_AT + 4], [127, 0, 0, 1]);
        handle.0[PORT_AT..PORT_AT + 2].copy_from_slice(&relay(port, self.flip_at).to_le_bytes());
        Ok((handle, listener))
    }

    fn connect(&self, device: u32, handle: &NetHandle) -> Result<Box<dyn Connector>, NetError> {
        self.inner.connect(device, handle)
    }
}

/// A relay of one connection; its port.
fn relay(port: u16, flip_at: usize) -> u16 {
    let gate = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let own = gate.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        let near = gate.accept().expect("a connection").0;
        let far = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("it listens");
        let back = (far.try_clone().expect("one more"), near.try_clone().expect("one more"));
        std::thread::spawn(move || forward(back.0, back.1, None));
        forward(near, far, Some(flip_at));
    });
    own
}

fn forward(mut from: TcpStream, mut to: TcpStream, flip_at: Option<usize>) {
    let (mut buffer, mut forwarded) = ([0; 4096], 0);
    while let Ok(got @ 1..) = from.read(&mut buffer) {
        let bytes = &mut buffer[..got];
        if let Some(byte) = flip_at.and_then(|at| bytes.get_mut(at.checked_sub(forwarded)?)) {
            *byte ^= 0x10;
        }
        forwarded += got;
        if to.write_all(bytes).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

/// What rank 1 receives is changed: it names the rank from which that came, and all ranks end with the name of a rank.
#[test]
fn a_bit_changed_between_two_ranks_ends_in_an_error_that_names_the_rank() {
    let test = "a_bit_changed_between_two_ranks_ends_in_an_error_that_names_the_rank";
    let _deadline = Deadline::start(test, Duration::from_secs(120));
    for at in [0, 30, 40_000] {
        doing(|| format!("a bit of byte {at}"));
        let interfaces = InterfaceFilter::parse("=lo");
        let encrypted =
            SocketConfig { interfaces, ipv6: Some(false), encrypt: true, ..SocketConfig::default() };
        let settings = Settings { transport: Some(TransportKind::Net), ..Settings::default() };
        let mut world = World::with(2, settings, |rank, config| {
            let inner = socket::open(&encrypted).expect("the kernel lists its interfaces");
            let flip_at = HANDSHAKE_BYTES + at;
            let own: Arc<dyn Net> = if rank == 1 { Arc::new(Relayed { inner, flip_at }) } else { inner };
            config.net = NetConfig { own: Some(own), socket: encrypted.clone(), ..NetConfig::default() };
        });
        let begin = Instant::now();
        let errors = world.each(|rank| {
            let mut buffer = vec![1f32; 30_000];
            loop {
                if let Err(error) = rank.all_reduce_in_place(&mut buffer, ReduceOp::MAX) {
                    return error;
                }
                // Whatever was changed was not in the result.
                assert!(buffer.iter().all(|value| *value == 1.0));
            }
        });
        assert!(begin.elapsed() < BOUND, "byte {at}: {:?}", begin.elapsed());
        let text = errors[1].to_string();
        let Error::Operation(operation) = &errors[1] else { panic!("byte {at}: {text}") };
        assert!(matches!(operation.fault(), Fault::Link { .. }), "byte {at}: {text}");
        assert!(text.contains("link from rank 0") && text.contains("were changed on the way"), "{text}");
        assert!(errors[0].to_string().contains("rank 1"), "byte {at}: {}", errors[0]);
    }
}
