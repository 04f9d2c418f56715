//! Layer: host / connect / collnet, under both machines.
//! Takes: a bootstrap, the ranks of each host, its head first, and where networks that reduce are to be found.
//! Gives: whether every head has such a network and what all of them support, the same on every rank; a head's part of it.
//! Never: makes a connection between a kernel and a network.
//!
//! The head of each host searches for a network and listens; all ranks gather what the heads found; the heads join.

use super::ConnectError;
use crate::bootstrap::Bootstrap;
use crate::net::coll::{self, CollComm, CollListener, Head, Windows};
use crate::net::{HANDLE_BYTES, Locality, NetConfig, NetError, NetHandle, nearest};
use crate::plan::tuning::NetSpeed;
use crate::plan::{Collnet, CollnetFacts, HEADED_CHANNELS_MAX, Reduces};
use crate::proxy::CHECKED;
use crate::wire::{Message, cut};
use oxccl_shared::abi::Rank;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// Pause between two polls of heads that are joining.
const REST: Duration = Duration::from_micros(200);

/// Of a reason in a message.
const REASON_BYTES_MAX: usize = 512;

/// The ranks of each host on a channel, its head first.
pub(super) type HostRanks = Vec<Vec<Rank>>;

/// A rank's contribution: a head's listeners, one for each channel on which it is one, and its info for the others.
pub(super) struct HeadListener {
    info: HeadInfo,
    listeners: Vec<Box<dyn CollListener>>,
}

/// What ranks tell each other.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
enum HeadInfo {
    /// Not a head.
    Member,
    /// A head with in-network reduction.
    Head {
        handles: Vec<NetHandle>,
        reduces: Reduces,
        windows: Windows,
        buffer_max_bytes: u64,
        speed_mbps: u32,
        latency_us: f32,
    },
    /// A head without it, and the reason.
    Lacks(String),
}

/// What all ranks know of their heads.
pub(super) struct Heads {
    /// What all of them support, or that one has nothing.
    pub collnet: Collnet,
    /// The reason of the head without a network, if there is one.
    pub lack: String,
    /// This rank's parts, one for each channel on which it is a head, if all have a network.
    pub mine: Vec<Joining>,
}

/// A head that knows all the others.
pub(super) struct Joining {
    rank: Rank,
    channel: usize,
    listener: Box<dyn CollListener>,
    handles: Vec<NetHandle>,
    head: Head,
    head_of: Box<[u32]>,
    next_head: Rank,
}

/// A head that has joined the others.
pub(super) struct JoinedHead {
    /// Its end of the network.
    pub comm: Box<dyn CollComm>,
    /// Which of the heads it is.
    pub head: Head,
    /// The head of each rank's host.
    pub head_of: Box<[u32]>,
    /// The head of the next host.
    pub next_head: Rank,
    /// The channel.
    pub channel: usize,
}

/// The channels on which a rank is a head.
pub(super) fn headed(channels: &[HostRanks], rank: Rank) -> impl Iterator<Item = usize> + '_ {
    (0..channels.len()).filter(move |channel| channels[*channel].iter().any(|host| host[0] == rank))
}

impl HeadListener {
    /// A rank that is no head.
    pub fn member() -> HeadListener {
        HeadListener { info: HeadInfo::Member, listeners: Vec::new() }
    }

    /// Searches for in-network reduction near `place`, for a rank that is a head on so many channels.
    pub fn listen(
        config: &NetConfig,
        rank: Rank,
        place: &Locality,
        count: usize,
    ) -> Result<HeadListener, ConnectError> {
        match listen(config, place, count) {
            Ok((info, listeners)) => Ok(HeadListener { info, listeners }),
            Err(error @ NetError::Absent { .. }) => Ok(HeadListener {
                info: HeadInfo::Lacks(cut(&error.to_string(), REASON_BYTES_MAX).to_owned()),
                listeners: Vec::new(),
            }),
            Err(source) => Err(refused(rank, source)),
        }
    }

