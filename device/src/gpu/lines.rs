//! Lines of 128 bytes.

use super::Words;
use oxccl_shared::proto::ll128::{LINE_WORDS, Ll128Line};

/// A block whose threads move a line of LL128 as one access. The defaults are those of a machine where one thread moves it.
pub trait Lines: Words {
    /// Threads that move one LL128 line together, each [`LINE_WORDS`] divided by so many of its words.
    const LINE_THREADS: usize = 1;
    /// Threads that go through lines in lock step, those of several lines; the workers are a multiple of it. All of them call
    /// [`Self::store_line`], [`Self::peek_line`] and [`Self::any_of_team`] together, with `takes_part` false where there is no
    /// line for them.
    const TEAM_THREADS: usize = 1;

    /// Publishes a line: this thread's words of it, the flag among them, come first in `words`.
    #[inline(always)]
    fn store_line(&self, line: &Ll128Line, words: &[u64; LINE_WORDS], takes_part: bool) {
        if takes_part {
            line.store(&words[..LINE_WORDS - 1], words[LINE_WORDS - 1]);
        }
    }

    /// Copies this thread's words of the line to the beginning of `words`; whether the line carries `flag`, as far as this thread
    /// can tell. If no thread of the team says no, all words are those of their lines.
    #[inline(always)]
    fn peek_line(
        &self,
        line: &Ll128Line,
        words: &mut [u64; LINE_WORDS],
        flag: u64,
        takes_part: bool,
    ) -> bool {
        !takes_part || line.load(&mut words[..LINE_WORDS - 1], flag)
    }

    /// The same, and whether all lines of the team carry their `flag`.
    #[inline(always)]
    fn load_line(
        &self,
        line: &Ll128Line,
        words: &mut [u64; LINE_WORDS],
        flag: u64,
        takes_part: bool,
    ) -> bool {
        !self.any_of_team(!self.peek_line(line, words, flag, takes_part))
    }

    /// Whether any thread of the team says `mine`.
    #[inline(always)]
    fn any_of_team(&self, mine: bool) -> bool {
        mine
    }
}
