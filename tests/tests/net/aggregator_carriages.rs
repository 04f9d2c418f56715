//! Aggregators whose data are encrypted, or go by the messages of a network: the contract, and what ends them.

use super::aggregators::{
    BOUND, CLEAR, LIMIT, Running, config, floats, post, post_until_error, result, server, sum,
};
use super::{sealed, sockets, unlucky};
use oxccl::net::Net;
use oxccl::net::aggregate::{Carriage, open};
use oxccl::net::coll::CollNet;
use oxccl::net::loopback::Loopback;
use oxccl_tests::deadline::Deadline;
use oxccl_tests::net::coll::{End, bad_windows, gather, heads, run_all, windows};
use oxccl_tests::net::until;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Instant;

const SEALED: Carriage = Carriage::Tcp { encrypt: true };

fn network(servers: &[&Running], carriage: &Carriage) -> Arc<dyn CollNet> {
    open(&config(servers), carriage.clone()).expect("addresses and a secret")
}

#[test]
fn encrypted_they_keep_the_contract() {
    let _deadline = Deadline::start("encrypted_they_keep_the_contract", LIMIT);
    let [one, other, third] = [0; 3].map(|_| server(|config| config.encrypt = true));
    run_all("one aggregator, encrypted", &network(&[&one], &SEALED));
    let three = network(&[&one, &other, &third], &SEALED);
    run_all("three aggregators, encrypted", &three);
    windows(&three, 40, 12);
    bad_windows(&three);
}

#[test]
fn over_networks_they_keep_the_contract() {
    let _deadline = Deadline::start("over_networks_they_keep_the_contract", LIMIT);
    let nets: [(&str, Arc<dyn Net>); 4] = [
        ("loopback", Arc::new(Loopback::new(1))),
        ("sockets", sockets(1, false)),
        ("encrypted sockets", sealed(0)),
        ("an unlucky loopback", unlucky(Arc::new(Loopback::new(2)), 5)),
    ];
    for (name, net) in nets {
        let [one, other] = [0; 2].map(|_| server(|config| config.net = Some(net.clone())));
        let carriage = Carriage::Network(net);
        run_all(&format!("one aggregator over {name}"), &network(&[&one], &carriage));
        let two = network(&[&one, &other], &carriage);
        run_all(&format!("two aggregators over {name}"), &two);
        windows(&two, 20, 13);
    }
}

/// Heads of one job may reach the server each in its own way.
#[test]
fn heads_differ_in_how_their_data_go() {
    let _deadline = Deadline::start("heads_differ_in_how_their_data_go", LIMIT);
    let net: Arc<dyn Net> = Arc::new(Loopback::new(1));
    let running = server(|config| config.net = Some(net.clone()));
    let nets = [CLEAR, SEALED, Carriage::Network(net)].map(|carriage| network(&[&running], &carriage));
    let (mut listeners, mut handles) = (Vec::new(), Vec::new());
    for net in &nets {
        let (mut listener, handle) = gather(net, 1);
        listeners.append(&mut listener);
        handles.extend(handle);
    }
    let mut joining: Vec<_> = (0..)
        .zip(listeners)
        .map(|(index, listener)| listener.join(&handles, index).expect("a handle"))
        .collect();
    let mut comms: Vec<_> = joining.iter().map(|_| None).collect();
    until("three heads", || {
        for (joining, comm) in joining.iter_mut().zip(&mut comms).filter(|(_, comm)| comm.is_none()) {
            *comm = joining.poll_join().expect("all are there");
        }
        comms.iter().all(Option::is_some).then_some(())
    });
    let mut ends: Vec<End> = comms.into_iter().flatten().map(|comm| End::new(comm, 3)).collect();
    for round in 0..5 {
        let count = 70_000 * round + 1;
        for end in &mut ends {
            post(end, &sum(count), &floats((0..count).map(|i| (i % 1000) as f32)));
        }
        let expected = floats((0..count).map(|i| 3.0 * (i % 1000) as f32));
        // One thread drives all of them: none waits alone.
        let mut results = vec![None; ends.len()];
        until("three results", || {
            for (end, got) in ends.iter_mut().zip(&mut results).filter(|(_, got)| got.is_none()) {
                *got = end.oldest().expect("all are there");
            }
            results.iter().all(Option::is_some).then_some(())
        });
        assert!(results.into_iter().flatten().all(|got| got == expected));
    }
}

/// The refusal of a head, and who it names.
fn refused(net: &Arc<dyn CollNet>) -> String {
    let (mut listeners, handles) = gather(net, 1);
    let mut joining = listeners.remove(0).join(&handles, 0).expect("a handle");
    until("a refusal", || joining.poll_join().err()).to_string()
}

