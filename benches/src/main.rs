//! The `oxccl` command. `oxccl perf <collective>` measures and checks collectives as nccl-tests does, OxCCL's and other
//! libraries' in the same run; `oxccl topo` shows a machine and its channels, and explains choices;
//! `oxccl tune` measures what is fastest on this machine.

mod cli;
mod complain;
mod say;
mod collective;
mod target;
mod data;
mod buffer;
mod mpi;
mod team;
mod engine;
mod gpu;
mod bench;
mod budget;
mod setup;
mod measure;
mod run;
mod report;
mod spawn;
mod topo;
mod tune;

use clap::Parser;
use std::io::IsTerminal;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("OXCCL_LOG").unwrap_or_else(|_| "warn".into()),
        )
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    match cli.command {
        cli::Command::Perf(args) => setup::perf(&args),
        cli::Command::Topo(args) => topo::topo(&args),
        cli::Command::Tune(args) => tune::tune(&args),
    }
}
