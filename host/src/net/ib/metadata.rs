//! Connection metadata: what the two ends exchange before the first message, over the authenticated socket.

use super::config::QPS_MAX;
use super::cts::CtsTable;
use super::verbs::abi::Gid;
use crate::wire::fixed::{Malformed, Reader};
use heapless::Vec;

const MAGIC: [u8; 4] = *b"OxIb";
const VERSION: u16 = 1;
/// Bytes of a device's name, as in `/sys/class/infiniband`, with its port.
const NAME_BYTES: usize = 64;
const FIXED_BYTES: usize = 4 + 2 + 1 + 1 + 2 + 2 + 4 + 16 + 8 + 4 + NAME_BYTES + 4;

/// Bytes of encoded metadata.
pub(super) const METADATA_BYTES: usize = FIXED_BYTES + 4 * QPS_MAX as usize;
/// The connecting side's message that its queue pairs are connected.
pub(super) const READY: [u8; 1] = [0x52];

/// Metadata of one end of a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Metadata {
    /// The device and port.
    pub name: String,
    pub is_ethernet: bool,
    /// Whether each message is split over all queue pairs. The connecting side decides.
    pub split_data: bool,
    pub lid: u16,
    /// Value of `enum ibv_mtu`.
    pub mtu: u16,
    /// Sequence number of the first packet. The connecting side decides.
    pub psn: u32,
    pub gid: Gid,
    /// Address of the connecting side's CTS table, and its key; zero from the listening side.
    pub table_address: u64,
    pub table_key: u32,
    pub qp_nums: Vec<u32, { QPS_MAX as usize }>,
}

impl Metadata {
    pub(super) fn to_bytes(&self) -> [u8; METADATA_BYTES] {
        let mut bytes = [0; METADATA_BYTES];
        let mut at = 0;
        let mut put = |part: &[u8]| {
            bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        };
        put(&MAGIC);
        put(&VERSION.to_le_bytes());
        put(&[u8::from(self.is_ethernet), u8::from(self.split_data)]);
        put(&self.lid.to_le_bytes());
        put(&self.mtu.to_le_bytes());
        put(&self.psn.to_le_bytes());
        put(&self.gid.0);
        put(&self.table_address.to_le_bytes());
        put(&self.table_key.to_le_bytes());
        let mut name = [0; NAME_BYTES];
        let len = self.name.len().min(NAME_BYTES);
        name[..len].copy_from_slice(&self.name.as_bytes()[..len]);
        put(&name);
        put(&(self.qp_nums.len() as u32).to_le_bytes());
        self.qp_nums.iter().for_each(|number| put(&number.to_le_bytes()));
        bytes
    }

    /// Decodes metadata. The peer knows the token, but may run another version.
    pub(super) fn from_bytes(bytes: &[u8; METADATA_BYTES]) -> Result<Metadata, &'static str> {
        let mut reader = Reader::new(bytes);
        if reader.array() != Ok(MAGIC) {
            return Err("something that is no connection metadata");
        }
        if reader.u16() != Ok(VERSION) {
            return Err("the connection metadata of another version of OxCCL");
        }
        Metadata::read(&mut reader).map_err(|Malformed| "inconsistent connection metadata")
    }

    fn read(reader: &mut Reader<'_>) -> Result<Metadata, Malformed> {
        let (is_ethernet, split_data) = (boolean(reader)?, boolean(reader)?);
        let (lid, mtu, psn) = (reader.u16()?, reader.u16()?, reader.u32()?);
        let gid = Gid(reader.array()?);
        let (table_address, table_key) = (reader.u64()?, reader.u32()?);
        let name: [u8; NAME_BYTES] = reader.array()?;
        let count = reader.u32()?;
        let numbers: Vec<u32, { QPS_MAX as usize }> =
            (0..QPS_MAX).map(|_| reader.u32()).collect::<Result<_, _>>()?;
        let (used, unused) = numbers.split_at_checked(count as usize).ok_or(Malformed)?;
        let sound = (1..=5).contains(&mtu)
            && psn < 1 << 24
            && count > 0
            && used.iter().all(|number| *number < 1 << 24)
            && unused.iter().all(|number| *number == 0)
            && table_address.is_multiple_of(align_of::<CtsTable>() as u64);
        if !sound {
            return Err(Malformed);
        }
        let qp_nums = Vec::from_slice(used).map_err(|_| Malformed)?;
        let name = String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned();
        Ok(Metadata { name, is_ethernet, split_data, lid, mtu, psn, gid, table_address, table_key, qp_nums })
    }
}

fn boolean(reader: &mut Reader<'_>) -> Result<bool, Malformed> {
    match reader.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn metadata() -> Metadata {
        Metadata {
            name: "mlx5_0:1".into(),
            is_ethernet: true,
            split_data: false,
            lid: 7,
            mtu: 5,
            psn: 0xab_cdef,
            gid: Gid([9; 16]),
            table_address: 0x7f00_0000_1000,
            table_key: 0x1234,
            qp_nums: Vec::from_slice(&[17, 18, 19]).expect("room"),
        }
    }

    #[test]
    fn cards_survive_the_trip() {
        assert_eq!(Metadata::from_bytes(&metadata().to_bytes()), Ok(metadata()));
        let full = Metadata { qp_nums: (0..QPS_MAX).collect(), ..metadata() };
        assert_eq!(Metadata::from_bytes(&full.to_bytes()), Ok(full));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let wrong = [
            Metadata { mtu: 0, ..metadata() },
            Metadata { psn: 1 << 24, ..metadata() },
            Metadata { qp_nums: Vec::new(), ..metadata() },
            Metadata { qp_nums: Vec::from_slice(&[1 << 24]).expect("room"), ..metadata() },
            Metadata { table_address: 4, ..metadata() },
        ];
        for metadata in wrong {
            assert_eq!(
                Metadata::from_bytes(&metadata.to_bytes()),
                Err("inconsistent connection metadata"),
                "{metadata:?}"
            );
        }
        let mut bytes = metadata().to_bytes();
        bytes[4] ^= 2;
        assert_eq!(Metadata::from_bytes(&bytes), Err("the connection metadata of another version of OxCCL"));
    }

    proptest! {
        #[test]
        fn a_flipped_byte_never_panics(at in 0..METADATA_BYTES, byte: u8) {
            let mut bytes = metadata().to_bytes();
            bytes[at] = byte;
            if let Ok(metadata) = Metadata::from_bytes(&bytes) {
                prop_assert!(!metadata.qp_nums.is_empty() && metadata.qp_nums.len() <= QPS_MAX as usize);
            }
        }
    }
}
