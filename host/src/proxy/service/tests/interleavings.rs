//! The state machine under random interleavings of ranks, tasks and nonsense.

use super::messages::{any_request, only_frame};
use crate::bootstrap::frame::Frame;
use crate::proxy::service::*;
use oxccl_shared::abi::{ChannelId, Rank};
use proptest::prelude::*;
use std::collections::BTreeMap;

const RANKS: [Rank; 3] = [Rank(4), Rank(7), Rank(9)];

#[derive(Clone, Debug)]
enum Act {
    Join(usize),
    Ask(usize, Request),
    /// The last request again.
    Replay(usize),
    Garbage(usize, u8, Vec<u8>),
    Leave(usize),
    /// Ends the task of this index of those under way, well or not.
    Finish(usize, bool),
}

fn any_act() -> impl Strategy<Value = Act> {
    let client = || 0usize..3;
    prop_oneof![
        2 => client().prop_map(Act::Join),
        20 => (client(), any_request()).prop_map(|(client, request)| Act::Ask(client, request)),
        1 => client().prop_map(Act::Replay),
        1 => (client(), any::<u8>(), proptest::collection::vec(any::<u8>(), 0..30))
            .prop_map(|(client, kind, payload)| Act::Garbage(client, kind, payload)),
        1 => client().prop_map(Act::Leave),
        20 => (0usize..8, prop::bool::weighted(0.8)).prop_map(|(index, is_good)| Act::Finish(index, is_good)),
    ]
}

/// What a test knows of a service.
struct Model {
    service: Service,
    next_op: u64,
    last: [Option<Frame>; 3],
    here: [bool; 3],
    over: [bool; 3],
    /// Answers still due, by rank and request.
    due: BTreeMap<(usize, u64), Request>,
    tasks: Vec<Task>,
    /// A connection's task under way.
    busy: BTreeMap<ConnectionId, TaskId>,
}

fn frame(request: &Request, op: u64) -> Frame {
    let mut bytes = Vec::new();
    request.encode(OpId(op), &mut bytes);
    only_frame(&bytes)
}

impl Model {
    fn new() -> Model {
        Model {
            service: Service::new(&RANKS),
            next_op: 1,
            last: [const { None }; 3],
            here: [false; 3],
            over: [false; 3],
            due: BTreeMap::new(),
            tasks: Vec::new(),
            busy: BTreeMap::new(),
        }
    }

    /// Takes what the service wants done.
    fn drain(&mut self) {
        while let Some(event) = self.service.next_event() {
            match event {
                Event::Answer(ClientId(client), Response { op, .. }) => {
                    assert!(self.here[client], "an answer to nobody");
                    assert!(self.due.remove(&(client, op.0)).is_some(), "an answer nobody waits for");
                }
                Event::Task(task) => {
                    assert!(
                        self.busy.insert(task.connection, task.id).is_none(),
                        "two tasks for one connection"
                    );
                    self.tasks.push(task);
                }
                Event::GiveUp(id) => {
                    assert!(self.tasks.iter().any(|task| task.id == id), "a task that is over is given up");
                }
                Event::Aborted { .. } => {}
            }
        }
    }

    fn act(&mut self, act: Act) {
        let before = format!("{:?}", self.service);
        let unchanged = |service: &Service| assert_eq!(before, format!("{service:?}"), "changed by nonsense");
        match act {
            Act::Join(client) => {
                let is_first = !self.here[client] && !self.over[client];
                assert_eq!(self.service.join(RANKS[client]).is_ok(), is_first);
                self.here[client] |= is_first;
            }
            Act::Ask(client, request) => {
                let op = self.next_op;
                self.next_op += 1;
                let asked = frame(&request, op);
                match self.service.receive(ClientId(client), &asked) {
                    Ok(()) => {
                        assert!(self.here[client] && !self.over[client]);
                        self.over[client] = request == Request::Stop;
                        self.due.insert((client, op), request);
                        self.last[client] = Some(asked);
                    }
                    Err(Violation::AfterStop | Violation::Absent) => unchanged(&self.service),
                    Err(violation) => panic!("{violation}"),
                }
            }
            Act::Replay(client) => {
                if let Some(asked) = &self.last[client] {
                    assert!(self.service.receive(ClientId(client), asked).is_err());
                    unchanged(&self.service);
                }
            }
            Act::Garbage(client, kind, payload) => {
                if Request::decode(&Frame { kind, payload: payload.clone() }).is_err() {
                    let frame = Frame { kind, payload };
                    assert_eq!(self.service.receive(ClientId(client), &frame), Err(Violation::Malformed));
                    unchanged(&self.service);
                }
            }
            Act::Leave(client) => {
                self.service.leave(ClientId(client));
                (self.here[client], self.over[client]) = (false, true);
                self.due.retain(|(of, _), _| *of != client);
            }
            Act::Finish(index, is_good) => self.finish(index, is_good),
        }
        self.drain();
    }

