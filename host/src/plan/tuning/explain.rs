//! Explains a choice.

use super::candidate::{Candidate, Candidates};
use super::choose::{Choice, Reason, Scope, choose};
use super::machine::Machine;
use super::model::{Estimate, estimate};
use crate::plan::Call;
use core::fmt;
use oxccl_shared::abi::Algorithm;
use oxccl_shared::algo::registry::spec_of;

/// An explained choice: every candidate with the model's time, what excludes it, the choice and the deciding policy.
#[derive(Clone, PartialEq, Debug)]
pub struct Explanation {
    /// The call.
    pub call: Call,
    /// The machine, as the model sees it.
    pub machine: Machine,
    /// Every candidate.
    pub lines: Vec<Line>,
    /// The choice.
    pub choice: Choice,
    /// The model's choice.
    pub fastest: Option<Candidate>,
    /// Channels in use.
    pub channels: u32,
    /// Threads of a block, where ranks are GPUs.
    pub threads: Option<u32>,
}

/// One candidate.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Line {
    /// Which.
    pub candidate: Candidate,
    /// The model's time; `None` if the function has no such schedule.
    pub estimate: Option<Estimate>,
    /// Why it is excluded, if it is.
    pub excluded: Option<Exclusion>,
}

/// Why a candidate is excluded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exclusion {
    /// The function has no such schedule, or not with this protocol.
    NotThere,
    /// It is possible, but not connected.
    NotConnected(&'static str),
    /// It would reduce in another order than by rank, with other bits.
    Order,
    /// `NCCL_ALGO` or `NCCL_PROTO`.
    Restricted(&'static str),
    /// Allowed, but chosen only if the user names it: LL128 where 128 bytes may arrive in pieces.
    Risky,
    /// Allowed, and not taken unless the user names it or a table has it: one-shot and two-shot LL128 as nobody has measured them; LL over a network.
    Doubtful,
}

impl Explanation {
    /// Explains the choice for `scope`. `absent` returns why a candidate is missing.
    pub fn new(scope: &Scope<'_>, absent: impl Fn(Candidate) -> Exclusion) -> Explanation {
        let left = scope.forced.narrow(scope.call.func, scope.offered);
        let allowed = scope.allowed();
        let excluded = |candidate: Candidate| match candidate {
            _ if allowed.has(candidate) => None,
            _ if !scope.offered.has(candidate) => Some(absent(candidate)),
            _ if left.and(scope.risky).has(candidate) => Some(Exclusion::Risky),
            _ if left.has(candidate) => Some(Exclusion::Doubtful),
            _ => Some(Exclusion::Restricted(restricting(scope, candidate))),
        };
        let lines = Candidate::ALL.map(|candidate| {
            let excluded = excluded(candidate);
            let needs_hosts = spec_of(candidate.algorithm).connections.has_network();
            let is_there =
                excluded != Some(Exclusion::NotThere) && (!needs_hosts || scope.machine.nhosts > 1);
            let estimate = is_there.then(|| estimate(candidate, scope.call, scope.machine));
            Line { candidate, estimate, excluded }
        });
        Explanation {
            call: *scope.call,
            machine: *scope.machine,
            lines: lines.to_vec(),
            choice: choose(scope),
            fastest: scope.fastest(),
            channels: 0,
            threads: None,
        }
    }

    /// The same for a plan with so many channels, and blocks of so many threads.
    pub fn with_blocks(self, channels: u32, threads: Option<u32>) -> Explanation {
        Explanation { channels, threads, ..self }
    }

    /// The algorithms that were compared, each with what the model gives its best protocol, the fastest first.
    pub fn compared(&self) -> Vec<(Algorithm, f64)> {
        let mut best: Vec<(Algorithm, f64)> = Vec::new();
        let allowed = self.lines.iter().filter(|line| line.excluded.is_none());
        for (algorithm, time_us) in
            allowed.filter_map(|line| Some((line.candidate.algorithm, line.estimate?.time_us)))
        {
            match best.iter_mut().find(|(known, _)| *known == algorithm) {
                Some((_, least)) => *least = least.min(time_us),
                None => best.push((algorithm, time_us)),
            }
        }
        best.sort_by(|(_, a), (_, b)| a.total_cmp(b));
        best
    }

    /// Bytes of the call's larger buffer.
    pub fn bytes(&self) -> u64 {
        self.call.buffer_bytes(self.machine.nranks)
    }
}

/// The variable that excludes an existing candidate.
fn restricting(scope: &Scope<'_>, candidate: Candidate) -> &'static str {
    let by_algorithm = Candidates::of(|known| known.algorithm == candidate.algorithm);
    let is_algorithm_left = !scope.forced.narrow(scope.call.func, scope.offered).and(by_algorithm).is_empty();
    if is_algorithm_left || scope.forced.allows_algorithm(scope.call.func, candidate.algorithm) {
        "NCCL_PROTO"
    } else {
        "NCCL_ALGO"
    }
}

/// `4M`, `1500`
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 3] = [(1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")];
        match UNITS.iter().find(|(unit, _)| self.0 >= *unit && self.0.is_multiple_of(*unit)) {
            Some((unit, name)) => write!(f, "{}{name}", self.0 / unit),
            None => write!(f, "{}", self.0),
        }
    }
}

/// A page for a terminal.
impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let choice = &self.choice;
        self.fmt_machine(f)?;
        writeln!(f, "  algorithm    protocol  latency us      GB/s   bytes us    time us")?;
        for line in &self.lines {
            writeln!(f, "{}", line.row(choice.candidate))?;
        }
        writeln!(f)?;
        write!(
            f,
            "chosen: {}, {} channel{}",
            choice.candidate,
            self.channels,
            if self.channels == 1 { "" } else { "s" }
        )?;
        if let Some(threads) = self.threads {
            write!(f, " of {threads} threads")?;
        }
        writeln!(f)?;
        self.fmt_reason(f)
    }
}

