//! Layer: host / bootstrap.
//! Takes: a TCP connection, and what its owner calls too long a silence.
//! Gives: what the kernel knows of it (`struct tcp_info`); [`Silence`]: since when the host at its other end answers nothing;
//!   [`HostWatch`]: whether that host has vanished.
//! Never: sends anything, or calls a host silent that owes no answer.

use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// How often the kernel is asked whether the other side answers.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Transmissions of the same bytes, or probes, without an answer that are no accident: TCP sends them some 0.2 and 0.6 s after the first.
const UNANSWERED_MIN: u8 = 2;

/// The first `N` bytes of `struct tcp_info` (`include/uapi/linux/tcp.h`); nothing where the kernel says less.
pub(super) fn tcp_info<const N: usize>(stream: &TcpStream) -> Option<[u8; N]> {
    let mut info = [0u8; N];
    let mut len = N as libc::socklen_t;
    // SAFETY: the descriptor is open; the kernel writes at most `len` bytes, which the array has.
    let result = unsafe {
        let to = info.as_mut_ptr().cast();
        libc::getsockopt(stream.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, to, &mut len)
    };
    (result == 0 && len as usize == N).then_some(info)
}

/// Whether the other side's kernel owes answers to several packets. A process that is stopped is not silent: its kernel answers.
pub(super) fn is_unanswered(stream: &TcpStream) -> bool {
    // State, congestion state, retransmissions and probes since the last answer.
    let Some([_, _, retransmits, probes]) = tcp_info(stream) else { return false };
    retransmits >= UNANSWERED_MIN || probes >= UNANSWERED_MIN
}

/// Since when the host at the other end of a connection has answered nothing, as far as this was looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Silence {
    looked_at: Option<Instant>,
    pub since: Option<Instant>,
}

impl Silence {
    /// Looks, unless it did a moment ago; whether it did.
    pub fn look(&mut self, now: Instant, is_unanswered: impl FnOnce() -> bool) -> bool {
        let is_due = self.looked_at.is_none_or(|at| now >= at + LOOK_EVERY);
        if is_due {
            self.looked_at = Some(now);
            self.since = is_unanswered().then_some(self.since.unwrap_or(now));
        }
        is_due
    }
}

/// Finds out that the host at the other end of a connection has vanished while bytes are on their way to it. The kernel would repeat them for a
/// quarter of an hour: it probes idle connections only, and its time limit for others holds for a host too that answers but reads nothing.
#[derive(Debug)]
pub(crate) struct HostWatch {
    dead_after: Duration,
    silence: Silence,
}

impl HostWatch {
    /// Of a host that counts as gone after a silence of so long.
    pub fn new(dead_after: Duration) -> HostWatch {
        HostWatch { dead_after, silence: Silence::default() }
    }

    /// Looks, unless it did a moment ago.
    ///
    /// # Errors
    /// `TimedOut`, as the kernel has it for idle connections: the host has been silent for too long.
    pub fn look(&mut self, stream: &TcpStream) -> io::Result<()> {
        self.update(Instant::now(), || is_unanswered(stream))
    }

    fn update(&mut self, now: Instant, is_unanswered: impl FnOnce() -> bool) -> io::Result<()> {
        let has_looked = self.silence.look(now, is_unanswered);
        let is_dead = |since| now.duration_since(since) >= self.dead_after;
        if !has_looked || !self.silence.since.is_some_and(is_dead) {
            return Ok(());
        }
        let what = format!("its host has answered nothing for {:?} (OXCCL_OUTAGE)", self.dead_after);
        Err(io::Error::new(io::ErrorKind::TimedOut, what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_vanished_once_it_was_silent_for_so_long_without_an_answer() {
        let mut watch = HostWatch::new(Duration::from_secs(2));
        let start = Instant::now();
        let mut look = |after_ms: u64, is_unanswered: bool| {
            watch
                .update(start + Duration::from_millis(after_ms), || is_unanswered)
                .map_err(|error| error.kind())
        };
        assert_eq!(look(0, false), Ok(()));
        assert_eq!(look(100, true), Ok(()), "too soon to ask");
        assert_eq!(look(600, true), Ok(()));
        assert_eq!(look(2500, true), Ok(()));
        assert_eq!(look(3100, false), Ok(()), "an answer");
        assert_eq!(look(3700, true), Ok(()));
        assert_eq!(look(5600, true), Ok(()));
        assert_eq!(look(6200, true), Err(io::ErrorKind::TimedOut));
    }

    #[test]
    fn a_connection_whose_other_end_reads_nothing_is_not_silent() {
        use std::io::Write;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let _far = listener.accept().unwrap().0;
        near.set_nonblocking(true).unwrap();
        // Until the other end's window is closed.
        while near.write(&[0; 1 << 16]).is_ok() {}
        std::thread::sleep(Duration::from_millis(1200));
        assert!(!is_unanswered(&near));
    }
}
