//! Layer: perf / cli.
//! Takes: the command line.
//! Gives: [`PerfArgs`], named and defaulted as in nccl-tests where nccl-tests has the option.
//! Never: acts on it.

use crate::collective::Collective;
use crate::gpu::LoadKind;
use crate::target::{Target, suite_sizes};
use clap::{Args, Parser, ValueEnum};
use oxccl::plan::tuning::{Forced, ListError};
use oxccl_shared::abi::{DataType, Protocol, RedOp};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

/// Options of `oxccl perf`.
#[derive(Args, Clone, Debug)]
#[command(args_override_self = true)]
pub struct PerfArgs {
    #[arg(value_name = "COLLECTIVE|suite", value_parser = Target::parse, help = Target::help())]
    pub target: Target,
    /// Where buffers lie and who moves them.
    #[arg(long, value_enum, default_value_t = Backend::Cpu)]
    pub backend: Backend,
    /// Start this many processes on this machine, each with `--threads` threads. Default with cuda: one for each GPU.
    #[arg(long, value_name = "N", value_parser = whole(1..=1024))]
    pub ranks: Option<u32>,
    /// Threads per process, one rank each (with cuda: `--ngpus` ranks each).
    #[arg(short = 't', long, visible_alias = "nthreads", value_name = "N", value_parser = whole(1..=1024))]
    pub threads: Option<u32>,
    /// cuda: GPUs that each thread drives, one rank each, with group calls.
    #[arg(short = 'g', long, visible_alias = "one-thread", value_name = "N", value_parser = whole(1..=16))]
    pub ngpus: Option<u32>,
    /// cuda: the GPU of each rank of this machine, such as 0,2,1,3. Default: rank by rank.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub devices: Vec<u32>,
    /// Smallest size in bytes; K, M, G and T are powers of 1024.
    #[arg(short = 'b', long, default_value = "32M", default_value_if("target", "suite", "8"), value_parser = bytes)]
    pub minbytes: usize,
    /// Largest size in bytes.
    #[arg(short = 'e', long, default_value = "32M", default_value_if("target", "suite", "2G"), value_parser = bytes)]
    pub maxbytes: usize,
    /// Bytes from one size to the next, where there is no factor; at least 1.
    #[arg(short = 'i', long, default_value = "1M", value_parser = step)]
    pub stepbytes: usize,
    /// Factor from one size to the next; 1 means `--stepbytes`.
    #[arg(short = 'f', long, default_value_t = 1)]
    pub stepfactor: usize,
    /// These sizes instead, such as 8,64K,1G.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = bytes)]
    pub sizes: Vec<usize>,
    /// Buffers: out of place, in place, or both.
    #[arg(long, value_enum, default_value_t = Places::Both, default_value_if("target", "suite", "out"))]
    pub place: Places,
    /// Operations per measurement. Default: as many as take `--min-time`.
    #[arg(short = 'n', long, value_parser = whole(1..=u32::MAX))]
    pub iters: Option<u32>,
    /// Milliseconds that a measurement takes at least, where `--iters` is not given (from 4 to 20000 operations).
    #[arg(long, value_name = "MS", default_value_t = 20)]
    pub min_time: u32,
    /// Operations before each size's measurements.
    #[arg(short = 'w', long = "warmup_iters", visible_alias = "warmup-iters", default_value_t = 5)]
    pub warmup_iters: u32,
    /// Operations put into one group; the time shown is per operation.
    #[arg(short = 'm', long = "agg_iters", visible_alias = "agg-iters", default_value_t = 1, value_parser = whole(1..=u32::MAX))]
    pub agg_iters: u32,
    /// How often each size's results are checked; 0 for never.
    #[arg(short = 'c', long, default_value_t = 1)]
    pub check: u32,
    /// cuda: bytes of a part that a check compares at most: 1 MiB pieces at equal distances, and the last. 0: all of them.
    #[arg(long, value_name = "BYTES", default_value = "256M", value_parser = bytes)]
    pub check_bytes: usize,
    /// sum, prod, min, max, avg, mulsum or all.
    #[arg(short = 'o', long, default_value = "sum", value_parser = choice_of(RedOp::from_name))]
    pub op: Choice<RedOp>,
    /// int8, uint8, int32, uint32, int64, uint64, half, float, double, bfloat16, fp8_e4m3, fp8_e5m2 or all.
    #[arg(short = 'd', long, default_value = "float", value_parser = choice_of(DataType::from_name))]
    pub datatype: Choice<DataType>,
    /// Root rank, or all.
    #[arg(short = 'r', allow_negative_numbers = true, long, default_value = "0", value_parser = choice_of(|text: &str| text.parse::<u32>().ok()))]
    pub root: Choice<u32>,
    /// cpu: measure how far an operation overlaps with computation: each is started, its rank computes for as long as the operation
    /// takes alone, testing the request this many times, then waits (no number: 16).
    #[arg(long, value_name = "TESTS", num_args = 0..=1, require_equals = true, default_missing_value = "16",
          conflicts_with_all = ["markdown", "plot", "agg_iters", "blocking", "rotate"])]
    pub nonblocking: Option<u32>,
    /// cuda: measure operations beside a computation on the same GPUs, bound by arithmetic or by memory (no word: both): what each loses.
    #[arg(long, value_enum, value_name = "KIND", num_args = 0..=1, require_equals = true,
          conflicts_with_all = ["markdown", "plot", "blocking", "nonblocking", "init_time"])]
    pub overlap: Option<Option<LoadKind>>,
    /// cuda: say how many blocks of threads an operation's kernels have, as a graph of one operation shows it.
    #[arg(long)]
    pub blocks: bool,
    /// 1: all ranks wait for each other after each operation, within the time measured.
    #[arg(short = 'z', long, default_value_t = 0, value_parser = whole(0..=1))]
    pub blocking: u32,
    /// Time shown: 0 of rank 0, 1 average, 2 minimum, 3 maximum over the ranks.
    #[arg(short = 'a', long, default_value_t = 1, value_parser = whole(0..=3))]
    pub average: u32,
    /// cuda: what is read before the first and after the last operation: events in the stream, or the processor's clock.
    #[arg(long, value_enum, default_value_t = Timer::Events)]
    pub timer: Timer,
    /// cuda: what engines know of the buffers beforehand: 0 nothing; 1 each rank registers its own (ncclCommRegister); 2 all ranks register
    /// them together, as symmetric windows. From 1 on buffers are memory that other processes can map.
    #[arg(short = 'R', long, alias = "local_register", value_name = "0|1|2", default_value_t = 0, value_parser = whole(0..=2))]
    pub register: u32,
    /// cuda: capture this many operations (or groups of `--agg_iters`) into a graph and time its launches; 0: no graph.
    #[arg(short = 'G', long, alias = "cudagraph", value_name = "N", default_value_t = 0)]
    pub graph: u32,
    /// cuda: measure nothing but the time from a communicator's creation to the end of the first all-reduce, and the device memory
    /// that it takes; with --ranks --rounds times, each time and for each engine in new processes.
    #[arg(long)]
    pub init_time: bool,
    /// Seconds that the whole run may last: rounds become fewer, then operations (`--iters`), then the largest sizes are left out.
    #[arg(long, value_name = "S", value_parser = budget)]
    pub time_budget: Option<Duration>,
    /// Seconds after which an operation that makes no progress is given up; 0 for the library's own limit (cuda: 60).
    #[arg(short = 'T', long, value_name = "S", default_value = "0", hide_default_value = true, value_parser = seconds)]
    pub timeout: Duration,
    /// Measurements of each size; the median is shown. Default: 1, or 5 where engines are compared.
    #[arg(long, value_parser = whole(1..=u32::MAX))]
    pub rounds: Option<u32>,
    /// Walk through `--maxbytes` of memory, one operation after the other, so that small sizes do not stay in caches.
    #[arg(long)]
    pub rotate: bool,
    /// Bytes by which buffers miss page alignment.
    #[arg(long, default_value_t = 0, value_parser = whole(0..=4095))]
    pub misalign: u32,
    /// OxCCL: algorithms, as NCCL_ALGO has them (docs/env-vars.md).
    #[arg(long, value_parser = algorithms)]
    pub algo: Option<String>,
    /// OxCCL: this protocol (ll, ll128, simple).
    #[arg(long, value_parser = named(Protocol::from_name))]
    pub proto: Option<Protocol>,
    /// cuda, OxCCL: this many channels (NCCL_MIN_NCHANNELS and NCCL_MAX_NCHANNELS at once).
    #[arg(long, value_name = "N", value_parser = whole(1..=u32::MAX))]
    pub channels: Option<u32>,
    /// OxCCL: this transport.
    #[arg(long, value_enum, default_value_t = Transport::Auto)]
    pub transport: Transport,
    /// Libraries to measure, in turns on the same buffers. cpu: oxccl, mpi[=/path/libmpi.so.40] (Open MPI, under its mpirun),
    /// mpich[=/path/libmpi.so.12] (MPICH or Intel MPI, under its mpiexec), memcpy (a bound), tcp-stream (send and receive without a library);
    /// cuda: nccl[=/path/libnccl.so.2].
    #[arg(long = "engine", value_name = "NAME[=PATH]", default_value = "oxccl", value_parser = engine)]
    pub engines: Vec<EngineChoice>,
    /// Bind the process of rank r to processor r, modulo their number, of those that this program may use (with `--ranks`).
    #[arg(long)]
    pub bind: bool,
    /// Write everything measured (docs/measurements/README.md states the schema); with suite into this folder. Folders must be there.
    #[arg(long, value_name = "FILE|DIR")]
    pub json: Option<PathBuf>,
    /// Write the compact tables as Markdown, into a folder that is there.
    #[arg(long, value_name = "FILE.md")]
    pub markdown: Option<PathBuf>,
    /// Draw time and bus bandwidth over size, into a folder that is there.
    #[arg(long, value_name = "FILE.svg", value_parser = svg)]
    pub plot: Option<PathBuf>,
}

