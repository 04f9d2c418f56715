//! Layer: beside the library; what a person or CI types.
//! Takes: a checkout and a Rust toolchain; installs what else it needs where it can.
//! Gives: `cargo xtask test` (everything, in timed stages) and its parts.
//! Never: is linked into the library, or does in CI what a person cannot run.

mod amdgcn;
mod beside;
mod cmd;
mod counts;
mod gpu;
mod kernels;
mod metadata;
mod package;
mod ptx;
mod softroce;
mod stages;
mod tidy;
mod tools;

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::process::ExitCode;
use std::time::Duration;

/// OxCCL's developer tasks.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version, about)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Runs every check and test in stages; stops at the first stage that fails.
    Test(stages::Options),
    /// What .ci/run calls: the same as `test`.
    Ci,
    /// The house rules that no other tool checks: who may name what, sizes, module docs.
    Tidy {
        /// Also print the soft limits that are passed.
        #[arg(long, short)]
        warnings: bool,
    },
    /// Fuzzes one target, or each in turn.
    Fuzz {
        /// The target; without it, every one.
        target: Option<String>,
        /// Seconds per target.
        #[arg(long, default_value_t = 60)]
        seconds: u64,
    },
    /// Random collectives over networks that come late and stall, checked one by one, and whether memory grows.
    Soak {
        /// How long.
        #[arg(long, default_value_t = 3600)]
        seconds: u64,
        /// Where the random choices start. Default: another each time.
        #[arg(long)]
        seed: Option<u64>,
    },
    /// Builds the GPU kernels: PTX and machine code for each GPU generation, checked and packed into one file.
    BuildPtx(ptx::Options),
    /// Builds the kernels for AMD GPUs: code objects and assembly, checked and not run.
    BuildAmdgcn(amdgcn::Options),
    /// Packs the GPU tests, the measuring tool and the kernels for a machine that has GPUs and no toolchain.
    GpuPack(gpu::Options),
    /// Makes the packages: a tarball, a Debian package and a Python wheel.
    Package(package::Options),
    /// Writes host/public-names.txt, which the stage `surface` holds the library's interface to.
    PublicNames,
    /// Runs a program in an emulated guest with two RoCE devices, and exits with its status.
    Softroce(softroce::Options),
    /// Model-checks the FIFOs with loom.
    Loom {
        /// Run only tests whose name contains this.
        filter: Option<String>,
        /// Weaken each acquire and release of the FIFOs in turn, in a copy, and demand that a model fails.
        #[arg(long, conflicts_with = "filter")]
        mutants: bool,
    },
}

fn run(task: Task) -> Result<ExitCode> {
    let ok = match task {
        Task::Test(options) => stages::run(&options)?,
        Task::Ci => stages::run(&stages::Options::ci())?,
        Task::Tidy { warnings } => tidy::report(&tools::root(), warnings)?,
        Task::Fuzz { target, seconds } => {
            stages::fuzz::run_targets(target.as_deref(), Duration::from_secs(seconds))?.is_ok()
        }
        Task::Soak { seconds, seed } => stages::soak::run(Duration::from_secs(seconds), seed)?,
        Task::BuildPtx(options) => ptx::build(&options)?,
        Task::BuildAmdgcn(options) => amdgcn::build(&options)?,
        Task::GpuPack(options) => gpu::pack(&options)?,
        Task::Package(options) => package::package(&options)?,
        Task::PublicNames => stages::surface::write().map(|()| true)?,
        Task::Softroce(options) => return softroce::run(&options),
        Task::Loom { mutants: true, .. } => stages::mutants::run()?.is_ok(),
        Task::Loom { filter, .. } => stages::loom::run_filtered(filter.as_deref())?.is_ok(),
    };
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn main() -> ExitCode {
    if let Err(error) = cmd::forward_interrupts() {
        eprintln!("xtask: Ctrl-C will not reach child processes: {error}");
    }
    match run(Cli::parse().task) {
        Ok(status) => status,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
