//! Communicators of another one's ranks without some, or with more; and revoking one, which comes before where operations hang.

use crate::comm::COMMS;
use crate::config::Settings;
use crate::encryption;
use crate::group::member;
use crate::init::{clique_of, derive, init_rank};
use crate::pointer::{In, Out};
use crate::registry::Handle;
use crate::result::{Failure, Outcome};
use crate::types::{Code, CommConfig, UniqueIdBytes};
use crate::unique_id;
use std::ffi::c_int;

/// `NCCL_SHRINK_DEFAULT` and `NCCL_SHRINK_ABORT`.
const SHRINK_ONLY: c_int = 0;
const STOP_FIRST: c_int = 1;

/// `ncclCommShrink`, which the ranks that stay call.
pub fn shrink(
    parent: Handle,
    excluded: In<c_int>,
    count: c_int,
    out: Out<Handle>,
    config: In<CommConfig>,
    flags: c_int,
) -> Outcome<Code> {
    member(|| {
        let parent = COMMS.get(parent, "comm")?;
        out.check("newcomm")?;
        out.write(Handle::NULL, "newcomm")?;
        let seat = parent.seat()?;
        if !(SHRINK_ONLY..=STOP_FIRST).contains(&flags) {
            let text =
                format!("shrinkFlags is {flags}; NCCL_SHRINK_DEFAULT or NCCL_SHRINK_ABORT was expected");
            return Err(Failure::invalid_argument(text));
        }
        if !(1..seat.nranks as c_int).contains(&count) {
            let expected = match seat.nranks {
                1 => "comm has one rank, which cannot be excluded".to_owned(),
                nranks => format!("1 to {} was expected", nranks - 1),
            };
            let text = format!("excludeRanksCount is {count}; {expected}");
            return Err(Failure::invalid_argument(text));
        }
        let mut ranks = Vec::new();
        for rank in excluded.read_all(count.unsigned_abs() as usize, "excludeRanksList")? {
            let fits = u32::try_from(rank).ok().filter(|rank| *rank < seat.nranks && *rank != seat.rank);
            match fits {
                Some(rank) if !ranks.contains(&rank) => ranks.push(rank),
                _ => {
                    let text = format!(
                        "excludeRanksList has {rank}: it is named twice, no rank of comm, or the caller's own"
                    );
                    return Err(Failure::invalid_argument(text));
                }
            }
        }
        ranks.sort_unstable();
        let settings = Settings::read(&config, &parent.settings)?;
        if flags == STOP_FIRST {
            parent.revoke()?;
        }
        drop(parent.engine()?);
        let clique = clique_of((parent.clique, "shrink", &ranks));
        derive(parent, true, &out, settings, clique, move |parent| Ok(parent.start_shrink(&ranks)?.into()))
    })
}

/// `ncclCommGetUniqueId`, by which new ranks join a communicator that grows.
pub fn grow_id(comm: Handle, out: Out<UniqueIdBytes>) -> Outcome {
    let comm = COMMS.get(comm, "comm")?;
    comm.seat()?;
    out.check("uniqueId")?;
    comm.offer_id(|| unique_id::make(&comm.settings))?;
    let id = comm.offered_id().ok_or_else(|| Failure::invalid_usage("the id was used meanwhile"))?;
    out.write(unique_id::bytes_of(&id), "uniqueId")
}

/// `ncclCommGrow`: ranks that are there name their communicator, one of them the id as well; new ones the id and their rank.
pub fn grow(
    parent: Handle,
    nranks: c_int,
    id: In<UniqueIdBytes>,
    rank: c_int,
    out: Out<Handle>,
    config: In<CommConfig>,
) -> Outcome<Code> {
    member(|| {
        out.check("newcomm")?;
        out.write(Handle::NULL, "newcomm")?;
        if parent == Handle::NULL {
            if id.is_null() {
                return Err(Failure::invalid_argument("comm and uniqueId are null: a new rank needs the id"));
            }
            return init_rank(out, nranks, id.read("uniqueId")?, rank, config);
        }
        let parent = COMMS.get(parent, "comm")?;
        let seat = parent.seat()?;
        if rank != -1 {
            let text = format!("rank is {rank}; a rank of comm keeps its number and passes -1");
            return Err(Failure::invalid_argument(text));
        }
        let nranks = u32::try_from(nranks).ok().filter(|nranks| *nranks > seat.nranks).ok_or_else(|| {
            let text = format!("nRanks is {nranks}; more than the {} of comm was expected", seat.nranks);
            Failure::invalid_argument(text)
        })?;
        let id = match id.is_null() {
            true => None,
            false => Some(unique_id::parse(&id.read("uniqueId")?)?),
        };
        if let Some(id) = &id {
            parent.use_id(id)?;
        }
        let id = id.map(encryption::join);
        let settings = Settings::read(&config, &parent.settings)?;
        drop(parent.engine()?);
        let clique = clique_of((parent.clique, "grow", nranks, parent.next_child()));
        derive(parent, true, &out, settings, clique, move |parent| Ok(parent.start_grow(id, nranks)?.into()))
    })
}

/// `ncclCommRevoke`.
pub fn revoke(comm: Handle, flags: c_int) -> Outcome {
    if comm == Handle::NULL {
        return Ok(());
    }
    let comm = COMMS.get(comm, "comm")?;
    if flags != 0 {
        return Err(Failure::invalid_argument(format!(
            "revokeFlags is {flags}; NCCL_REVOKE_DEFAULT (0) was expected"
        )));
    }
    comm.revoke()
}
