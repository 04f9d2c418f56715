//! Layer: host / bootstrap.
//! Takes: what the kernel knows of the connections to this rank's neighbours in the ring.
//! Gives: [`Neighbour`]: whether a neighbour's host answers, and since when it does not.
//! Never: sends anything, or calls a host silent that owes no answer.

use oxccl_shared::abi::Rank;
use std::net::TcpStream;
use std::time::Instant;

use super::tcp_info::{Silence, is_unanswered};

/// A rank that is next to this one in the ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Neighbour {
    /// The rank.
    pub rank: Rank,
    /// Since when its host has answered nothing of what this one's kernel sent there. A process that is stopped is not silent: its kernel answers.
    pub silent_since: Option<Instant>,
}

/// This rank's neighbours.
#[derive(Debug, Default)]
pub(super) struct Silences {
    sides: [Option<(Rank, Silence)>; 2],
}

impl Silences {
    /// Asks about the connections that there are, unless it did a moment ago. A connection that has been replaced is asked about at once.
    pub fn look(&mut self, now: Instant, links: [Option<(Rank, &TcpStream)>; 2]) {
        self.update(now, links.map(|link| link.map(|(rank, stream)| (rank, || is_unanswered(stream)))));
    }

    fn update(&mut self, now: Instant, links: [Option<(Rank, impl Fn() -> bool)>; 2]) {
        for (side, link) in self.sides.iter_mut().zip(links) {
            *side = link.map(|(rank, is_unanswered)| {
                let before = side.filter(|(before, _)| *before == rank);
                let mut silence = before.map_or(Silence::default(), |(_, silence)| silence);
                silence.look(now, is_unanswered);
                (rank, silence)
            });
        }
    }

    /// The neighbours that there are.
    pub fn neighbours(&self) -> impl Iterator<Item = Neighbour> {
        let silences = self.sides.iter().flatten();
        silences.map(|(rank, silence)| Neighbour { rank: *rank, silent_since: silence.since })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn silence_begins_at_the_first_look_that_finds_it_and_ends_with_an_answer() {
        let (mut silences, start) = (Silences::default(), Instant::now());
        let mut look = |after_ms: u64, rank: u32, is_unanswered: bool| {
            let now = start + Duration::from_millis(after_ms);
            silences.update(now, [None, Some((Rank(rank), || is_unanswered))]);
            let [neighbour] = silences.neighbours().collect::<Vec<_>>()[..] else { panic!("one neighbour") };
            assert_eq!(neighbour.rank, Rank(rank));
            neighbour.silent_since.map(|since| (since - start).as_millis())
        };
        assert_eq!(look(0, 1, false), None);
        assert_eq!(look(100, 1, true), None, "too soon to ask again");
        assert_eq!(look(600, 1, true), Some(600));
        assert_eq!(look(1300, 1, true), Some(600));
        assert_eq!(look(1400, 2, false), None, "another neighbour in its place");
        assert_eq!(look(2000, 2, true), Some(2000));
        assert_eq!(look(2600, 2, false), None);
    }
}