/// A command line of [`PerfArgs`] alone.
#[derive(Parser)]
pub struct PerfLine {
    #[command(flatten)]
    pub perf: PerfArgs,
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
    Net,
}

/// `--backend`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Backend {
    Cpu,
    Cuda,
}

/// `--place`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Places {
    Out,
    In,
    Both,
}

impl Places {
    pub fn has(self, in_place: bool) -> bool {
        self == Places::Both || in_place == (self == Places::In)
    }
}

/// `--timer`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Timer {
    Events,
    Host,
}

/// `--engine`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EngineChoice {
    Oxccl,
    Mpi { library: PathBuf },
    Memcpy,
    TcpStream,
    Nccl { library: PathBuf },
}

impl PerfArgs {
    /// The sizes asked for, in bytes.
    pub fn sizes(&self, collective: Collective) -> Vec<usize> {
        if collective == Collective::Barrier {
            return vec![0];
        }
        if !self.sizes.is_empty() {
            return self.sizes.clone();
        }
        if self.target == Target::Suite && self.stepfactor <= 1 {
            let asked = self.minbytes..=self.maxbytes;
            return suite_sizes().filter(|size| asked.contains(size)).collect();
        }
        std::iter::successors(Some(self.minbytes), |size| {
            let next = if self.stepfactor > 1 {
                // A factor never leaves zero.
                if *size == 0 { Some(1) } else { size.checked_mul(self.stepfactor) }
            } else {
                size.checked_add(self.stepbytes)
            };
            next.filter(|next| *next <= self.maxbytes)
        })
        .collect()
    }

