//! The whole link over real TCP, and what it costs.

use super::error::{Direction, LinkError};
use super::link::{StreamRecv, StreamSend};
use super::testing::{LAYOUT, Message, Reader, Writer, block};
use oxccl_shared::abi::{ConnLayout, Protocol, Rank, SlotHeader, Step};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (near, listener.accept().unwrap().0)
}

/// The producing host: kernel and link end.
fn sending(socket: TcpStream, layout: ConnLayout) -> (Writer, StreamSend<'static>) {
    let block = block(layout);
    let base = NonNull::new(block.base()).unwrap();
    // SAFETY: the block vouches for the memory; this is its only consumer.
    let link = unsafe { StreamSend::new(socket, Rank(1), base, layout) }.unwrap();
    (Writer::new(block), link)
}

/// The consuming host: link end and kernel.
fn receiving(socket: TcpStream, layout: ConnLayout) -> (StreamRecv<'static>, Reader) {
    let block = block(layout);
    let base = NonNull::new(block.base()).unwrap();
    // SAFETY: the block vouches for the memory; this is its only producer; the reader runs on the link's thread.
    let link = unsafe { StreamRecv::new(socket, Rank(0), base, layout) }.unwrap();
    (link, Reader::new(block))
}

#[test]
fn all_protocols_over_loopback() {
    let messages: Vec<Message> = (0..900)
        .map(|i| {
            let protocol = Protocol::ALL[i / 100 % 3];
            Message::new(protocol, i as u32, i * 7919 % 17_000, &LAYOUT)
        })
        .collect();
    let (near, far) = sockets();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut writer, mut link) = sending(near, LAYOUT);
            let mut last = messages[0].protocol;
            for message in &messages {
                while last != message.protocol && !link.is_idle(writer.step()) {
                    link.progress(last).unwrap();
                }
                last = message.protocol;
                while !writer.send(message) {
                    link.progress(last).unwrap();
                }
            }
            while !link.is_idle(writer.step()) {
                link.progress(last).unwrap();
            }
        });
        scope.spawn(|| {
            let (mut link, mut reader) = receiving(far, LAYOUT);
            for message in &messages {
                let received = loop {
                    if let Some(received) = reader.recv(message.protocol) {
                        break received;
                    }
                    link.progress().unwrap();
                };
                assert!(received == *message, "tag {}", message.tag);
            }
            let closed = LinkError::PeerClosed {
                peer: Rank(0),
                direction: Direction::From,
                step: Step(900),
                mid_frame: false,
            };
            let error = loop {
                if let Err(error) = link.progress() {
                    break error;
                }
            };
            assert_eq!(error, closed);
            assert_eq!(link.progress(), Err(closed), "a dead link stays dead");
            assert!(error.to_string().contains("from rank 0: closed by the peer at step 900"), "{error}");
        });
    });
}

#[test]
fn a_sender_learns_that_its_peer_is_gone() {
    let (near, far) = sockets();
    let (mut writer, mut link) = sending(near, LAYOUT);
    drop(far);
    let message = Message::new(Protocol::LL, 1, 8, &LAYOUT);
    let deadline = Instant::now() + Duration::from_secs(10);
    let error = loop {
        writer.send(&message);
        if let Err(error) = link.progress(Protocol::LL) {
            break error;
        }
        assert!(Instant::now() < deadline);
    };
    assert!(
        matches!(error, LinkError::PeerClosed { peer: Rank(1), direction: Direction::To, .. }),
        "{error:?}"
    );
}

/// Large slots for the measurements.
const BULK: ConnLayout =
    ConnLayout { ll_slot_bytes: 16384, ll128_slot_bytes: 32768, simple_slot_bytes: 128 << 10 };

/// Runs both ends on threads of their own; the time until both are done.
fn timed(near: impl FnOnce(TcpStream) + Send, far: impl FnOnce(TcpStream) + Send) -> Duration {
    let (near_socket, far_socket) = sockets();
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| near(near_socket));
        far(far_socket);
    });
    start.elapsed()
}

/// The best of some runs each, taken in turns: other work on the machine only ever adds time.
fn best<const N: usize>(runs: usize, measured: [&dyn Fn() -> Duration; N]) -> [Duration; N] {
    let mut best = [Duration::MAX; N];
    for _ in 0..runs {
        for (best, measured) in best.iter_mut().zip(measured) {
            *best = measured().min(*best);
        }
    }
    best
}

