//! Messages of every kind arrive whole and in order.

use super::*;
use crate::net::REQUESTS_MAX;

/// The last two are more than a request of rdma_rxe carries.
const SIZES: [usize; 14] =
    [0, 1, 63, 64, 65, 127, 4096, 4097, 8193, 65_536, 100_001, 1 << 20, (8 << 20) + 1, (16 << 20) + 77];

/// One message of each size, one after the other.
fn one_of_each(change: impl FnOnce(&mut IbConfig)) {
    let (mut from, mut to);
    let (mut sender, mut receiver) = pair(change);
    from = Memory::new(&mut *sender, Vec::from([1; 1]));
    to = Memory::new(&mut *receiver, vec![0; 1]);
    for (i, len) in SIZES.into_iter().enumerate() {
        let text = pattern(len, i as u64);
        sender.deregister(from.registration).expect("registered");
        receiver.deregister(to.registration).expect("registered");
        from = Memory::new(&mut *sender, [&text[..], &[0]].concat());
        to = Memory::new(&mut *receiver, vec![0xee; len + 64]);
        let awaited = receive(&mut *receiver, &mut to, 0, len + 32);
        let sent = send(&mut *sender, &from, 0, len).expect("sent");
        assert_eq!(finish(&mut *receiver, awaited), Ok(len));
        assert_eq!(finish(&mut *sender, sent), Ok(len));
        assert_eq!(to.bytes[..len], text, "{len} bytes");
        assert!(to.bytes[len..].iter().all(|byte| *byte == 0xee), "nothing is written behind {len} bytes");
    }
}

#[test]
#[ignore = "needs two RoCE devices: cargo xtask test --only softroce"]
fn every_size_over_one_queue_pair() {
    one_of_each(|_| {});
}

#[test]
#[ignore = "needs two RoCE devices: cargo xtask test --only softroce"]
fn every_size_in_turn_over_three_queue_pairs() {
    one_of_each(|config| config.queue_pairs = 3);
}

#[test]
#[ignore = "needs two RoCE devices: cargo xtask test --only softroce"]
fn every_size_split_over_four_queue_pairs() {
    one_of_each(|config| (config.queue_pairs, config.split_data) = (4, true));
}

#[test]
#[ignore = "needs two RoCE devices: cargo xtask test --only softroce"]
fn every_size_with_the_notice_apart() {
    one_of_each(|config| {
        (config.queue_pairs, config.split_data) = (2, true);
        (config.adaptive_routing, config.adaptive_threshold_bytes) = (Some(true), 64);
    });
}

#[test]
#[ignore = "needs two RoCE devices: cargo xtask test --only softroce"]
fn a_thousand_messages_keep_their_order_and_no_more_than_32_are_under_way() {
    const LEN: usize = 300;
    const COUNT: usize = 1000;
    let (from, mut to);
    let (mut sender, mut receiver) = pair(|config| config.queue_pairs = 2);
    from = Memory::new(&mut *sender, pattern(LEN * COUNT, 5));
    to = Memory::new(&mut *receiver, vec![0; LEN * COUNT]);
    let (mut sent, mut received) = (Vec::new(), Vec::new());
    let (mut posted, mut begun, mut ended) = (0, 0, 0);
    let start = Instant::now();
    while ended < COUNT {
        assert!(start.elapsed() < PATIENCE, "{ended} of {COUNT} messages");
        while posted < COUNT && received.len() < REQUESTS_MAX {
            received.push(receive(&mut *receiver, &mut to, posted * LEN, LEN));
            posted += 1;
        }
        if begun < COUNT && sent.len() < REQUESTS_MAX {
            // SAFETY: as in `send`.
            let request =
                unsafe { sender.isend(from.bytes.as_ptr().add(begun * LEN), LEN, from.registration) };
            let request = request.expect("the connection works");
            begun += usize::from(request.is_some());
            sent.extend(request);
        }
        sent.retain(|request| sender.test(*request).expect("the connection works").is_none());
        received.retain(|request| {
            let len = receiver.test(*request).expect("the connection works");
            assert!(len.is_none_or(|len| len == LEN));
            ended += usize::from(len.is_some());
            len.is_none()
        });
    }
    assert_eq!(to.bytes, from.bytes);
}

