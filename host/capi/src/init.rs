//! New communicators: from an id, for all GPUs of a process, and from another communicator.

use crate::comm::{COMMS, Comm};
use crate::config::Settings;
use crate::encryption;
use crate::group::{GHOST, Job, member, submit_job};
use crate::pointer::{In, Out};
use crate::registry::Handle;
use crate::result::{Failure, Outcome};
use crate::types::{Code, CommConfig, NO_COLOR, UniqueIdBytes};
use crate::unique_id;
use oxccl::cuda::{Device, Driver};
use oxccl::{CommHandle, Config, DeviceCommunicator, Error, Pending, UniqueId};
use std::ffi::c_int;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// `ncclCommInitRank` and `ncclCommInitRankConfig`.
pub fn init_rank(
    out: Out<Handle>,
    nranks: c_int,
    id: UniqueIdBytes,
    rank: c_int,
    config: In<CommConfig>,
) -> Outcome<Code> {
    member(|| {
        out.check("comm")?;
        out.write(Handle::NULL, "comm")?;
        let (rank, nranks) = check_rank(rank, nranks)?;
        // With other arguments the caller may try again.
        let settings = Settings::read(&config, &Settings::default())?;
        let id = encryption::join(unique_id::parse(&id)?);
        let ready = || -> Outcome<_> { Ok((settings.engine()?, Device::current()?)) };
        let would = DeviceCommunicator::builder().unique_id(id).rank(rank).ranks(nranks);
        let (engine, device) = ready().inspect_err(|_| would.decline())?;
        join(&out, 0, Seat { rank, nranks, device }, id, settings, engine)
    })
}

/// `ncclCommInitRankScalable`. The first id is enough: several threads of its root take the handshakes of many ranks, 0.2 ms of a processor each
/// (`host/src/bootstrap/root_help.rs`), and what follows goes over a tree of the ranks.
pub fn init_rank_scalable(
    out: Out<Handle>,
    nranks: c_int,
    rank: c_int,
    id_count: c_int,
    ids: In<UniqueIdBytes>,
    config: In<CommConfig>,
) -> Outcome<Code> {
    member(|| {
        if id_count < 1 || id_count > nranks.max(1) {
            let text = format!("nId is {id_count}; 1 to the number of ranks ({nranks}) was expected");
            return Err(Failure::invalid_argument(text));
        }
        let id = ids.read("commIds")?;
        init_rank(out, nranks, id, rank, config)
    })
}

/// A rank that is to join.
#[derive(Clone, Copy)]
struct Seat {
    rank: u32,
    nranks: u32,
    device: u32,
}

fn check_rank(rank: c_int, nranks: c_int) -> Outcome<(u32, u32)> {
    if nranks < 1 {
        return Err(Failure::invalid_argument(format!("nranks is {nranks}; at least 1 was expected")));
    }
    if !(0..nranks).contains(&rank) {
        return Err(Failure::invalid_argument(format!("rank is {rank}; 0 to {} was expected", nranks - 1)));
    }
    Ok((rank.unsigned_abs(), nranks.unsigned_abs()))
}

pub fn clique_of(parts: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    parts.hash(&mut hasher);
    hasher.finish()
}

/// Gives the communicator its handle, and connects it now or at the group's end.
fn join(
    out: &Out<Handle>,
    index: usize,
    seat: Seat,
    id: UniqueId,
    settings: Settings,
    engine: Config,
) -> Outcome<Code> {
    let Seat { rank, nranks, device } = seat;
    oxccl::log::on_device(device);
    let clique = clique_of(id.to_bytes());
    let (handle, comm) = COMMS.add(|handle| Comm::new(handle, device, settings, clique));
    let work = move |comm: &Comm| {
        let builder = DeviceCommunicator::builder().unique_id(id).rank(rank).ranks(nranks);
        let would = builder.clone();
        let started = builder.device(device).config(engine).start();
        // What the environment orders and names, and no caller can change.
        let pending = started.inspect_err(|error| {
            if matches!(error, Error::Impossible(_) | Error::Tune(_)) {
                would.decline();
            }
        })?;
        comm.started(pending.handle());
        Ok(Some(pending.wait()?))
    };
    // Written first: another thread may abort what is being connected.
    out.write_at(index, handle, "comm")?;
    submit_job(Job::Connect(comm, Box::new(work))).inspect_err(|_| give_up(out, index, handle))
}

/// The call failed, so the caller has no communicator.
fn give_up(out: &Out<Handle>, index: usize, handle: Handle) {
    if let Ok(comm) = COMMS.remove(handle, "comm") {
        comm.free();
    }
    let _ = out.write_at(index, Handle::NULL, "comm");
}

