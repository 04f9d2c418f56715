//! Attempts to connect to one listener: which end is worth another. No sockets, no clock.
//!
//! A network that is silent for a while ends attempts that were under way: the listener gives up who does not prove itself in time, and
//! the kernel does not find the host. A flood of strangers has the same end, as listeners drop the oldest connection that has proved
//! nothing. All of these take a while. Who refuses, or dies, ends an attempt within a round trip.

use std::io;
use std::time::{Duration, Instant};

use super::sock::is_end;

/// No listener lets go of a connection sooner: less than what the acceptor calls young, and far more than a round trip.
const LET_GO_AFTER: Duration = Duration::from_millis(200);

/// The attempts so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempts {
    first: Instant,
    latest: Instant,
    /// How long a host may be unreachable.
    outage: Duration,
    was_there: bool,
}

impl Attempts {
    /// The first begins now.
    pub fn begin(now: Instant, outage: Duration) -> Attempts {
        Attempts { first: now, latest: now, outage, was_there: false }
    }

    /// The latest has ended with this error: whether another may succeed. It begins now, then.
    pub fn again(&mut self, now: Instant, error: &io::Error) -> bool {
        use io::ErrorKind::{HostUnreachable, NetworkUnreachable};
        let is_silence = matches!(error.kind(), HostUnreachable | NetworkUnreachable)
            && now.saturating_duration_since(self.first) < self.outage;
        let again =
            now.saturating_duration_since(self.latest) >= LET_GO_AFTER && (is_end(error) || is_silence);
        self.was_there |= again && is_end(error);
        self.latest = now;
        again
    }

    /// Whether somebody accepted one of them and let it go: if nobody listens any more, that one is gone.
    pub fn was_there(&self) -> bool {
        self.was_there
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(errno: i32) -> io::Error {
        io::Error::from_raw_os_error(errno)
    }

    #[test]
    fn an_attempt_that_was_let_go_is_repeated_and_one_that_was_refused_is_not() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut attempts = Attempts::begin(start, Duration::from_secs(30));
        assert!(!attempts.again(at(100), &error(libc::ECONNRESET)), "who dies or refuses does that at once");
        assert!(!attempts.was_there());
        assert!(attempts.again(at(5100), &error(libc::ECONNRESET)));
        assert!(attempts.was_there());
        assert!(attempts.again(at(60_000), &io::ErrorKind::UnexpectedEof.into()), "whatever the outage");
        for errno in [libc::ECONNREFUSED, libc::ETIMEDOUT, libc::EACCES, libc::EMFILE, libc::EADDRNOTAVAIL] {
            assert!(!Attempts::begin(start, Duration::MAX).again(at(5000), &error(errno)), "{errno}");
        }
    }

    #[test]
    fn a_host_may_be_unreachable_for_the_time_of_an_outage() {
        let start = Instant::now();
        let at = |s: u64| start + Duration::from_secs(s);
        for errno in [libc::EHOSTUNREACH, libc::ENETUNREACH] {
            let mut attempts = Attempts::begin(start, Duration::from_secs(30));
            let again: Vec<bool> =
                (1..=11).map(|attempt| attempts.again(at(3 * attempt), &error(errno))).collect();
            assert_eq!(again, [[true; 9].as_slice(), &[false; 2]].concat(), "{errno}");
            assert!(!attempts.was_there());
            let mut attempts = Attempts::begin(start, Duration::from_secs(30));
            let soon = start + Duration::from_millis(10);
            assert!(!attempts.again(soon, &error(errno)), "a route that is not there, a firewall");
        }
    }
}
