//! The compact tables as a page for docs/measurements: what was measured on what and how, then a section for each collective.

use super::compact;
use super::facts::{ReportError, Run};
use super::files;
use crate::cli::{Backend, Timer, command_line};
use crate::out::Outputs;
use crate::row::Row;
use std::path::Path;

/// A page that grows by a section with each collective, and is written anew each time: a run that is cut short leaves what it had.
pub struct Page {
    text: String,
}

impl Page {
    pub fn new(run: &Run<'_>) -> Page {
        let args = run.args;
        let date = humantime::format_rfc3339_seconds(std::time::SystemTime::now());
        let command = command_line();
        let mut text = format!("# {} ranks on {}\n\n", run.ranks, run.machine.device_or_processor());
        text += &format!("{date}, {}, {}.\n\n", run.machine.host, run.machine.system);
        text += &format!("```sh\n{}\n```\n\n", command.join(" "));
        for engine in &run.engines {
            text += &format!("- {}: {}\n", engine.name, engine.description);
            for line in engine.costs() {
                text += &format!("  - {line}\n");
            }
        }
        let timer = match (args.backend, args.timer) {
            (Backend::Cuda, Timer::Events) => "between two events in the stream",
            _ => "by the processor's clock",
        };
        let of = ["rank 0", "the ranks' average", "the fastest rank", "the slowest rank"];
        text += &format!(
            "\nTimes are of {}, {timer}, {}; each is the median of at most {} rounds, in which the engines take turns; the spread \
             is the least to the greatest round. GB/s is bus bandwidth. A ratio above 1 means that {} is faster.\n",
            of[args.average.min(3) as usize],
            match args.graph {
                0 => "operations launched one by one".into(),
                n => format!("operations in graphs of {n}"),
            },
            args.rounds(),
            run.engines[0].name
        );
        Page { text }
    }

    /// Appends a collective's table.
    pub fn add(&mut self, run: &Run<'_>, rows: &[Row]) {
        let head = compact::head(run);
        self.text += &format!("\n## {}\n\n", compact::title(run, rows));
        self.text += &compact::markdown(&head);
        self.text += &compact::markdown(&vec!["---:".to_string(); head.len()]);
        for line in rows.iter().flat_map(|row| compact::lines(run, row)) {
            self.text += &compact::markdown(&line);
        }
        self.text += &format!("\n{}\n", compact::foot(run, rows));
    }

    pub fn write(&self, outputs: &mut Outputs, path: &Path) -> Result<(), ReportError> {
        files::write(outputs, path, &self.text)
    }
}
