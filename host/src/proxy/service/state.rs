//! The proxy service as a state machine: requests of local ranks in; answers, and tasks for the transport, out. No sockets, no
//! clock, no threads.
//!
//! ```text
//!                 Init          SharedInit           Setup       Connect
//! Uninitialized ------> Initialized ----> Shared... ------> SetupDone ----> Connected     Close from any
//!                            '--------------------------------^
//! ```
//! Each request is answered once. What takes time is a [`Task`]: the transport is given it and says later what came of it; a
//! connection has one task at a time, different connections go on beside each other. The state changes when a task has
//! succeeded, so that a failed one may be asked for again.
//!
//! The service ends when every local rank has asked it to stop or is gone, and what it was doing is done: a rank that is ready
//! first must not take away a proxy that others still use.

use super::message::{
    ConnectionId, ConnectionInfo, ConnectionState, DATA_MAX, OpId, Refusal, Reply, Request, Response,
};
use crate::bootstrap::frame::Frame;
use oxccl_shared::abi::Rank;
use std::collections::VecDeque;

/// Connections that a service has room for: 64 channels to 8 local ranks' peers in both directions.
pub const CONNECTIONS_MAX: usize = 1024;
/// Requests of one rank that may be under way.
pub const REQUESTS_UNDER_WAY_MAX: usize = 256;

/// A local rank, by its place in the list that the service was made with.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClientId(pub usize);

/// What the transport shall do. It says what came of it by [`Service::finish`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Task {
    /// Its number: one that is under way.
    pub id: TaskId,
    /// The rank whose connection it is.
    pub rank: Rank,
    /// For which connection.
    pub connection: ConnectionId,
    /// Which that is.
    pub info: ConnectionInfo,
    /// What.
    pub what: Request,
}

/// A task under way.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TaskId(u64);

/// What the service wants done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// An answer, to be sent.
    Answer(ClientId, Response),
    /// Something for the transport.
    Task(Task),
    /// Nobody waits for this task any more: it shall be over soon, by failing if it cannot succeed at once.
    GiveUp(TaskId),
    /// A local rank has called abort: everything shall end.
    Aborted {
        /// Which.
        rank: Rank,
    },
}

/// What a rank did that none does: its connection is to be dropped ([`Service::leave`]). Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Violation {
    /// No message of this version.
    #[error("it sent bytes that are no request of this version")]
    Malformed,
    /// A request's number is not greater than that of the one before: a replay, or two senders.
    #[error("it repeated an earlier request")]
    Repeated,
    /// It asked for something after it had said that it would not.
    #[error("it asked for something after Stop")]
    AfterStop,
    /// It is not here, or not any more.
    #[error("it has not joined")]
    Absent,
}

/// Why a rank may not join.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum JoinError {
    /// It is not one of this host's.
    #[error("rank {0} is not of this host")]
    Stranger(Rank),
    /// It is here already, or was.
    #[error("rank {0} has been here already")]
    Again(Rank),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Presence {
    /// It has not come yet.
    Awaited,
    Here,
    /// Here, but asks nothing any more.
    Stopped,
    Gone,
}

#[derive(Debug)]
struct Client {
    rank: Rank,
    presence: Presence,
    /// The number of its last request.
    last: Option<OpId>,
    under_way: usize,
}

#[derive(Debug)]
struct Connection {
    owner: ClientId,
    info: ConnectionInfo,
    state: ConnectionState,
    task: Option<TaskId>,
}

/// Who asked for a task.
#[derive(Debug)]
struct UnderWay {
    id: TaskId,
    connection: ConnectionId,
    /// Nobody, when the service closes what a rank has left.
    asked: Option<(ClientId, OpId)>,
    /// Where the connection will be.
    then: Then,
    /// Whether the transport has been told that nobody waits for it.
    is_given_up: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Then {
    State(ConnectionState),
    Same,
    Closed,
}

/// The service of one proxy for the ranks of its host.
#[derive(Debug)]
pub struct Service {
    clients: Vec<Client>,
    connections: Vec<Option<Connection>>,
    tasks: Vec<UnderWay>,
    events: VecDeque<Event>,
    next_task: u64,
    is_aborted: bool,
}

impl Service {
    /// For these ranks.
    pub fn new(ranks: &[Rank]) -> Service {
        let client =
            |rank: &Rank| Client { rank: *rank, presence: Presence::Awaited, last: None, under_way: 0 };
        Service {
            clients: ranks.iter().map(client).collect(),
            connections: Vec::new(),
            tasks: Vec::new(),
            events: VecDeque::new(),
            next_task: 0,
            is_aborted: false,
        }
    }