/// Links of full 128 KiB slots, their socket buffers left to the kernel or fixed, against a bare loop of `write` and
/// `read` of the same size. None touches the bytes.
#[test]
#[ignore = "measurement"]
fn measure_throughput() {
    const ROUNDS: usize = 4000;
    const BYTES: usize = 128 << 10;
    let header = SlotHeader { tag: 1, len_bytes: BYTES as u32 };
    let bare = || {
        timed(
            |mut socket| {
                let bytes = vec![1; BYTES];
                (0..ROUNDS).for_each(|_| socket.write_all(&bytes).unwrap());
            },
            |mut socket| {
                let mut bytes = vec![0; BYTES];
                (0..ROUNDS).for_each(|_| socket.read_exact(&mut bytes).unwrap());
            },
        )
    };
    let link = |buffer_bytes: Option<usize>| {
        timed(
            |socket| {
                if let Some(bytes) = buffer_bytes {
                    rustix::net::sockopt::set_socket_send_buffer_size(&socket, bytes).unwrap();
                }
                let (mut writer, mut link) = sending(socket, BULK);
                while link.step().0 < ROUNDS as u64 {
                    if writer.step().0 < ROUNDS as u64 {
                        writer.publish_unfilled(header);
                    }
                    yield_if_idle(link.progress(Protocol::Simple));
                }
            },
            |socket| {
                if let Some(bytes) = buffer_bytes {
                    rustix::net::sockopt::set_socket_recv_buffer_size(&socket, bytes).unwrap();
                }
                let (mut link, mut reader) = receiving(socket, BULK);
                let mut received = 0;
                while received < ROUNDS {
                    yield_if_idle(link.progress());
                    while reader.discard() {
                        received += 1;
                    }
                }
            },
        )
    };
    let fixed = |bytes| move || link(Some(bytes));
    let times = best(
        15,
        [&bare, &|| link(None), &fixed(256 << 10), &fixed(512 << 10), &fixed(1 << 20), &fixed(4 << 20)],
    );
    let [bare, tuned, k256, k512, m1, m4] =
        times.map(|time| (ROUNDS * BYTES) as f64 / time.as_secs_f64() / 1e9);
    report(format_args!("GB/s: bare {bare:.2}, link {tuned:.2}"));
    report(format_args!(
        "with fixed buffers: 256 KiB {k256:.2}, 512 KiB {k512:.2}, 1 MiB {m1:.2}, 4 MiB {m4:.2}"
    ));
}

/// Half a round trip of 8 bytes, against the same with bare non-blocking sockets, one for each direction too.
#[test]
#[ignore = "measurement"]
fn measure_latency() {
    const ROUNDS: u32 = 4000;
    let bare = || {
        let (back_near, back_far) = sockets();
        let there = move |socket| bare_ping(socket, back_near, true);
        timed(there, move |socket| bare_ping(back_far, socket, false))
    };
    let link = |protocol: Protocol| {
        let message = Message::new(protocol, 1, 8, &BULK);
        let (back_near, back_far) = sockets();
        let side = |there: TcpStream, back: TcpStream, is_first: bool| {
            let (mut writer, mut send) = sending(there, BULK);
            let (mut recv, mut reader) = receiving(back, BULK);
            for round in 0..2 * ROUNDS {
                if (round % 2 == 0) == is_first {
                    assert!(writer.send(&message));
                    send.progress(protocol).unwrap();
                } else {
                    while reader.recv(protocol).is_none() {
                        yield_if_idle(recv.progress());
                    }
                }
            }
            // Returned, so that both ends stay open until both are done.
            (send, recv)
        };
        let there = move |socket| drop(side(socket, back_near, true));
        timed(there, move |socket| drop(side(back_far, socket, false)))
    };
    fn bare_ping(mut there: TcpStream, mut back: TcpStream, is_first: bool) {
        there.set_nodelay(true).unwrap();
        back.set_nonblocking(true).unwrap();
        let mut bytes = [0; 32];
        for round in 0..2 * ROUNDS {
            if (round % 2 == 0) == is_first {
                there.write_all(&bytes).unwrap();
            } else {
                while back.read(&mut bytes).is_err() {
                    std::thread::yield_now();
                }
            }
        }
    }
    let times =
        best(15, [&bare, &|| link(Protocol::ALL[0]), &|| link(Protocol::ALL[1]), &|| link(Protocol::ALL[2])]);
    let [bare, first, second, third] = times.map(|time| time.as_secs_f64() * 1e6 / f64::from(2 * ROUNDS));
    report(format_args!("us one way: bare {bare:.2}, {:?} {first:.2} {second:.2} {third:.2}", Protocol::ALL));
}

/// What an executor with nothing else to do does: on a busy machine the other end needs this core.
fn yield_if_idle(progress: Result<usize, LinkError>) {
    if progress.unwrap() == 0 {
        std::thread::yield_now();
    }
}

/// A measurement's outcome, past the test harness's capture and the ban on printing in the library.
fn report(line: std::fmt::Arguments<'_>) {
    writeln!(std::io::stdout(), "{line}").unwrap();
}
