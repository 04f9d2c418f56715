//! Control messages: what is inside the bootstrap's frames and the blocks of its all-gathers.

use crate::input::Input;
use oxccl::bootstrap::rendezvous_wire::{ListenerAddr, ROOT_PAYLOAD_MAX, Register, Reply};
use oxccl::bootstrap::ring_wire::{BlockHead, MembershipEvent, Note, PartHead};
use oxccl::connect::Values;
use oxccl::launch::{CallsMade, LatestCalls, MessagesMade, NamedCall, Notice};
use oxccl::topology::agree;
use oxccl::topology::detect::Found;
use oxccl::transport::PeerInfo;
use oxccl::wire::Message;

/// Any bytes are refused or are a message that is written as it was read.
pub fn messages(data: &[u8]) {
    let mut input = Input(data);
    match input.u8() % 12 {
        0 => drop(read::<Register>(input.0)),
        1 => {
            let reply = read::<Reply>(input.0);
            assert!(reply.is_none() || input.0.len() <= ROOT_PAYLOAD_MAX);
        }
        2 => {
            let event = read::<MembershipEvent>(input.0);
            assert!(event.is_none_or(|event| !event.to_error().to_string().is_empty()));
        }
        3 => drop(read::<Note>(input.0)),
        4 => {
            let _ = (read::<BlockHead>(input.0), read::<PartHead>(input.0));
        }
        5 => drop(read::<ListenerAddr>(input.0)),
        6 => drop(read::<PeerInfo>(input.0)),
        7 => drop(read::<Notice>(input.0)),
        8 => {
            if let Some(found) = Found::from_bytes(input.0) {
                assert_eq!(Found::from_bytes(&found.to_bytes()), Some(found));
            }
        }
        9 => drop(read::<Values>(input.0)),
        // What ranks say when they finalize.
        10 => {
            let _ = (read::<CallsMade>(input.0), read::<LatestCalls>(input.0));
            let _ = (read::<MessagesMade>(input.0), read::<NamedCall>(input.0));
        }
        // What a rank says of its host's channels.
        _ => drop(agree(&[input.0.to_vec()], &[0])),
    }
}

fn read<T: Message>(bytes: &[u8]) -> Option<T> {
    let message = T::from_bytes(bytes).ok()?;
    assert_eq!(message.to_bytes(), bytes);
    Some(message)
}
