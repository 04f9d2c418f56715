//! Connections that break, and those that never come about.

use super::pair::{PATIENCE, Pair, message, pair, until};
use oxccl::net::{HANDLE_BYTES, Net, NetError, NetHandle};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long an end may take to report that the other was closed or reset.
const NOTICE: Duration = Duration::from_secs(5);

/// The error of a connection that is to break.
fn error_of<T>(what: &str, mut ask: impl FnMut() -> Result<T, NetError>) -> NetError {
    let begin = Instant::now();
    let error = until(what, || ask().err());
    assert!(begin.elapsed() < NOTICE.min(PATIENCE), "{what}: reported after {:?} only", begin.elapsed());
    error
}

/// The error names the other end, and stays.
fn check_error(error: &NetError, ask: impl FnOnce() -> Result<(), NetError>) {
    assert!(error.peer().is_some_and(|peer| !peer.is_empty()), "{error:?}");
    assert_eq!(ask().as_ref(), Err(error));
}

pub fn too_long(net: &Arc<dyn Net>) {
    for (len_bytes, max_bytes) in [(101, 100), (1, 0), (300_000, 299_999)] {
        let Pair { mut send, mut recv } = pair(net);
        until("a receive", || recv.post(max_bytes).expect("the connection is whole").then_some(()));
        let mut is_sent = false;
        let error = error_of("a message that is too long", || {
            is_sent = is_sent || send.post(&message(0, len_bytes)).unwrap_or(true);
            let _ = send.oldest();
            recv.oldest()
        });
        check_error(&error, || recv.oldest().map(drop));
        let text = error.to_string();
        assert!(text.contains(&len_bytes.to_string()) || text.contains(&max_bytes.to_string()), "{text}");
    }
}

pub fn sender_leaves(net: &Arc<dyn Net>) {
    let Pair { mut send, mut recv } = pair(net);
    let lengths = [5, 0, 3000];
    for len_bytes in lengths {
        until("a receive", || recv.post(len_bytes).expect("the connection is whole").then_some(()));
    }
    until("a receive too many", || recv.post(10).expect("the connection is whole").then_some(()));
    let mut sent = 0;
    until("sends", || {
        if sent < lengths.len() {
            sent += usize::from(send.post(&message(sent, lengths[sent])).expect("the connection is whole"));
        }
        while send.oldest().expect("the connection is whole").is_some() {}
        (sent == lengths.len() && send.under_way() == 0).then_some(())
    });
    drop(send);
    for (number, len_bytes) in lengths.into_iter().enumerate() {
        let bytes = until("what was sent", || recv.oldest().expect("it was sent before the end"));
        assert!(bytes == message(number, len_bytes), "message {number}");
    }
    let error = error_of("the sender's end", || recv.oldest());
    check_error(&error, || recv.oldest().map(drop));
    if let NetError::Closed { mid_message, .. } = error {
        assert!(!mid_message, "nothing was under way");
    }
}

pub fn sender_cut(net: &Arc<dyn Net>) {
    let Pair { mut send, mut recv } = pair(net);
    // Far more than any buffer on the way holds.
    let len_bytes = 64 << 20;
    until("a receive", || recv.post(len_bytes).expect("the connection is whole").then_some(()));
    until("a send", || send.post(&vec![7; len_bytes]).expect("the connection is whole").then_some(()));
    // No buffer on the way holds that much. Only a network that writes straight into the receive's memory may be done.
    let is_done = send.oldest().expect("the connection is whole").is_some();
    drop(send);
    if is_done {
        let bytes = until("what was sent", || recv.oldest().expect("it was sent before the end"));
        assert_eq!(bytes.len(), len_bytes);
    }
    let error = error_of("a sender that left", || {
        if recv.under_way() == 0 {
            recv.post(1)?;
        }
        recv.oldest()
    });
    check_error(&error, || recv.oldest().map(drop));
}

pub fn receiver_leaves(net: &Arc<dyn Net>) {
    let Pair { mut send, mut recv } = pair(net);
    until("a receive", || recv.post(8 << 20).expect("the connection is whole").then_some(()));
    drop(recv);
    let error = error_of("a receiver that left", || {
        if !send.post(&[7; 1 << 20])? || send.under_way() > 8 {
            send.oldest()?;
        }
        Ok(())
    });
    check_error(&error, || send.post(&[7]).map(drop));
}

pub fn garbage_handles(net: &Arc<dyn Net>) {
    let (NetHandle(good), _listener) = net.listen(0).expect("device 0 listens");
    let mut damaged = good;
    damaged[0] ^= 0xff;
    for bytes in [[0; HANDLE_BYTES], [0xff; HANDLE_BYTES], damaged] {
        let error = net.connect(0, &NetHandle(bytes)).err();
        assert!(matches!(error, Some(NetError::BadHandle { .. })), "{error:?}");
    }
    assert!(!format!("{:?}", NetHandle(good)).contains(char::is_numeric), "a handle is not shown");
}

pub fn no_listener(net: &Arc<dyn Net>) {
    let (handle, listener) = net.listen(0).expect("device 0 listens");
    drop(listener);
    let mut connector = None;
    error_of("a listener that is gone", || {
        if connector.is_none() {
            connector = Some(net.connect(0, &handle)?);
        }
        let connected =
            connector.as_mut().and_then(|connector| connector.poll_connect().transpose()).transpose()?;
        assert!(connected.is_none(), "nobody is there");
        Ok(())
    });
}

pub fn given_up(net: &Arc<dyn Net>) {
    let (handle, mut listener) = net.listen(0).expect("device 0 listens");
    assert!(listener.poll_accept().expect("nobody came, which is no error").is_none());
    drop(net.connect(0, &handle));
    let _ = listener.poll_accept();
    drop(listener);
    // The network is none the worse.
    pair(net).exchange(&[1, 100_000], |len_bytes| len_bytes);
}