    /// Bytes of the largest call: what buffers have room for.
    pub fn room(&self) -> usize {
        if self.sizes.is_empty() { self.maxbytes } else { self.sizes.iter().copied().max().unwrap_or(0) }
    }

    /// Ranks of each thread.
    pub fn per_thread(&self) -> u32 {
        self.ngpus.unwrap_or(1)
    }

    /// How long to wait for an operation: `--timeout`, or this where none was given.
    pub fn patience(&self, otherwise: Duration) -> Duration {
        if self.timeout.is_zero() { otherwise } else { self.timeout }
    }

    /// Measurements of each size and engine.
    pub fn rounds(&self) -> u32 {
        self.rounds.unwrap_or(if self.engines.len() > 1 { 5 } else { 1 })
    }
}

/// The default name of MPICH's and Intel MPI's library.
const LIBMPICH: &str = "libmpi.so.12";
/// The default name of Open MPI's library: what `libopenmpi-dev` and `libopenmpi3` install.
const LIBMPI: &str = "libmpi.so.40";
/// The name under which every release of NCCL 2 is found.
const LIBNCCL: &str = "libnccl.so.2";

fn engine(text: &str) -> Result<EngineChoice, String> {
    let (name, path) = text.split_once('=').map_or((text, None), |(name, path)| (name, Some(path)));
    match (name, path) {
        ("oxccl", None) => Ok(EngineChoice::Oxccl),
        ("memcpy", None) => Ok(EngineChoice::Memcpy),
        ("tcp-stream", None) => Ok(EngineChoice::TcpStream),
        ("mpi", path) => Ok(EngineChoice::Mpi { library: path.unwrap_or(LIBMPI).into() }),
        ("mpich", path) => Ok(EngineChoice::Mpi { library: path.unwrap_or(LIBMPICH).into() }),
        ("nccl", path) => Ok(EngineChoice::Nccl { library: path.unwrap_or(LIBNCCL).into() }),
        _ => Err(
            "expected oxccl, memcpy, tcp-stream, mpi[=/path/to/libmpi.so.40], mpich[=/path/to/libmpi.so.12] or nccl[=/path/to/libnccl.so.2]"
                .into(),
        ),
    }
}

