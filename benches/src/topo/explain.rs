//! Layer: topo.
//! Takes: a call in words, and a machine.
//! Gives: the library's explanation of its choice.
//! Never: decides anything: what is printed is what a communicator on that machine does.

use super::args::TopoArgs;
use super::machine::Machine;
use super::words::headline;
use crate::cli::bytes;
use crate::collective::Collective;
use crate::words::count;
use clap::ValueEnum;
use oxccl::Rank;
use oxccl::api::tune_file::{self, TuneError};
use oxccl::plan::tuning::{
    self, Architecture, Backend, Forced, Impossible, ListError, NetSpeed, TUNED, TuneFile,
};
use oxccl::plan::{Call, ChannelLimits, Collnet, Facts, Lacks, Nics, Plan, plan};
use oxccl::topology::{Channels, JoinError};
use oxccl::transport::stream_layout;
use oxccl::{Config, Func, RedOp};
use oxccl_shared::algo::spec::Processor;

/// Why nothing can be explained.
#[derive(Debug, thiserror::Error)]
pub enum ExplainError {
    #[error(
        "--explain {0}: all-reduce, all-gather, reduce-scatter, broadcast, reduce or all-to-all was expected"
    )]
    Collective(String),
    #[error("--explain {0}: {1}")]
    Bytes(String, String),
    #[error("--ranks {ranks}: {hosts} of these machines have {gpus} GPUs, of which each has as many ranks")]
    Ranks { ranks: u32, hosts: u32, gpus: u32 },
    #[error("--ranks {ranks} --hosts {hosts}: hosts have equally many ranks, one at least")]
    RanksOfHosts { ranks: u32, hosts: u32 },
    #[error("{option} {value}: {error}")]
    List { option: &'static str, value: String, error: ListError },
    #[error(transparent)]
    Impossible(#[from] Impossible),
    #[error(transparent)]
    Tune(#[from] TuneError),
    #[error(transparent)]
    Join(#[from] JoinError),
}

/// Ranks on each host, of which each has one of its `gpus` GPUs.
pub fn ranks_of_host(args: &TopoArgs, gpus: usize) -> Result<u32, ExplainError> {
    let (hosts, gpus) = (args.hosts, gpus as u32 * args.hosts);
    let ranks = args.ranks.unwrap_or(gpus);
    if ranks > gpus || !ranks.is_multiple_of(hosts) {
        return Err(ExplainError::Ranks { ranks, hosts, gpus });
    }
    Ok(ranks / hosts)
}

/// What communicators of all GPUs know, and their channels.
pub fn facts(
    machine: &Machine,
    forced: Forced,
    tuned: Option<&TuneFile>,
) -> Result<(Facts, Channels), ExplainError> {
    let agreed = machine.agreed();
    let sm = machine.system.sm_min();
    let found = tuning::Machine::of_agreed(sm, &agreed);
    let ranks = found.nranks;
    // What reduces between hosts is no part of a machine: that it could be there is said of each call.
    let collnet = if machine.hosts > 1 { Collnet::Disabled } else { Collnet::OneHost };
    let lacks = Lacks { collnet: Some(collnet.why_none()), ..Lacks::default() };
    Facts::check(Processor::Gpu, ranks, &forced, lacks)?;
    let multiprocessors = Architecture::of_sm(sm).constants().multiprocessors;
    let facts = Facts::of_gpus(ranks, (sm, multiprocessors), forced, ChannelLimits::default(), None)
        .with_table(tuned.and_then(|file| file.table(Backend::Gpu, ranks).copied()))
        .with_hosts_of_gpus(ranks / machine.hosts.max(1))
        .with_collnet_of_gpus(collnet);
    let channels = Channels::join(&agreed.hosts)?;
    let facts = match machine.hosts {
        0 | 1 => facts.on(found, &channels.rings),
        hosts => {
            let each = ranks / hosts;
            let group_of: Vec<u64> = (0..ranks).map(|rank| u64::from(rank / each)).collect();
            let system = &machine.system;
            let gpu = |rank: u32| system.gpus.iter().position(|gpu| system.gpu(*gpu).rank.0 == rank % each);
            let nic = |rank| gpu(rank).and_then(|gpu| nearest(machine, gpu)).unwrap_or(0) as u64;
            let nic_of = (0..ranks).map(nic);
            let nics = Nics::new(&group_of, nic_of.collect(), network(machine), 1);
            facts.on_hosts(group_of.into_iter()).on(found, &channels.rings).over_nics(&nics, &channels)
        }
    };
    Ok((facts, channels))
}

/// Explains for GPUs, of which each has a rank.
pub fn on_gpus(args: &TopoArgs, machine: &Machine) -> Result<String, ExplainError> {
    let (facts, _) = facts(machine, forced(args)?, tuned(args)?.as_ref())?;
    let explained = explain(&facts, &call(args, facts.nranks)?);
    let headline = headline(machine);
    if args.hosts < 2 {
        return Ok(format!("{headline}\n{explained}"));
    }
    let NetSpeed { gbytes, latency_us } = network(machine);
    let between =
        format!("a network device of {gbytes:.1} GB/s and {latency_us:.1} us for each rank between hosts");
    Ok(format!("{headline}\n{between}\n{explained}"))
}

/// All-to-all has no candidates to compare: what the planner makes of it.
fn explain(facts: &Facts, call: &Call) -> String {
    if call.func != Func::AllToAll {
        return facts.explain(call).to_string();
    }
    let bytes = call.bytes();
    let head = format!("{} of {bytes} bytes from each rank to each, {}\n", call.func, facts.machine);
    if facts.goes_as_messages(call) {
        let protocol = facts.message_protocol(bytes);
        return format!(
            "{head}\nchosen: {} messages of each rank, by {protocol}\nbecause blocks this long are best sent pair by pair\n",
            facts.nranks.saturating_sub(1)
        );
    }
    let Plan { algorithm, protocol, channels, threads, .. } = plan(call, facts);
    format!(
        "{head}\nchosen: {algorithm} {protocol}, {} of {threads} threads: one kernel\n\
         because short blocks go to all peers at once\n",
        count(channels as usize, "channel")
    )
}

/// The network device nearest to a GPU.
fn nearest(machine: &Machine, gpu: usize) -> Option<usize> {
    machine.paths.local_net(&machine.system, gpu, 0)
}

/// The lowest bandwidth among ranks that use the NIC nearest to their GPU. Communicators assume 10 Gbit/s where it is unknown.
fn network(machine: &Machine) -> NetSpeed {
    let system = &machine.system;
    let of_gpu = |gpu: usize| nearest(machine, gpu).map(|net| system.net(system.nets[net]));
    let nets = || (0..system.gpus.len()).filter_map(of_gpu);
    NetSpeed {
        gbytes: nets().map(|net| f64::from(net.bw)).reduce(f64::min).unwrap_or(1.25),
        latency_us: nets().map(|net| f64::from(net.latency_us)).fold(0.0, f64::max),
    }
}

/// Explains for ranks that are threads of processors: of this machine, unless it is known how many there are. Ranks of several hosts reach
/// each other by streams.
pub fn on_cpus(args: &TopoArgs, known: Option<usize>) -> Result<String, ExplainError> {
    let here = || std::thread::available_parallelism().map_or(1, usize::from);
    let processors = known.unwrap_or_else(here);
    let hosts = args.hosts;
    let ranks = args.ranks.unwrap_or((processors as u32).saturating_mul(hosts));
    if !ranks.is_multiple_of(hosts) || ranks == 0 {
        return Err(ExplainError::RanksOfHosts { ranks, hosts });
    }
    let (forced, each) = (forced(args)?, u64::from(ranks / hosts));
    // What reduces between hosts is no part of a machine: it is shown, and why it does not go.
    let collnet = if hosts > 1 { Collnet::Disabled } else { Collnet::OneHost };
    let lacks = Lacks { collnet: Some(collnet.why_none()), ..Lacks::default() };
    Facts::check(Processor::Cpu, ranks, &forced, lacks)?;
    let config = Config::default();
    let (ring_layout, mesh_layout) = (config.ring_layout(), config.mesh_layout(ranks));
    // As communicators do: one rank on each host leaves streams alone.
    let is_streams = args.streams || hosts > 1 && each == 1;
    let (layouts, architecture) = match is_streams {
        true => ([stream_layout(ring_layout), stream_layout(mesh_layout)], Architecture::CpuStreams),
        false => ([ring_layout, mesh_layout], Architecture::Cpu),
    };
    let table = tuned(args)?.and_then(|file| file.table(Backend::of(architecture), ranks).copied());
    // Channels as communicators of processors have them.
    let channels = [1, 2];
    let facts = Facts::of_cpus(ranks, architecture, forced, layouts, channels)
        .on_hosts((0..u64::from(ranks)).map(|rank| rank / each))
        .with_far_ranks(hosts > 1)
        .with_collnet(collnet)
        .with_table(table);
    let page = explain(&facts, &call(args, ranks)?);
    // The model of streams was measured on one host, and says so.
    let is_spread = is_streams && hosts > 1;
    Ok(if is_spread { format!("{page}\n{hosts} hosts, a rank on each: all by streams") } else { page })
}

fn call(args: &TopoArgs, ranks: u32) -> Result<Call, ExplainError> {
    let name = &args.explain[0];
    let collective = Collective::from_str(name, true).ok();
    // Several reductions are no reduction.
    let collective = collective.filter(|collective| *collective != Collective::ReduceScatterV);
    let func =
        collective.map(crate::engine::func).filter(|func| TUNED.contains(func) || *func == Func::AllToAll);
    let func = func.ok_or_else(|| ExplainError::Collective(name.clone()))?;
    let size =
        bytes(&args.explain[1]).map_err(|error| ExplainError::Bytes(args.explain[1].clone(), error))?;
    let elems = size / args.datatype.size_bytes();
    let count = if func.has_blocks() { elems / ranks as usize } else { elems };
    Ok(Call { func, dtype: args.datatype, op: RedOp::Sum, root: Rank(0), count: count as u64 })
}

fn forced(args: &TopoArgs) -> Result<Forced, ExplainError> {
    let mut forced = Forced::default().deterministic(args.deterministic);
    let failed = |option, value: &String| {
        let value = value.clone();
        move |error| ExplainError::List { option, value, error }
    };
    if let Some(list) = &args.algo {
        forced = forced.with_algorithms(list).map_err(failed("--algo", list))?;
    }
    if let Some(list) = &args.proto {
        forced = forced.with_protocols(list).map_err(failed("--proto", list))?;
    }
    Ok(forced)
}

fn tuned(args: &TopoArgs) -> Result<Option<TuneFile>, ExplainError> {
    Ok(args.tune.as_deref().map(tune_file::read).transpose()?)
}
