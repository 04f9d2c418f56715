//! What heads send to an aggregator: the first message, and frames in any order among the heads.

use crate::input::Input;
use oxccl::net::aggregate::frame::{FRAGMENT_MAX, HEADER_BYTES, Header, JOIN_BYTES, Join, Kind, WINDOW};
use oxccl::net::aggregate::table::Table;
use oxccl::{DataType, RedOp};
use std::collections::VecDeque;

/// A head as the server follows it.
#[derive(Default)]
struct Head {
    coming: u64,
    going: u64,
    /// Sums of bytes that it has sent, for fragments without a result yet.
    sent: VecDeque<(Header, Vec<u8>)>,
}

/// Whatever reads as a message is written the same; a fragment that is taken fits its room, one that differs from another head's is refused,
/// and results are those of all heads, in order.
pub fn aggregator(data: &[u8]) {
    let mut input = Input(data);
    if let Ok(bytes) = <&[u8; JOIN_BYTES]>::try_from(input.piece(JOIN_BYTES))
        && let Ok(join) = Join::from_bytes(bytes)
    {
        assert!(join.head.index < join.head.count && join.to_bytes() == *bytes);
    }
    let nheads = 1 + usize::from(input.u8() % 4);
    let mut table = Table::new(nheads as u32);
    let mut heads: Vec<Head> = (0..nheads).map(|_| Head::default()).collect();
    while !input.is_empty() {
        let head = usize::from(input.u8()) % nheads;
        if table.has_room(heads[head].coming) && !receive(&mut table, &mut heads, head, &mut input) {
            // The job is over.
            return;
        }
        let head = usize::from(input.u8()) % nheads;
        send(&mut table, &mut heads, head);
    }
}

/// A frame of a head. Returns whether its job goes on.
fn receive(table: &mut Table, heads: &mut [Head], head: usize, input: &mut Input<'_>) -> bool {
    let seq = heads[head].coming;
    let header = match input.u8() {
        // Anything.
        0 => {
            let Ok(bytes) = <&[u8; HEADER_BYTES]>::try_from(input.piece(HEADER_BYTES)) else { return true };
            let Ok(header) = Header::from_bytes(bytes) else { return false };
            assert!(header.to_bytes() == *bytes && header.len_bytes as usize <= FRAGMENT_MAX);
            header
        }
        // A fragment that is due.
        len => Header { kind: Kind::Reduce(DataType::U8, RedOp::Sum), len_bytes: u32::from(len), seq },
    };
    if !matches!(header.kind, Kind::Reduce(..)) || header.seq != seq {
        return false;
    }
    if table.begin(head, header).is_err() {
        return false;
    }
    let len_bytes = header.len_bytes as usize;
    let room = table.input(head, seq);
    assert_eq!(room.len(), len_bytes);
    let bytes = input.piece(len_bytes);
    room.fill(0);
    room[..bytes.len()].copy_from_slice(bytes);
    let sent = room.to_vec();
    table.has_come(head, seq);
    let this = &mut heads[head];
    this.sent.push_back((header, sent));
    this.coming += 1;
    assert!(this.coming <= this.going + WINDOW);
    true
}

/// The next result for a head, if it is there.
fn send(table: &mut Table, heads: &mut [Head], head: usize) {
    let seq = heads[head].going;
    let Some(result) = table.result(seq) else { return };
    assert!(heads.iter().all(|head| head.coming > seq), "a result without all inputs");
    let header = heads[head].sent.front().expect("what it has sent").0;
    assert_eq!(result.len(), header.len_bytes as usize);
    if let Kind::Reduce(DataType::U8, RedOp::Sum) = header.kind {
        let of = |other: &Head, at: usize| {
            let back = (other.coming - seq) as usize;
            other.sent.iter().nth_back(back - 1).map(|(_, bytes)| bytes[at])
        };
        // Those that have the result already do not remember their input.
        for (at, sum) in result.iter().enumerate() {
            let inputs: Option<Vec<u8>> = heads.iter().map(|other| of(other, at)).collect();
            let Some(inputs) = inputs else { break };
            assert_eq!(inputs.into_iter().fold(0, u8::wrapping_add), *sum);
        }
    }
    table.is_sent(seq);
    heads[head].sent.pop_front();
    heads[head].going += 1;
}
