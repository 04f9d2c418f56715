//! A bar on standard error where that is a terminal, and nothing where it is not. It is drawn between measurements only: a thread
//! that drew it would be measured too.

use crate::row::Row;
use indicatif::{HumanBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};

pub struct Progress(ProgressBar);

impl Progress {
    pub fn new() -> Progress {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} ({elapsed}, {eta} left)")
        {
            bar.set_style(style);
        }
        Progress(bar)
    }

    pub fn begin(&self, rows: usize) {
        self.0.set_length(rows as u64);
        self.0.tick();
    }

    /// Prints lines of the table without tearing the bar.
    pub fn print<R>(&self, lines: impl FnOnce() -> R) -> R {
        self.0.suspend(lines)
    }

    pub fn advance(&self, row: &Row) {
        self.0.set_message(format!("{} {}", HumanBytes(row.bytes as u64), row.dtype));
        self.0.inc(1);
    }

    pub fn end(&self) {
        self.0.finish_and_clear();
    }
}
