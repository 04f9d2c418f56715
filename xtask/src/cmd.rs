//! Layer: xtask, its floor.
//! Takes: a command line and a deadline.
//! Gives: the command run in its own process group, its output shown as it comes (or with its job's, where jobs run side by
//! side) and kept for counting.
//! Never: leaves a process behind: at the deadline and on Ctrl-C the whole group is killed.

use crate::beside;
use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};
use std::fmt;
use std::io::{IsTerminal, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

/// The process groups now running (several, where threads run commands side by side), for the interrupt handler.
static RUNNING: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

fn running() -> MutexGuard<'static, Vec<Pid>> {
    RUNNING.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Makes Ctrl-C and SIGTERM kill the running command's group too: being in a group of its own, it does not get them.
pub fn forward_interrupts() -> Result<()> {
    ctrlc::set_handler(|| {
        for group in running().iter() {
            // An error means that the group has ended already.
            let _ = kill_process_group(*group, Signal::KILL);
        }
        std::process::exit(130);
    })?;
    Ok(())
}

/// A command line to run from the repository's root.
pub struct Cmd {
    program: String,
    args: Vec<String>,
    envs: Vec<(String, String)>,
    deadline: Duration,
    named: bool,
    quiet: bool,
}

/// How a command ended.
pub struct Output {
    /// Whether it exited with status 0 in time.
    pub success: bool,
    /// Everything it wrote, colours removed: the lines of standard output and standard error, each whole, in order of arrival.
    pub text: String,
}

impl Cmd {
    /// Ten minutes to run, by default.
    pub fn new(program: impl Into<String>) -> Self {
        Cmd {
            program: program.into(),
            args: Vec::new(),
            envs: Vec::new(),
            deadline: Duration::from_secs(600),
            named: true,
            quiet: false,
        }
    }

    /// The cargo that runs this program.
    pub fn cargo() -> Self {
        Cmd::new("cargo")
    }

    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// The words of `line`, split at white space.
    pub fn args(mut self, line: &str) -> Self {
        self.args.extend(line.split_whitespace().map(String::from));
        self
    }

    pub fn env(mut self, name: &str, value: impl Into<String>) -> Self {
        self.envs.push((name.into(), value.into()));
        self
    }

    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Does not show the command.
    pub fn unnamed(mut self) -> Self {
        self.named = false;
        self
    }

    /// Shows neither the command nor what it writes.
    pub fn quiet(mut self) -> Self {
        self.quiet = true;
        self
    }

    /// Runs it in `root`. An error means that it could not be started; a failure is in the [`Output`].
    pub fn run(&self, root: &Path) -> Result<Output> {
        if self.named && !self.quiet {
            beside::note(format_args!("+ {self}"));
        }
        let mut command = Command::new(&self.program);
        command
            .args(&self.args)
            .current_dir(root)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        if std::io::stderr().is_terminal() && !self.quiet {
            command.env("CARGO_TERM_COLOR", "always");
        }
        // Cargo sets these variables for xtask; a child would take them for its own package and toolchain.
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text == "CARGO" || text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
                command.env_remove(&name);
            }
        }
        command.envs(self.envs.iter().map(|(k, v)| (k, v)));
        let child = command.spawn().with_context(|| format!("cannot start `{self}`"))?;
        self.watch(child)
    }

    /// Like [`Self::run`], quietly; `None` if it cannot be started or fails.
    pub fn probe(self, root: &Path) -> Option<String> {
        let output = self.quiet().run(root).ok()?;
        output.success.then_some(output.text)
    }

    fn watch(&self, mut child: Child) -> Result<Output> {
        let group = Pid::from_child(&child);
        running().push(group);
        let text = Mutex::new(Vec::new());
        let is_held = beside::is_held();
        let is_silent = self.quiet || is_held;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let status = thread::scope(|scope| {
            if let Some(pipe) = stdout {
                scope.spawn(|| copy(pipe, std::io::stdout(), is_silent, &text));
            }
            if let Some(pipe) = stderr {
                scope.spawn(|| copy(pipe, std::io::stderr(), is_silent, &text));
            }
            let status = wait_until(&mut child, Instant::now() + self.deadline);
            // The pipes close only when the last process of the group is gone; a test's stray child must not hold us.
            let _ = kill_process_group(group, Signal::KILL);
            status
        });
        running().retain(|other| *other != group);
        let raw = text.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
        if is_held && !self.quiet {
            beside::write(&raw);
        }
        let text = strip_colours(&String::from_utf8_lossy(&raw));
        match status? {
            Some(status) => Ok(Output { success: status.success(), text }),
            None => bail!("`{self}` did not end within {} s and was killed", self.deadline.as_secs()),
        }
    }
}

