//! Layer: tune.
//! Takes: the rows that were measured of one collective, and those that the file has.
//! Gives: the rows to write: a run whose time was up replaces only what it measured.
//! Never: reads or writes a file.

use super::pick::Row;
use oxccl::plan::tuning::TuneRecord;

/// The most rows that a table has of a collective.
const ROWS_MAX: usize = 16;

/// The rows of one collective, and whether old ones are among them. `old` are those that the file has of it.
pub fn rows(new: Vec<TuneRecord>, measured: &[Row], old: Vec<TuneRecord>) -> (Vec<TuneRecord>, bool) {
    let is_measured = |row: &&Row| row.times.iter().any(Option::is_some);
    let Some(end) = measured.iter().filter(is_measured).map(|row| row.bytes).max() else {
        let is_kept = !old.is_empty();
        return (old, is_kept);
    };
    let above: Vec<TuneRecord> = old.iter().filter(|record| record.row.max_bytes > end).cloned().collect();
    if above.is_empty() || measured.iter().all(|row| row.bytes <= end) {
        return (new, false);
    }
    // Both do not fit: nothing that was measured before is lost.
    if new.len() + above.len() > ROWS_MAX {
        return (old, true);
    }
    let mut rows = new;
    if let Some(last) = rows.last_mut() {
        last.row.max_bytes = end;
    }
    rows.extend(above);
    (rows, true)
}

#[cfg(test)]
mod tests {
    use super::super::pick::Times;
    use super::*;
    use oxccl::Func;
    use oxccl::plan::tuning::{Candidate, TuneRow};

    fn records(max_bytes: &[u64], candidate: usize) -> Vec<TuneRecord> {
        let row = |max_bytes| TuneRow { max_bytes, candidate: Candidate::ALL[candidate], channels: None };
        let record = |bytes: &u64| TuneRecord { func: Func::Reduce, row: row(*bytes), time_us: None };
        max_bytes.iter().map(record).collect()
    }

    fn measured(sizes: &[(u64, bool)]) -> Vec<Row> {
        let times = Times { median: 1.0, least: 1.0, greatest: 1.0, is_rough: false };
        let row = |(bytes, is_measured): &(u64, bool)| Row {
            bytes: *bytes,
            times: vec![is_measured.then_some(times)],
        };
        sizes.iter().map(row).collect()
    }

    #[test]
    fn only_what_was_measured_is_replaced() {
        let old = records(&[64, 4096, u64::MAX], 1);
        let new = || records(&[u64::MAX], 0);
        let some = measured(&[(8, true), (64, true), (1 << 20, false)]);
        let kept = [records(&[64], 0), records(&[4096, u64::MAX], 1)].concat();
        assert_eq!(rows(new(), &some, old.clone()), (kept, true));
        let nothing = measured(&[(8, false)]);
        assert_eq!(rows(Vec::new(), &nothing, old.clone()), (old.clone(), true));
        let all = measured(&[(8, true), (64, true)]);
        assert_eq!(rows(new(), &all, old), (new(), false));
        assert_eq!(rows(new(), &some, Vec::new()), (new(), false));
    }

    #[test]
    fn rows_that_do_not_fit_beside_new_ones_stay() {
        let old = records(&(1..=16).map(|row| row << 10).collect::<Vec<u64>>(), 1);
        let some = measured(&[(8, true), (1 << 20, false)]);
        assert_eq!(rows(records(&[u64::MAX], 0), &some, old.clone()), (old, true));
    }
}
