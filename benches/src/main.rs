//! The `oxccl` command. `oxccl perf <collective>` measures and checks collectives as nccl-tests does, OxCCL's and other
//! libraries' in the same run; `oxccl topo` shows a machine and its channels, and explains choices;
//! `oxccl tune` measures what is fastest on this machine; `oxccl status` asks live jobs;
//! `oxccl aggregate` reduces for jobs of several hosts.

mod cli;
mod complain;
mod say;
mod out;
mod words;
mod collective;
mod target;
mod data;
mod buffer;
mod mpi;
mod team;
mod engine;
mod gpu;
mod bench;
mod row;
mod budget;
mod setup;
mod work;
mod measure;
mod run;
mod beside;
mod overlap;
mod report;
mod spawn;
mod topo;
mod tune;
mod status;
mod aggregate;
mod version;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use std::io::IsTerminal;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

/// OxCCL's tools.
#[derive(Parser)]
#[command(name = "oxccl", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure and check a collective over a range of sizes (flags and table of nccl-tests).
    ///
    /// Ranks come from --ranks (processes started here), --threads (threads of one process), or else from mpirun, Slurm or torchrun, under
    /// which this command is then started once per rank. Without any of these there is one rank, or one for each GPU.
    Perf(cli::PerfArgs),
    /// Show what a machine is made of and which channels go through it: text, XML, a picture, NCCL's log lines.
    ///
    /// Without an option that asks for an output it prints a page of text: the tree of devices, the paths between them, the channels.
    /// Outputs add up: each goes to its file, or is printed.
    Topo(topo::TopoArgs),
    /// Measure which algorithm and protocol is fastest here, and write what OXCCL_TUNE_FILE is to name.
    ///
    /// Ranks come from --ranks (processes started here), or else from mpirun, Slurm or torchrun, under which this command is then started
    /// once per rank. Without either: one for each GPU, or for each processor.
    Tune(tune::TuneArgs),
    /// Show what live processes' communicators do: ranks, operations, who waits for whom; write flight records.
    Status(status::StatusArgs),
    /// Reduce what the hosts of jobs send, for ranks with NCCL_COLLNET_ENABLE=1 and OXCCL_AGGREGATOR.
    Aggregate(aggregate::AggregateArgs),
}

/// What `OXCCL_LOG` asks for.
fn log_filter() -> EnvFilter {
    let asked = std::env::var("OXCCL_LOG").unwrap_or_default();
    if asked.is_empty() {
        return "warn".into();
    }
    asked.parse().unwrap_or_else(|error| {
        complain::complain("log", format_args!("OXCCL_LOG is \"{asked}\": {error}; warnings are shown"));
        "warn".into()
    })
}

/// Clap ends with status 0 when nobody could read what it wrote.
fn help(text: &clap::Error) -> ExitCode {
    let said = if std::io::stdout().is_terminal() { text.print() } else { say::say(&text.to_string()) };
    say::ended(said)
}

/// A file that reaches its limit (`ulimit -f`) is an error of the write, and not the end of the process.
fn outlive_file_limit() {
    // SAFETY: nothing in this program handles the signal, and to ignore it is all that changes.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

fn main() -> ExitCode {
    outlive_file_limit();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if error.kind() == ErrorKind::DisplayVersion => return version::show(&error),
        Err(error) if !error.use_stderr() => return help(&error),
        Err(error) => error.exit(),
    };
    tracing_subscriber::fmt()
        .with_env_filter(log_filter())
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    match cli.command {
        Command::Perf(args) => setup::perf(&args),
        Command::Topo(args) => topo::topo(&args),
        Command::Tune(args) => tune::tune(&args),
        Command::Status(args) => status::status(&args),
        Command::Aggregate(args) => aggregate::aggregate(&args),
    }
}