/// `ncclCommInitAll`.
pub fn init_all(out: Out<Handle>, count: c_int, devices: In<c_int>) -> Outcome<Code> {
    member(|| {
        out.check("comm")?;
        // That is wrong on every machine, with a driver or without.
        if count < 1 {
            let text = format!("ndev is {count}; 1 to the number of GPUs was expected");
            return Err(Failure::invalid_argument(text));
        }
        let visible = Driver::get()?.device_count();
        if count.unsigned_abs() > visible {
            let text = format!("ndev is {count}; 1 to the number of GPUs here ({visible}) was expected");
            return Err(Failure::invalid_argument(text));
        }
        let devices = match devices.is_null() {
            true => (0..count).collect(),
            false => devices.read_all(count as usize, "devlist")?,
        };
        let mut seen = vec![false; visible as usize];
        for device in &devices {
            match usize::try_from(*device).ok().and_then(|at| seen.get_mut(at)) {
                Some(seen) if !*seen => *seen = true,
                _ => {
                    let text =
                        format!("devlist names GPU {device}, which is named twice or is none of {visible}");
                    return Err(Failure::invalid_argument(text));
                }
            }
        }
        init_devices(&out, &devices)
    })
}

fn init_devices(out: &Out<Handle>, devices: &[c_int]) -> Outcome<Code> {
    let settings = Settings::default();
    let mut engine = settings.engine()?;
    // All ranks are in this process: no other interface is needed, and none need exist.
    engine.bootstrap.bind_addr.get_or_insert(std::net::Ipv4Addr::LOCALHOST.into());
    let id = UniqueId::create_by(&engine.bootstrap).map_err(Error::from)?;
    crate::group::start()?;
    let nranks = devices.len() as u32;
    for (rank, device) in devices.iter().enumerate() {
        let seat = Seat { rank: rank as u32, nranks, device: device.unsigned_abs() };
        join(out, rank, seat, id, settings.clone(), engine.clone())?;
    }
    crate::group::end()
}

/// `ncclCommSplit`.
pub fn split(
    parent: Handle,
    color: c_int,
    key: c_int,
    out: Out<Handle>,
    config: In<CommConfig>,
) -> Outcome<Code> {
    member(|| {
        let parent = COMMS.get(parent, "comm")?;
        out.check("newcomm")?;
        out.write(Handle::NULL, "newcomm")?;
        if color < 0 && color != NO_COLOR {
            let text = format!("color is {color}; at least 0, or NCCL_SPLIT_NOCOLOR, was expected");
            return Err(Failure::invalid_argument(text));
        }
        let settings = Settings::read(&config, &parent.settings)?;
        drop(parent.engine()?);
        let color = u32::try_from(color).ok();
        let clique = clique_of((parent.clique, parent.next_child(), color));
        derive(parent, color.is_some(), &out, settings, clique, move |parent| {
            Ok(parent.start_split(color, key)?.into())
        })
    })
}

/// A communicator that another one makes.
pub enum Making {
    /// Perhaps not for this rank.
    Part(Pending<Option<DeviceCommunicator>>),
    Whole(Pending<DeviceCommunicator>),
}

impl From<Pending<Option<DeviceCommunicator>>> for Making {
    fn from(pending: Pending<Option<DeviceCommunicator>>) -> Making {
        Making::Part(pending)
    }
}

impl From<Pending<DeviceCommunicator>> for Making {
    fn from(pending: Pending<DeviceCommunicator>) -> Making {
        Making::Whole(pending)
    }
}

impl Making {
    fn handle(&self) -> CommHandle {
        match self {
            Making::Part(pending) => pending.handle(),
            Making::Whole(pending) => pending.handle(),
        }
    }

    fn wait(self) -> Outcome<Option<DeviceCommunicator>> {
        match self {
            Making::Part(pending) => Ok(pending.wait()?),
            Making::Whole(pending) => Ok(Some(pending.wait()?)),
        }
    }
}

/// Makes a communicator of another one, by what `make` does on a background thread.
pub fn derive(
    parent: Arc<Comm>,
    has_handle: bool,
    out: &Out<Handle>,
    settings: Settings,
    clique: u64,
    make: impl FnOnce(&DeviceCommunicator) -> Outcome<Making> + Send + 'static,
) -> Outcome<Code> {
    let device = parent.device;
    let (handle, comm) = match has_handle {
        true => COMMS.add(|handle| Comm::new(handle, device, settings, clique)),
        // It takes part, and gets nothing.
        false => (GHOST, Arc::new(Comm::new(GHOST, device, settings, clique))),
    };
    let working = parent.begin_work();
    let ticket = parent.ticket();
    let work = move |comm: &Comm| {
        ticket.wait();
        let started = parent.engine().and_then(|engine| make(&engine));
        drop(ticket);
        let made = started.and_then(|pending| {
            comm.started(pending.handle());
            pending.wait()
        });
        drop(working);
        made
    };
    out.write(handle, "newcomm")?;
    submit_job(Job::Connect(comm, Box::new(work))).inspect_err(|_| give_up(out, 0, handle))
}
