//! What carries tasks out, and the one that does it over a network.

use super::memory::SharedBlock;
use super::message::{ConnectionId, ConnectionInfo, Reply, Request};
use super::state::{Task, TaskId};
use crate::net::{Connector, HANDLE_BYTES, Listener, Net, NetHandle, RecvComm, SendComm};
use crate::proxy::progress::{EndId, ProxyEnd, RecvEnd, SendEnd};
use crate::transport::p2p::{Mailbox, Party, PassError};
use oxccl_shared::abi::{ConnLayout, Rank};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Carries out what a service is asked.
pub trait ProxyTransport: Send {
    /// Begins a task. Does not wait.
    fn begin(&mut self, task: Task);

    /// Moves tasks on without waiting; gives one that is over, and what came of it, in words if it failed.
    fn poll(&mut self) -> Option<(TaskId, Result<Reply, String>)>;

    /// Nobody waits for this task any more: it shall be over soon. One that is over already is none.
    fn give_up(&mut self, task: TaskId);

    /// Everything shall end: what is under way fails soon.
    fn abort(&mut self);
}

/// Connections that are made, each with the memory that its ends share with a rank's kernels: for the proxy's progress.
pub type MadeEnds = Arc<Mutex<BTreeMap<ConnectionId, ProxyEnd>>>;

/// What a connection over a network is, half by half.
enum Half {
    New,
    Listening(Box<dyn Listener>, Arc<SharedBlock>),
    /// A sender that has been set up.
    Ready(Arc<SharedBlock>),
    Accepting(TaskId, Box<dyn Listener>, Arc<SharedBlock>),
    Connecting(TaskId, Box<dyn Connector>, Arc<SharedBlock>),
    /// Its end is in [`MadeEnds`], or was taken from there; or the network has failed and there will be none.
    Made(Arc<SharedBlock>),
}

/// Connections over a network, each with a block of slots that its rank maps by a descriptor.
pub struct NetTransport {
    net: Arc<dyn Net>,
    device: u32,
    rank: Rank,
    layout: ConnLayout,
    mailbox: Mailbox,
    mailbox_token: u64,
    halves: BTreeMap<ConnectionId, (ConnectionInfo, Half)>,
    over: VecDeque<(TaskId, Result<Reply, String>)>,
    made: MadeEnds,
    is_aborted: bool,
}

/// The block of a connection, as [`Request::GetFd`] and [`Request::QueryFd`] call it.
pub const BLOCK_HANDLE: u64 = 0;

impl NetTransport {
    /// Connections of `device` of `net`, for the proxy of `rank`, with slots as `layout` says.
    ///
    /// # Errors
    /// [`PassError`]: no socket for descriptors, or no random number to name it.
    pub fn new(
        net: Arc<dyn Net>,
        device: u32,
        rank: Rank,
        layout: ConnLayout,
    ) -> Result<(NetTransport, MadeEnds), PassError> {
        let random = getrandom::u64();
        let mailbox_token = random.map_err(|error| PassError::System {
            operation: "naming",
            errno: rustix::io::Errno::from_raw_os_error(error.raw_os_error().unwrap_or(libc::EIO)),
        })?;
        let mailbox = Mailbox::bind(mailbox_token)?;
        let made = MadeEnds::default();
        let transport = NetTransport {
            net,
            device,
            rank,
            layout,
            mailbox,
            mailbox_token,
            halves: BTreeMap::new(),
            over: VecDeque::new(),
            made: made.clone(),
            is_aborted: false,
        };
        Ok((transport, made))
    }

    /// What a task comes to, if it is over at once.
    fn carry_out(&mut self, task: &Task) -> Option<Result<Reply, String>> {
        let connection = task.connection;
        match &task.what {
            Request::Init(info) => {
                self.halves.insert(connection, (*info, Half::New));
                Some(Ok(Reply::Done))
            }
            Request::Setup { .. } => Some(self.set_up(connection)),
            Request::Connect { data, .. } => {
                self.connect(task.id, connection, data).map_or_else(|e| Some(Err(e)), |()| None)
            }
            Request::Close { .. } => {
                lock(&self.made).remove(&connection);
                self.halves.remove(&connection);
                Some(Ok(Reply::Done))
            }
            Request::QueryFd { handle, .. } => {
                Some(self.block(connection, *handle).map(|block| Reply::Number(block.len_bytes() as u64)))
            }
            Request::GetFd { handle, mailbox, .. } => {
                Some(self.pass(task.rank, connection, *handle, *mailbox))
            }
            Request::SharedInit { .. } => {
                Some(Err("every connection over a network has memory of its own".to_owned()))
            }
            Request::Register { .. } | Request::Deregister { .. } => {
                Some(Err("a connection over a network sends from its own block alone".to_owned()))
            }
            Request::Stop | Request::Abort => Some(Ok(Reply::Done)),
        }
    }

    fn set_up(&mut self, connection: ConnectionId) -> Result<Reply, String> {
        let block = SharedBlock::new(self.layout).map_err(|error| error.to_string())?;
        let block = Arc::new(block);
        let Some((info, half)) = self.halves.get_mut(&connection) else {
            return Err("no such connection".to_owned());
        };
        if info.is_send {
            *half = Half::Ready(block);
            return Ok(Reply::Data(Vec::new()));
        }
        let (handle, listener) = self.net.listen(self.device).map_err(|error| error.to_string())?;
        *half = Half::Listening(listener, block);
        Ok(Reply::Data(handle.0.to_vec()))
    }

