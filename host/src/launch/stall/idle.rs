//! For whom a rank waits during one call.

use super::standing::Idle;
use oxccl_device::traffic::Traffic;
use oxccl_shared::abi::Rank;
use std::sync::Arc;

/// What the counters of waiting said when somebody first looked at a call.
#[derive(Debug, Default)]
pub struct IdleWindow {
    /// The call's index, plus one; 0 before the first.
    call: u64,
    since: u64,
    waited: Vec<u64>,
}

impl IdleWindow {
    /// Another first look follows, of the call under way too.
    pub fn begin_anew(&mut self) {
        self.call = 0;
    }

    /// How the rank has divided its time in the call of this index between the first look and now, in ticks of the counters. `None` at
    /// the first look.
    pub fn look(&mut self, call: u64, now: u64, traffic: &[Arc<Traffic>]) -> Option<Idle> {
        let counted = || traffic.iter().map(|peer| peer.read().waited);
        if self.call != call + 1 {
            (self.call, self.since) = (call + 1, now);
            self.waited.clear();
            self.waited.extend(counted());
            return None;
        }
        let time = now.checked_sub(self.since).filter(|time| *time > 0)?;
        let waits = || counted().zip(&self.waited).map(|(now, before)| now.saturating_sub(*before));
        let (peer, longest) = (0..).map(Rank).zip(waits()).max_by_key(|(_, ticks)| *ticks)?;
        let percent = |ticks: u64| (u128::from(ticks) * 100 / u128::from(time)).min(100) as u8;
        Some(Idle { peer, for_peer: percent(longest), for_all: percent(waits().sum()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_divided_from_the_first_look_on_and_anew_for_each_call() {
        let traffic: Vec<Arc<Traffic>> = (0..3).map(|_| Arc::default()).collect();
        let mut window = IdleWindow::default();
        traffic[1].waited(1000);
        assert_eq!(window.look(0, 5000, &traffic), None);
        traffic[1].waited(100);
        traffic[2].waited(300);
        let divided = Some(Idle { peer: Rank(2), for_peer: 60, for_all: 80 });
        assert_eq!(window.look(0, 5500, &traffic), divided);
        traffic[1].waited(9000);
        assert_eq!(window.look(1, 6000, &traffic), None);
        assert_eq!(window.look(1, 6000, &traffic), None, "no time has passed");
        let busy = window.look(1, 7000, &traffic).map(|idle| (idle.for_peer, idle.for_all));
        assert_eq!(busy, Some((0, 0)));
        traffic[0].waited(u64::MAX);
        assert_eq!(window.look(1, 7001, &traffic).map(|idle| idle.for_peer), Some(100));
        window.begin_anew();
        assert_eq!(window.look(1, 7002, &traffic), None);
        assert_eq!(window.look(1, 7010, &traffic).map(|idle| idle.for_all), Some(0));
    }
}
