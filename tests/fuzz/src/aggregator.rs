//! What heads send to an aggregator: the first message, and frames in any order among the heads.

use crate::input::Input;
use oxccl::net::aggregate::frame::{
    FRAGMENT_MAX, HEADER_BYTES, Header, JOIN_BYTES, Join, Kind, Span, WINDOW, header_bytes,
};
use oxccl::net::aggregate::table::{Outcome, Table};
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

/// A fragment of all heads that a byte describes: of any kind, and within the blocks of so many heads.
fn due(byte: u8, nheads: usize, seq: u64) -> Header {
    let head_bytes = 1 + u64::from(byte % 7) * 8;
    let whole = head_bytes * nheads as u64;
    let span = Span { head_bytes, start: u64::from(byte) * 3 % whole };
    let len_bytes = u32::from(byte).min((whole - span.start) as u32);
    match byte % 3 {
        0 => Header { kind: Kind::Reduce(DataType::U8, RedOp::Sum), len_bytes: byte.into(), seq },
        1 => Header { kind: Kind::Gather(span), len_bytes, seq },
        _ => Header { kind: Kind::Scatter(DataType::U8, RedOp::Sum, span), len_bytes, seq },
    }
}

/// A frame of a head. Returns whether its job goes on.
fn receive(table: &mut Table, heads: &mut [Head], head: usize, input: &mut Input<'_>) -> bool {
    let (seq, nheads) = (heads[head].coming, heads.len());
    let header = match input.u8() {
        // Anything.
        0 => {
            let mut bytes = input.piece(HEADER_BYTES).to_vec();
            bytes.extend_from_slice(input.piece(header_bytes(&bytes) - HEADER_BYTES));
            let Ok(header) = Header::from_bytes(&bytes) else { return false };
            assert!(header.to_bytes()[..header.kind.header_bytes()] == *bytes);
            assert!(header.len_bytes as usize <= FRAGMENT_MAX);
            header
        }
        byte => due(byte, nheads, seq),
    };
    if header.seq != seq || table.begin(head as u32, header).is_err() {
        return false;
    }
    assert!(header.kind.is_fragment() && header.is_inside(nheads as u32));
    let room = table.input(head as u32, seq);
    let len_bytes = room.len();
    assert_eq!(len_bytes, header.input(head as u32).len());
    let bytes = input.piece(len_bytes);
    room.fill(0);
    room[..bytes.len()].copy_from_slice(bytes);
    let sent = room.to_vec();
    // In two parts.
    for come in [usize::from(input.u8()).min(len_bytes), len_bytes] {
        table.has_come(head as u32, seq, come);
        let begun = table.result(head as u32, seq);
        assert!(begun.is_none_or(|result| result.len_bytes == header.output(head as u32).len()));
    }
    let this = &mut heads[head];
    this.sent.push_back((header, sent));
    this.coming += 1;
    assert!(this.coming <= this.going + WINDOW);
    true
}

/// The next result for a head, if it is there.
fn send(table: &mut Table, heads: &mut [Head], head: usize) {
    let seq = heads[head].going;
    let Some(result) = table.result(head as u32, seq).filter(Outcome::is_whole) else { return };
    let result = result.ready;
    assert!(heads.iter().all(|head| head.coming > seq), "a result without all inputs");
    let header = heads[head].sent.front().expect("what it has sent").0;
    let output = header.output(head as u32);
    assert_eq!(result.len(), output.len());
    let of = |other: &Head| {
        let back = (other.coming - seq) as usize;
        other.sent.iter().nth_back(back - 1).map(|(_, bytes)| bytes.clone())
    };
    // Those that have the result already do not remember their input.
    if let Some(inputs) = heads.iter().map(of).collect::<Option<Vec<_>>>() {
        match header.kind {
            Kind::Gather(_) => assert_eq!(result, inputs.concat()),
            Kind::Reduce(DataType::U8, RedOp::Sum) | Kind::Scatter(DataType::U8, RedOp::Sum, _) => {
                for (at, sum) in output.zip(result) {
                    assert_eq!(inputs.iter().fold(0u8, |sum, input| sum.wrapping_add(input[at])), *sum);
                }
            }
            _ => {}
        }
    }
    table.is_sent(seq);
    heads[head].sent.pop_front();
    heads[head].going += 1;
}
