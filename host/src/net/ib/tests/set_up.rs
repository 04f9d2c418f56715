//! Devices and the way to a connection.

use super::*;
use crate::net::ib::HcaFilter;
use crate::net::invitation::Invitation;
use crate::net::{HANDLE_BYTES, MemoryKinds, NetHandle};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

#[test]
#[ignore = "needs two RoCE devices: cargo xtask test --only softroce"]
fn both_devices_are_found_and_described() {
    let net = net(|_| {});
    assert_eq!((net.name(), net.devices()), ("IB", 2));
    for device in 0..2 {
        let properties = net.properties(device).expect("a device");
        assert_eq!((properties.name, properties.port), (format!("rxe{device}"), 1));
        assert_eq!(properties.memory, MemoryKinds::HOST);
        assert!(properties.speed_mbps >= 2500 && properties.comms_max > 100);
        assert_eq!(properties.message_max_bytes, 1 << 30);
    }
    assert!(matches!(net.properties(2), Err(NetError::NoDevice { device: 2, devices: 2, .. })));
}

#[test]
#[ignore = "needs two RoCE devices: cargo xtask test --only softroce"]
fn the_filter_leaves_what_it_names() {
    let one = net(|config| config.hca = HcaFilter::parse("=rxe1:1"));
    assert_eq!((one.devices(), one.properties(0).expect("a device").name), (1, "rxe1".to_owned()));
    let none = open_with(|config| config.hca = HcaFilter::parse("^rxe")).expect_err("none is left");
    assert!(
        none.to_string().contains("of 2 RDMA devices") && none.to_string().contains("NCCL_IB_HCA"),
        "{none}"
    );
}

#[test]
fn a_network_that_is_disabled_is_absent() {
    let error = open_with(|config| config.disabled = true).expect_err("it is disabled");
    assert!(
        matches!(&error, NetError::Absent { reason, .. } if reason.contains("NCCL_IB_DISABLE")),
        "{error}"
    );
}

#[test]
#[ignore = "needs two RoCE devices: cargo xtask test --only softroce"]
fn a_gid_that_does_not_exist_leaves_no_port() {
    let error = open_with(|config| config.gid_index = Some(200)).expect_err("there is none");
    assert!(matches!(error, NetError::Absent { .. }), "{error}");
}

#[test]
#[ignore = "needs two RoCE devices: cargo xtask test --only softroce"]
fn handles_of_other_networks_are_refused() {
    let error = net(|_| {}).connect(0, &NetHandle([7; HANDLE_BYTES])).err().expect("not a handle");
    assert!(matches!(error, NetError::BadHandle { .. }), "{error}");
}

#[test]
#[ignore = "needs two RoCE devices: cargo xtask test --only softroce"]
fn strangers_neither_join_nor_delay() {
    let net = net(|_| {});
    let (handle, mut listener) = net.listen(1).expect("a listener");
    let addr: SocketAddr = Invitation::from_handle(&handle, crate::net::ib::MAGIC).expect("our handle").addr;
    let mut silent = TcpStream::connect(addr).expect("a connection");
    let mut loud = TcpStream::connect(addr).expect("a connection");
    loud.write_all(&[0x55; 4096]).expect("room");
    let mut connector = net.connect(0, &handle).expect("a connector");
    let (mut sender, mut receiver, start) = (None, None, Instant::now());
    while sender.is_none() || receiver.is_none() {
        assert!(start.elapsed() < PATIENCE);
        sender = sender.or_else(|| connector.poll_connect().expect("connected"));
        receiver = receiver.or_else(|| listener.poll_accept().expect("accepted"));
    }
    // Refused at its first bytes: the connection is closed, perhaps with a reset for what was not read.
    loud.set_read_timeout(Some(PATIENCE)).expect("an option");
    assert!(matches!(loud.read(&mut [0]), Ok(0) | Err(_)));
    silent.set_nonblocking(true).expect("an option");
    assert!(silent.write_all(b"x").is_ok(), "the silent one was left alone until its time is over");
}

#[test]
#[ignore = "needs two RoCE devices: cargo xtask test --only softroce"]
fn a_peer_that_gives_up_on_the_way_is_forgotten() {
    let net = net(|_| {});
    let (handle, mut listener) = net.listen(1).expect("a listener");
    let mut first = net.connect(0, &handle).expect("a connector");
    for _ in 0..50 {
        assert!(first.poll_connect().expect("on its way").is_none());
        assert!(listener.poll_accept().expect("a listener").is_none());
        if first.poll_connect().expect("on its way").is_some() {
            break;
        }
        drop(first);
        first = net.connect(0, &handle).expect("a connector");
    }
    let (mut sender, mut receiver, start) = (None, None, Instant::now());
    while sender.is_none() || receiver.is_none() {
        assert!(start.elapsed() < PATIENCE);
        sender = sender.or_else(|| first.poll_connect().expect("connected"));
        receiver = receiver.or_else(|| listener.poll_accept().expect("accepted"));
    }
}

#[test]
#[ignore = "needs two RoCE devices: cargo xtask test --only softroce"]
fn nobody_at_the_address_is_told() {
    let net = net(|_| {});
    let (handle, listener) = net.listen(1).expect("a listener");
    drop(listener);
    let mut connector = net.connect(0, &handle).expect("a connector");
    let start = Instant::now();
    let error = loop {
        assert!(start.elapsed() < PATIENCE);
        match connector.poll_connect() {
            Ok(comm) => assert!(comm.is_none()),
            Err(error) => break error,
        }
    };
    assert!(error.to_string().contains("rxe0:1") && error.to_string().contains("127.0.0.1"), "{error}");
    assert_eq!(connector.poll_connect().err(), Some(error));
}
