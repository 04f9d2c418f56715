//! Writes the library's events.

use super::line;
use super::settings::{Level, LogSettings, Subsystems};
use crate::os::{create_at_once, write_within_limit};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Subscriber;
use tracing::{Event, Metadata};

struct NcclLog {
    host: String,
    settings: LogSettings,
    /// `None`: standard output.
    file: Option<Mutex<File>>,
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
    let opened = path.as_ref().map(|path| create_at_once(path)).transpose();
    let (file, refused) = match opened {
        Ok(file) => (file, None),
        Err(error) => (None, Some(error)),
    };
    let log = NcclLog { host, settings: settings.clone(), file: file.map(Mutex::new) };
    // A healthy run at WARN is silent.
    if settings.level != Level::Warn {
        log.write(&format!("{}{version}\n", line::head(&log.host)));
    }
    if tracing::subscriber::set_global_default(log).is_err() {
        return false;
    }
    if let Some(error) = refused {
        tracing::warn!(
            "NCCL_DEBUG_FILE: {} cannot be written, the log goes to standard output: {error}",
            path.as_deref().map_or_else(String::new, |path| Path::new(path).display().to_string())
        );
    }
    for (name, value) in &settings.environment {
        tracing::info!(target: "oxccl::env", "{name} set by environment to {value}");
    }
    true
}

impl NcclLog {
    fn write(&self, line: &str) {
        // Who closed the file wants no log.
        let _ = write_within_limit(|| match &self.file {
            Some(file) => file.lock().unwrap_or_else(PoisonError::into_inner).write_all(line.as_bytes()),
            None => std::io::stdout().lock().write_all(line.as_bytes()),
        });
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
