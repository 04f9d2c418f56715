//! Attempts to connect to one listener: which end is worth another, and when. No sockets, no clock.
//!
//! A network that is silent for a while ends attempts that were under way. The listener gives up a connection that does not prove itself
//! in time. The kernel does not find the host, or its interface is down. A flood of strangers has the same end as silence: a listener
//! drops the oldest connection that has proved nothing. A listener lets nobody go at once; one that refuses, or dies, does.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::sock::is_end;

/// No listener lets go of a connection sooner: less than what the acceptor calls young, and far more than a round trip.
const LET_GO_AFTER: Duration = Duration::from_millis(200);
/// The pause before the next attempt, after a listener let one go.
const LET_GO_PAUSE: Duration = Duration::from_millis(2);
/// The same while the kernel finds no way to the host.
const NO_WAY_PAUSE: Duration = Duration::from_millis(100);

/// The attempts so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempts {
    to: SocketAddr,
    first: Instant,
    latest: Instant,
    /// How long a host may be unreachable.
    outage: Duration,
    was_there: bool,
    has_warned: bool,
}

impl Attempts {
    /// The first begins now.
    pub fn begin(to: SocketAddr, now: Instant, outage: Duration) -> Attempts {
        Attempts { to, first: now, latest: now, outage, was_there: false, has_warned: false }
    }

    /// The latest has ended with this error. If another may succeed: after which pause it begins.
    pub fn again(&mut self, now: Instant, error: &io::Error) -> Option<Duration> {
        let is_late = now.saturating_duration_since(self.latest) >= LET_GO_AFTER;
        let pause = if is_end(error) && is_late {
            self.was_there = true;
            LET_GO_PAUSE
        } else if is_no_way(error) && now.saturating_duration_since(self.first) < self.outage {
            self.warn(error);
            NO_WAY_PAUSE
        } else {
            return None;
        };
        self.latest = now + pause;
        Some(pause)
    }

    /// Whether somebody accepted one of them and let it go: if nobody listens any more, that one is gone.
    pub fn was_there(&self) -> bool {
        self.was_there
    }

    fn warn(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.has_warned, true) {
            tracing::warn!(to = %self.to, %error, outage = ?self.outage, "cannot connect, trying again");
        }
    }
}

/// Whether the kernel knows no way to the host: it answers nothing, or an interface is down.
pub(crate) fn is_no_way(error: &io::Error) -> bool {
    use io::ErrorKind::{HostUnreachable, NetworkDown, NetworkUnreachable};
    matches!(error.kind(), HostUnreachable | NetworkUnreachable | NetworkDown)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(errno: i32) -> io::Error {
        io::Error::from_raw_os_error(errno)
    }

    fn begin(start: Instant) -> Attempts {
        Attempts::begin(SocketAddr::from(([10, 0, 0, 1], 1)), start, Duration::from_secs(30))
    }

    #[test]
    fn an_attempt_that_was_let_go_is_repeated_and_one_that_was_refused_is_not() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut attempts = begin(start);
        let early = attempts.again(at(100), &error(libc::ECONNRESET));
        assert_eq!(early, None, "who dies or refuses does that at once");
        assert!(!attempts.was_there());
        assert!(attempts.again(at(5100), &error(libc::ECONNRESET)).is_some());
        assert!(attempts.was_there());
        let later = attempts.again(at(60_000), &io::ErrorKind::UnexpectedEof.into());
        assert!(later.is_some(), "whatever the outage");
        for errno in [libc::ECONNREFUSED, libc::ETIMEDOUT, libc::EACCES, libc::EMFILE, libc::EADDRNOTAVAIL] {
            assert_eq!(begin(start).again(at(5000), &error(errno)), None, "{errno}");
        }
    }

    #[test]
    fn a_host_may_be_unreachable_for_the_time_of_an_outage() {
        let start = Instant::now();
        for errno in [libc::EHOSTUNREACH, libc::ENETUNREACH, libc::ENETDOWN] {
            for step in [Duration::from_millis(1), Duration::from_secs(3)] {
                let (mut attempts, mut now, mut times) = (begin(start), start, 0);
                while let Some(pause) = attempts.again(now, &error(errno)) {
                    (now, times) = (now + pause + step, times + 1);
                }
                assert!(now >= start + Duration::from_secs(30), "{errno}: {times} times");
                assert!(now < start + Duration::from_secs(34), "{errno}: {times} times");
                assert!(!attempts.was_there());
            }
        }
    }
}
