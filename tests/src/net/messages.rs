//! Connections that stay whole.

use super::pair::{Pair, RecvEnd, SendEnd, message, pair, until};
use oxccl::net::{MemoryKinds, Net, NetError, NetMemory, NetMemoryKind, REQUESTS_MAX, Request};
use std::sync::Arc;

pub fn devices(net: &Arc<dyn Net>) {
    assert!(net.devices() > 0 && !net.name().is_empty());
    for device in 0..net.devices() {
        let properties = net.properties(device).expect("the device exists");
        assert!(!properties.name.is_empty() && properties.speed_mbps > 0, "{properties:?}");
        assert!(properties.memory.contains(MemoryKinds::HOST), "{properties:?}");
        assert!(properties.message_max_bytes >= 1 << 30, "{properties:?}");
    }
    let beyond = net.devices();
    for error in [net.properties(beyond).err(), net.listen(beyond).err()] {
        assert!(matches!(error, Some(NetError::NoDevice { device, .. }) if device == beyond), "{error:?}");
    }
}

/// Lengths at the borders of headers, read-ahead, stripes and their multiples.
pub fn sizes(net: &Arc<dyn Net>) {
    let mut lengths = vec![0, 1, 2, 7, 8, 9];
    for border in [16, 4096 - 16, 4096, 8192, 65_483, 65_536, 2 * 65_536, 4 * 65_536, 1 << 20, 3 << 20] {
        lengths.extend(border - 1..=border + 1);
    }
    let mut pair = pair(net);
    pair.exchange(&lengths, |len_bytes| len_bytes);
    lengths.reverse();
    pair.exchange(&lengths, |len_bytes| len_bytes + 100);
}

pub fn order(net: &Arc<dyn Net>) {
    let short: Vec<usize> = (0..3000).map(|i| i * 7919 % 300).collect();
    let mixed: Vec<usize> = (0..300).map(|i| if i % 7 == 0 { 100_000 + i } else { i * 131 % 9000 }).collect();
    let mut pair = pair(net);
    pair.exchange(&short, |_| 300);
    pair.exchange(&mixed, |_| 200_000);
}

pub fn exhausted(net: &Arc<dyn Net>) {
    let Pair { mut send, mut recv } = pair(net);
    // A network may refuse at times that it chooses, but then takes one later.
    let mut refusals = 0;
    while recv.under_way() <= REQUESTS_MAX && refusals < 1000 {
        refusals += u32::from(!recv.post(10).expect("the connection is whole"));
    }
    assert_eq!(recv.under_way(), REQUESTS_MAX);
    let (mut sent, mut refusals) = (0, 0);
    while send.under_way() <= REQUESTS_MAX && refusals < 1000 {
        let is_taken = send.post(&message(sent, 10)).expect("the connection is whole");
        sent += usize::from(is_taken);
        refusals += u32::from(!is_taken);
    }
    assert!((1..=REQUESTS_MAX).contains(&send.under_way()), "{}", send.under_way());
    until("as many messages as requests", || {
        if sent < REQUESTS_MAX {
            sent += usize::from(send.post(&message(sent, 10)).expect("the connection is whole"));
        }
        while send.oldest().expect("the connection is whole").is_some() {}
        let got = REQUESTS_MAX - recv.under_way();
        if let Some(bytes) = recv.oldest().expect("the connection is whole") {
            assert_eq!(bytes, message(got, 10));
        }
        (recv.under_way() == 0).then_some(())
    });
    Pair { send, recv }.exchange(&[10; 100], |len_bytes| len_bytes);
}

pub fn early_and_late(net: &Arc<dyn Net>) {
    let Pair { mut send, mut recv } = pair(net);
    for (number, is_early) in [true, false, false, true].into_iter().enumerate() {
        let len_bytes = 100 + 40_000 * number;
        if is_early {
            until("a receive", || recv.post(len_bytes).expect("the connection is whole").then_some(()));
            for _ in 0..20 {
                assert_eq!(recv.oldest(), Ok(None), "nothing was sent");
            }
        }
        // Some networks need the receive first.
        let mut is_sent = send.post(&message(number, len_bytes)).expect("the connection is whole");
        if !is_early {
            until("a receive", || recv.post(len_bytes).expect("the connection is whole").then_some(()));
        }
        let bytes = until("the message", || {
            is_sent = is_sent || send.post(&message(number, len_bytes)).expect("the connection is whole");
            send.oldest().expect("the connection is whole");
            recv.oldest().expect("the connection is whole")
        });
        assert!(bytes == message(number, len_bytes));
        until("the send's end", || {
            (send.under_way() == 0 || send.oldest().expect("the connection is whole").is_some()).then_some(())
        });
    }
}

