//! The listen handle of networks that set up connections over TCP.

use crate::bootstrap::secret::{KEY_BYTES, Secret};
use crate::net::{HANDLE_BYTES, NetHandle};
use crate::wire::fixed::{ADDR_BYTES, Malformed, Reader, addr_bytes};
use std::net::SocketAddr;

const VERSION: u16 = 1;
const ADDR_AT: usize = 6;
const TOKEN_AT: usize = ADDR_AT + ADDR_BYTES;
const END: usize = TOKEN_AT + KEY_BYTES;

const _: () = assert!(END <= HANDLE_BYTES);

/// A listener's address, and the token that authenticates its peer. The rest of the 128 bytes is zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Invitation {
    pub addr: SocketAddr,
    pub token: Secret,
}

impl Invitation {
    /// Encodes it as a handle of the network with this magic.
    pub(super) fn to_handle(self, magic: [u8; 4]) -> NetHandle {
        let mut bytes = [0; HANDLE_BYTES];
        bytes[..4].copy_from_slice(&magic);
        bytes[4..ADDR_AT].copy_from_slice(&VERSION.to_le_bytes());
        bytes[ADDR_AT..TOKEN_AT].copy_from_slice(&addr_bytes(self.addr));
        bytes[TOKEN_AT..END].copy_from_slice(self.token.bytes());
        NetHandle(bytes)
    }

    /// Decodes a handle; an error describes why it is not one of the network with this magic.
    pub(super) fn from_handle(handle: &NetHandle, magic: [u8; 4]) -> Result<Invitation, &'static str> {
        let mut reader = Reader::new(&handle.0);
        if reader.array() != Ok(magic) {
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
        Ok(Invitation { addr, token })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MAGIC: [u8; 4] = *b"OxTe";

    fn handle(addr: &str) -> Invitation {
        Invitation { addr: addr.parse().expect("an address"), token: Secret::from_seed(b"a test") }
    }

    #[test]
    fn handles_survive_the_trip() {
        for addr in ["10.1.2.3:4567", "[2001:db8::7]:1"] {
            assert_eq!(Invitation::from_handle(&handle(addr).to_handle(MAGIC), MAGIC), Ok(handle(addr)));
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        let good = handle("10.1.2.3:4567").to_handle(MAGIC).0;
        for (at, why) in [(0, "of another network"), (4, "of another version of OxCCL"), (END, "damaged")] {
            let mut bytes = good;
            bytes[at] ^= 1;
            assert_eq!(Invitation::from_handle(&NetHandle(bytes), MAGIC), Err(why));
        }
    }

    proptest! {
        #[test]
        fn what_reads_as_a_handle_writes_back_the_same(head: [u8; 32], tail: [u8; 32], honest: bool) {
            let mut bytes = [0; HANDLE_BYTES];
            bytes[..32].copy_from_slice(&head);
            bytes[32..64].copy_from_slice(&tail);
            if honest {
                bytes[..ADDR_AT].copy_from_slice(&handle("[::1]:1").to_handle(MAGIC).0[..ADDR_AT]);
                bytes[END..].fill(0);
            }
            if let Ok(handle) = Invitation::from_handle(&NetHandle(bytes), MAGIC) {
                prop_assert_eq!(handle.to_handle(MAGIC).0, bytes);
            }
        }
    }
}
