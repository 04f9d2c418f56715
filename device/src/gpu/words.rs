//! Reduction of single words.

use super::Block;

/// Several combinations by the same operator.
pub trait Fold {
    /// What comes of it.
    type Output;

    /// Does it; `combine` is [`Words::combine`].
    fn run(self, combine: impl Fn(&mut [u64], &[u64])) -> Self::Output;
}

/// A block that reduces word by word, as words arrive: the operator on packed elements.
pub trait Words: Block {
    /// How many 8-byte words one thread takes through a line protocol at a time.
    type Batch: AsRef<[u64]> + AsMut<[u64]>;

    /// A zeroed batch.
    fn batch() -> Self::Batch;

    /// Applies the operator's pre-operation to packed elements.
    fn pre(&self, words: &mut [u64]);

    /// Applies the operator's post-operation to packed elements.
    fn post(&self, words: &mut [u64]);

    /// `acc = op(acc, src)` on packed elements.
    fn combine(&self, acc: &mut [u64], src: &[u64]);

    /// Runs `fold` with the operator, which is asked for once and not for every word.
    #[inline(always)]
    fn fold<F: Fold>(&self, fold: F) -> F::Output {
        fold.run(|acc, src| self.combine(acc, src))
    }
}