/// The command as one would type it.
impl fmt::Display for Cmd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.envs {
            write!(f, "{name}={} ", quoted(value))?;
        }
        f.write_str(&self.program)?;
        for arg in &self.args {
            write!(f, " {}", quoted(arg))?;
        }
        Ok(())
    }
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=+./:,@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) { word.into() } else { format!("'{word}'") }
}

/// Shows what comes at once, and keeps it by whole lines: one of cargo's messages is longer than a read, and what the other pipe
/// brings meanwhile must not come between its halves.
fn copy(mut from: impl Read, mut to: impl Write, is_silent: bool, kept: &Mutex<Vec<u8>>) {
    let mut buffer = [0u8; 8192];
    let mut begun: Vec<u8> = Vec::new();
    let keep = |bytes: &[u8]| {
        kept.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).extend_from_slice(bytes);
    };
    loop {
        match from.read(&mut buffer) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Ok(0) | Err(_) => break,
            Ok(n) => {
                if !is_silent {
                    // A closed terminal must not end the tests.
                    let _ = to.write_all(&buffer[..n]).and_then(|()| to.flush());
                }
                let whole = buffer[..n].iter().rposition(|&byte| byte == b'\n').map_or(0, |last| last + 1);
                if whole > 0 {
                    begun.extend_from_slice(&buffer[..whole]);
                    keep(&begun);
                    begun.clear();
                }
                begun.extend_from_slice(&buffer[whole..n]);
            }
        }
    }
    keep(&begun);
}

fn wait_until(child: &mut Child, deadline: Instant) -> Result<Option<std::process::ExitStatus>> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            // Leaves the reaping to `wait`, so that no zombie stays.
            let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Removes ANSI escape sequences: ESC, `[`, parameters, one letter.
fn strip_colours(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\u{1b}' {
            plain.push(c);
        } else if chars.next() == Some('[') {
            chars.by_ref().find(char::is_ascii_alphabetic);
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> &'static Path {
        Path::new(".")
    }

    #[test]
    fn colours_go_and_text_stays() {
        assert_eq!(strip_colours("\u{1b}[32;1mok\u{1b}[0m [x]"), "ok [x]");
    }

    #[test]
    fn output_and_status_are_kept() {
        let output =
            Cmd::new("sh").arg("-c").arg("echo out; echo err >&2; exit 3").quiet().run(here()).unwrap();
        assert!(!output.success);
        assert!(output.text.contains("out\n") && output.text.contains("err\n"));
    }

    #[test]
    fn a_line_stays_whole_whatever_the_other_pipe_brings_meanwhile() {
        let script = "printf '{\"a\":'; sleep 0.3; echo between >&2; sleep 0.3; echo '1}'; printf end";
        let output = Cmd::new("sh").arg("-c").arg(script).quiet().run(here()).unwrap();
        assert_eq!(output.text, "between\n{\"a\":1}\nend");
    }

    #[test]
    fn deadline_kills_grandchildren_too() {
        let start = Instant::now();
        let script = Cmd::new("sh").arg("-c").arg("sleep 60 & sleep 60").deadline(Duration::from_millis(200));
        let error = script.quiet().run(here()).err().expect("the deadline passed");
        assert!(error.to_string().contains("did not end"));
        // The pipes would stay open, and the copying threads with them, if the background sleep lived.
        assert!(start.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn a_missing_program_is_an_error_that_names_it() {
        let error = Cmd::new("/nonexistent/tool").quiet().run(here()).err().expect("no such program");
        assert!(format!("{error:#}").contains("/nonexistent/tool"));
    }
}
