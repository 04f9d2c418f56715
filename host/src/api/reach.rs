//! Hosts that answer nothing for a while, and come back: what is said of them.

use crate::bootstrap::Neighbour;
use oxccl_shared::abi::Rank;
use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A host that answers again sooner is not spoken of.
const SILENT_MIN: Duration = Duration::from_secs(2);

/// What this rank has said of its neighbours.
#[derive(Debug, Default)]
pub(super) struct Reach {
    /// Those that do not answer.
    unreachable: heapless::Vec<Unreachable, 2>,
    /// Silences so far.
    outages: BTreeMap<Rank, Outages>,
}

/// The silences of one rank's host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Outages {
    pub count: u64,
    /// How long they took, until the rank answered again or was gone.
    pub lasted: Duration,
}

/// A rank whose host does not answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Unreachable {
    pub rank: Rank,
    pub since: Instant,
    /// The same by the clock on the wall.
    pub at: SystemTime,
}

/// What is to be logged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Turn {
    Silent(Unreachable),
    Back(Unreachable),
}

impl Reach {
    /// Compares the neighbours with what was said of them. Of one that is gone nothing more is said: its death or departure is.
    pub(super) fn look(
        &mut self,
        (now, wall): (Instant, SystemTime),
        neighbours: &[Neighbour],
        mut turn: impl FnMut(Turn),
    ) {
        let outages = &mut self.outages;
        self.unreachable.retain(|known| {
            // One of two ranks is the other's neighbour on both sides, by a connection each.
            let mut found = neighbours.iter().filter(|neighbour| neighbour.rank == known.rank).peekable();
            let is_there = found.peek().is_some();
            let is_back = is_there && found.all(|neighbour| neighbour.silent_since.is_none());
            if is_back {
                turn(Turn::Back(*known));
            }
            let goes_on = is_there && !is_back;
            if !goes_on {
                outages.entry(known.rank).or_default().lasted += now.saturating_duration_since(known.since);
            }
            goes_on
        });
        for &Neighbour { rank, silent_since } in neighbours {
            let Some(since) =
                silent_since.filter(|since| now.saturating_duration_since(*since) >= SILENT_MIN)
            else {
                continue;
            };
            if self.of(rank).is_none() {
                let at = wall - now.saturating_duration_since(since);
                let found = Unreachable { rank, since, at };
                // There are two neighbours.
                if self.unreachable.push(found).is_ok() {
                    self.outages.entry(rank).or_default().count += 1;
                    turn(Turn::Silent(found));
                }
            }
        }
    }

    /// The silences of this rank's host, one that goes on included.
    pub(super) fn outages(&self, rank: Rank, now: Instant) -> Outages {
        let mut outages = self.outages.get(&rank).copied().unwrap_or_default();
        outages.lasted +=
            self.of(rank).map_or(Duration::ZERO, |known| now.saturating_duration_since(known.since));
        outages
    }

    /// What is known of this rank's host, if it does not answer.
    pub(super) fn of(&self, rank: Rank) -> Option<Unreachable> {
        self.unreachable.iter().copied().find(|known| known.rank == rank)
    }
}

/// `unreachable since 12:34:56 UTC, 7.0 s`
pub(super) struct Since(pub Unreachable, pub Instant);

impl fmt::Display for Since {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Since(Unreachable { since, at, .. }, now) = self;
        let of_day = at.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs() % 86_400;
        let (hours, minutes, seconds) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
        let lasted = now.saturating_duration_since(*since).as_secs_f64();
        write!(f, "unreachable since {hours:02}:{minutes:02}:{seconds:02} UTC, {lasted:.1} s")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A long silence is said once, its end too; a short one is not, nor the end of one that died in it.
    #[test]
    fn a_silence_is_said_once_and_so_is_its_end() {
        let (start, wall) = (Instant::now(), UNIX_EPOCH + Duration::from_secs(86_400 + 45_296));
        let mut reach = Reach::default();
        let mut look = |after: u64, neighbours: &[(u32, Option<u64>)]| {
            let at = |seconds: u64| start + Duration::from_secs(seconds);
            let neighbours: Vec<Neighbour> = neighbours
                .iter()
                .map(|(rank, since)| Neighbour { rank: Rank(*rank), silent_since: since.map(at) })
                .collect();
            let mut said = Vec::new();
            let now = (at(after), wall + Duration::from_secs(after));
            reach.look(now, &neighbours, |turn| {
                said.push(match turn {
                    Turn::Silent(found) => format!("{} {}", found.rank, Since(found, at(after))),
                    Turn::Back(found) => format!("{} is back, {}", found.rank, Since(found, at(after))),
                });
            });
            said
        };
        assert_eq!(look(1, &[(1, Some(0)), (2, None)]), [""; 0]);
        assert_eq!(look(1, &[(1, None), (2, None)]), [""; 0], "a second of silence");
        assert_eq!(look(7, &[(1, Some(4)), (2, None)]), ["1 unreachable since 12:35:00 UTC, 3.0 s"]);
        assert_eq!(look(9, &[(1, Some(4)), (2, Some(7))]), ["2 unreachable since 12:35:03 UTC, 2.0 s"]);
        assert_eq!(look(10, &[(1, Some(4)), (2, Some(7))]), [""; 0]);
        assert_eq!(
            look(11, &[(1, None), (2, Some(7))]),
            ["1 is back, unreachable since 12:35:00 UTC, 7.0 s"]
        );
        assert_eq!(look(12, &[(1, None)]), [""; 0], "2 has died");
        assert_eq!(look(13, &[(1, None), (2, None)]), [""; 0]);
        // Two connections to the same rank.
        assert_eq!(look(20, &[(1, None), (1, Some(15))]), ["1 unreachable since 12:35:11 UTC, 5.0 s"]);
        assert_eq!(look(21, &[(1, None), (1, Some(15))]), [""; 0]);
        assert_eq!(look(22, &[(1, None), (1, None)]), ["1 is back, unreachable since 12:35:11 UTC, 7.0 s"]);
        assert_eq!(look(30, &[(1, Some(27)), (2, None)]), ["1 unreachable since 12:35:23 UTC, 3.0 s"]);
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let outages = |rank, now| reach.outages(Rank(rank), at(now));
        // 7 s, 7 s, and one that goes on.
        assert_eq!(outages(1, 31), Outages { count: 3, lasted: Duration::from_secs(18) });
        // Until it died.
        assert_eq!(outages(2, 31), Outages { count: 1, lasted: Duration::from_secs(5) });
        assert_eq!(outages(3, 31), Outages::default());
    }
}
