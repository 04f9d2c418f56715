//! Every loss of a connection ends in an error that names the device, the port, the peer and the cause.

use super::*;
use std::process::Command;

fn ip(arguments: &str) {
    let status = Command::new("/sbin/ip").args(arguments.split(' ')).status().expect("iproute2");
    assert!(status.success(), "ip {arguments}");
}

/// Connects or cuts the cable from the first device to the second.
fn connect_cable(is_connected: bool) {
    let second = std::fs::read_to_string("/sys/class/net/vb/address").expect("the second interface");
    let address = if is_connected { second.trim() } else { "02:00:00:00:00:99" };
    ip(&format!("neigh replace 10.9.0.2 lladdr {address} dev va"));
}

fn text_of(result: Result<usize, NetError>) -> String {
    result.expect_err("the connection is broken").to_string()
}

#[test]
#[ignore = "needs two RoCE devices: cargo xtask test --only softroce"]
fn memory_that_was_deregistered_is_a_remote_access_error() {
    let (from, mut to);
    let (mut sender, mut receiver) = pair(|_| {});
    from = Memory::new(&mut *sender, pattern(4096, 1));
    to = Memory::new(&mut *receiver, vec![0; 4096]);
    let awaited = receive(&mut *receiver, &mut to, 0, 4096);
    // The CTS entry is in flight, with a key that becomes invalid here.
    receiver.deregister(to.registration).expect("registered");
    let sent = send(&mut *sender, &from, 0, 4096).expect("begun");
    let text = text_of(finish(&mut *sender, sent));
    for part in [
        "rxe0:1",
        "rxe1:1 (10.9.0.2) of host ",
        "RDMA write of a message",
        "IBV_WC_REM_ACCESS_ERR (10",
        "key",
    ] {
        assert!(text.contains(part), "`{part}` is not in: {text}");
    }
    let text = text_of(finish(&mut *receiver, awaited));
    assert!(text.starts_with("rxe1:1") && text.contains("rxe0:1 (10.9.0.1)"), "{text}");
    assert!(to.bytes.iter().all(|byte| *byte == 0), "nothing was written");
    // Errors stay.
    assert_eq!(text_of(finish(&mut *receiver, awaited)), text);
}

/// A connection on which one message has been sent and the next is awaited.
fn ready(from: &mut Option<Memory>, to: &mut Option<Memory>) -> (Box<dyn SendComm>, Box<dyn RecvComm>) {
    // 4.096 us * 2^14 is 67 ms.
    let (mut sender, mut receiver) = pair(|config| (config.timeout, config.retry_count) = (14, 3));
    let from = from.insert(Memory::new(&mut *sender, pattern(4096, 2)));
    let to = to.insert(Memory::new(&mut *receiver, vec![0; 4096]));
    let awaited = receive(&mut *receiver, to, 0, 4096);
    let sent = send(&mut *sender, from, 0, 64).expect("begun");
    assert_eq!((finish(&mut *sender, sent), finish(&mut *receiver, awaited)), (Ok(64), Ok(64)));
    let _awaited = receive(&mut *receiver, to, 0, 4096);
    // The CTS entry arrives.
    std::thread::sleep(Duration::from_millis(200));
    (sender, receiver)
}

#[test]
#[ignore = "needs two RoCE devices: cargo xtask test --only softroce"]
fn a_cut_cable_is_told_after_the_retries() {
    let (mut from, mut to) = (None, None);
    let (mut sender, _receiver) = ready(&mut from, &mut to);
    connect_cable(false);
    let start = Instant::now();
    let sent = send(&mut *sender, from.as_ref().expect("memory"), 0, 4096).expect("begun");
    let result = finish(&mut *sender, sent);
    connect_cable(true);
    let text = text_of(result);
    for part in ["rxe0:1", "rxe1:1 (10.9.0.2) of host ", "IBV_WC_RETRY_EXC_ERR (12", "NCCL_IB_TIMEOUT"] {
        assert!(text.contains(part), "`{part}` is not in: {text}");
    }
    // Four times 67 ms at least; the device may round up, and the guest is slow.
    let took = start.elapsed();
    assert!(took > Duration::from_millis(200) && took < Duration::from_secs(10), "{took:?}");
}

/// A switch fails over in seconds: by the settings of who sets none the retries last longer, and nothing is lost.
#[test]
#[ignore = "needs two RoCE devices: cargo xtask test --only softroce"]
fn an_outage_is_survived_by_the_default_settings() {
    let (from, mut to);
    let (mut sender, mut receiver) = pair(|_| {});
    from = Memory::new(&mut *sender, pattern(1 << 20, 4));
    to = Memory::new(&mut *receiver, vec![0; 1 << 20]);
    let awaited = receive(&mut *receiver, &mut to, 0, 1 << 20);
    // The CTS entry arrives.
    std::thread::sleep(Duration::from_millis(200));
    connect_cable(false);
    let sent = send(&mut *sender, &from, 0, 1 << 20).expect("begun");
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(4) {
        assert_eq!((sender.test(sent), receiver.test(awaited)), (Ok(None), Ok(None)));
    }
    connect_cable(true);
    assert_eq!((finish(&mut *sender, sent), finish(&mut *receiver, awaited)), (Ok(1 << 20), Ok(1 << 20)));
    assert_eq!(to.bytes, pattern(1 << 20, 4));
}

