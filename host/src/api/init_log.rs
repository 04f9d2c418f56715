//! What a new communicator is made of, for the log: what a support engineer asks first.

use super::communicator::Comm;
use super::init::Init;
use oxccl_shared::abi::{DataType, Func};
use std::fmt::Write;
use std::time::Duration;

/// Channels whose rings are written, one a line.
const CHANNELS_MAX: usize = 32;
/// Sizes between which the choice of an algorithm is looked for, in bytes.
const SIZES: [u32; 2] = [2, 32];

/// Writes it, if anybody reads it.
pub(super) fn write<M: Init>(comm: &Comm<M>, took: Duration) {
    if !tracing::enabled!(tracing::Level::INFO) {
        return;
    }
    let (rank, nranks) = (comm.rank(), comm.size());
    for (channel, ring) in comm.rings().iter().enumerate().take(CHANNELS_MAX) {
        let ranks = ring.iter().fold(String::new(), |mut text, rank| {
            let _ = write!(text, " {rank}");
            text
        });
        tracing::info!("Channel {channel:02}/{:02} :{ranks}", comm.rings().len());
    }
    for peer in &comm.memory().peers {
        tracing::info!(
            "rank {rank} - rank {} via {}, {} bytes in and {} out",
            peer.rank,
            peer.transport,
            peer.inbound_bytes,
            peer.outbound_bytes
        );
    }
    if nranks > 1 {
        for func in [Func::AllReduce, Func::AllGather, Func::ReduceScatter, Func::Broadcast] {
            if let Some(choices) = choices(comm, func) {
                tracing::info!(target: "oxccl::graph", "{func} (float32):{choices}");
            }
        }
    }
    tracing::info!(
        "rank {rank} nranks {nranks} {}, {} channels, {} - Init COMPLETE in {:.3} s",
        M::name_of(&comm.device),
        comm.rings().len(),
        comm.memory(),
        took.as_secs_f64()
    );
}

/// From which size on which algorithm and protocol run.
fn choices<M: Init>(comm: &Comm<M>, func: Func) -> Option<String> {
    let mut text = String::new();
    let mut last = None;
    for power in SIZES[0]..=SIZES[1] {
        let count = (1u64 << power) / 4;
        let chosen = comm.explain(func, DataType::F32, count.max(1)).ok()??.choice.candidate;
        if last != Some(chosen) {
            let _ = write!(text, " {}/{} from {} B", chosen.algorithm, chosen.protocol, 1u64 << power);
            last = Some(chosen);
        }
    }
    Some(text)
}
