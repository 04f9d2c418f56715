//! The heads of a job until all have come.

use super::seat::{Member, farewell};
use std::time::{Duration, Instant};

/// Those that have come.
#[derive(Debug)]
pub struct Gathering {
    /// How many are due.
    pub count: u32,
    /// Who has come.
    pub members: Vec<Member>,
    /// Most bytes that the job may take.
    pub bytes: u64,
    /// When the others must have come.
    pub deadline: Instant,
}

impl Gathering {
    /// Why its job will not begin: a head has left, or some have not come in time.
    pub fn hopeless(&mut self, now: Instant, timeout: Duration) -> Option<String> {
        for member in &mut self.members {
            // Until it is welcome a head says nothing.
            match member.wire.read_some(&mut [0]) {
                Ok(None) => {}
                Ok(Some(0)) => return Some(format!("{member} left before all had come")),
                Ok(Some(_)) => return Some(format!("{member} sent data before all had come")),
                Err(error) => return Some(format!("{member}: {}", crate::os::describe(&error))),
            }
        }
        if now < self.deadline {
            return None;
        }
        let absent = (0..self.count).filter(|index| self.members.iter().all(|it| it.head.index != *index));
        let named: Vec<String> = absent.take(8).map(|index| index.to_string()).collect();
        Some(format!(
            "{} of {} heads came within {timeout:?}; head {} did not",
            self.members.len(),
            self.count,
            named.join(", ")
        ))
    }

    /// Its heads leave.
    pub fn give_up(self, why: &str) {
        for mut member in self.members {
            member.wire.say_last(&farewell(why));
        }
    }
}
