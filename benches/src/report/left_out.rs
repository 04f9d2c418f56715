//! What the time budget left out of a run, and which budget would do.

use crate::collective::Collective;
use crate::row::{Cell, NO_TIME};

/// Of what was foreseen, so many times as much is enough: rounds become more where there is time for them.
const RESERVE: f64 = 1.5;

/// Up to here a place takes as long whatever its bytes: it has as many operations as fit a moment.
const SHORT_BYTES: usize = 4 << 20;

/// A place of a case: out of place or in place.
struct Place {
    collective: Collective,
    bytes: usize,
}

/// What was measured and what was not, so far.
#[derive(Default)]
pub struct LeftOut {
    /// With the seconds that each took.
    measured: Vec<(Place, f64)>,
    missing: Vec<Place>,
    cells: usize,
    missing_cells: usize,
}

impl LeftOut {
    /// A place of a case, engine by engine, and how long it took.
    pub fn note(&mut self, collective: Collective, bytes: usize, cells: &[Cell], seconds: f64) {
        let of = |is_it: fn(&Cell) -> bool| cells.iter().filter(|cell| is_it(cell)).count();
        let missing = of(|cell| matches!(cell, Cell::Refused(NO_TIME)));
        let measured = of(|cell| matches!(cell, Cell::Measured(_)));
        self.cells += missing + measured;
        self.missing_cells += missing;
        let place = Place { collective, bytes };
        if missing > 0 {
            self.missing.push(place);
        } else if measured > 0 {
            self.measured.push((place, seconds));
        }
    }

    /// What to say at the end of a run that has taken so many seconds.
    pub fn line(&self, spent: f64) -> Option<String> {
        let (missing, all) = (self.missing_cells, self.cells);
        if missing == 0 {
            return None;
        }
        let foreseen: Option<f64> = self.missing.iter().map(|place| self.foreseen(place)).sum();
        let advice = match foreseen {
            Some(more) => format!("--time-budget {} would do", round_up(RESERVE * (spent + more))),
            None => format!("starting took {spent:.1} s: a longer one may do"),
        };
        Some(format!(
            "{missing} of {all} cells were not measured (\"-\"): the time budget was used up; {advice}"
        ))
    }

    /// Seconds of a case that was left out, from the nearest smaller one that was measured; of the same collective if there is one.
    fn foreseen(&self, of: &Place) -> Option<f64> {
        let same = self.measured.iter().filter(|(place, _)| place.collective == of.collective);
        let near = |(place, _): &&(Place, f64)| (place.bytes <= of.bytes, place.bytes);
        let (place, seconds) = same.max_by_key(near).or_else(|| self.measured.iter().max_by_key(near))?;
        Some(seconds * (of.bytes as f64 / place.bytes.max(SHORT_BYTES) as f64).max(1.0))
    }
}

/// Seconds for a command line: two digits.
fn round_up(seconds: f64) -> u64 {
    let step = 10f64.powf((seconds.max(1.0).log10().floor() - 1.0).max(0.0));
    ((seconds / step).ceil() * step) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::Measured;

    fn measured() -> Cell {
        Cell::Measured(Measured { iters: 1, seconds: vec![1.0], verdict: None, blocks: None })
    }

    #[test]
    fn what_was_left_out_is_counted_and_foreseen() {
        let mut run = LeftOut::default();
        run.note(Collective::AllReduce, 8, &[measured(), Cell::Refused("no such call")], 0.5);
        assert_eq!(run.line(1.0), None);
        run.note(Collective::AllReduce, 16 << 20, &[Cell::Refused(NO_TIME), Cell::Refused(NO_TIME)], 0.0);
        run.note(Collective::Broadcast, 8, &[Cell::Refused(NO_TIME)], 0.0);
        // 1 s so far, four times 0.5 s, and 0.5 s.
        let said = run.line(1.0).expect("three cells are missing");
        assert!(said.starts_with("3 of 4 cells were not measured"), "{said}");
        assert!(said.ends_with("--time-budget 6 would do"), "{said}");
        let mut nothing = LeftOut::default();
        nothing.note(Collective::Broadcast, 8, &[Cell::Refused(NO_TIME)], 0.0);
        assert!(
            nothing.line(2.0).is_some_and(|said| said.ends_with("starting took 2.0 s: a longer one may do"))
        );
    }

    #[test]
    fn budgets_have_two_digits() {
        assert_eq!([0.2, 5.25, 10.0, 41.2, 123.4].map(round_up), [1, 6, 10, 42, 130]);
    }
}