    fn finish(&mut self, index: usize, is_good: bool) {
        if self.tasks.is_empty() {
            return;
        }
        let task = self.tasks.swap_remove(index % self.tasks.len());
        self.busy.remove(&task.connection);
        let state = self.service.state(task.connection);
        self.service.finish(task.id, if is_good { Ok(Reply::Done) } else { Err("no".to_owned()) });
        let after = self.service.state(task.connection);
        let (made, closed) =
            (matches!(task.what, Request::Init(_)), matches!(task.what, Request::Close { .. }));
        match (is_good, &task.what) {
            (_, Request::Close { .. }) => assert_eq!(after, None),
            (true, Request::Init(_)) => assert_eq!(after, Some(ConnectionState::Initialized)),
            (true, Request::SharedInit { .. }) => assert_eq!(after, Some(ConnectionState::SharedInitialized)),
            (true, Request::Setup { .. }) => assert_eq!(after, Some(ConnectionState::SetupDone)),
            (true, Request::Connect { .. }) => assert_eq!(after, Some(ConnectionState::Connected)),
            _ if made => assert_eq!(after, None),
            _ => assert_eq!(after, state, "a failure changes nothing"),
        }
        self.service.finish(task.id, Ok(Reply::Done));
        assert_eq!(
            self.service.state(task.connection),
            after,
            "a second end of a task is ignored ({closed})"
        );
    }

    fn check_end(&self) {
        let all_over = self.over.iter().all(|over| *over);
        assert!(!self.service.has_ended() || all_over, "ended before its ranks");
        assert!(!self.service.has_ended() || self.tasks.is_empty(), "ended in the middle of a task");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn every_request_has_one_answer_and_the_service_outlives_its_ranks(
        acts in proptest::collection::vec(any_act(), 1..150),
        orderly: bool,
    ) {
        let mut model = Model::new();
        for act in acts {
            model.act(act);
            model.check_end();
        }
        for client in 0..3 {
            if orderly {
                model.act(Act::Join(client));
                model.act(Act::Ask(client, Request::Stop));
            } else {
                model.act(Act::Leave(client));
            }
        }
        while !model.tasks.is_empty() {
            prop_assert!(!model.service.has_ended());
            model.act(Act::Finish(0, true));
        }
        prop_assert!(model.due.is_empty(), "never answered: {:?}", model.due);
        prop_assert!(model.service.has_ended());
    }
}

/// A connection's whole life, and what is too early or somebody else's.
#[test]
fn a_connection_goes_through_its_states_for_its_owner_alone() {
    let mut service = Service::new(&RANKS);
    let [mine, other] = [service.join(Rank(4)).unwrap(), service.join(Rank(9)).unwrap()];
    assert_eq!(service.join(Rank(5)), Err(JoinError::Stranger(Rank(5))));
    let mut op = 0;
    let mut ask = |service: &mut Service, client, request: Request| -> Result<Reply, Refusal> {
        op += 1;
        service.receive(client, &frame(&request, op)).unwrap();
        match service.next_event().unwrap() {
            Event::Answer(_, response) => response.result,
            Event::Task(task) => {
                service.finish(task.id, Ok(Reply::Number(5)));
                let Some(Event::Answer(to, response)) = service.next_event() else { panic!("no answer") };
                assert_eq!((to, response.op), (client, OpId(op)));
                response.result
            }
            event => panic!("{event:?}"),
        }
    };
    let info = ConnectionInfo { peer: Rank(1), channel: ChannelId(0), is_send: true };
    let Ok(Reply::Connection(connection)) = ask(&mut service, mine, Request::Init(info)) else { panic!() };
    let connect = || Request::Connect { connection, data: vec![] };
    let early = ask(&mut service, mine, connect());
    assert_eq!(early, Err(Refusal::State { state: ConnectionState::Initialized }));
    let setup = || Request::Setup { connection, data: vec![1] };
    assert_eq!(ask(&mut service, other, setup()), Err(Refusal::NoConnection));
    assert_eq!(ask(&mut service, mine, setup()), Ok(Reply::Number(5)));
    assert_eq!(ask(&mut service, mine, setup()), Err(Refusal::State { state: ConnectionState::SetupDone }));
    assert_eq!(ask(&mut service, mine, connect()), Ok(Reply::Number(5)));
    let register = Request::Register { connection, start: 1, len_bytes: 2 };
    assert_eq!(ask(&mut service, mine, register.clone()), Ok(Reply::Number(5)));
    assert!(ask(&mut service, mine, Request::Close { connection }).is_ok());
    assert_eq!(ask(&mut service, mine, register), Err(Refusal::NoConnection));
}

#[test]
fn after_an_abort_there_is_only_an_end() {
    let mut service = Service::new(&RANKS);
    let client = service.join(Rank(7)).unwrap();
    service.receive(client, &frame(&Request::Abort, 1)).unwrap();
    assert_eq!(service.next_event(), Some(Event::Aborted { rank: Rank(7) }));
    assert!(matches!(service.next_event(), Some(Event::Answer(_, Response { result: Ok(Reply::Done), .. }))));
    let info = ConnectionInfo { peer: Rank(1), channel: ChannelId(0), is_send: true };
    service.receive(client, &frame(&Request::Init(info), 2)).unwrap();
    let refused = Response { op: OpId(2), result: Err(Refusal::Aborted) };
    assert_eq!(service.next_event(), Some(Event::Answer(client, refused)));
    service.receive(client, &frame(&Request::Stop, 3)).unwrap();
    assert!(service.next_event().is_some());
    service.leave(ClientId(0));
    assert!(!service.has_ended());
    service.leave(ClientId(2));
    assert!(service.has_ended());
}
