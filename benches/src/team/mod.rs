//! Layer: perf / team.
//! Takes: how the ranks of this run were started.
//! Gives: what the tool itself needs between ranks: agreement on a few words, and a barrier before each measurement.
//! Never: is measured, and depends on no library that is, unless that library started the ranks.

mod local;
mod mpi;

pub use local::{LocalTeam, Region};
pub use mpi::MpiTeam;

/// What one rank tells all others in one exchange: 128 bytes, enough for a unique id.
pub type Card = [u64; 16];

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
    /// Gives every rank's card to every rank, in rank order. Every rank must call it.
    fn exchange(&mut self, mine: &Card) -> Result<Vec<Card>, TeamError>;
    /// Returns when every rank has called it, on all of them as close in time as can be.
    fn barrier(&mut self) -> Result<(), TeamError>;
    /// An error if another rank is known to have ended early. Cheap; not an exchange.
    fn poll(&self) -> Result<(), TeamError> {
        Ok(())
    }
    /// Tells the others that this rank ends early, as far as that is possible.
    fn give_up(&mut self);
}

/// One number from every rank.
pub fn gather_f64(team: &mut dyn Team, mine: f64) -> Result<Vec<f64>, TeamError> {
    let mut card = Card::default();
    card[0] = mine.to_bits();
    Ok(team.exchange(&card)?.iter().map(|card| f64::from_bits(card[0])).collect())
}

/// The sum of every rank's numbers, each in its place.
pub fn sum_u64<const N: usize>(team: &mut dyn Team, mine: [u64; N]) -> Result<[u64; N], TeamError> {
    let mut card = Card::default();
    card[..N].copy_from_slice(&mine);
    let cards = team.exchange(&card)?;
    Ok(std::array::from_fn(|i| cards.iter().map(|card| card[i]).sum()))
}

/// A card with up to 128 bytes of text or an id.
pub fn card_of_bytes(bytes: &[u8]) -> Card {
    let mut padded = [0u8; 128];
    let len = bytes.len().min(128);
    padded[..len].copy_from_slice(&bytes[..len]);
    std::array::from_fn(|i| u64::from_le_bytes(std::array::from_fn(|j| padded[8 * i + j])))
}

/// The reverse of [`card_of_bytes`].
pub fn bytes_of_card(card: &Card) -> [u8; 128] {
    std::array::from_fn(|i| card[i / 8].to_le_bytes()[i % 8])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive_a_card() {
        let bytes: [u8; 128] = std::array::from_fn(|i| (i * 3) as u8);
        assert_eq!(bytes_of_card(&card_of_bytes(&bytes)), bytes);
    }
}
