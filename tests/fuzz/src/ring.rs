//! Neighbours in the ring are authenticated, not trusted: one may be broken.

use crate::input::Input;
use oxccl::bootstrap::frame;
use oxccl::bootstrap::ring::{Ring, Side};
use oxccl_shared::abi::Rank;

const NRANKS: u32 = 4;
const ME: Rank = Rank(1);

/// Whatever the neighbours send, the ring neither panics nor reports more deaths and aborts than there are ranks.
pub fn ring(data: &[u8]) {
    let mut input = Input(data);
    let mut ring = Ring::new(ME, NRANKS);
    ring.attach(Side::Prev, Rank(0));
    ring.attach(Side::Next, Rank(2));
    let (mut events, mut pending) = (0, false);
    while !input.is_empty() {
        let choice = input.u8();
        let side = Side::ALL[usize::from(choice >> 4) % Side::COUNT];
        match choice >> 1 & 7 {
            0 | 1 => {
                let len = input.u8() as usize;
                ring.receive(side, input.piece(len));
            }
            2 | 3 => {
                let (kind, len) = (input.u8() % 5, input.u8() as usize);
                let mut bytes = Vec::new();
                frame::push(&mut bytes, kind, &[input.piece(len)]);
                ring.receive(side, &bytes);
            }
            4 => {
                ring.ended(side);
                if let Some(candidate) = ring.successor_after(Rank(u32::from(input.u8()) % NRANKS)) {
                    assert_ne!(candidate, ME);
                    ring.attach(side, candidate);
                }
            }
            5 if !pending => pending = ring.submit(input.piece(8)).is_ok(),
            6 => ring.abort("fuzz"),
            _ => ring.leave(),
        }
        if let Some(Ok(blocks)) = ring.take_gathered() {
            assert_eq!(blocks.len(), NRANKS as usize);
            pending = false;
        }
        Side::ALL.into_iter().for_each(|side| drop(ring.take_output(side)));
        while ring.next_event().is_some() {
            events += 1;
        }
    }
    assert!(events <= 2 * NRANKS, "each rank dies once and aborts once: {events} events");
}