impl Explanation {
    /// The call, and what its ranks run on.
    fn fmt_machine(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Explanation { call, machine, .. } = self;
        writeln!(
            f,
            "{} of {} bytes ({} {}), {machine}",
            call.func,
            Bytes(self.bytes()),
            call.count,
            call.dtype
        )?;
        writeln!(f, "  rings  {}", machine.ring)?;
        writeln!(
            f,
            "  trees  {}, {} + {} steps deep",
            machine.tree, machine.tree_depth[0], machine.tree_depth[1]
        )?;
        writeln!(f, "  pairs  {:.1} GB/s, {}", machine.pairs.bw, machine.pairs.kind)?;
        if machine.nhosts > 1 {
            let [near, far] = machine.level_bw;
            writeln!(
                f,
                "  levels  {near:.1} GB/s of a rank inside its host, {far:.1} GB/s of a host to others"
            )?;
        }
        writeln!(f, "  model  {}", machine.architecture.constants().source)?;
        writeln!(f)
    }

    /// Who decided, and what the model alone would have chosen.
    fn fmt_reason(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let choice = &self.choice;
        match choice.reason {
            Reason::Only => writeln!(f, "because nothing else is left")?,
            Reason::Advised => writeln!(f, "because the tuner plugin wants it")?,
            Reason::Tuned { row } => writeln!(f, "because row {} of the tuning file says so", row + 1)?,
            Reason::Measured { source } => writeln!(f, "because it was measured: {source}")?,
            Reason::Model => {
                let times =
                    self.compared().into_iter().map(|(algorithm, us)| format!("{algorithm} {us:.1} us"));
                writeln!(f, "because the model finds it fastest: {}", times.collect::<Vec<_>>().join(", "))?
            }
        }
        match self.fastest {
            Some(fastest) if choice.reason != Reason::Model && fastest == choice.candidate => {
                writeln!(f, "the model alone would choose the same")
            }
            Some(fastest) if choice.reason != Reason::Model => {
                writeln!(f, "the model alone would choose {fastest}")
            }
            _ => Ok(()),
        }
    }
}

impl Line {
    fn row(&self, chosen: Candidate) -> String {
        let Candidate { algorithm, protocol } = self.candidate;
        let mark = if self.candidate == chosen { '*' } else { ' ' };
        let mut row = format!("{mark} {algorithm:<12} {protocol:<8}");
        match &self.estimate {
            Some(estimate) => {
                let Estimate { latency_us, bandwidth, time_us } = estimate;
                row += &format!(
                    " {latency_us:>11.2} {bandwidth:>9.2} {:>10.2} {time_us:>10.2}",
                    estimate.bytes_us()
                );
            }
            None => row += &format!(" {:>11} {:>9} {:>10} {:>10}", "-", "-", "-", "-"),
        }
        if let Some(excluded) = self.excluded {
            row += &format!("  {excluded}");
        }
        row
    }
}

impl fmt::Display for Exclusion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Exclusion::NotThere => write!(f, "the function has no such kernel"),
            Exclusion::NotConnected(why) => f.write_str(why),
            Exclusion::Order => write!(f, "excluded by OXCCL_DETERMINISTIC: not in rank order"),
            Exclusion::Restricted(variable) => write!(f, "excluded by {variable}"),
            Exclusion::Risky => {
                write!(
                    f,
                    "only if NCCL_PROTO names it: 128 bytes may arrive in pieces where not all is NVLink"
                )
            }
            Exclusion::Doubtful => {
                write!(
                    f,
                    "only if NCCL_PROTO or a tuning file names it: not measured, or LL over a network, whose words are twice as long"
                )
            }
        }
    }
}
