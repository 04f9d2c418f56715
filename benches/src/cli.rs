//! Layer: perf / cli.
//! Takes: the command line.
//! Gives: [`PerfArgs`], named and defaulted as in nccl-tests where nccl-tests has the option.
//! Never: acts on it.

use crate::collective::Collective;
use clap::{Args, Parser, Subcommand, ValueEnum};
use oxccl_shared::abi::{Algorithm, DataType, Protocol, RedOp};
use std::path::PathBuf;

/// OxCCL's tools.
#[derive(Parser)]
#[command(name = "oxccl", version)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Measure and check a collective over a range of sizes (flags and table of nccl-tests).
    Perf(PerfArgs),
}

/// Ranks come from `--ranks` (processes started here), `--threads` (threads of one process), or else from mpirun, Slurm or
/// torchrun, under which this command is then started once per rank.
#[derive(Args, Clone, Debug)]
pub struct PerfArgs {
    /// What to measure.
    #[arg(value_enum)]
    pub collective: Collective,
    /// Start this many processes on this machine, each with `--threads` ranks.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub ranks: Option<u32>,
    /// Ranks per process, one thread each.
    #[arg(short = 't', long, visible_alias = "nthreads", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
    /// Smallest size in bytes; K, M and G are powers of 1024.
    #[arg(short = 'b', long, default_value = "32M", value_parser = bytes)]
    pub minbytes: usize,
    /// Largest size in bytes.
    #[arg(short = 'e', long, default_value = "32M", value_parser = bytes)]
    pub maxbytes: usize,
    /// Bytes from one size to the next, where there is no factor.
    #[arg(short = 'i', long, default_value = "1M", value_parser = bytes)]
    pub stepbytes: usize,
    /// Factor from one size to the next; 1 means `--stepbytes`.
    #[arg(short = 'f', long, default_value_t = 1)]
    pub stepfactor: usize,
    /// Operations per measurement. Default: as many as take `--min-time`.
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u32).range(1..))]
    pub iters: Option<u32>,
    /// Milliseconds that a measurement takes at least, where `--iters` is not given (from 4 to 20000 operations).
    #[arg(long, value_name = "MS", default_value_t = 20)]
    pub min_time: u32,
    /// Operations before each size's measurements.
    #[arg(short = 'w', long = "warmup_iters", visible_alias = "warmup-iters", default_value_t = 5)]
    pub warmup_iters: u32,
    /// Operations put into one group; the time shown is per operation.
    #[arg(short = 'm', long = "agg_iters", visible_alias = "agg-iters", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub agg_iters: u32,
    /// How often each size's results are checked; 0 for never.
    #[arg(short = 'c', long, default_value_t = 1)]
    pub check: u32,
    /// sum, prod, min, max, avg, mulsum or all.
    #[arg(short = 'o', long, default_value = "sum", value_parser = choice_of(RedOp::from_name))]
    pub op: Choice<RedOp>,
    /// int8, uint8, int32, uint32, int64, uint64, half, float, double, bfloat16, fp8_e4m3, fp8_e5m2 or all.
    #[arg(short = 'd', long, default_value = "float", value_parser = choice_of(DataType::from_name))]
    pub datatype: Choice<DataType>,
    /// Root rank, or all.
    #[arg(short = 'r', allow_negative_numbers = true, long, default_value = "0", value_parser = choice_of(|text: &str| text.parse::<u32>().ok()))]
    pub root: Choice<u32>,
    /// 1: all ranks wait for each other after each operation, within the time measured.
    #[arg(short = 'z', long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1))]
    pub blocking: u32,
    /// Time shown: 0 of rank 0, 1 average, 2 minimum, 3 maximum over the ranks.
    #[arg(short = 'a', long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=3))]
    pub average: u32,
    /// Seconds after which an operation that makes no progress is given up.
    #[arg(short = 'T', long, value_name = "S")]
    pub timeout: Option<f64>,
    /// Measurements of each size; the median is shown. Default: 1, or 5 where engines are compared.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: Option<u32>,
    /// Walk through `--maxbytes` of memory, one operation after the other, so that small sizes do not stay in caches.
    #[arg(long)]
    pub rotate: bool,
    /// Bytes by which buffers miss page alignment.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..4096))]
    pub misalign: u32,
    /// OxCCL: this algorithm wherever the collective has it (ring, tree, direct).
    #[arg(long, value_parser = named(Algorithm::from_name))]
    pub algo: Option<Algorithm>,
    /// OxCCL: this protocol (ll, ll128, simple).
    #[arg(long, value_parser = named(Protocol::from_name))]
    pub proto: Option<Protocol>,
    /// OxCCL: this transport.
    #[arg(long, value_enum, default_value_t = Transport::Auto)]
    pub transport: Transport,
    /// Libraries to measure, in turns on the same buffers: oxccl, mpi[=/path/libmpi.so] (under mpirun), memcpy (a bound).
    #[arg(long = "engine", value_name = "NAME[=PATH]", default_value = "oxccl", value_parser = engine)]
    pub engines: Vec<EngineChoice>,
    /// Bind the process of rank r to core r modulo the number of cores (with `--ranks`).
    #[arg(long)]
    pub bind: bool,
    /// Write everything measured (docs/measurements/README.md states the schema).
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Draw time and bus bandwidth over size.
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
}

/// One value, or each there is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Choice<T> {
    One(T),
    All,
}

