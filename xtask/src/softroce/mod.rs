//! Layer: xtask / softroce.
//! Takes: a program of this machine.
//! Gives: the program run with real verbs and no RDMA hardware: in a guest that QEMU emulates, with Debian's kernel and its
//! rdma_rxe, two RoCE devices joined by a cable; its output and exit status.
//! Never: installs anything, or needs root, KVM or a network beyond a Debian mirror. Says nothing about speed: the guest is
//! emulated, some twenty times slower than the machine.

mod apt;
mod boot;
mod cpio;
mod image;
mod job;
mod store;

pub use job::{Ended, Job, Run};

use anyhow::{Context, Result, bail};
use clap::Args;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use store::Store;

/// `cargo xtask softroce`.
#[derive(Args)]
pub struct Options {
    /// Another file that the guest gets at the same path, with its libraries (repeatable).
    #[arg(long, value_name = "FILE")]
    with: Vec<PathBuf>,
    /// A variable of the program's environment (repeatable).
    #[arg(long, value_name = "NAME=VALUE")]
    env: Vec<String>,
    /// Seconds that the guest may take.
    #[arg(long, default_value_t = 300)]
    limit: u64,
    /// The guest's memory.
    #[arg(long, default_value_t = 768)]
    memory_mb: u32,
    /// Fetch the guest's packages anew.
    #[arg(long)]
    refresh: bool,
    /// The program and its arguments. It must not be built for this machine's processor only (target-cpu=native).
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

/// Runs jobs, each in a fresh guest.
pub struct Guests {
    store: Store,
}

impl Guests {
    /// Fetches what is not in the cache.
    pub fn prepare(refresh: bool) -> Result<Guests> {
        Ok(Guests { store: Store::open(refresh)? })
    }

    /// The job's output goes to standard output as it comes, standard error included.
    pub fn run(&self, job: &Job) -> Result<Ended> {
        let initramfs = std::env::temp_dir().join(format!("oxccl-softroce-{}.cpio", std::process::id()));
        let ended = image::write(&self.store, job, &initramfs)
            .and_then(|()| boot::boot(&self.store, &initramfs, job));
        // Left behind it would only cost space.
        let _ = std::fs::remove_file(&initramfs);
        ended
    }
}

/// Runs a program in a guest and exits as it does.
pub fn run(options: &Options) -> Result<ExitCode> {
    let (program, args) = options.command.split_first().context("a program is missing")?;
    let job = Job {
        runs: vec![Run { program: find(program)?, args: args.to_vec() }],
        envs: options.env.iter().map(|text| variable(text)).collect::<Result<_>>()?,
        files: options.with.iter().map(|path| absolute(path)).collect::<Result<_>>()?,
        memory_mb: options.memory_mb,
        limit: Duration::from_secs(options.limit),
    };
    let ended = Guests::prepare(options.refresh)?.run(&job)?;
    eprintln!("softroce: status {} after {:.1} s", ended.status, ended.took.as_secs_f64());
    Ok(ExitCode::from(ended.status))
}

fn variable(text: &str) -> Result<(String, String)> {
    let (name, value) =
        text.split_once('=').with_context(|| format!("--env {text}: NAME=VALUE was expected"))?;
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if !is_name {
        bail!("--env {text}: `{name}` cannot be a variable's name");
    }
    Ok((name.to_owned(), value.to_owned()))
}

/// A program by its path, or by its name on `PATH`.
fn find(program: &str) -> Result<PathBuf> {
    if program.contains('/') {
        return absolute(Path::new(program));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|dir| dir.join(program)).find(|path| path.is_file());
    absolute(&found.with_context(|| format!("no program `{program}` on the path"))?)
}

fn absolute(path: &Path) -> Result<PathBuf> {
    let path = std::path::absolute(path)?;
    if !path.is_file() {
        bail!("{} is no file", path.display());
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_need_a_name() {
        assert_eq!(variable("A_1=b=c").unwrap(), ("A_1".to_owned(), "b=c".to_owned()));
        assert!(variable("A").is_err() && variable("=x").is_err() && variable("A;rm=x").is_err());
    }

    #[test]
    fn a_missing_program_is_named() {
        assert!(find("no-such-program-here").unwrap_err().to_string().contains("no-such-program-here"));
        assert!(find("./no/such/file").unwrap_err().to_string().contains("no/such/file"));
    }
}
