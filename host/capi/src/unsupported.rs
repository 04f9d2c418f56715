//! What this library does not serve, and says so: kernels that communicate by themselves (device communicators, their teams and
//! resources), counted transfers.
//!
//! The refusals take no arguments: a C caller's are left where they are. Structures are laid out as in NCCL's headers of 2.30.7.

use crate::comm::{COMMS, Comm};
use crate::pointer::{In, Out};
use crate::registry::Handle;
use crate::result::{Failure, Outcome, remember};
use crate::types::{CommProperties, MAGIC, Team};
use oxccl::cuda::PciBus;
use oxccl::topology::BusId;
use oxccl::topology::detect::nvml_index;
use oxccl::{PeerMemory, TransportKind};
use std::ffi::c_int;

/// The refusal of everything for kernels that communicate by themselves.
pub fn device_interface() -> Outcome {
    Err(Failure::invalid_usage(
        "the device interface (ncclDevComm, LSA, GIN, CFT) is not served by this library: launch the collective from the host, \
         or ask ncclCommQueryProperties, whose deviceApiSupport is false",
    ))
}

/// As [`device_interface`], for functions that return a number.
pub fn no_number(function: &'static str) -> c_int {
    if let Err(failure) = device_interface() {
        remember(function, &failure);
    }
    0
}

/// As [`device_interface`], for functions that return a team: one without ranks.
pub fn no_team(function: &'static str) -> Team {
    no_number(function);
    Team::default()
}

/// `ncclTeamWorld` and `ncclTeamRail`: all ranks, since the team of those whose memory a kernel can use is [`alone`].
pub fn world(function: &'static str, comm: Handle) -> Team {
    team(function, comm, |rank, nranks| Team { nranks, rank, stride: 1 })
}

/// `ncclTeamLsa`: without the device interface no kernel uses another rank's memory.
pub fn alone(function: &'static str, comm: Handle) -> Team {
    team(function, comm, |_, _| Team { nranks: 1, rank: 0, stride: 1 })
}

fn team(function: &'static str, comm: Handle, make: impl FnOnce(c_int, c_int) -> Team) -> Team {
    let seat = COMMS.get(comm, "comm").and_then(|comm| comm.seat());
    match seat {
        Ok(seat) => make(seat.rank as c_int, seat.nranks as c_int),
        Err(failure) => {
            remember(function, &failure);
            Team::default()
        }
    }
}

/// `ncclTeamRankToWorld`; -1 for what is no rank.
pub fn rank_to_world(function: &'static str, comm: Handle, team: Team, rank: c_int) -> c_int {
    let seat = COMMS.get(comm, "comm").and_then(|comm| comm.seat());
    let found = seat.map(|seat| {
        let steps = i64::from(rank) - i64::from(team.rank);
        let world = i64::from(seat.rank) + steps * i64::from(team.stride);
        (0..i64::from(seat.nranks)).contains(&world).then_some(world as c_int)
    });
    match found {
        Ok(Some(world)) => world,
        Ok(None) => {
            remember(function, &Failure::invalid_argument(format!("the team has no rank {rank}")));
            -1
        }
        Err(failure) => {
            remember(function, &failure);
            -1
        }
    }
}

/// `ncclCommQueryProperties`: that nothing of the device interface is there.
pub fn properties(comm: Handle, info: In<CommProperties>, out: Out<CommProperties>) -> Outcome {
    let comm = COMMS.get(comm, "comm")?;
    let seat = comm.seat()?;
    let given = info.bytes(16, "props")?;
    let size = usize::from_ne_bytes(given[..8].try_into().unwrap_or_default());
    let magic = u32::from_ne_bytes(given[8..12].try_into().unwrap_or_default());
    if magic != MAGIC || size < size_of::<CommProperties>() {
        return Err(Failure::invalid_argument(
            "props was not initialised: start from NCCL_COMM_PROPERTIES_INITIALIZER (its size or its magic number is wrong)",
        ));
    }
    let version = u32::from_ne_bytes(given[12..16].try_into().unwrap_or_default());
    let properties = CommProperties {
        size,
        magic,
        version,
        rank: seat.rank as c_int,
        nranks: seat.nranks as c_int,
        cuda_device: comm.device as c_int,
        nvml_device: nvml_number(&comm)?,
        device_api_support: false,
        multimem_support: false,
        gin_type: 0,
        lsa_teams: seat.nranks as c_int,
        host_rma_support: has_one_sided(&comm)?,
        railed_gin_type: 0,
    };
    out.write(properties, "props")
}

/// The GPU's number among all of the host, or CUDA's where NVML does not say.
fn nvml_number(comm: &Comm) -> Outcome<c_int> {
    let PciBus { domain, bus, device } = comm.engine()?.device().id().bus;
    Ok(nvml_index(BusId::new(domain, bus, device)).unwrap_or(comm.device) as c_int)
}

/// Whether one-sided operations reach every rank.
fn has_one_sided(comm: &Comm) -> Outcome<bool> {
    let engine = comm.engine()?;
    let is_reached = |peer: &PeerMemory| peer.transport == TransportKind::P2p;
    Ok(engine.memory().peers.iter().all(is_reached))
}
