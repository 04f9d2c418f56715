//! Steps that all ranks take or none does.

use crate::bootstrap::Bootstrap;
use crate::channel::ConnectError;

const FINE: u8 = 0;
const FAILED: u8 = 1;

/// Every rank learns whether every rank succeeded, and what it says.
pub(super) fn agree(
    bootstrap: &Bootstrap,
    mine: Result<Vec<u8>, ConnectError>,
) -> Result<Vec<Vec<u8>>, ConnectError> {
    let block = match &mine {
        Ok(bytes) => [&[FINE], &bytes[..]].concat(),
        Err(error) => {
            let said = error.to_string();
            [&[FAILED], &said.as_bytes()[..said.len().min(512)]].concat()
        }
    };
    let blocks = bootstrap.all_gather(&block)?;
    mine?;
    match blocks.iter().position(|block| block.first() != Some(&FINE)) {
        None => Ok(blocks.into_iter().map(|block| block[1..].to_vec()).collect()),
        Some(peer) => {
            let said = blocks[peer].get(1..).unwrap_or_default();
            let why = String::from_utf8_lossy(said).into_owned();
            Err(ConnectError::PeerFailed { peer: peer as u32, why })
        }
    }
}
