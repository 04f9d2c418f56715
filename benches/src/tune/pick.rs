//! Layer: tune.
//! Takes: what each candidate took at each size.
//! Gives: the rows of a table: what is fastest up to where.
//! Never: measures.

use oxccl::Func;
use oxccl::plan::tuning::{Candidate, TuneRecord, TuneRow};

/// A candidate that is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Way {
    pub candidate: Candidate,
    /// As many channels, or as the plan says.
    pub channels: Option<u16>,
}

/// What one candidate took at one size, in microseconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Times {
    pub median: f64,
    pub least: f64,
    pub greatest: f64,
    /// Whether it was given up after its first operations, as too slow to be looked at again.
    pub is_rough: bool,
}

/// The measurements of one size, by way; none where a way was not measured.
#[derive(Clone, Debug)]
pub struct Row {
    pub bytes: u64,
    pub times: Vec<Option<Times>>,
}

/// The winner of the size before stays, unless another way is faster by more than the noise of a quiet machine.
const NOISE: f64 = 1.05;

/// Which way is fastest at each size. Least times decide: other work lengthens rounds and never shortens one.
pub fn winners(rows: &[Row]) -> Vec<Option<usize>> {
    let mut before: Option<usize> = None;
    rows.iter()
        .map(|row| {
            let least = |way: usize| row.times[way].filter(|times| !times.is_rough).map(|times| times.least);
            let measured = (0..row.times.len()).filter_map(|way| Some((way, least(way)?)));
            let (best, best_us) = measured.min_by(|a, b| a.1.total_cmp(&b.1))?;
            let stays = before.filter(|way| least(*way).is_some_and(|us| us <= best_us * NOISE));
            before = Some(stays.unwrap_or(best));
            before
        })
        .collect()
}

/// Neighbours that agree become one row. Between two sizes that do not, the border is in the middle, by factors.
pub fn records(func: Func, ways: &[Way], rows: &[Row]) -> Vec<TuneRecord> {
    let won = winners(rows);
    let mut won: Vec<(usize, &Row)> =
        won.iter().zip(rows).filter_map(|(way, row)| Some(((*way)?, row))).collect();
    won.sort_by_key(|(_, row)| row.bytes);
    let mut records = Vec::new();
    for (at, (way, row)) in won.iter().enumerate() {
        let next = won.get(at + 1);
        if next.is_some_and(|(next, _)| next == way) {
            continue;
        }
        let max_bytes = next.map_or(u64::MAX, |(_, next)| between(row.bytes, next.bytes));
        let Way { candidate, channels } = ways[*way];
        let time_us = row.times[*way].map(|times| [times.median, times.least, times.greatest].map(rounded));
        records.push(TuneRecord { func, row: TuneRow { max_bytes, candidate, channels }, time_us });
    }
    records
}

fn between(low: u64, high: u64) -> u64 {
    ((low as f64 * high as f64).sqrt() as u64).clamp(low, high.saturating_sub(1).max(low))
}

/// Nanoseconds are enough.
fn rounded(us: f64) -> f64 {
    (us * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(times: &[(u64, &[f64])]) -> Vec<Row> {
        let exact = |us: &f64| {
            let is_rough = *us < 0.0;
            Some(Times { median: us.abs(), least: us.abs(), greatest: us.abs(), is_rough })
        };
        times.iter().map(|(bytes, us)| Row { bytes: *bytes, times: us.iter().map(exact).collect() }).collect()
    }

    #[test]
    fn the_fastest_wins_and_noise_does_not() {
        let rows = rows(&[(8, &[1.0, 2.0]), (64, &[1.04, 1.0]), (512, &[3.0, 2.0]), (4096, &[4.0, 4.1])]);
        assert_eq!(winners(&rows), [Some(0), Some(0), Some(1), Some(1)]);
    }

    #[test]
    fn what_was_given_up_never_wins() {
        assert_eq!(winners(&rows(&[(8, &[-1.0, 2.0])])), [Some(1)]);
        assert_eq!(winners(&rows(&[(8, &[-1.0, -2.0])])), [None]);
    }

    #[test]
    fn borders_lie_between_sizes_that_disagree() {
        let ways: Vec<Way> = Candidate::ALL.map(|candidate| Way { candidate, channels: None }).to_vec();
        let rows = rows(&[(16, &[1.0, 2.0]), (64, &[1.0, 2.0]), (1024, &[5.0, 2.0]), (4096, &[5.0, 2.0])]);
        let records = records(Func::Reduce, &ways, &rows);
        let found: Vec<_> = records.iter().map(|r| (r.row.max_bytes, r.row.candidate, r.time_us)).collect();
        assert_eq!(
            found,
            [(256, ways[0].candidate, Some([1.0; 3])), (u64::MAX, ways[1].candidate, Some([2.0; 3]))]
        );
        assert_eq!(between(8, 8), 8);
        assert_eq!(between(8, 9), 8);
    }
}
