//! What is encoded is what is decoded, and nothing else is.

use crate::bootstrap::frame::{Decoder, Frame};
use crate::proxy::service::*;
use oxccl_shared::abi::{ChannelId, Rank};
use proptest::prelude::*;

pub(super) fn any_request() -> impl Strategy<Value = Request> {
    // Few connections, so that interleavings meet on them.
    let id = || (0u32..6).prop_map(ConnectionId);
    let data = || proptest::collection::vec(any::<u8>(), 0..40);
    prop_oneof![
        4 => (0u32..4, 0u32..3, any::<bool>())
            .prop_map(|(peer, channel, is_send)| Request::Init(ConnectionInfo {
                peer: Rank(peer),
                channel: ChannelId(channel),
                is_send,
            })),
        1 => (id(), any::<u32>()).prop_map(|(connection, channels)| Request::SharedInit { connection, channels }),
        3 => (id(), data()).prop_map(|(connection, data)| Request::Setup { connection, data }),
        3 => (id(), data()).prop_map(|(connection, data)| Request::Connect { connection, data }),
        2 => id().prop_map(|connection| Request::Close { connection }),
        1 => Just(Request::Stop),
        1 => (id(), any::<u64>(), any::<u64>())
            .prop_map(|(connection, handle, mailbox)| Request::GetFd { connection, handle, mailbox }),
        1 => (id(), any::<u64>()).prop_map(|(connection, handle)| Request::QueryFd { connection, handle }),
        1 => (id(), any::<u64>(), any::<u64>())
            .prop_map(|(connection, start, len_bytes)| Request::Register { connection, start, len_bytes }),
        1 => (id(), any::<u64>())
            .prop_map(|(connection, registration)| Request::Deregister { connection, registration }),
    ]
}

fn any_result() -> impl Strategy<Value = Result<Reply, Refusal>> {
    prop_oneof![
        Just(Ok(Reply::Done)),
        any::<u32>().prop_map(|id| Ok(Reply::Connection(ConnectionId(id)))),
        proptest::collection::vec(any::<u8>(), 0..100).prop_map(|data| Ok(Reply::Data(data))),
        any::<u64>().prop_map(|number| Ok(Reply::Number(number))),
        Just(Err(Refusal::NoConnection)),
        Just(Err(Refusal::State { state: ConnectionState::SetupDone })),
        Just(Err(Refusal::Busy)),
        Just(Err(Refusal::Full)),
        Just(Err(Refusal::Aborted)),
        "[a-z ü]{0,60}".prop_map(|reason| Err(Refusal::Failed(reason))),
    ]
}

/// The one frame in these bytes.
pub(super) fn only_frame(mut bytes: &[u8]) -> Frame {
    let frame = Decoder::new(PAYLOAD_MAX).feed(&mut bytes).unwrap().unwrap();
    assert!(bytes.is_empty());
    frame
}

proptest! {
    #[test]
    fn requests_and_responses_survive_the_trip(request in any_request(), op: u64, result in any_result()) {
        let mut bytes = Vec::new();
        request.encode(OpId(op), &mut bytes);
        prop_assert_eq!(Request::decode(&only_frame(&bytes)), Ok((OpId(op), request)));
        let response = Response { op: OpId(op), result };
        bytes.clear();
        response.encode(&mut bytes);
        prop_assert_eq!(Response::decode(&only_frame(&bytes)), Ok(response));
    }

    #[test]
    fn what_reads_as_a_message_writes_back_the_same(
        kind in 0u8..4,
        payload in proptest::collection::vec(any::<u8>(), 0..60),
        is_right_version: bool,
    ) {
        let mut payload = payload;
        if let (true, Some(first)) = (is_right_version, payload.first_mut()) {
            *first = SERVICE_VERSION;
        }
        let frame = Frame { kind, payload };
        let mut bytes = Vec::new();
        if let Ok((op, request)) = Request::decode(&frame) {
            request.encode(op, &mut bytes);
            prop_assert_eq!(only_frame(&bytes), frame);
        } else if let Ok(response) = Response::decode(&frame) {
            response.encode(&mut bytes);
            prop_assert_eq!(only_frame(&bytes), frame);
        }
    }

    #[test]
    fn a_truncated_message_is_none(request in any_request(), cut in 1usize..9) {
        let mut bytes = Vec::new();
        request.encode(OpId(1), &mut bytes);
        let mut frame = only_frame(&bytes);
        frame.payload.truncate(frame.payload.len().saturating_sub(cut));
        prop_assert!(Request::decode(&frame).is_err());
        frame.payload.resize(DATA_MAX + 14, 0);
        prop_assert!(Request::decode(&frame).is_err(), "too long");
    }
}

#[test]
fn a_long_reason_is_cut_between_letters() {
    let response = Response { op: OpId(1), result: Err(Refusal::Failed("ü".repeat(200))) };
    let mut bytes = Vec::new();
    response.encode(&mut bytes);
    let Ok(Response { result: Err(Refusal::Failed(reason)), .. }) = Response::decode(&only_frame(&bytes))
    else {
        panic!("a refusal stays one");
    };
    assert_eq!(reason, "ü".repeat(128));
}
