//! Layer: perf / team.
//! Takes: how the ranks of this run were started.
//! Gives: what the tool itself needs between ranks: agreement on a few words, and a barrier before each measurement.
//! Never: is measured, and depends on no library that is, unless that library started the ranks.

mod local;
mod mpi;

pub use local::{LocalTeam, Region};
pub use mpi::MpiTeam;

/// What one rank sends to all others in one exchange: 128 bytes, enough for a unique id.
pub type Record = [u64; 16];

/// Why ranks could not agree.
#[derive(Debug, thiserror::Error)]
pub enum TeamError {
    /// Another rank gave up; it has said why itself.
    #[error("rank {rank} gave up")]
    GaveUp { rank: u32 },
    /// The process that started the ranks ended the run.
    #[error("the run was ended because another rank failed")]
    Stopped,
    /// A rank that does not come.
    #[error("rank {rank} did not come to exchange {number} within {seconds} s")]
    Late { rank: u32, number: u64, seconds: u64 },
    /// The memory that the ranks share could not be had.
    #[error("memory shared by the ranks: {0}")]
    Memory(#[from] std::io::Error),
    /// The library that started the ranks failed.
    #[error("{library}: {message}")]
    Library { library: &'static str, message: String },
}

/// The ranks of a run, seen by one of them.
pub trait Team {
    /// This rank.
    fn rank(&self) -> u32;
    /// Ranks.
    fn size(&self) -> u32;
    /// Gives every rank's record to every rank, in rank order. Every rank must call it.
    fn exchange(&mut self, mine: &Record) -> Result<Vec<Record>, TeamError>;
    /// Returns when every rank has called it, on all of them as close in time as can be.
    fn barrier(&mut self) -> Result<(), TeamError>;
    /// An error if another rank is known to have ended early. Cheap; not an exchange.
    fn poll(&self) -> Result<(), TeamError> {
        Ok(())
    }
    /// Notifies the other ranks, as far as possible, that this one ends early.
    fn give_up(&mut self);
}

/// One number from every rank.
pub fn gather_f64(team: &mut dyn Team, mine: f64) -> Result<Vec<f64>, TeamError> {
    let mut record = Record::default();
    record[0] = mine.to_bits();
    Ok(team.exchange(&record)?.iter().map(|record| f64::from_bits(record[0])).collect())
}

/// The sum of every rank's numbers, each in its place.
pub fn sum_u64<const N: usize>(team: &mut dyn Team, mine: [u64; N]) -> Result<[u64; N], TeamError> {
    let mut record = Record::default();
    record[..N].copy_from_slice(&mine);
    let records = team.exchange(&record)?;
    Ok(std::array::from_fn(|i| records.iter().map(|record| record[i]).sum()))
}

/// A record with up to 128 bytes of text or an id.
pub fn record_of_bytes(bytes: &[u8]) -> Record {
    let mut padded = [0u8; 128];
    let len = bytes.len().min(128);
    padded[..len].copy_from_slice(&bytes[..len]);
    std::array::from_fn(|i| u64::from_le_bytes(std::array::from_fn(|j| padded[8 * i + j])))
}

/// The reverse of [`record_of_bytes`].
pub fn bytes_of_record(record: &Record) -> [u8; 128] {
    std::array::from_fn(|i| record[i / 8].to_le_bytes()[i % 8])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive_a_card() {
        let bytes: [u8; 128] = std::array::from_fn(|i| (i * 3) as u8);
        assert_eq!(bytes_of_record(&record_of_bytes(&bytes)), bytes);
    }
}