#[test]
#[ignore = "needs two RoCE devices: cargo xtask test --only softroce"]
fn a_port_that_goes_down_is_named_with_the_failure() {
    let (mut from, mut to) = (None, None);
    let (mut sender, _receiver) = ready(&mut from, &mut to);
    ip("link set va down");
    std::thread::sleep(Duration::from_millis(100));
    let sent = send(&mut *sender, from.as_ref().expect("memory"), 0, 4096).expect("begun");
    let result = finish(&mut *sender, sent);
    // With the interface its routes and neighbours went.
    ip("link set va up");
    ip("route replace local 10.9.0.1 dev va table 101");
    ip("route replace 10.9.0.0/24 dev va table 101");
    connect_cable(true);
    let text = text_of(result);
    assert!(text.starts_with("rxe0:1") && text.contains("s ago the port went down"), "{text}");
}

#[test]
#[ignore = "needs two RoCE devices: cargo xtask test --only softroce"]
fn a_peer_that_is_gone_is_told_to_both_sides() {
    let (from, mut to);
    let (mut sender, receiver) = pair(|config| (config.timeout, config.retry_count) = (14, 3));
    from = Memory::new(&mut *sender, pattern(64, 3));
    drop(receiver);
    let error = send(&mut *sender, &from, 0, 64).expect_err("nobody is there");
    assert!(
        matches!(&error, NetError::Closed { device, mid_message: false, .. } if device == "rxe0:1"),
        "{error}"
    );

    let (sender, mut receiver) = pair(|_| {});
    to = Memory::new(&mut *receiver, vec![0; 64]);
    let awaited = receive(&mut *receiver, &mut to, 0, 64);
    drop(sender);
    let error = finish(&mut *receiver, awaited).expect_err("nobody is there");
    assert!(
        matches!(&error, NetError::Closed { peer, .. } if peer.starts_with("rxe0:1 (10.9.0.1)")),
        "{error}"
    );
}

#[test]
#[ignore = "needs two RoCE devices: cargo xtask test --only softroce"]
fn what_was_sent_arrives_though_the_sender_has_gone() {
    let (from, mut to);
    let (mut sender, mut receiver) = pair(|_| {});
    from = Memory::new(&mut *sender, pattern(64, 4));
    to = Memory::new(&mut *receiver, vec![0; 64]);
    let awaited = receive(&mut *receiver, &mut to, 0, 64);
    let sent = send(&mut *sender, &from, 0, 64).expect("sent");
    assert_eq!(finish(&mut *sender, sent), Ok(64));
    drop(sender);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(finish(&mut *receiver, awaited), Ok(64));
    assert_eq!(to.bytes, from.bytes);
}

#[test]
#[ignore = "needs two RoCE devices: cargo xtask test --only softroce"]
fn a_message_that_is_too_long_breaks_both_ends() {
    let (from, mut to);
    let (mut sender, mut receiver) = pair(|_| {});
    from = Memory::new(&mut *sender, pattern(128, 6));
    to = Memory::new(&mut *receiver, vec![0; 64]);
    let awaited = receive(&mut *receiver, &mut to, 0, 64);
    let error = send(&mut *sender, &from, 0, 128).expect_err("it does not fit");
    assert!(error.to_string().contains("128 bytes") && error.to_string().contains("64 bytes"), "{error}");
    let text = text_of(finish(&mut *receiver, awaited));
    assert!(text.contains("128") && text.contains("at most 64 bytes"), "{text}");
    assert!(to.bytes.iter().all(|byte| *byte == 0));
}

#[test]
#[ignore = "needs two RoCE devices: cargo xtask test --only softroce"]
fn what_the_device_does_not_reach_is_refused_by_name() {
    let (mut sender, _receiver) = pair(|_| {});
    let mut bytes = [0u8; 64];
    let memory = NetMemory { start: bytes.as_mut_ptr().cast(), len_bytes: 64, kind: NetMemoryKind::Cuda };
    // SAFETY: never registered.
    let error = unsafe { sender.register(memory) }.expect_err("there is no GPU");
    assert!(matches!(&error, NetError::Unsupported { device, .. } if device == "rxe0:1"), "{error}");
    assert!(error.to_string().contains("nvidia_peermem"), "{error}");
    let hole = NetMemory {
        start: std::ptr::without_provenance_mut(4096),
        len_bytes: 4096,
        kind: NetMemoryKind::Host,
    };
    // SAFETY: nothing is mapped there, so nothing is registered.
    let error = unsafe { sender.register(hole) }.expect_err("nothing is mapped there").to_string();
    assert!(error.contains("ibv_reg_mr") && error.contains("4096 bytes"), "{error}");
}

#[test]
#[ignore = "needs two RoCE devices: cargo xtask test --only softroce"]
fn a_forked_child_may_drop_what_it_inherited() {
    let (from, mut to);
    let net = net(|_| {});
    let (mut sender, mut receiver) = pair_of(&*net);
    from = Memory::new(&mut *sender, pattern(64, 8));
    to = Memory::new(&mut *receiver, vec![0; 64]);
    // SAFETY: the child only drops and exits, and glibc's allocator works in forked children.
    match unsafe { libc::fork() } {
        -1 => panic!("{}", std::io::Error::last_os_error()),
        0 => {
            drop((sender, receiver, net));
            // SAFETY: ends the child without running what belongs to its parent.
            unsafe { libc::_exit(7) }
        }
        child => {
            let mut status = 0;
            // SAFETY: the child is this process's, and `status` is valid for a write.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(libc::WEXITSTATUS(status), 7);
        }
    }
    let awaited = receive(&mut *receiver, &mut to, 0, 64);
    let sent = send(&mut *sender, &from, 0, 64).expect("the connection is whole");
    assert_eq!((finish(&mut *sender, sent), finish(&mut *receiver, awaited)), (Ok(64), Ok(64)));
    assert_eq!(to.bytes, from.bytes);
}