    /// Learns what the heads of all channels found. Every rank calls it at the same time.
    pub fn gather(self, bootstrap: &Bootstrap, channels: &[HostRanks]) -> Result<Heads, ConnectError> {
        let blocks = bootstrap.all_gather(&self.info.to_bytes())?;
        let mut infos = Vec::with_capacity(blocks.len());
        for (peer, block) in (0..).map(Rank).zip(&blocks) {
            infos.push(HeadInfo::from_bytes(block).map_err(|_| ConnectError::Malformed { peer })?);
        }
        let (rank, mut listeners) = (bootstrap.rank(), self.listeners.into_iter());
        let (mut mine, mut collnet) = (Vec::new(), Collnet::Lacking);
        for (channel, hosts) in channels.iter().enumerate() {
            let heads: Vec<Rank> = hosts.iter().map(|host| host[0]).collect();
            let mut handles = Vec::with_capacity(heads.len());
            for &head in &heads {
                let info = &infos[head.index()];
                if let HeadInfo::Lacks(why) = info {
                    let lack = format!("rank {head}: {why}");
                    tracing::warn!("NCCL_COLLNET_ENABLE: {lack}; no network reduces");
                    return Ok(Heads { collnet: Collnet::Lacking, lack, mine: Vec::new() });
                }
                let nth = headed(&channels[..channel], head).count();
                handles.push(info.handle(nth).ok_or(ConnectError::Malformed { peer: head })?);
                collnet = info.and(collnet, heads.len() as u32);
            }
            let index = heads.iter().position(|head| *head == rank);
            if let (Some(index), Some(listener)) = (index, index.and_then(|_| listeners.next())) {
                let head = Head { index: index as u32, count: heads.len() as u32 };
                let next_head = heads[(index + 1) % heads.len()];
                let head_of = heads_of(hosts, bootstrap.nranks());
                mine.push(Joining { rank, channel, listener, handles, head, head_of, next_head });
            }
        }
        Ok(Heads { collnet, lack: String::new(), mine })
    }
}

fn listen(
    config: &NetConfig,
    place: &Locality,
    count: usize,
) -> Result<(HeadInfo, Vec<Box<dyn CollListener>>), NetError> {
    let net = coll::find(config)?;
    let (dtype, op) = CHECKED;
    if !net.reduces(dtype, op)? {
        let reason = format!("it has no {op} of {dtype}, by which heads tell operations apart");
        return Err(NetError::Absent { net: net.name().to_owned(), reason });
    }
    let device = nearest(net.devices(), |device| net.properties(device), place)?;
    let facts = net.properties(device)?;
    let listening = (0..count).map(|_| net.listen(device)).collect::<Result<Vec<_>, NetError>>()?;
    let (handles, listeners) = listening.into_iter().unzip();
    let info = HeadInfo::Head {
        handles,
        reduces: Reduces::of(|dtype, op| net.reduces(dtype, op))?,
        windows: net.windows(),
        buffer_max_bytes: facts.message_max_bytes as u64,
        speed_mbps: facts.speed_mbps,
        latency_us: facts.latency_us,
    };
    Ok((info, listeners))
}

impl Joining {
    /// Joins the other heads, which do the same.
    pub fn join(self, bootstrap: &Bootstrap, timeout: Duration) -> Result<JoinedHead, ConnectError> {
        let Joining { rank, channel, listener, handles, head, head_of, next_head } = self;
        let refused = |source| refused(rank, source);
        let mut joining = listener.join(&handles, head.index).map_err(refused)?;
        let begin = Instant::now();
        loop {
            if let Some(comm) = joining.poll_join().map_err(refused)? {
                return Ok(JoinedHead { comm, head, head_of, next_head, channel });
            }
            // A dead head will not join.
            bootstrap.check_whole()?;
            if begin.elapsed() > timeout {
                let reason = format!("not all heads came together within {timeout:?}");
                let device = format!("network that reduces ({head})");
                return Err(refused(NetError::of_call(&device, "connect", reason)));
            }
            std::thread::sleep(REST);
        }
    }
}

/// The index of each rank's host, which is that of its head.
fn heads_of(hosts: &HostRanks, nranks: u32) -> Box<[u32]> {
    let host_of = |rank: Rank| hosts.iter().position(|host| host.contains(&rank)).unwrap_or(0) as u32;
    (0..nranks).map(Rank).map(host_of).collect()
}

/// What a head's network refused.
pub(super) fn refused(rank: Rank, source: NetError) -> ConnectError {
    ConnectError::Net { rank, peer: None, source: Box::new(source) }
}

impl Message for HeadInfo {
    const VERSION: u8 = 4;
    const BYTES_MAX: usize = 64 + HEADED_CHANNELS_MAX as usize * HANDLE_BYTES + REASON_BYTES_MAX;

    fn is_sound(&self) -> bool {
        match self {
            HeadInfo::Member => true,
            HeadInfo::Lacks(why) => why.len() <= REASON_BYTES_MAX,
            HeadInfo::Head { handles, reduces, latency_us, .. } => {
                let is_counted = (1..=HEADED_CHANNELS_MAX as usize).contains(&handles.len());
                is_counted && reduces.is_sound() && latency_us.is_finite() && *latency_us >= 0.0
            }
        }
    }
}

