//! Layer: say.
//! Takes: what a tool has to tell.
//! Gives: it on standard output.
//! Never: an end in a panic because whoever reads has seen enough.

use oxccl::os::describe;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{ErrorKind, Write, stderr, stdout};
use std::process::ExitCode;

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

/// The end of a command that had only this to say.
pub fn ended(said: std::io::Result<()>) -> ExitCode {
    match said {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // In one write, as `complain` has it, for a command without a name.
            let _ = stderr()
                .write_all(format!("oxccl: writing to standard output: {}\n", describe(&error)).as_bytes());
            ExitCode::FAILURE
        }
    }
}

/// Whether somebody may read what is said: a pipe whose other end is closed has no reader.
pub fn has_reader() -> bool {
    let out = stdout();
    let mut ends = [PollFd::new(&out, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    // Where it cannot be asked, writing tells.
    poll(&mut ends, Some(&now)).is_err() || !ends[0].revents().intersects(PollFlags::ERR | PollFlags::NVAL)
}
