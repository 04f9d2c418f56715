//! Layer: perf / report / facts.
//! Takes: who takes part in a run, and with what.
//! Gives: what every form of a report shows of them.
//! Never: formats a table.

use super::machine::Machine;
use crate::cli::PerfArgs;
use crate::collective::Collective;
use crate::engine::Memory;
use crate::out::OutError;
use crate::team::{Record, TeamError, bytes_of_record, record_of_bytes};
use oxccl::os::describe;
use std::path::PathBuf;

/// Why a report could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    #[error(transparent)]
    Team(#[from] TeamError),
    #[error("printing the table: {}", describe(.0))]
    Print(#[from] std::io::Error),
    #[error(transparent)]
    Outputs(OutError),
    #[error("writing {}: {error}", .path.display())]
    Write { path: PathBuf, error: OutError },
    #[error("drawing the plot: {0}")]
    Draw(String),
}

/// What is known before the first measurement.
pub struct Run<'a> {
    pub args: &'a PerfArgs,
    /// What is being measured now.
    pub collective: Collective,
    pub ranks: u32,
    pub machine: Machine,
    pub engines: Vec<EngineFacts>,
}

/// An engine as reports show it.
#[derive(serde::Serialize)]
pub struct EngineFacts {
    pub name: String,
    pub description: String,
    /// What the engine says that it reserves.
    pub memory: Option<Memory>,
    /// What beginning to use it cost. Only measured on GPUs.
    pub start: Option<StartCost>,
}

/// What it costs to begin: the greatest of all ranks.
#[derive(Clone, Copy, Default, PartialEq, Debug, serde::Serialize)]
pub struct StartCost {
    /// Milliseconds from the first call until every rank had its communicator.
    pub create_ms: f64,
    /// Milliseconds from the first call to the end of the first all-reduce.
    pub first_all_reduce_ms: f64,
    /// Bytes of device memory that were no longer free after the creation.
    pub created_bytes: u64,
    /// The same after the first all-reduce.
    pub used_bytes: u64,
}

impl EngineFacts {
    /// Sentences about memory and time.
    pub fn costs(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(memory) = &self.memory {
            let peers = memory.peers.iter().map(|peer| peer.bytes);
            lines.push(format!(
                "{} bytes per communicator on rank 0, {} to {} bytes per peer",
                memory.communicator_bytes,
                peers.clone().min().unwrap_or(0),
                peers.max().unwrap_or(0)
            ));
        }
        if let Some(start) = &self.start {
            lines.push(format!(
                "communicator {:.1} ms, to the end of the first all-reduce {:.1} ms; device memory {:.1} MiB, then {:.1} MiB",
                start.create_ms,
                start.first_all_reduce_ms,
                start.created_bytes as f64 / f64::from(1 << 20),
                start.used_bytes as f64 / f64::from(1 << 20),
            ));
        }
        lines
    }
}

/// The ranks of one thread, as the table's head shows them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Who {
    pub host: String,
    pub pid: u32,
    /// The GPU of each rank; zero where a rank is a thread of a processor.
    pub devices: Vec<u8>,
}

impl Who {
    /// A host's name of at most 80 bytes, then the process, then up to sixteen devices and their number.
    pub fn record(&self) -> Record {
        let host = self.host.as_bytes();
        let mut bytes = [0u8; 128];
        let len = host.len().min(80);
        bytes[..len].copy_from_slice(&host[..len]);
        bytes[80..84].copy_from_slice(&self.pid.to_le_bytes());
        bytes[84] = self.devices.len().min(16) as u8;
        for (byte, device) in bytes[85..101].iter_mut().zip(&self.devices) {
            *byte = *device;
        }
        record_of_bytes(&bytes)
    }

    pub fn of_record(record: &Record) -> Who {
        let bytes = bytes_of_record(record);
        let host = String::from_utf8_lossy(&bytes[..80]).trim_end_matches('\0').to_string();
        let pid = u32::from_le_bytes(std::array::from_fn(|i| bytes[80 + i]));
        Who { host, pid, devices: bytes[85..][..usize::from(bytes[84]).min(16)].to_vec() }
    }
}
