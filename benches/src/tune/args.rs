//! Layer: tune.
//! Takes: the command line.
//! Gives: [`TuneArgs`], and the command line of the measurements that follow from it.
//! Never: acts on it.

use crate::cli::{Backend, PerfArgs, PerfLine, Transport, budget, bytes, whole};
use crate::collective::Collective;
use clap::{Args, Parser};
use oxccl::Func;
use oxccl::plan::tuning::Candidate;
use oxccl_shared::algo::registry::spec_of;
use oxccl_shared::algo::spec::Processor;
use std::path::PathBuf;
use std::time::Duration;

/// Sizes without `--sizes`: eight bytes and on by factors of four, to what no cache holds.
const SIZES: &str = "8,32,128,512,2K,8K,32K,128K,512K,2M,8M";

/// Options of `oxccl tune`.
#[derive(Args, Clone, Debug)]
pub struct TuneArgs {
    /// Where buffers lie and who moves them.
    #[arg(long, value_enum, default_value_t = Backend::Cpu)]
    pub backend: Backend,
    /// Start this many processes on this machine.
    #[arg(long, value_name = "N", value_parser = whole(2..=1024))]
    pub ranks: Option<u32>,
    /// The file to write, in a folder that is there. It keeps the tables it has for other backends and numbers of ranks, and what is not measured.
    #[arg(long, value_name = "FILE", default_value = "oxccl-tune.toml")]
    pub out: PathBuf,
    /// What to measure; several with commas between.
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "all-reduce,all-gather,reduce-scatter,broadcast,reduce"
    )]
    pub collectives: Vec<Collective>,
    /// Sizes in bytes of the larger buffer, ascending, at most 16.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = bytes, default_value = SIZES)]
    pub sizes: Vec<usize>,
    /// Measurements of each candidate.
    #[arg(long, default_value_t = 3, value_parser = whole(1..=u32::MAX))]
    pub rounds: u32,
    /// Milliseconds that a measurement takes at least.
    #[arg(long, value_name = "MS", default_value_t = 10)]
    pub min_time: u32,
    /// Seconds that everything may take: rounds become fewer, then the largest sizes are left out.
    #[arg(long, value_name = "S", default_value = "90", value_parser = budget)]
    pub time_budget: Duration,
    /// cuda: also a Simple ring with each of these numbers of channels.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub channels: Vec<u16>,
    /// Connect ranks by this transport only.
    #[arg(long, value_enum, default_value_t = Transport::Auto)]
    pub transport: Transport,
}

impl TuneArgs {
    /// Bytes of the largest call.
    pub fn room(&self) -> usize {
        self.sizes.iter().copied().max().unwrap_or(0)
    }

    /// The list that leaves a candidate's algorithm. Of all-reduce a list without a function is an order: it gets one that it has.
    fn only(&self, candidate: Candidate) -> String {
        let on = if self.backend == Backend::Cpu { Processor::Cpu } else { Processor::Gpu };
        let spec = spec_of(candidate.algorithm);
        let is_there = spec.protocols(Func::AllReduce, on).has(candidate.protocol);
        if is_there { spec.name().into() } else { format!("{};allreduce:ring", spec.name()) }
    }

    /// The arguments with which `oxccl perf` measures a candidate, or the library's own choice, over all sizes.
    pub fn perf(&self, candidate: Option<Candidate>, channels: Option<u16>) -> PerfArgs {
        let room = self.room().to_string();
        let mut perf = PerfLine::parse_from(["perf", "all-reduce", "--maxbytes", &room]).perf;
        perf.minbytes = 0;
        perf.backend = self.backend;
        perf.transport = self.transport;
        perf.min_time = self.min_time;
        perf.warmup_iters = 2;
        perf.check = 0;
        perf.algo = candidate.map(|candidate| self.only(candidate));
        perf.proto = candidate.map(|candidate| candidate.protocol);
        perf.channels = channels.map(u32::from);
        perf
    }
}
