//! What the kernel has counted of the data streams on which this rank sends, by peer, asked from any thread. No stream is kept open by it.

use super::tcp_info::tcp_info;
use oxccl_shared::abi::Rank;
use std::net::TcpStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// The streams to each peer.
#[derive(Debug, Default)]
pub struct Links {
    streams: Mutex<Vec<(Rank, Weak<TcpStream>)>>,
}

/// What the kernel has counted of streams to one peer, since each was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LinkCounts {
    /// Bytes that the other side's kernel has acknowledged.
    pub acked_bytes: u64,
    /// For how long bytes were under way and the other side had room for more: what took the time was the network between the two. Of
    /// several streams the longest.
    pub busy: Duration,
    /// Bytes in a second that arrived when last enough was under way to tell. Of several streams the busiest one's.
    pub delivery: u64,
    /// Segments that were sent again.
    pub retransmits: u64,
}

impl Links {
    /// Counts these streams to a peer from now on, until each is closed.
    pub fn add_all(&self, peer: Rank, new: &[Arc<TcpStream>]) {
        let mut streams = self.lock();
        streams.retain(|(_, stream)| stream.strong_count() > 0);
        streams.extend(new.iter().map(|stream| (peer, Arc::downgrade(stream))));
    }

    /// What has been counted, of each peer with streams, in any order.
    pub fn counts(&self) -> Vec<(Rank, LinkCounts)> {
        let mut found: Vec<(Rank, LinkCounts)> = Vec::new();
        for (peer, stream) in self.lock().iter() {
            let Some(counts) = stream.upgrade().and_then(|stream| ask(&stream)) else { continue };
            match found.iter_mut().find(|(known, _)| known == peer) {
                Some((_, all)) => all.add(&counts),
                None => found.push((*peer, counts)),
            }
        }
        found
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(Rank, Weak<TcpStream>)>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LinkCounts {
    fn add(&mut self, other: &LinkCounts) {
        self.acked_bytes += other.acked_bytes;
        self.retransmits += other.retransmits;
        if other.busy > self.busy {
            (self.busy, self.delivery) = (other.busy, other.delivery);
        }
    }
}

/// Places in `struct tcp_info` (Linux 4.13 and later; `include/uapi/linux/tcp.h`).
const TOTAL_RETRANS_AT: usize = 100;
const BYTES_ACKED_AT: usize = 120;
const DELIVERY_RATE_AT: usize = 160;
const BUSY_TIME_AT: usize = 168;
const RWND_LIMITED_AT: usize = 176;
const INFO_BYTES: usize = 184;

/// Asks the kernel; nothing where it says less.
fn ask(stream: &TcpStream) -> Option<LinkCounts> {
    let info: [u8; INFO_BYTES] = tcp_info(stream)?;
    let long = |at: usize| u64::from_ne_bytes(info[at..at + 8].try_into().expect("eight bytes"));
    let short =
        u32::from_ne_bytes(info[TOTAL_RETRANS_AT..TOTAL_RETRANS_AT + 4].try_into().expect("four bytes"));
    let busy_us = long(BUSY_TIME_AT).saturating_sub(long(RWND_LIMITED_AT));
    Some(LinkCounts {
        acked_bytes: long(BYTES_ACKED_AT),
        busy: Duration::from_micros(busy_us),
        delivery: long(DELIVERY_RATE_AT),
        retransmits: u64::from(short),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    fn pair() -> (Arc<TcpStream>, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (Arc::new(near), listener.accept().unwrap().0)
    }

    #[test]
    fn bytes_are_counted_by_peer_until_a_stream_is_closed() {
        let links = Links::default();
        let ((one, mut far), (two, mut far_too)) = (pair(), pair());
        links.add_all(Rank(3), std::slice::from_ref(&one));
        links.add_all(Rank(3), std::slice::from_ref(&two));
        (&*one).write_all(&[7; 5000]).unwrap();
        (&*two).write_all(&[7; 60]).unwrap();
        far.read_exact(&mut [0; 5000]).unwrap();
        far_too.read_exact(&mut [0; 60]).unwrap();
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        while links.counts().iter().all(|(_, counts)| counts.acked_bytes < 5060) {
            assert!(std::time::Instant::now() < deadline, "{:?}", links.counts());
            std::thread::yield_now();
        }
        let [(peer, counts)] = links.counts()[..] else { panic!("one peer") };
        assert_eq!(peer, Rank(3));
        // The handshake's end counts as a byte.
        assert!((5060..=5062).contains(&counts.acked_bytes), "{counts:?}");
        drop((one, two));
        assert_eq!(links.counts(), []);
    }

    /// A reader that reads nothing closes its window: that is no matter of the network.
    #[test]
    fn time_in_which_the_other_side_has_no_room_is_not_the_links() {
        let (near, _far) = pair();
        let links = Links::default();
        links.add_all(Rank(0), std::slice::from_ref(&near));
        near.set_nonblocking(true).unwrap();
        while (&*near).write(&[0; 1 << 16]).is_ok() {}
        // Until what is under way has arrived.
        std::thread::sleep(Duration::from_millis(300));
        let before = links.counts()[0].1.busy;
        std::thread::sleep(Duration::from_millis(500));
        let grown = links.counts()[0].1.busy.saturating_sub(before);
        assert!(grown < Duration::from_millis(250), "{grown:?} of 500 ms");
    }
}