    fn connect(&mut self, task: TaskId, connection: ConnectionId, data: &[u8]) -> Result<(), String> {
        let Some((_, half)) = self.halves.get_mut(&connection) else {
            return Err("no such connection".to_owned());
        };
        match std::mem::replace(half, Half::New) {
            Half::Listening(listener, block) => *half = Half::Accepting(task, listener, block),
            Half::Ready(block) => {
                let handle: Result<[u8; HANDLE_BYTES], _> = data.try_into();
                let begun = match handle {
                    Ok(handle) => {
                        self.net.connect(self.device, &NetHandle(handle)).map_err(|error| error.to_string())
                    }
                    Err(_) => Err(format!("{} bytes are no handle of a network", data.len())),
                };
                match begun {
                    Ok(connector) => *half = Half::Connecting(task, connector, block),
                    Err(error) => {
                        *half = Half::Ready(block);
                        return Err(error);
                    }
                }
            }
            other => {
                *half = other;
                return Err("it is connected or connecting".to_owned());
            }
        }
        Ok(())
    }

    fn block(&self, connection: ConnectionId, handle: u64) -> Result<&Arc<SharedBlock>, String> {
        let block = match self.halves.get(&connection) {
            Some((
                _,
                Half::Listening(_, block)
                | Half::Ready(block)
                | Half::Accepting(_, _, block)
                | Half::Connecting(_, _, block)
                | Half::Made(block),
            )) => Some(block),
            Some((_, Half::New)) | None => None,
        };
        block.filter(|_| handle == BLOCK_HANDLE).ok_or_else(|| format!("there is no memory {handle}"))
    }

    fn pass(&self, rank: Rank, connection: ConnectionId, handle: u64, token: u64) -> Result<Reply, String> {
        let block = self.block(connection, handle)?;
        let to = [(Party { rank, token, pid: None }, block.fd())];
        // One message to a mailbox that was just made finds room.
        let sent = self.mailbox.exchange(self.rank, &to, &[], Duration::ZERO, || true);
        sent.map(|_| Reply::Number(self.mailbox_token)).map_err(|error| error.to_string())
    }

    /// Asks the network for one connection; what its task came to, if that is over.
    fn advance(&mut self, connection: ConnectionId) -> Option<(TaskId, Result<Reply, String>)> {
        let (info, half) = self.halves.get_mut(&connection)?;
        let (task, comm) = match half {
            Half::Accepting(task, listener, _) => {
                (*task, listener.poll_accept().map(|comm| comm.map(Comm::Recv)))
            }
            Half::Connecting(task, connector, _) => {
                (*task, connector.poll_connect().map(|comm| comm.map(Comm::Send)))
            }
            _ => return None,
        };
        let comm = match comm {
            Ok(None) if !self.is_aborted => return None,
            Ok(None) => Err("the communicator was aborted".to_owned()),
            Ok(Some(comm)) => Ok(comm),
            Err(error) => Err(error.to_string()),
        };
        let (Half::Accepting(_, _, block) | Half::Connecting(_, _, block)) =
            std::mem::replace(half, Half::New)
        else {
            return None;
        };
        let place = EndId { peer: info.peer, channel: info.channel, is_send: info.is_send };
        let made = comm.and_then(|comm| make(comm, block.clone(), place));
        *half = Half::Made(block);
        let result = made.map(|end| {
            lock(&self.made).insert(connection, end);
            Reply::Done
        });
        Some((task, result))
    }
}

/// What a network gave.
enum Comm {
    Send(Box<dyn SendComm>),
    Recv(Box<dyn RecvComm>),
}

fn make(comm: Comm, block: Arc<SharedBlock>, place: EndId) -> Result<ProxyEnd, String> {
    // SAFETY: the block was made for this end alone, which keeps it.
    let end = unsafe {
        let at = block.proxy_block();
        match comm {
            Comm::Send(comm) => SendEnd::new(comm, at, place).map(|end| ProxyEnd::Send(end.keeping(block))),
            Comm::Recv(comm) => RecvEnd::new(comm, at, place).map(|end| ProxyEnd::Recv(end.keeping(block))),
        }
    };
    end.map_err(|error| error.to_string())
}

fn lock(made: &MadeEnds) -> std::sync::MutexGuard<'_, BTreeMap<ConnectionId, ProxyEnd>> {
    made.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ProxyTransport for NetTransport {
    fn begin(&mut self, task: Task) {
        if let Some(result) = self.carry_out(&task) {
            self.over.push_back((task.id, result));
        }
    }

    fn poll(&mut self) -> Option<(TaskId, Result<Reply, String>)> {
        if let Some(over) = self.over.pop_front() {
            return Some(over);
        }
        let all: Vec<ConnectionId> = self.halves.keys().copied().collect();
        all.into_iter().find_map(|connection| self.advance(connection))
    }

    fn give_up(&mut self, task: TaskId) {
        for (_, half) in self.halves.values_mut() {
            let (Half::Accepting(id, _, block) | Half::Connecting(id, _, block)) = half else { continue };
            if *id == task {
                *half = Half::Made(block.clone());
                return self.over.push_back((task, Err("nobody waits for it any more".to_owned())));
            }
        }
    }

    fn abort(&mut self) {
        self.is_aborted = true;
    }
}