#[test]
fn what_a_server_does_not_offer_is_said() {
    let _deadline = Deadline::start("what_a_server_does_not_offer_is_said", LIMIT);
    let strict = server(|config| config.encrypt = true);
    let error = refused(&network(&[&strict], &CLEAR));
    assert!(error.contains("OXCCL_ENCRYPT") && error.contains(&strict.addr.to_string()), "{error}");
    let loopback: Arc<dyn Net> = Arc::new(Loopback::new(0));
    let net = Carriage::Network(loopback.clone());
    let stricter = server(|config| (config.encrypt, config.net) = (true, Some(loopback)));
    let error = refused(&network(&[&stricter], &net));
    assert!(error.contains("OXCCL_ENCRYPT"), "{error}");
    let plain = server(|_| {});
    let error = refused(&network(&[&plain], &net));
    assert!(error.contains("--net") && error.contains("OXCCL_AGGREGATOR_NET"), "{error}");
    // Networks that are not each other's.
    let other = server(|config| config.net = Some(sockets(0, false)));
    let error = refused(&network(&[&other], &net));
    assert!(error.contains("the other rank's handle"), "{error}");
}

/// Heads that leave, and a server that stops, whatever carries the data.
#[test]
fn ends_are_noticed_whatever_carries_the_data() {
    let _deadline = Deadline::start("ends_are_noticed_whatever_carries_the_data", LIMIT);
    let net: Arc<dyn Net> = sockets(1, false);
    for carriage in [SEALED, Carriage::Network(net.clone())] {
        let mut running = server(|config| config.net = Some(net.clone()));
        let mut ends = heads(&network(&[&running], &carriage), 3);
        let long = vec![0; 32 << 20];
        post(&mut ends[1], &sum(long.len() / 4), &long);
        ends.remove(1);
        let begin = Instant::now();
        for end in &mut ends {
            post_until_error(end, &long, "head 1 of 3");
        }
        assert!(begin.elapsed() < BOUND, "{:?}", begin.elapsed());
        let mut ends = heads(&network(&[&running], &carriage), 2);
        for _ in 0..3 {
            ends.iter_mut().for_each(|end| post(end, &sum(100_000), &[1; 400_000]));
            ends.iter_mut().for_each(|end| _ = result(end));
        }
        running.stop();
        for end in &mut ends {
            post_until_error(end, &[0; 40], "the aggregator was stopped");
        }
    }
}

/// A relay before a server: it keeps what heads send, and changes one byte at that place of one connection.
fn relay(to: SocketAddr, change: Option<usize>) -> (SocketAddr, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let kept = seen.clone();
    std::thread::spawn(move || {
        for (number, here) in listener.incoming().flatten().enumerate() {
            let there = TcpStream::connect(to).unwrap();
            let (mut back, mut home) = (there.try_clone().unwrap(), here.try_clone().unwrap());
            std::thread::spawn(move || _ = std::io::copy(&mut back, &mut home));
            let (kept, change) = (kept.clone(), change.filter(|_| number == 0));
            std::thread::spawn(move || forward(here, there, &kept, change));
        }
    });
    (addr, seen)
}

fn forward(mut here: TcpStream, mut there: TcpStream, kept: &Mutex<Vec<u8>>, change: Option<usize>) {
    let (mut bytes, mut at) = (vec![0; 64 << 10], 0);
    while let Ok(got @ 1..) = here.read(&mut bytes) {
        if let Some(change) = change.filter(|change| (at..at + got).contains(change)) {
            bytes[change - at] ^= 4;
        }
        kept.lock().unwrap().extend(&bytes[..got]);
        at += got;
        if there.write_all(&bytes[..got]).is_err() {
            break;
        }
    }
    let _ = there.shutdown(Shutdown::Write);
}

#[test]
fn nothing_goes_by_in_the_clear_and_what_is_changed_is_found() {
    let _deadline = Deadline::start("nothing_goes_by_in_the_clear", LIMIT);
    let running = server(|_| {});
    let input: Vec<u8> = (0..400_000u32).flat_map(|i| ((i * 7919 % 100_000) as f32).to_le_bytes()).collect();
    let shows =
        |seen: &Mutex<Vec<u8>>| seen.lock().unwrap().windows(64).any(|it| it == &input[64_000..64_064]);
    let through = |addr: SocketAddr, carriage: &Carriage| {
        let mut config = config(&[&running]);
        config.servers = vec![addr.to_string()];
        heads(&open(&config, carriage.clone()).expect("addresses and a secret"), 2)
    };
    for (carriage, is_seen) in [(CLEAR, true), (SEALED, false)] {
        let (addr, seen) = relay(running.addr, None);
        let mut ends = through(addr, &carriage);
        // One fragment: a socket's buffers have room for it while the other end waits.
        ends.iter_mut().for_each(|end| post(end, &sum(60_000), &input[..240_000]));
        ends.iter_mut().for_each(|end| _ = result(end));
        assert_eq!(shows(&seen), is_seen, "{carriage:?}");
    }
    // Beyond the handshake and the join.
    for change in [2_000, 300_001] {
        let (addr, _seen) = relay(running.addr, Some(change));
        for end in &mut through(addr, &SEALED) {
            post_until_error(end, &input, "were changed on the way");
        }
    }
    // The server goes on.
    let mut ends = heads(&open(&config(&[&running]), SEALED).expect("a secret"), 1);
    post(&mut ends[0], &sum(10), &input[..40]);
    assert_eq!(result(&mut ends[0]), input[..40]);
}
