//! A socket's index in its connection, in the handshake.

use super::config::DATA_SOCKETS_MAX;
use crate::bootstrap::handshake::{Hello, Purpose};
use oxccl_shared::abi::Rank;

/// The rank numbers in a handshake between networks, which know no ranks: the token says who may come.
pub(super) const NO_RANK: Rank = Rank(0);

/// One socket of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SocketIndex {
    /// 0 for the control socket.
    pub index: u32,
    /// Sockets of the connection.
    pub total: u32,
    /// The connector's number for the connection.
    pub connection: u64,
}

impl SocketIndex {
    pub(super) fn hello(&self) -> Hello {
        let purpose = Purpose::Stream(self.index | self.total << 16);
        Hello { purpose, from: NO_RANK, to: NO_RANK, tag: self.connection }
    }

    /// What a handshake says, if that makes sense.
    pub(super) fn of(hello: &Hello) -> Option<SocketIndex> {
        let Purpose::Stream(number) = hello.purpose else { return None };
        let socket = SocketIndex { index: number & 0xffff, total: number >> 16, connection: hello.tag };
        (socket.index < socket.total && socket.total <= 1 + DATA_SOCKETS_MAX).then_some(socket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_travels_in_a_handshake_and_nonsense_is_refused() {
        let socket = SocketIndex { index: 3, total: 5, connection: 77 };
        assert_eq!(SocketIndex::of(&socket.hello()), Some(socket));
        for wrong in [
            SocketIndex { index: 5, ..socket },
            SocketIndex { total: 66, ..socket },
            SocketIndex { total: 0, index: 0, ..socket },
        ] {
            assert_eq!(SocketIndex::of(&wrong.hello()), None, "{wrong:?}");
        }
        assert_eq!(SocketIndex::of(&Hello { purpose: Purpose::Ring, ..socket.hello() }), None);
    }
}