pub fn any_order(net: &Arc<dyn Net>) {
    let Pair { mut send, mut recv } = pair(net);
    let lengths = [70_000, 3, 0, 200_000, 50];
    for len_bytes in lengths {
        until("a receive", || recv.post(len_bytes).expect("the connection is whole").then_some(()));
    }
    let mut sent = 0;
    for number in (0..lengths.len()).rev() {
        let bytes = until("a message", || {
            if sent < lengths.len() {
                sent +=
                    usize::from(send.post(&message(sent, lengths[sent])).expect("the connection is whole"));
            }
            while send.oldest().expect("the connection is whole").is_some() {}
            recv.at(number).expect("the connection is whole")
        });
        assert!(bytes == message(number, lengths[number]), "message {number}");
    }
}

pub fn several(net: &Arc<dyn Net>) {
    let mut pairs: Vec<Pair> = (0..6).map(|_| pair(net)).collect();
    for round in 0..5 {
        for (index, pair) in pairs.iter_mut().enumerate() {
            let lengths: Vec<usize> = (0..10).map(|i| (i + index) * 4001 * round).collect();
            pair.exchange(&lengths, |len_bytes| len_bytes);
        }
        // Connections come and go while others work.
        pairs.swap_remove(round);
        pairs.push(pair(net));
    }
}

pub fn threads(net: &Arc<dyn Net>) {
    let lengths: Vec<usize> = (0..400).map(|i| [0, 5000, 300_000, 17][i % 4] + i).collect();
    let (there, back) = (pair(net), pair(net));
    let ends = std::thread::scope(|scope| {
        let one = scope.spawn(|| send_and_receive(there.send, back.recv, &lengths));
        let other = scope.spawn(|| send_and_receive(back.send, there.recv, &lengths));
        (one.join().expect("no panic"), other.join().expect("no panic"))
    });
    // Not before both sides have everything.
    drop(ends);
}

/// One side of two that do the same: sends messages of these lengths while it receives as many.
fn send_and_receive(mut send: SendEnd, mut recv: RecvEnd, lengths: &[usize]) -> (SendEnd, RecvEnd) {
    let (mut sent, mut got) = (0, 0);
    until("two threads' messages", || {
        if sent < lengths.len() {
            sent += usize::from(send.post(&message(sent, lengths[sent])).expect("the connection is whole"));
        }
        while send.oldest().expect("the connection is whole").is_some() {}
        if recv.under_way() == 0 && got < lengths.len() {
            recv.post(lengths[got]).expect("the connection is whole");
        }
        if let Some(bytes) = recv.oldest().expect("the connection is whole") {
            assert!(bytes == message(got, lengths[got]), "message {got}");
            got += 1;
        }
        (got == lengths.len() && sent == got && send.under_way() == 0).then_some(())
    });
    (send, recv)
}

pub fn registration(net: &Arc<dyn Net>) {
    let properties = net.properties(0).expect("device 0");
    let mut pair = pair(net);
    let mut memory = vec![0u8; 1 << 16];
    let mut host = |start: usize, len_bytes: usize| NetMemory {
        start: memory[start..].as_mut_ptr().cast(),
        len_bytes,
        kind: NetMemoryKind::Host,
    };
    // SAFETY: the memory outlives the communicators, and nothing is sent from it.
    let registrations: Vec<_> = (0..64)
        .map(|i| unsafe { pair.send.comm.register(host(i * 1000, 1000)) }.expect("host memory"))
        .collect();
    for registration in registrations.into_iter().rev() {
        pair.send.comm.deregister(registration).expect("it was registered");
    }
    if !properties.memory.contains(MemoryKinds::CUDA) {
        let cuda = NetMemory { kind: NetMemoryKind::Cuda, ..host(0, 100) };
        // SAFETY: refused, so that nothing happens.
        let refused = unsafe { pair.recv.comm.register(cuda) };
        assert!(matches!(refused, Err(NetError::Unsupported { .. })), "{refused:?}");
    }
    pair.exchange(&[1, 2, 3], |len_bytes| len_bytes);
}

pub fn not_under_way(net: &Arc<dyn Net>) {
    let mut pair = pair(net);
    until("the error of a send that was never made", || pair.send.comm.test(Request(7)).err());
    until("the error of a receive that was never made", || pair.recv.comm.test(Request(0)).err());
    // Some networks need the receive first.
    until("a receive", || pair.recv.post(1).expect("the connection is whole").then_some(()));
    until("a send", || pair.send.post(b"x").expect("the connection is whole").then_some(()));
    let [request] = pair.send.requests()[..] else { panic!("one send is under way") };
    until("the message", || {
        pair.send.oldest().expect("the connection is whole");
        pair.recv.oldest().expect("the connection is whole");
        (pair.recv.under_way() == 0 && pair.send.under_way() == 0).then_some(())
    });
    until("the error of a request that is done", || pair.send.comm.test(request).err());
    pair.exchange(&[10; 50], |len_bytes| len_bytes);
}
