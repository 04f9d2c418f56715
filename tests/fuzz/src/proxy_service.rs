//! Requests of local ranks to a proxy's service, in any order, with tasks that end in any order.

use crate::input::Input;
use oxccl::bootstrap::frame::{Decoder, Frame};
use oxccl::proxy::service::{
    ClientId, ConnectionId, ConnectionInfo, Event, OpId, PAYLOAD_MAX, Reply, Request, Response, Service,
    TaskId,
};
use oxccl_shared::abi::{ChannelId, Rank};
use std::collections::BTreeSet;

const RANKS: [Rank; 2] = [Rank(3), Rank(8)];

/// A request is answered once, and to its sender only; malformed requests change nothing; the service ends with its
/// ranks and not before.
pub fn proxy_service(data: &[u8]) {
    let mut input = Input(data);
    let mut watched = Watched::default();
    let mut service = Service::new(&RANKS);
    for rank in RANKS {
        assert!(service.join(rank).is_ok() && service.join(rank).is_err());
    }
    while !input.is_empty() {
        let choice = input.u8();
        let client = ClientId(usize::from(choice & 1));
        match choice >> 1 & 7 {
            0 => nonsense(&mut service, client, &mut input),
            1 => watched.finish(&mut service, &mut input),
            2 if input.u8() > 250 => {
                service.leave(client);
                watched.due.retain(|(of, _)| *of != client);
                watched.over.insert(client);
            }
            _ => watched.ask(&mut service, client, &mut input),
        }
        watched.drain(&mut service);
        assert!(!service.has_ended() || watched.over.len() == RANKS.len());
    }
    for client in [ClientId(0), ClientId(1)] {
        service.leave(client);
        watched.due.retain(|(of, _)| *of != client);
    }
    watched.drain(&mut service);
    while let Some(task) = watched.tasks.pop() {
        assert!(!service.has_ended());
        service.finish(task, Ok(Reply::Done));
        watched.drain(&mut service);
    }
    assert!(service.has_ended() && watched.due.is_empty());
}

#[derive(Default)]
struct Watched {
    next_op: u64,
    due: BTreeSet<(ClientId, OpId)>,
    tasks: Vec<TaskId>,
    over: BTreeSet<ClientId>,
}

/// A frame of any bytes, and bytes that need not be a frame.
fn nonsense(service: &mut Service, client: ClientId, input: &mut Input<'_>) {
    let len = usize::from(input.u8());
    let piece = input.piece(len);
    let _ = Decoder::new(PAYLOAD_MAX).feed(&mut &piece[..]);
    let kind = piece.first().copied().unwrap_or(0);
    let frame = Frame { kind, payload: piece.to_vec() };
    if let Ok(response) = Response::decode(&frame) {
        let mut bytes = Vec::new();
        response.encode(&mut bytes);
        assert_eq!(Decoder::new(PAYLOAD_MAX).feed(&mut &bytes[..]), Ok(Some(frame.clone())));
    }
    if Request::decode(&frame).is_err() {
        let before = format!("{service:?}");
        assert!(service.receive(client, &frame).is_err());
        assert_eq!(before, format!("{service:?}"), "nonsense changed something");
    }
}

impl Watched {
    fn ask(&mut self, service: &mut Service, client: ClientId, input: &mut Input<'_>) {
        let connection = ConnectionId(u32::from(input.u8() % 4));
        let request = match input.u8() % 12 {
            0..4 => Request::Init(ConnectionInfo {
                peer: Rank(1),
                channel: ChannelId(0),
                is_send: connection.0 == 0,
            }),
            4 => Request::SharedInit { connection, channels: 1 },
            5 => Request::Setup { connection, data: input.piece(3).to_vec() },
            6 => Request::Connect { connection, data: input.piece(3).to_vec() },
            7 => Request::Close { connection },
            8 => Request::GetFd { connection, handle: 0, mailbox: 1 },
            9 => Request::Register { connection, start: 0, len_bytes: 1 },
            10 if input.u8() > 200 => Request::Stop,
            10 => Request::QueryFd { connection, handle: 1 },
            _ if input.u8() > 200 => Request::Abort,
            _ => Request::Deregister { connection, registration: 1 },
        };
        self.next_op += 1;
        let op = OpId(self.next_op);
        let mut bytes = Vec::new();
        request.encode(op, &mut bytes);
        let frame = Decoder::new(PAYLOAD_MAX).feed(&mut &bytes[..]).expect("a frame").expect("a whole one");
        assert_eq!(Request::decode(&frame), Ok((op, request.clone())));
        if service.receive(client, &frame).is_ok() {
            assert!(!self.over.contains(&client), "asked after its end");
            assert!(service.receive(client, &frame).is_err(), "a replay was taken");
            self.due.insert((client, op));
            if request == Request::Stop {
                self.over.insert(client);
            }
        }
    }

    fn finish(&mut self, service: &mut Service, input: &mut Input<'_>) {
        if self.tasks.is_empty() {
            return;
        }
        let at = usize::from(input.u8()) % self.tasks.len();
        let task = self.tasks.swap_remove(at);
        let result = match input.u8() % 4 {
            0 => Err("it failed".to_owned()),
            1 => Ok(Reply::Data(vec![0; usize::from(input.u8()) * 16])),
            2 => Ok(Reply::Number(7)),
            _ => Ok(Reply::Done),
        };
        service.finish(task, result);
        service.finish(task, Ok(Reply::Done));
    }

    fn drain(&mut self, service: &mut Service) {
        while let Some(event) = service.next_event() {
            match event {
                Event::Answer(client, response) => {
                    assert!(self.due.remove(&(client, response.op)), "an answer that nobody waits for");
                    let mut bytes = Vec::new();
                    response.encode(&mut bytes);
                    let frame = Decoder::new(PAYLOAD_MAX).feed(&mut &bytes[..]);
                    assert_eq!(
                        Response::decode(&frame.expect("a frame").expect("a whole one")),
                        Ok(response)
                    );
                }
                Event::Task(task) => self.tasks.push(task.id),
                Event::GiveUp(_) | Event::Aborted { .. } => {}
            }
        }
    }
}