    /// A rank that has proved who it is has connected.
    ///
    /// # Errors
    /// [`JoinError`]: drop the connection.
    pub fn join(&mut self, rank: Rank) -> Result<ClientId, JoinError> {
        let at =
            self.clients.iter().position(|client| client.rank == rank).ok_or(JoinError::Stranger(rank))?;
        if self.clients[at].presence != Presence::Awaited {
            return Err(JoinError::Again(rank));
        }
        self.clients[at].presence = Presence::Here;
        Ok(ClientId(at))
    }

    /// A rank has gone, or will never come: its connections are closed.
    pub fn leave(&mut self, client: ClientId) {
        if self.clients[client.0].presence == Presence::Gone {
            return;
        }
        self.clients[client.0].presence = Presence::Gone;
        self.close_unowned();
    }

    /// A frame of a rank.
    ///
    /// # Errors
    /// [`Violation`]; nothing has changed.
    pub fn receive(&mut self, client: ClientId, frame: &Frame) -> Result<(), Violation> {
        let (op, request) = Request::decode(frame).map_err(|_| Violation::Malformed)?;
        let this = &mut self.clients[client.0];
        match this.presence {
            Presence::Here => {}
            Presence::Stopped => return Err(Violation::AfterStop),
            Presence::Awaited | Presence::Gone => return Err(Violation::Absent),
        }
        if this.last.is_some_and(|last| op <= last) {
            return Err(Violation::Repeated);
        }
        this.last = Some(op);
        self.ask(client, op, request);
        Ok(())
    }

    /// What is to be done next.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Whether tasks are under way.
    pub fn is_busy(&self) -> bool {
        !self.tasks.is_empty()
    }

    /// Whether all ranks have ended and nothing is left.
    pub fn has_ended(&self) -> bool {
        self.all_over() && self.connections.iter().all(Option::is_none) && self.events.is_empty()
    }

    /// How far a connection is.
    pub fn state(&self, connection: ConnectionId) -> Option<ConnectionState> {
        self.connections.get(connection.0 as usize)?.as_ref().map(|connection| connection.state)
    }

    /// A task is over.
    ///
    /// A number that is not under way is ignored: it was finished already.
    pub fn finish(&mut self, id: TaskId, result: Result<Reply, String>) {
        let Some(at) = self.tasks.iter().position(|task| task.id == id) else { return };
        let UnderWay { connection: number, asked, then, .. } = self.tasks.swap_remove(at);
        let slot = &mut self.connections[number.0 as usize];
        let mut result = result.map_err(Refusal::Failed);
        if let Some(connection) = slot {
            connection.task = None;
            let was_made = connection.state > ConnectionState::Uninitialized;
            match (&result, then) {
                (Ok(_), Then::State(state)) => connection.state = state,
                // A transport that cannot close has nothing more that could be asked of it.
                (_, Then::Closed) => *slot = None,
                (Err(_), _) if !was_made => *slot = None,
                _ => {}
            }
            if then == Then::State(ConnectionState::Initialized) && result.is_ok() {
                result = Ok(Reply::Connection(number));
            }
        }
        if let Some((client, op)) = asked {
            self.clients[client.0].under_way -= 1;
            self.answer(client, op, result);
        }
        self.close_unowned();
    }

    fn answer(&mut self, client: ClientId, op: OpId, result: Result<Reply, Refusal>) {
        if matches!(self.clients[client.0].presence, Presence::Here | Presence::Stopped) {
            let result = match result {
                Ok(Reply::Data(data)) if data.len() > DATA_MAX => Err(Refusal::Failed(format!(
                    "the transport says {} bytes, at most {DATA_MAX} travel",
                    data.len()
                ))),
                other => other,
            };
            self.events.push_back(Event::Answer(client, Response { op, result }));
        }
    }

    fn ask(&mut self, client: ClientId, op: OpId, request: Request) {
        match &request {
            Request::Stop => {
                self.clients[client.0].presence = Presence::Stopped;
                self.answer(client, op, Ok(Reply::Done));
                self.close_unowned();
            }
            Request::Abort => {
                if !std::mem::replace(&mut self.is_aborted, true) {
                    self.events.push_back(Event::Aborted { rank: self.clients[client.0].rank });
                }
                self.answer(client, op, Ok(Reply::Done));
            }
            _ => {
                if let Err(refusal) = self.begin(client, op, request) {
                    self.answer(client, op, Err(refusal));
                }
            }
        }
    }

