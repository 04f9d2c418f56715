//! How the streams on which a rank sends have spent one call.

use crate::bootstrap::LinkCounts;
use oxccl_shared::abi::Rank;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// A link from the rank that says it, in the part of a call that was looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LinkUse {
    /// The other end.
    pub peer: Rank,
    /// Per cent of the time in which bytes were under way and the other end had room for more.
    pub busy: u8,
    /// Bytes that arrived.
    pub bytes: u64,
    /// kB/s that arrive while enough is under way: what the link can.
    pub delivery_kbps: u32,
    /// Milliseconds looked at.
    pub time_ms: u32,
    /// Segments sent again.
    pub retransmits: u32,
}

impl LinkUse {
    /// kB/s that the link can carry: what it has carried, if the kernel's last sample says less. One acknowledgement that comes late makes a
    /// sample small.
    pub fn can_kbps(&self) -> u32 {
        let carried = self.bytes / u64::from(self.time_ms.max(1));
        self.delivery_kbps.max(carried.min(u64::from(u32::MAX)) as u32)
    }

    /// MB/s.
    pub fn rate(&self) -> f64 {
        self.bytes as f64 / f64::from(self.time_ms.max(1)) / 1e3
    }
}

/// What was counted when somebody first looked at a call.
#[derive(Debug, Default)]
pub struct LinkWindow {
    /// The call's number, and when it was.
    began: Option<(u64, Instant)>,
    counts: Vec<(Rank, LinkCounts)>,
}

impl LinkWindow {
    /// The two links that have been busiest in this call since the first look, the busiest first. `None` at the first look.
    pub fn look(
        &mut self,
        call: u64,
        now: Instant,
        counts: Vec<(Rank, LinkCounts)>,
    ) -> Option<[Option<LinkUse>; 2]> {
        let Some((_, began)) = self.began.filter(|(of, _)| *of == call) else {
            (self.began, self.counts) = (Some((call, now)), counts);
            return None;
        };
        let time = now.saturating_duration_since(began);
        let mut uses: Vec<LinkUse> =
            counts.iter().filter_map(|(peer, now)| self.of(*peer, now, time)).collect();
        uses.sort_by_key(|link| std::cmp::Reverse((link.busy, link.bytes)));
        Some([uses.first().copied(), uses.get(1).copied()])
    }

    /// A link over which something has gone since.
    fn of(&self, peer: Rank, now: &LinkCounts, time: Duration) -> Option<LinkUse> {
        let before = self.counts.iter().find(|(known, _)| *known == peer);
        let before = before.map(|(_, counts)| *counts).unwrap_or_default();
        let busy = now.busy.saturating_sub(before.busy).as_micros() * 100 / time.as_micros().max(1);
        let bytes = now.acked_bytes.saturating_sub(before.acked_bytes);
        (bytes > 0 || busy > 0).then_some(LinkUse {
            peer,
            busy: busy.min(100) as u8,
            bytes,
            delivery_kbps: (now.delivery / 1000).min(u64::from(u32::MAX)) as u32,
            time_ms: time.as_millis().min(u128::from(u32::MAX)) as u32,
            retransmits: now.retransmits.saturating_sub(before.retransmits).min(u64::from(u32::MAX)) as u32,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_busiest_links_of_a_call_are_told_from_the_second_look_on() {
        let (mut window, start) = (LinkWindow::default(), Instant::now());
        let counts = |acked_bytes: u64, busy_ms: u64| LinkCounts {
            acked_bytes,
            busy: Duration::from_millis(busy_ms),
            delivery: acked_bytes * 10_000,
            retransmits: acked_bytes / 1000,
        };
        let at = |peer, acked_bytes, busy_ms| (Rank(peer), counts(acked_bytes, busy_ms));
        assert_eq!(window.look(4, start, vec![at(1, 5000, 100), at(2, 0, 0), at(3, 9, 9)]), None);
        let later = start + Duration::from_millis(1000);
        let now = vec![at(1, 8000, 250), at(2, 7000, 970), at(3, 9, 9)];
        let [first, second] = window.look(4, later, now.clone()).unwrap().map(Option::unwrap);
        assert_eq!(first, LinkUse { delivery_kbps: 70_000, ..first });
        assert_eq!((first.peer, first.busy, first.bytes, first.time_ms), (Rank(2), 97, 7000, 1000));
        assert_eq!((second.peer, second.busy, second.retransmits), (Rank(1), 15, 3));
        assert_eq!(window.look(5, later, now.clone()), None, "another call");
        assert_eq!(
            window.look(5, later + Duration::from_secs(1), now),
            Some([None, None]),
            "nothing has gone"
        );
    }
}
