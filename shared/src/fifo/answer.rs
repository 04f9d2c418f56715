//! Where a long message goes: the consumer's answer, which need not wait for the question.
//!
//! Its words come in any order over a link, so each says its step. Fences stand beside them, where a word that is published would have a
//! release and an acquire: what the consumer did with its buffer comes before what the producer writes there.

use crate::abi::{Answer, Step};
use crate::sync::{fence_acquire, fence_release};

/// Marks a word as one of a step, which it tells from 2^31 others. A consumer takes an address back long before; a 0 that is read so late
/// ends in an error.
const fn flag(step: Step) -> u64 {
    (step.0 as u32 | 1 << 31) as u64
}

impl Answer {
    /// Consumer: the message of this step and tag goes to `address`; 0: it comes in slots.
    #[inline(always)]
    pub fn give(&self, step: Step, tag: u32, address: u64) {
        let flag = flag(step);
        // RELEASE pairs with ACQUIRE in `get`.
        fence_release();
        self.low.store_relaxed(address << 32 | flag);
        self.high.store_relaxed(address >> 32 << 32 | flag);
        self.tag.store_relaxed(u64::from(tag) << 32 | flag);
    }

    /// Producer: the answer to the question of this step about a message of this tag, if it has come.
    #[inline(always)]
    pub fn get(&self, step: Step, tag: u32) -> Option<u64> {
        let expected = u64::from(tag) << 32 | flag(step);
        let [low, high, tag] = [&self.low, &self.high, &self.tag].map(|word| word.load_relaxed());
        let is_here = tag == expected && [low, high].iter().all(|word| *word as u32 == expected as u32);
        if !is_here {
            return None;
        }
        // ACQUIRE pairs with RELEASE in `give`.
        fence_acquire();
        Some(high >> 32 << 32 | low >> 32)
    }

    /// Consumer: takes the answer back, once it has been used or must not be.
    #[inline(always)]
    pub fn take_back(&self) {
        [&self.low, &self.high, &self.tag].into_iter().for_each(|word| word.store_relaxed(0));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        #[cfg_attr(miri, ignore = "proptest looks for its folder, which miri hides")]
        fn an_answer_is_that_of_its_step_and_tag(address: u64, step: u64, tag: u32, other in 1u64..1 << 31) {
            let answer = Answer::default();
            prop_assert_eq!(answer.get(Step(step), tag), None, "nothing is said yet");
            answer.give(Step(step), tag, address);
            prop_assert_eq!(answer.get(Step(step), tag), Some(address));
            prop_assert_eq!(answer.get(Step(step.wrapping_add(other)), tag), None);
            prop_assert_eq!(answer.get(Step(step), tag ^ other as u32), None);
            answer.take_back();
            prop_assert_eq!(answer.get(Step(step), tag), None);
        }

        /// Over a link some words of an answer may still be those of the one before.
        #[test]
        #[cfg_attr(miri, ignore = "proptest looks for its folder, which miri hides")]
        fn a_part_of_an_answer_is_none(addresses: [u64; 2], tags: [u32; 2], late in 1usize..8) {
            let [before, after] = [0, 1].map(|at| {
                let answer = Answer::default();
                answer.give(Step(7 + at as u64), tags[at], addresses[at]);
                answer
            });
            let words = |answer: &Answer| [answer.low.load_relaxed(), answer.high.load_relaxed(), answer.tag.load_relaxed()];
            let (old, new) = (words(&before), words(&after));
            let [low, high, tag] = [0, 1, 2].map(|at| if late >> at & 1 == 1 { old[at] } else { new[at] });
            before.low.store_relaxed(low);
            before.high.store_relaxed(high);
            before.tag.store_relaxed(tag);
            prop_assert_eq!(before.get(Step(8), tags[1]), None);
        }
    }
}