    /// Makes a task of a request.
    fn begin(&mut self, client: ClientId, op: OpId, request: Request) -> Result<(), Refusal> {
        use ConnectionState::{Connected, Initialized, SetupDone, SharedInitialized, Uninitialized};
        if self.is_aborted && !matches!(request, Request::Close { .. }) {
            return Err(Refusal::Aborted);
        }
        if self.clients[client.0].under_way == REQUESTS_UNDER_WAY_MAX {
            return Err(Refusal::Full);
        }
        if let Request::Init(info) = request {
            let number = self.room().ok_or(Refusal::Full)?;
            let connection = Connection { owner: client, info, state: Uninitialized, task: None };
            self.connections[number.0 as usize] = Some(connection);
            self.start(number, Some((client, op)), Then::State(Initialized), request);
            return Ok(());
        }
        let (number, states, then) = match &request {
            Request::SharedInit { connection, .. } => {
                (*connection, Initialized..=Initialized, Then::State(SharedInitialized))
            }
            Request::Setup { connection, .. } => {
                (*connection, Initialized..=SharedInitialized, Then::State(SetupDone))
            }
            Request::Connect { connection, .. } => {
                (*connection, SetupDone..=SetupDone, Then::State(Connected))
            }
            Request::GetFd { connection, .. } | Request::QueryFd { connection, .. } => {
                (*connection, SetupDone..=Connected, Then::Same)
            }
            Request::Register { connection, .. } | Request::Deregister { connection, .. } => {
                (*connection, Connected..=Connected, Then::Same)
            }
            Request::Close { connection } => (*connection, Initialized..=Connected, Then::Closed),
            Request::Init(_) | Request::Stop | Request::Abort => return Err(Refusal::NoConnection),
        };
        let connection = self.connections.get(number.0 as usize).and_then(Option::as_ref);
        let connection =
            connection.filter(|connection| connection.owner == client).ok_or(Refusal::NoConnection)?;
        if connection.task.is_some() {
            return Err(Refusal::Busy);
        }
        if !states.contains(&connection.state) {
            return Err(Refusal::State { state: connection.state });
        }
        self.start(number, Some((client, op)), then, request);
        Ok(())
    }

    /// A free number.
    fn room(&mut self) -> Option<ConnectionId> {
        let at = self.connections.iter().position(Option::is_none).unwrap_or(self.connections.len());
        if at == CONNECTIONS_MAX {
            return None;
        }
        if at == self.connections.len() {
            self.connections.push(None);
        }
        Some(ConnectionId(at as u32))
    }

    fn start(&mut self, number: ConnectionId, asked: Option<(ClientId, OpId)>, then: Then, what: Request) {
        let id = TaskId(self.next_task);
        let Some(connection) = self.connections[number.0 as usize].as_mut() else { return };
        self.next_task += 1;
        connection.task = Some(id);
        let (info, rank) = (connection.info, self.clients[connection.owner.0].rank);
        if let Some((client, _)) = asked {
            self.clients[client.0].under_way += 1;
        }
        self.tasks.push(UnderWay { id, connection: number, asked, then, is_given_up: false });
        self.events.push_back(Event::Task(Task { id, rank, connection: number, info, what }));
    }

    fn all_over(&self) -> bool {
        self.clients.iter().all(|client| matches!(client.presence, Presence::Stopped | Presence::Gone))
    }

    /// Closes connections of ranks that are gone, and all when all ranks have ended. What is busy is given up, and closed when that
    /// is over: a connection whose other end never comes would be busy for ever.
    fn close_unowned(&mut self) {
        let all_over = self.all_over();
        for at in 0..self.connections.len() {
            let Some(connection) = &self.connections[at] else { continue };
            if !all_over && self.clients[connection.owner.0].presence != Presence::Gone {
                continue;
            }
            let number = ConnectionId(at as u32);
            match connection.task {
                None => self.start(number, None, Then::Closed, Request::Close { connection: number }),
                Some(task) => self.give_up(task),
            }
        }
    }

    fn give_up(&mut self, id: TaskId) {
        let task = self.tasks.iter_mut().find(|task| task.id == id && task.then != Then::Closed);
        if let Some(task) = task.filter(|task| !task.is_given_up) {
            task.is_given_up = true;
            self.events.push_back(Event::GiveUp(id));
        }
    }
}
