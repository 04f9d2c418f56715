//! Layer: say.
//! Takes: what a tool has to tell.
//! Gives: it on standard output.
//! Never: an end in a panic because whoever reads has seen enough.

use std::io::{ErrorKind, Write, stdout};

/// Says it.
///
/// # Errors
/// The system's, but for a reader that has gone.
pub fn say(text: &str) -> std::io::Result<()> {
    let mut out = stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        said => said,
    }
}
