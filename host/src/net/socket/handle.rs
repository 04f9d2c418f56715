//! What a listener tells its peer through the bootstrap.

use crate::bootstrap::secret::{KEY_BYTES, Secret};
use crate::bootstrap::wire::{ADDR_BYTES, Malformed, Reader, addr_bytes};
use crate::net::{HANDLE_BYTES, NetHandle};
use std::net::SocketAddr;

const MAGIC: [u8; 4] = *b"OxSk";
const VERSION: u16 = 1;
const ADDR_AT: usize = 6;
const TOKEN_AT: usize = ADDR_AT + ADDR_BYTES;
const END: usize = TOKEN_AT + KEY_BYTES;

const _: () = assert!(END <= HANDLE_BYTES);

/// Where a listener is, and the token that whoever was told has. The rest of the 128 bytes is zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SocketHandle {
    pub addr: SocketAddr,
    pub token: Secret,
}

impl SocketHandle {
    pub(super) fn to_net(self) -> NetHandle {
        let mut bytes = [0; HANDLE_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..ADDR_AT].copy_from_slice(&VERSION.to_le_bytes());
        bytes[ADDR_AT..TOKEN_AT].copy_from_slice(&addr_bytes(self.addr));
        bytes[TOKEN_AT..END].copy_from_slice(self.token.bytes());
        NetHandle(bytes)
    }

    /// Reads a handle; says what is wrong with one that this network did not make.
    pub(super) fn from_net(handle: &NetHandle) -> Result<SocketHandle, &'static str> {
        let mut reader = Reader::new(&handle.0);
        if reader.array() != Ok(MAGIC) {
            return Err("of another network");
        }
        if reader.u16() != Ok(VERSION) {
            return Err("of another version of OxCCL");
        }
        let read = || -> Result<(SocketAddr, Secret), Malformed> {
            let handle = (reader.addr()?, Secret::from_bytes(reader.array()?));
            if reader.rest().iter().any(|byte| *byte != 0) { Err(Malformed) } else { Ok(handle) }
        };
        let (addr, token) = { read }().map_err(|Malformed| "damaged")?;
        Ok(SocketHandle { addr, token })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn handle(addr: &str) -> SocketHandle {
        SocketHandle { addr: addr.parse().expect("an address"), token: Secret::from_seed(b"a test") }
    }

    #[test]
    fn handles_survive_the_trip() {
        for addr in ["10.1.2.3:4567", "[2001:db8::7]:1"] {
            assert_eq!(SocketHandle::from_net(&handle(addr).to_net()), Ok(handle(addr)));
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        let good = handle("10.1.2.3:4567").to_net().0;
        for (at, why) in [(0, "of another network"), (4, "of another version of OxCCL"), (END, "damaged")] {
            let mut bytes = good;
            bytes[at] ^= 1;
            assert_eq!(SocketHandle::from_net(&NetHandle(bytes)), Err(why));
        }
    }

    proptest! {
        #[test]
        fn what_reads_as_a_handle_writes_back_the_same(head: [u8; 32], tail: [u8; 32], honest: bool) {
            let mut bytes = [0; HANDLE_BYTES];
            bytes[..32].copy_from_slice(&head);
            bytes[32..64].copy_from_slice(&tail);
            if honest {
                bytes[..ADDR_AT].copy_from_slice(&handle("[::1]:1").to_net().0[..ADDR_AT]);
                bytes[END..].fill(0);
            }
            if let Ok(handle) = SocketHandle::from_net(&NetHandle(bytes)) {
                prop_assert_eq!(handle.to_net().0, bytes);
            }
        }
    }
}