impl HeadInfo {
    /// A head's handle for the channel that is its `nth` as a head.
    fn handle(&self, nth: usize) -> Option<NetHandle> {
        let HeadInfo::Head { handles, .. } = self else { return None };
        handles.get(nth).copied()
    }

    /// The common capabilities of this head's network and the previous ones.
    fn and(&self, before: Collnet, nhosts: u32) -> Collnet {
        let HeadInfo::Head { reduces, windows, buffer_max_bytes, speed_mbps, latency_us, .. } = self else {
            return before;
        };
        let (gbytes, latency_us) = (f64::from((*speed_mbps).max(1)) / 8e3, f64::from(*latency_us));
        let mine = CollnetFacts {
            reduces: *reduces,
            gathers: windows.gathers,
            scatters: windows.scatters,
            buffer_max_bytes: *buffer_max_bytes,
            nhosts,
            speed: NetSpeed { gbytes, latency_us },
        };
        let Collnet::There(others) = before else { return Collnet::There(mine) };
        Collnet::There(CollnetFacts {
            reduces: mine.reduces.and(others.reduces),
            gathers: mine.gathers && others.gathers,
            scatters: mine.scatters && others.scatters,
            buffer_max_bytes: mine.buffer_max_bytes.min(others.buffer_max_bytes),
            nhosts,
            speed: NetSpeed {
                gbytes: gbytes.min(others.speed.gbytes),
                latency_us: latency_us.max(others.speed.latency_us),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oxccl_shared::abi::{DataType, RedOp};

    fn head(reduces: Reduces, speed_mbps: u32) -> HeadInfo {
        let handles = vec![NetHandle([7; HANDLE_BYTES]); HEADED_CHANNELS_MAX as usize];
        let (windows, buffer_max_bytes) = (Windows { gathers: true, scatters: speed_mbps > 9000 }, 1 << 30);
        HeadInfo::Head { handles, reduces, windows, buffer_max_bytes, speed_mbps, latency_us: 2.5 }
    }

    #[test]
    fn infos_survive_the_wire() {
        let infos = [HeadInfo::Member, HeadInfo::Lacks("no plugin".into()), head(Reduces::ALL, 100_000)];
        for info in infos {
            let bytes = info.to_bytes();
            assert_eq!(HeadInfo::from_bytes(&bytes), Ok(info));
            assert!(HeadInfo::from_bytes(&[&[9], &bytes[1..]].concat()).is_err());
        }
        let bytes = head(Reduces::ALL, 1).to_bytes();
        for cut in 1..bytes.len() {
            assert!(HeadInfo::from_bytes(&bytes[..cut]).is_err(), "{cut}");
        }
        assert!(HeadInfo::from_bytes(&[]).is_err());
        let HeadInfo::Head { handles, reduces, windows, buffer_max_bytes, speed_mbps, latency_us } =
            head(Reduces::ALL, 1)
        else {
            panic!("it is one")
        };
        for count in [0, HEADED_CHANNELS_MAX as usize + 1] {
            let handles = vec![handles[0]; count];
            let wrong =
                HeadInfo::Head { handles, reduces, windows, buffer_max_bytes, speed_mbps, latency_us };
            assert!(!wrong.is_sound());
        }
    }

    #[test]
    fn a_rank_heads_the_channels_on_which_its_host_begins_with_it() {
        let host = |ranks: &[u32]| -> Vec<Rank> { ranks.iter().copied().map(Rank).collect() };
        let channels = [vec![host(&[0, 1]), host(&[2])], vec![host(&[1, 0]), host(&[2])]];
        let of = |rank| headed(&channels, Rank(rank)).collect::<Vec<_>>();
        assert_eq!((of(0), of(1), of(2)), (vec![0], vec![1], vec![0, 1]));
    }

    #[test]
    fn heads_have_in_common_what_all_have() {
        let floats = Reduces::of(|dtype, op| Ok::<_, ()>(dtype == DataType::F32 && op == RedOp::Sum));
        let infos = [head(Reduces::ALL, 40_000), head(floats.unwrap(), 8_000)];
        let all = infos.iter().fold(Collnet::Lacking, |all, info| info.and(all, 2));
        let Collnet::There(facts) = all else { panic!("both have one") };
        assert_eq!((facts.nhosts, facts.speed.gbytes, facts.speed.latency_us), (2, 1.0, 2.5));
        assert!(facts.gathers && !facts.scatters, "one of them has no reduce-scatter");
        assert!(
            facts.reduces.has(DataType::F32, RedOp::Sum) && !facts.reduces.has(DataType::F32, RedOp::Max)
        );
    }
}