/// `--transport`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Transport {
    Auto,
    Inproc,
    Shm,
    Tcp,
}

/// `--engine`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EngineChoice {
    Oxccl,
    Mpi { library: PathBuf },
    Memcpy,
}

impl PerfArgs {
    /// The sizes asked for, in bytes.
    pub fn sizes(&self) -> Vec<usize> {
        if self.collective == Collective::Barrier {
            return vec![0];
        }
        std::iter::successors(Some(self.minbytes), |size| {
            let next = if self.stepfactor > 1 {
                // A factor never leaves zero.
                if *size == 0 { Some(1) } else { size.checked_mul(self.stepfactor) }
            } else {
                size.checked_add(self.stepbytes.max(1))
            };
            next.filter(|next| *next <= self.maxbytes)
        })
        .collect()
    }

    /// Measurements of each size and engine.
    pub fn rounds(&self) -> u32 {
        self.rounds.unwrap_or(if self.engines.len() > 1 { 5 } else { 1 })
    }
}

/// The default name of Open MPI's library: what `libopenmpi-dev` and `libopenmpi3` install.
const LIBMPI: &str = "libmpi.so.40";

fn engine(text: &str) -> Result<EngineChoice, String> {
    let (name, path) = text.split_once('=').map_or((text, None), |(name, path)| (name, Some(path)));
    match (name, path) {
        ("oxccl", None) => Ok(EngineChoice::Oxccl),
        ("memcpy", None) => Ok(EngineChoice::Memcpy),
        ("mpi", path) => Ok(EngineChoice::Mpi { library: path.unwrap_or(LIBMPI).into() }),
        _ => Err("expected oxccl, mpi, mpi=/path/to/libmpi.so or memcpy".into()),
    }
}

fn bytes(text: &str) -> Result<usize, String> {
    let (digits, unit) = match text.trim_end_matches(['B', 'b']).char_indices().last() {
        Some((at, 'K' | 'k')) => (&text[..at], 1 << 10),
        Some((at, 'M' | 'm')) => (&text[..at], 1 << 20),
        Some((at, 'G' | 'g')) => (&text[..at], 1 << 30),
        _ => (text, 1u64),
    };
    let number: f64 = digits.parse().map_err(|_| "expected a number of bytes such as 8, 64K, 1.5M or 1G")?;
    let bytes = number * unit as f64;
    if (0.0..=(1u64 << 46) as f64).contains(&bytes) { Ok(bytes as usize) } else { Err("0 to 64T".into()) }
}

fn choice_of<T: Clone + Send + Sync + 'static>(
    parse: impl Fn(&str) -> Option<T> + Clone + Send + Sync + 'static,
) -> impl Fn(&str) -> Result<Choice<T>, String> + Clone + Send + Sync + 'static {
    move |text| match text {
        "all" | "-1" => Ok(Choice::All),
        one => parse(one).map(Choice::One).ok_or_else(|| "see --help for the values".into()),
    }
}

fn named<T: Clone + Send + Sync + 'static>(
    parse: impl Fn(&str) -> Option<T> + Clone + Send + Sync + 'static,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text| parse(text).ok_or_else(|| "see --help for the values".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn perf(line: &str) -> PerfArgs {
        let words = ["oxccl", "perf"].into_iter().chain(line.split_whitespace());
        let Command::Perf(args) = Cli::try_parse_from(words).unwrap().command;
        args
    }

    #[test]
    fn the_flags_of_nccl_tests() {
        let args = perf("all_reduce -b 8 -e 64M -f 2 -n 20 -w 5 -c 1 -o all -d half -r -1 -z 1 -m 2 -a 3");
        assert_eq!(args.collective, Collective::AllReduce);
        assert_eq!((args.minbytes, args.maxbytes, args.iters), (8, 64 << 20, Some(20)));
        assert_eq!((args.op, args.datatype), (Choice::All, Choice::One(DataType::F16)));
        assert_eq!((args.root, args.blocking, args.agg_iters, args.average), (Choice::All, 1, 2, 3));
        assert_eq!(perf("reduce-scatter").collective, Collective::ReduceScatter);
    }

    #[test]
    fn sizes_as_nccl_tests_steps_them() {
        assert_eq!(perf("all-reduce -b 8 -e 64 -f 2").sizes(), [8, 16, 32, 64]);
        assert_eq!(perf("all-reduce -b 1K -e 3K -i 1K").sizes(), [1024, 2048, 3072]);
        assert_eq!(perf("all-reduce").sizes(), [32 << 20]);
        assert_eq!(perf("all-reduce -b 0 -e 2 -f 2").sizes(), [0, 1, 2]);
        assert_eq!(perf("barrier -b 8 -e 64 -f 2").sizes(), [0]);
    }

    #[test]
    fn engines() {
        assert_eq!(engine("mpi=/a/b.so"), Ok(EngineChoice::Mpi { library: "/a/b.so".into() }));
        assert!(engine("oxccl=/x").is_err());
        let args = perf("all-reduce --engine oxccl --engine mpi");
        assert_eq!((args.engines.len(), args.rounds()), (2, 5));
    }

    #[test]
    fn wrong_sizes_are_refused() {
        for text in ["", "K", "8X", "-1", "1e30"] {
            assert!(bytes(text).is_err(), "{text}");
        }
        assert_eq!(bytes("1.5K"), Ok(1536));
    }
}
