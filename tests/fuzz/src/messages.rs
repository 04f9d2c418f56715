//! What is inside the bootstrap's frames.

use crate::input::Input;
use oxccl::bootstrap::news::News;
use oxccl::bootstrap::rendezvous_wire::{ROOT_PAYLOAD_MAX, Register, Reply};

/// Any bytes are refused or are a message that survives being written and read again.
pub fn messages(data: &[u8]) {
    let mut input = Input(data);
    match input.u8() % 3 {
        0 => {
            if let Ok(register) = Register::from_bytes(input.0) {
                assert_eq!(register.to_bytes(), input.0);
            }
        }
        1 => {
            if let Ok(reply) = Reply::from_bytes(input.0) {
                assert!(reply.to_bytes().len() <= ROOT_PAYLOAD_MAX);
                assert_eq!(Reply::from_bytes(&reply.to_bytes()), Ok(reply));
            }
        }
        _ => {
            if let Ok(news) = News::from_bytes(input.0) {
                assert_eq!(News::from_bytes(&news.to_bytes()), Ok(news.clone()));
                assert!(!news.to_error().to_string().is_empty());
            }
        }
    }
}
