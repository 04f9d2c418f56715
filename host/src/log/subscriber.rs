//! Writes the library's events.

use super::line;
use super::settings::{Level, LogSettings, Subsystems};
use crate::os::{create_at_once, describe, write_within_limit};
use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Mutex, Once, PoisonError};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Subscriber;
use tracing::{Event, Metadata};

struct NcclLog {
    host: String,
    settings: LogSettings,
    /// `None`: standard output.
    file: Option<(PathBuf, Mutex<File>)>,
    /// Has run when a failure to write was said: the next line fails too, as a rule.
    complains: Once,
}

/// Writes the library's events from now on, if that is asked for and the program has set no subscriber of its own. `version` is the
/// line that says what runs.
///
/// Returns whether it does.
pub fn install(settings: &LogSettings, version: &str) -> bool {
    if settings.level == Level::None || tracing::dispatcher::has_been_set() {
        return false;
    }
    let host = line::host_name();
    let path = settings.path(&host, std::process::id());
    let opened = path.map(|path| match create_at_once(&path) {
        Ok(file) => Ok((path, Mutex::new(file))),
        Err(error) => Err((path, error)),
    });
    let (file, refused) = match opened.transpose() {
        Ok(file) => (file, None),
        Err(refused) => (None, Some(refused)),
    };
    let log = NcclLog { host, settings: settings.clone(), file, complains: Once::new() };
    // A healthy run at WARN is silent.
    if settings.level != Level::Warn {
        log.write(&format!("{}{version}\n", line::head(&log.host)));
    }
    if tracing::subscriber::set_global_default(log).is_err() {
        return false;
    }
    if let Some((path, error)) = refused {
        let path = path.display();
        tracing::warn!("NCCL_DEBUG_FILE: {path} cannot be written, the log goes to standard output: {error}");
    }
    for (name, value) in &settings.environment {
        tracing::info!(target: "oxccl::env", "{name} set by environment to {value}");
    }
    true
}

impl NcclLog {
    fn write(&self, line: &str) {
        self.write_or_complain(line, || io::stderr().lock());
    }

    /// Writes a line. The first time that this fails, it says so there; nobody else would.
    fn write_or_complain<W: Write>(&self, line: &str, complaints: impl FnOnce() -> W) {
        let written = write_within_limit(|| match &self.file {
            Some((_, file)) => file.lock().unwrap_or_else(PoisonError::into_inner).write_all(line.as_bytes()),
            None => io::stdout().lock().write_all(line.as_bytes()),
        });
        // Who has closed the other end of a pipe wants no log.
        let Some(error) = written.err().filter(|error| error.kind() != io::ErrorKind::BrokenPipe) else {
            return;
        };
        self.complains.call_once(|| {
            let text = self.complaint(&error);
            // There is no third place.
            let _ = write_within_limit(|| complaints().write_all(text.as_bytes()));
        });
    }

    fn complaint(&self, error: &io::Error) -> String {
        let place = match &self.file {
            Some((path, _)) => format!("NCCL_DEBUG_FILE: {}", path.display()),
            None => "the log: standard output".to_owned(),
        };
        format!(
            "{}NCCL WARN {place} cannot be written, this line of the log and perhaps later ones are lost: {}\n",
            line::head(&self.host),
            describe(error)
        )
    }
}

impl Subscriber for NcclLog {
    fn enabled(&self, meta: &Metadata<'_>) -> bool {
        let target = meta.target();
        let is_ours = ["oxccl", "nccl"].into_iter().any(|name| target.starts_with(name));
        let wanted = match *meta.level() {
            tracing::Level::ERROR | tracing::Level::WARN => {
                return is_ours && self.settings.level >= Level::Warn;
            }
            tracing::Level::INFO => Level::Info,
            _ => Level::Trace,
        };
        is_ours
            && self.settings.level >= wanted
            && self.settings.subsystems.meets(Subsystems::of_target(target))
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(match self.settings.level {
            Level::None | Level::Version => LevelFilter::OFF,
            Level::Warn => LevelFilter::WARN,
            Level::Info => LevelFilter::INFO,
            Level::Trace => LevelFilter::TRACE,
        })
    }

    fn event(&self, event: &Event<'_>) {
        self.write(&line::of_event(&self.host, event));
    }

    // The library has no spans.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The log was lost without a word.
    #[test]
    fn a_log_that_cannot_be_written_is_said_once() {
        let path = PathBuf::from("/dev/full");
        let file = Mutex::new(create_at_once(&path).unwrap());
        let settings = LogSettings::default();
        let log =
            NcclLog { host: "here".to_owned(), settings, file: Some((path, file)), complains: Once::new() };
        let mut said = Vec::new();
        for line in ["first\n", "second\n"] {
            log.write_or_complain(line, || &mut said);
        }
        let said = String::from_utf8(said).unwrap();
        assert_eq!(said.lines().count(), 1, "{said}");
        for part in ["here:", "NCCL WARN NCCL_DEBUG_FILE: /dev/full cannot be written", "No space left"] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
}