pub fn bytes(text: &str) -> Result<usize, String> {
    let (digits, unit) = match text.trim_end_matches(['B', 'b']).char_indices().last() {
        Some((at, 'K' | 'k')) => (&text[..at], 1 << 10),
        Some((at, 'M' | 'm')) => (&text[..at], 1 << 20),
        Some((at, 'G' | 'g')) => (&text[..at], 1 << 30),
        Some((at, 'T' | 't')) => (&text[..at], 1 << 40),
        _ => (text, 1u64),
    };
    let number: f64 = digits.parse().map_err(|_| "expected a number of bytes such as 8, 64K, 1.5M or 1G")?;
    let bytes = number * unit as f64;
    if (0.0..=(1u64 << 46) as f64).contains(&bytes) {
        Ok(bytes as usize)
    } else {
        Err("0 to 64T was expected".into())
    }
}

/// A whole number within this range. Clap's own parser names the range in Rust's notation.
pub fn whole(
    range: RangeInclusive<u32>,
) -> impl Fn(&str) -> Result<u32, String> + Clone + Send + Sync + 'static {
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| match (range.start(), range.end()) {
            (least, &u32::MAX) => format!("a whole number was expected, at least {least}"),
            (least, most) => format!("a whole number from {least} to {most} was expected"),
        })
    }
}

/// From one size to the next.
fn step(text: &str) -> Result<usize, String> {
    match bytes(text)? {
        0 => Err("sizes 0 bytes apart are all the same: at least 1 was expected".into()),
        step => Ok(step),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.parse().map_err(|_| "expected a number of seconds such as 10 or 0.5")?;
    Duration::try_from_secs_f64(number).map_err(|error| error.to_string())
}

pub fn budget(text: &str) -> Result<Duration, String> {
    let budget = seconds(text)?;
    if budget.is_zero() { Err("nothing can be measured in no time".into()) } else { Ok(budget) }
}

/// The command line, for reports. Letters that are no UTF-8 are replaced.
pub fn command_line() -> Vec<String> {
    std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect()
}

fn svg(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    let is_svg = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("svg"));
    if is_svg { Ok(path) } else { Err("plots are SVG: expected a name that ends in .svg".into()) }
}

fn choice_of<T: Clone + Send + Sync + 'static>(
    parse: impl Fn(&str) -> Option<T> + Clone + Send + Sync + 'static,
) -> impl Fn(&str) -> Result<Choice<T>, String> + Clone + Send + Sync + 'static {
    move |text| match text {
        "all" | "-1" => Ok(Choice::All),
        one => parse(one).map(Choice::One).ok_or_else(|| "see --help for the values".into()),
    }
}

