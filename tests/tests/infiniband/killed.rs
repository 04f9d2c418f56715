//! A peer whose process is killed in the middle, as nothing but a second process can show.

use super::infiniband;
use oxccl::net::{HANDLE_BYTES, Net, NetError, NetHandle, NetMemory, NetMemoryKind};
use oxccl_tests::net::until;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

const LEN: usize = 4096;
/// Set in the process that is killed.
const ROLE: &str = "OXCCL_TEST_RECEIVER";

/// The receiver: prints its address, posts receives for ever, and receives everything.
#[test]
#[ignore = "needs two RoCE devices: cargo xtask test --only softroce"]
fn receiver_that_is_killed() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let net: Arc<dyn Net> = infiniband(&[]);
    let (handle, mut listener) = net.listen(1).expect("a listener");
    std::io::stderr().write_all(&handle.0).expect("the parent reads");
    let mut comm = until("the sender", || listener.poll_accept().expect("a listener"));
    let mut bytes = vec![0u8; LEN];
    let memory = NetMemory { start: bytes.as_mut_ptr().cast(), len_bytes: LEN, kind: NetMemoryKind::Host };
    // SAFETY: the memory lives as long as the process.
    let registration = unsafe { comm.register(memory) }.expect("host memory");
    loop {
        let awaited = until("room", || {
            // SAFETY: registered, and never read.
            unsafe { comm.irecv(bytes.as_mut_ptr(), LEN, registration) }.expect("the connection is whole")
        });
        until("a message", || comm.test(awaited).expect("the connection is whole"));
    }
}

fn start_receiver() -> (Child, NetHandle) {
    let program = std::env::current_exe().expect("this program");
    let mut child = Command::new(program)
        .args(["--ignored", "--exact", "--nocapture", "killed::receiver_that_is_killed"])
        .env(ROLE, "1")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a process");
    let mut handle = [0; HANDLE_BYTES];
    child.stderr.as_mut().expect("a pipe").read_exact(&mut handle).expect("the receiver listens");
    (child, NetHandle(handle))
}

#[test]
#[ignore = "needs two RoCE devices: cargo xtask test --only softroce"]
fn a_killed_receiver_is_named_within_the_second() {
    let mut bytes = vec![7u8; LEN];
    let (mut child, handle) = start_receiver();
    let net = infiniband(&[]);
    let mut connector = net.connect(0, &handle).expect("a connector");
    let mut comm = until("the receiver", || connector.poll_connect().expect("connected"));
    let memory = NetMemory { start: bytes.as_mut_ptr().cast(), len_bytes: LEN, kind: NetMemoryKind::Host };
    // SAFETY: the bytes outlive the communicator.
    let registration = unsafe { comm.register(memory) }.expect("host memory");
    let first = until("room", || {
        // SAFETY: the bytes are registered and never written.
        unsafe { comm.isend(bytes.as_ptr(), LEN, registration) }.expect("the connection is whole")
    });
    until("the first message", || comm.test(first).expect("the connection is whole"));
    child.kill().and_then(|()| child.wait()).expect("it is ours to kill");
    let killed = Instant::now();
    // What was offered may still be sent to; then no acknowledgement comes.
    let error = until("the receiver's end", || {
        // SAFETY: as above.
        match unsafe { comm.isend(bytes.as_ptr(), LEN, registration) } {
            Ok(request) => request.and_then(|request| comm.test(request).err()),
            Err(error) => Some(error),
        }
    });
    assert!(matches!(&error, NetError::Closed { device, .. } if device == "rxe0:1"), "{error}");
    assert!(error.to_string().contains("rxe1:1 (10.9.0.2)"), "{error}");
    assert!(killed.elapsed() < Duration::from_secs(5), "{:?}", killed.elapsed());
    drop(comm);
}
