//! One line, as NCCL writes it.

use std::cell::Cell;
use std::fmt::{self, Write};
use tracing::field::{Field, Visit};
use tracing::{Event, Level};

thread_local! {
    static DEVICE: Cell<i32> = const { Cell::new(-1) };
}

/// The GPU of this thread's lines, from now on.
pub fn on_device(ordinal: u32) {
    DEVICE.set(i32::try_from(ordinal).unwrap_or(-1));
}

/// This host's name, up to the first dot.
pub(crate) fn host_name() -> String {
    let system = rustix::system::uname();
    let name = system.nodename().to_string_lossy();
    name.split('.').next().unwrap_or_default().to_owned()
}

/// The text of an event.
pub(super) fn of_event(host: &str, event: &Event<'_>) -> String {
    let meta = event.metadata();
    let level = match *meta.level() {
        Level::ERROR | Level::WARN => "WARN",
        Level::INFO => "INFO",
        _ => "TRACE",
    };
    let mut line = head(host);
    if level == "WARN" {
        let file = meta.file().unwrap_or("oxccl");
        let file = file.rsplit_once("/src/").map_or(file, |(_, file)| file);
        let _ = write!(line, "{file}:{} ", meta.line().unwrap_or(0));
    }
    let _ = write!(line, "NCCL {level} ");
    event.record(&mut Text { line: &mut line, fields: 0 });
    line.push('\n');
    line
}

/// What begins every line.
pub(super) fn head(host: &str) -> String {
    let thread = rustix::thread::gettid().as_raw_nonzero();
    let device = DEVICE.try_with(Cell::get).unwrap_or(-1);
    format!("{host}:{}:{thread} [{device}] ", std::process::id())
}

/// The message, then the other fields as `name=value`.
struct Text<'a> {
    line: &'a mut String,
    fields: u32,
}

impl Visit for Text<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let separator = if self.fields > 0 { " " } else { "" };
        self.fields += 1;
        let _ = match field.name() {
            "message" => write!(self.line, "{separator}{value:?}"),
            name => write!(self.line, "{separator}{name}={value:?}"),
        };
    }
}