/// A list that NCCL_ALGO could have.
fn algorithms(text: &str) -> Result<String, ListError> {
    Forced::default().with_algorithms(text).map(|_| text.to_owned())
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
        PerfLine::try_parse_from(["perf"].into_iter().chain(line.split_whitespace())).unwrap().perf
    }

    #[test]
    fn the_flags_of_nccl_tests() {
        let args = perf("all_reduce -b 8 -e 64M -f 2 -n 20 -w 5 -c 1 -o all -d half -r -1 -z 1 -m 2 -a 3");
        assert_eq!(args.target, Target::One(Collective::AllReduce));
        assert_eq!((args.minbytes, args.maxbytes, args.iters), (8, 64 << 20, Some(20)));
        assert_eq!((args.op, args.datatype), (Choice::All, Choice::One(DataType::F16)));
        assert_eq!((args.root, args.blocking, args.agg_iters, args.average), (Choice::All, 1, 2, 3));
        assert_eq!(perf("reduce-scatter").target, Target::One(Collective::ReduceScatter));
    }

    fn sizes(line: &str) -> Vec<usize> {
        let args = perf(line);
        args.sizes(args.target.collectives()[0])
    }

    #[test]
    fn sizes_as_nccl_tests_steps_them() {
        assert_eq!(sizes("all-reduce -b 8 -e 64 -f 2"), [8, 16, 32, 64]);
        assert_eq!(sizes("all-reduce -b 1K -e 3K -i 1K"), [1024, 2048, 3072]);
        assert_eq!(sizes("all-reduce"), [32 << 20]);
        assert_eq!(sizes("all-reduce -b 0 -e 2 -f 2"), [0, 1, 2]);
        assert_eq!(sizes("barrier -b 8 -e 64 -f 2"), [0]);
        assert_eq!(sizes("all-reduce --sizes 8,1K"), [8, 1024]);
    }

    #[test]
    fn the_suite_has_defaults_of_its_own() {
        assert_eq!((perf("all-reduce").register, perf("all-reduce -R 2").register), (0, 2));
        let args = perf("suite --backend cuda --ranks 4 --engine nccl=/x --engine nccl --time-budget 300");
        assert_eq!((args.place, args.backend, args.room()), (Places::Out, Backend::Cuda, 2 << 30));
        assert_eq!(args.engines[1], EngineChoice::Nccl { library: LIBNCCL.into() });
        assert_eq!(args.time_budget, Some(Duration::from_secs(300)));
        assert_eq!(sizes("suite").len(), 15);
        assert_eq!(sizes("suite -b 1K -e 64K"), [1 << 10, 4 << 10, 16 << 10, 64 << 10]);
        assert_eq!(sizes("suite -b 8 -e 64 -f 2"), [8, 16, 32, 64]);
        let args = perf("all-reduce");
        assert_eq!((args.place, args.backend, args.room()), (Places::Both, Backend::Cpu, 32 << 20));
    }

    #[test]
    fn one_thread_drives_several_gpus() {
        assert_eq!(perf("all-reduce --backend cuda --one-thread 4").per_thread(), 4);
        assert_eq!(perf("all-reduce -g 2 -t 2 --devices 3,1,2,0").devices, [3, 1, 2, 0]);
    }

    #[test]
    fn engines() {
        assert_eq!(engine("mpi=/a/b.so"), Ok(EngineChoice::Mpi { library: "/a/b.so".into() }));
        assert_eq!(engine("mpich"), Ok(EngineChoice::Mpi { library: LIBMPICH.into() }));
        assert!(engine("oxccl=/x").is_err());
        let args = perf("all-reduce --engine oxccl --engine mpi");
        assert_eq!((args.engines.len(), args.rounds()), (2, 5));
    }

    #[test]
    fn of_a_flag_given_twice_the_last_counts() {
        let args = perf("all-reduce --ranks 2 -b 8 -b 16 --ranks 3 --engine oxccl --engine memcpy");
        assert_eq!((args.ranks, args.minbytes, args.engines.len()), (Some(3), 16, 2));
    }

    #[test]
    fn timeouts_and_plots() {
        let patience = |line| perf(line).patience(Duration::from_secs(60));
        assert_eq!(patience("all-reduce"), Duration::from_secs(60));
        assert_eq!(patience("all-reduce -T 0"), Duration::from_secs(60));
        assert_eq!(patience("all-reduce -T 0.5"), Duration::from_millis(500));
        for text in ["-1", "inf", "NaN", "soon", "1e30"] {
            assert!(seconds(text).is_err(), "{text}");
        }
        assert!(budget("0").is_err() && budget("0.5").is_ok());
        assert!(svg("a/b.svg").is_ok() && svg("x.png").is_err() && svg("svg").is_err());
    }

    /// They were shown as `0..4096`.
    #[test]
    fn ranges_are_named_in_words() {
        for (line, expected) in [
            ("all-reduce --misalign 4096", "a whole number from 0 to 4095 was expected"),
            ("all-reduce --ranks x", "a whole number from 1 to 1024 was expected"),
            ("all-reduce --rounds 0", "a whole number was expected, at least 1"),
        ] {
            let words = ["perf"].into_iter().chain(line.split_whitespace());
            let error = PerfLine::try_parse_from(words).err().expect(line).to_string();
            assert!(error.contains(expected) && !error.contains(".."), "{line}: {error}");
        }
        assert_eq!(perf("all-reduce --misalign 4095").misalign, 4095);
    }

    #[test]
    fn wrong_sizes_are_refused() {
        for text in ["", "K", "8X", "-1", "1e30"] {
            assert!(bytes(text).is_err(), "{text}");
        }
        assert_eq!(bytes("1.5K"), Ok(1536));
        assert_eq!((bytes("1T"), bytes("64T")), (Ok(1 << 40), Ok(1 << 46)));
        assert_eq!(bytes("65T"), Err("0 to 64T was expected".into()));
        assert!(step("0").is_err_and(|error| error.contains("at least 1")) && step("4").is_ok());
    }
}