#[test]
#[ignore = "needs two RoCE devices: cargo xtask test --only softroce"]
fn the_sender_waits_for_the_receiver_and_each_has_32_requests() {
    let (from, mut to);
    let (mut sender, mut receiver) = pair(|_| {});
    from = Memory::new(&mut *sender, pattern(64, 9));
    to = Memory::new(&mut *receiver, vec![0; 64]);
    // SAFETY: as in `send`.
    let early = unsafe { sender.isend(from.bytes.as_ptr(), 8, from.registration) };
    assert_eq!(early, Ok(None), "nothing is awaited yet");
    let awaited: Vec<Request> = (0..REQUESTS_MAX).map(|_| receive(&mut *receiver, &mut to, 0, 64)).collect();
    // SAFETY: as in `receive`.
    let more = unsafe { receiver.irecv(to.bytes.as_mut_ptr(), 64, to.registration) };
    assert_eq!(more, Ok(None), "32 receives are under way");
    let sent: Vec<Request> =
        (0..REQUESTS_MAX).map(|_| send(&mut *sender, &from, 0, 64).expect("sent")).collect();
    // SAFETY: as in `send`.
    assert_eq!(unsafe { sender.isend(from.bytes.as_ptr(), 8, from.registration) }, Ok(None));
    for (sent, awaited) in sent.into_iter().zip(awaited) {
        assert_eq!((finish(&mut *sender, sent), finish(&mut *receiver, awaited)), (Ok(64), Ok(64)));
    }
    assert_eq!(to.bytes, from.bytes);
}

/// Host memory needs no flush; the flush itself is tried on it, because no device memory is here.
#[test]
#[ignore = "needs two RoCE devices: cargo xtask test --only softroce"]
fn a_flush_reads_through_the_device() {
    use crate::net::ib::flush::Flusher;
    use crate::net::ib::link::{Kind, QueuePairs};
    use crate::net::ib::port::Port;
    use crate::net::ib::verbs::abi::Wc;
    use crate::net::ib::verbs::{OpenDevice, Region, Verbs};
    let net = net(|_| {});
    let (_, mut receiver) = pair_of(&*net);
    let mut memory = Memory::new(&mut *receiver, vec![7; 64]);
    // SAFETY: as in `receive`.
    let flushed = unsafe { receiver.flush(memory.bytes.as_mut_ptr(), 64, memory.registration) };
    assert_eq!(flushed, Ok(None));

    let config = config(|_| {});
    let ports = Port::all(
        &OpenDevice::all(Verbs::get().expect("verbs")).expect("devices"),
        &config,
        std::path::Path::new("/sys"),
    );
    let qps = QueuePairs::new(&ports[0], 1).expect("qps");
    let mut flusher = Flusher::new(&qps.port, &qps.cq, &config).expect("a flusher");
    // SAFETY: the buffer outlives the region.
    let region = unsafe {
        let start = memory.bytes.as_mut_ptr().cast();
        Region::of_memory(&ports[0].device, start, 64, false).expect("registered")
    };
    flusher.post(&memory.bytes[63], region.remote_key(), Kind::Flush.id(3)).expect("posted");
    let (mut completions, start) = ([Wc::default(); 4], Instant::now());
    while qps.cq.poll(&mut completions).expect("a queue") == 0 {
        assert!(start.elapsed() < PATIENCE, "the flush does not end");
    }
    assert_eq!((completions[0].status, completions[0].wr_id), (0, Kind::Flush.id(3)));
    assert_eq!(flusher.read_bytes(), [7]);
}
