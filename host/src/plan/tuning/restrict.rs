//! What the user insists on (`NCCL_ALGO`, `NCCL_PROTO`), in NCCL's syntax.
//!
//! ```text
//! value    = list *( ";" function ":" list )      or   function ":" list *( ";" function ":" list )
//! list     = [ "^" ] name *( "," name )           ^: all but these
//! function = broadcast | reduce | allgather | reducescatter | allreduce
//! ```
//!
//! A list without a function is for all of them, and one with a function replaces it there. The first is a wish: it holds where the
//! function has any of what is listed, since `NCCL_ALGO=tree` is set by people who mean all-reduce and also broadcast. The second is
//! an order, and so is the first for all-reduce, which has everything: what cannot be obeyed is an error.

use super::candidate::Candidates;
use oxccl_shared::abi::{Algorithm, Func, Protocol};
use oxccl_shared::algo::registry::{SPECS, index_of, named};
use serde::Serialize;
use std::sync::LazyLock;
use thiserror::Error;

/// What the user insists on. The default is nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Forced {
    algorithms: Lists,
    protocols: Lists,
    /// Reductions have the bits of one by rank.
    deterministic: bool,
}

/// One list for each of [`FUNCS`], and one for what has no name there.
type Lists = [List; FUNCS.len() + 1];

/// What is listed for one function.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
struct List {
    /// A bit for each name that is allowed; unused without `given`.
    allowed: u8,
    given: Given,
}

/// How a list came to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
enum Given {
    /// Not at all.
    #[default]
    No,
    /// For all functions, by what is excluded.
    AllBut,
    /// For all functions, by name.
    All,
    /// For this function, by what is excluded.
    ThisBut,
    /// For this function, by name.
    This,
}

/// The functions that lists may name, as NCCL spells them.
const FUNCS: [(Func, &str); 5] = [
    (Func::Broadcast, "broadcast"),
    (Func::Reduce, "reduce"),
    (Func::AllGather, "allgather"),
    (Func::ReduceScatter, "reducescatter"),
    (Func::AllReduce, "allreduce"),
];

/// Algorithms of NCCL that have no counterpart here, and what to say of a list that has no other: they are allowed in a list, where they change
/// nothing.
const FOREIGN: [(&str, &str); 3] = [
    (
        "nvls",
        "an algorithm of this library beside nvls was expected: it does not use NVLink multicast; twolevel, oneshot and twoshot are for GPUs of a host",
    ),
    (
        "nvlstree",
        "an algorithm of this library beside nvlstree was expected: it does not use NVLink multicast; tree and twolevel are for GPUs of several hosts",
    ),
    (
        "pat",
        "an algorithm of this library beside pat was expected: all-gathers and reduce-scatters go by others here",
    ),
];

/// Why a value is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("{}", self.expected())]
pub enum ListError {
    /// Not the syntax.
    Syntax,
    /// No such function.
    Function,
    /// No such algorithm.
    Algorithm,
    /// Only algorithms of NCCL that are not here; the first of them, as in the table.
    Foreign(u8),
    /// No such protocol.
    Protocol,
    /// The list excludes everything.
    AllExcluded,
}

impl ListError {
    /// While the names of a list are read: none of them is here.
    const NOTHING: ListError = ListError::Foreign(u8::MAX);

    /// What was expected instead.
    pub fn expected(self) -> &'static str {
        match self {
            ListError::Syntax => {
                "a list was expected, such as A,B or ^A for all but A; or lists by function, such as A;allreduce:B,C"
            }
            ListError::Function => {
                "the functions broadcast, reduce, allgather, reducescatter and allreduce were expected"
            }
            ListError::Algorithm => &ALGORITHMS_EXPECTED,
            ListError::Foreign(index) => FOREIGN[usize::from(index) % FOREIGN.len()].1,
            ListError::Protocol => "some of LL, LL128 and Simple were expected",
            ListError::AllExcluded => "it excludes all that there are, and at least one must be left",
        }
    }
}

/// What may be listed, from the registry.
static ALGORITHMS_EXPECTED: LazyLock<String> = LazyLock::new(|| {
    let names: Vec<&str> = SPECS.iter().map(|spec| spec.name()).collect();
    let (last, others) = names.split_last().expect("there are algorithms");
    let others = others.join(", ");
    format!(
        "some of {others} and {last} were expected (direct: one-shot and two-shot; NCCL's other algorithms may stand beside them)"
    )
});

/// A restriction that leaves nothing.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{}", self.text())]
pub struct Impossible {
    /// The function.
    pub func: Func,
    /// Whether `NCCL_ALGO` has a part in it.
    pub algorithms: bool,
    /// Whether `NCCL_PROTO` has a part in it. If neither has, it is `OXCCL_DETERMINISTIC`.
    pub protocols: bool,
    /// What there is.
    pub possible: Candidates,
    /// Why no more, as it follows in the sentence; may be empty.
    pub why: String,
}

impl Impossible {
    fn text(&self) -> String {
        let Impossible { func, algorithms, protocols, possible, why } = self;
        let variables = match (algorithms, protocols) {
            (true, true) => "NCCL_ALGO and NCCL_PROTO",
            (true, false) => "NCCL_ALGO",
            (false, true) => "NCCL_PROTO",
            (false, false) => {
                return format!(
                    "OXCCL_DETERMINISTIC: {func} has no algorithm that reduces by rank, for any length{why}"
                );
            }
        };
        format!("{variables}: {func} has none of what they leave{why}; possible are {possible}")
    }
}

impl Forced {
    /// The same, and reductions have the bits of one by rank, from left to right, or not.
    pub fn deterministic(self, deterministic: bool) -> Forced {
        Forced { deterministic, ..self }
    }

    /// Whether reductions must have the bits of one by rank.
    pub fn is_deterministic(&self) -> bool {
        self.deterministic
    }

    /// This algorithm wherever a function has it, this protocol, or no matter.
    pub fn only(algorithm: Option<Algorithm>, protocol: Option<Protocol>) -> Forced {
        let forced = Forced::default();
        let forced = algorithm.map_or(forced, |algorithm| forced.with_algorithm(algorithm));
        protocol.map_or(forced, |protocol| forced.with_protocol(protocol))
    }

    /// The same with this algorithm in place of `NCCL_ALGO`.
    pub fn with_algorithm(self, algorithm: Algorithm) -> Forced {
        let list = List { allowed: 1 << index_of(algorithm), given: Given::All };
        Forced { algorithms: [list; FUNCS.len() + 1], ..self }
    }

    /// The same with this protocol in place of `NCCL_PROTO`.
    pub fn with_protocol(self, protocol: Protocol) -> Forced {
        let list = List { allowed: 1 << protocol as u8, given: Given::All };
        Forced { protocols: [list; FUNCS.len() + 1], ..self }
    }

    /// The same with `NCCL_ALGO` set to this.
    ///
    /// # Errors
    /// What was expected.
    pub fn with_algorithms(self, text: &str) -> Result<Forced, ListError> {
        let mut foreign = None;
        let bit = |name: &str| match named(name).fold(0, |bits, spec| bits | 1 << index_of(spec.algorithm)) {
            0 => {
                let found = FOREIGN.iter().position(|(known, _)| name.eq_ignore_ascii_case(known));
                let index = found.ok_or(ListError::Algorithm)?;
                foreign.get_or_insert(index as u8);
                Ok(0)
            }
            bits => Ok(bits),
        };
        let lists = read(text, ListError::NOTHING, ALGORITHM_BITS, bit);
        let lists = lists.map_err(|error| match error {
            // What a list without any other names.
            ListError::NOTHING => foreign.map_or(ListError::Algorithm, ListError::Foreign),
            error => error,
        });
        Ok(Forced { algorithms: lists?, ..self })
    }

    /// The same with `NCCL_PROTO` set to this.
    ///
    /// # Errors
    /// What was expected.
    pub fn with_protocols(self, text: &str) -> Result<Forced, ListError> {
        let bit = |name: &str| {
            Protocol::from_name(name).map(|protocol| 1 << protocol as u8).ok_or(ListError::Protocol)
        };
        Ok(Forced { protocols: read(text, ListError::Protocol, PROTOCOL_BITS, bit)?, ..self })
    }

    /// `NCCL_ALGO` as it was understood, the same text for the same lists.
    pub fn algorithms_text(&self) -> String {
        text_of(&self.algorithms, &SPECS.map(|spec| spec.name()))
    }

    /// The same of `NCCL_PROTO`.
    pub fn protocols_text(&self) -> String {
        let names: Vec<&str> = Protocol::ALL.iter().map(|protocol| protocol.name()).collect();
        text_of(&self.protocols, &names)
    }

    /// Whether a function's list lets it use this algorithm.
    pub fn allows_algorithm(&self, func: Func, algorithm: Algorithm) -> bool {
        list_of(&self.algorithms, func).allows(index_of(algorithm))
    }

    /// Whether a function's list lets it use this protocol.
    pub fn allows_protocol(&self, func: Func, protocol: Protocol) -> bool {
        list_of(&self.protocols, func).allows(protocol as usize)
    }

    /// Whether a function's list names this algorithm, instead of not excluding it.
    pub fn names_algorithm(&self, func: Func, algorithm: Algorithm) -> bool {
        let list = list_of(&self.algorithms, func);
        matches!(list.given, Given::All | Given::This) && list.allows(index_of(algorithm))
    }

    /// Whether a function's list names this protocol, instead of not excluding it.
    pub fn names_protocol(&self, func: Func, protocol: Protocol) -> bool {
        let list = list_of(&self.protocols, func);
        matches!(list.given, Given::All | Given::This) && list.allows(protocol as usize)
    }

    /// Whether trees are asked for by name, or are all that is left beside one-shot and two-shot.
    pub fn wants_trees(&self) -> bool {
        let list = list_of(&self.algorithms, Func::AllReduce);
        let by_name = matches!(list.given, Given::All | Given::This);
        let allows = |algorithm| list.allows(index_of(algorithm));
        allows(Algorithm::Tree) && (by_name || !allows(Algorithm::Ring))
    }

    /// What the user leaves of the candidates that a function has. Wishes that leave nothing are not heard; orders that leave nothing
    /// have been found by [`Self::check`].
    pub fn narrow(&self, func: Func, offered: Candidates) -> Candidates {
        let (algorithms, protocols) = (list_of(&self.algorithms, func), list_of(&self.protocols, func));
        if algorithms.given == Given::No && protocols.given == Given::No {
            return offered;
        }
        let left = offered
            .and(Candidates::of(|candidate| algorithms.allows(index_of(candidate.algorithm))))
            .or(offered);
        left.and(Candidates::of(|candidate| protocols.allows(candidate.protocol as usize))).or(left)
    }

    /// The protocol to take where `wanted` would be best and any is possible: itself, or the nearest that is allowed.
    pub fn protocol(&self, func: Func, wanted: Protocol) -> Protocol {
        let list = list_of(&self.protocols, func);
        wanted.nearest(|protocol| list.allows(protocol as usize)).unwrap_or(wanted)
    }

    /// The same for messages.
    pub fn message_protocol(&self, wanted: Protocol) -> Protocol {
        self.protocol(Func::Send, wanted)
    }

    /// Whether every order can be obeyed, given what each function has, and reductions have anything. `why` says why a function has no more.
    ///
    /// # Errors
    /// The first function whose order cannot.
    pub fn check(
        &self,
        offered: impl Fn(Func) -> Candidates,
        why: impl Fn(Func) -> String,
    ) -> Result<(), Impossible> {
        for (func, _) in FUNCS {
            let (algorithms, protocols) = (list_of(&self.algorithms, func), list_of(&self.protocols, func));
            let is_order = |list: &List| match list.given {
                Given::No => false,
                Given::All | Given::AllBut => func == Func::AllReduce,
                Given::This | Given::ThisBut => true,
            };
            let (by_algorithm, by_protocol) = (is_order(algorithms), is_order(protocols));
            let possible = offered(func);
            if self.deterministic && func.is_reduction() && possible.is_empty() {
                let why = why(func);
                return Err(Impossible { func, algorithms: false, protocols: false, possible, why });
            }
            let left = possible.and(Candidates::of(|candidate| {
                (!by_algorithm || algorithms.allows(index_of(candidate.algorithm)))
                    && (!by_protocol || protocols.allows(candidate.protocol as usize))
            }));
            if left.is_empty() && !possible.is_empty() {
                return Err(Impossible {
                    func,
                    algorithms: by_algorithm,
                    protocols: by_protocol,
                    possible,
                    why: why(func),
                });
            }
        }
        Ok(())
    }
}

/// Lists as a user would write them: the one for all functions first. `names` by bit.
fn text_of(lists: &Lists, names: &[&str]) -> String {
    let one = |list: &List| {
        let excludes = matches!(list.given, Given::AllBut | Given::ThisBut);
        let is_said = |bit: &usize| (list.allowed >> bit & 1 == 1) != excludes;
        let said: Vec<&str> = (0..names.len()).filter(is_said).map(|bit| names[bit]).collect();
        format!("{}{}", if excludes { "^" } else { "" }, said.join(","))
    };
    let for_all = lists.iter().find(|list| matches!(list.given, Given::All | Given::AllBut)).map(one);
    let is_own = |list: &List| matches!(list.given, Given::This | Given::ThisBut);
    let own = FUNCS.iter().zip(lists).filter(|(_, list)| is_own(list));
    let parts: Vec<String> =
        for_all.into_iter().chain(own.map(|((_, func), list)| format!("{func}:{}", one(list)))).collect();
    if parts.is_empty() { "unset".to_owned() } else { parts.join(";") }
}

fn list_of(lists: &Lists, func: Func) -> &List {
    &lists[FUNCS.iter().position(|(known, _)| *known == func).unwrap_or(FUNCS.len())]
}

impl List {
    fn allows(&self, index: usize) -> bool {
        self.given == Given::No || self.allowed >> index & 1 == 1
    }
}

/// Lists by function. `bit` gives a name's bit, of those in `all`, or none for a name that is known and means nothing here.
fn read(
    text: &str,
    nothing_left: ListError,
    all: u8,
    mut bit: impl FnMut(&str) -> Result<u8, ListError>,
) -> Result<Lists, ListError> {
    let mut lists = Lists::default();
    for (at, part) in text.split(';').enumerate() {
        let (func, names) = match part.split_once(':') {
            Some((func, names)) => (Some(func.trim()), names),
            None if at == 0 => (None, part),
            None => return Err(ListError::Syntax),
        };
        let (is_exclusion, names) = match names.trim().strip_prefix('^') {
            Some(names) => (true, names),
            None => (false, names),
        };
        let mut named = 0;
        for name in names.split(',').map(str::trim) {
            if name.is_empty() || name.contains([':', '^']) {
                return Err(ListError::Syntax);
            }
            named |= bit(name)?;
        }
        let allowed = if is_exclusion { !named & all } else { named };
        if allowed == 0 {
            return Err(if is_exclusion { ListError::AllExcluded } else { nothing_left });
        }
        match func {
            None => {
                let given = if is_exclusion { Given::AllBut } else { Given::All };
                lists = [List { allowed, given }; FUNCS.len() + 1];
            }
            Some(func) => {
                let known = FUNCS.iter().position(|(_, name)| name.eq_ignore_ascii_case(func));
                let given = if is_exclusion { Given::ThisBut } else { Given::This };
                lists[known.ok_or(ListError::Function)?] = List { allowed, given };
            }
        }
    }
    Ok(lists)
}

/// A bit for each algorithm.
const ALGORITHM_BITS: u8 = u8::MAX >> (u8::BITS as usize - SPECS.len());
/// There are three protocols.
const PROTOCOL_BITS: u8 = 0b111;

#[cfg(test)]
mod tests {
    use super::super::candidate::Candidate;
    use super::*;

    fn left(forced: &Forced, func: Func) -> String {
        forced.narrow(func, Candidates::ALL).to_string()
    }

    fn algorithms(text: &str) -> Forced {
        Forced::default().with_algorithms(text).unwrap()
    }

    #[test]
    fn the_examples_of_nccls_documentation() {
        let forced = algorithms("ring,collnetdirect;allreduce:tree,collnetdirect;broadcast:ring");
        let of = |name: &str| format!("{name} ll, {name} ll128, {name} simple");
        assert_eq!(left(&forced, Func::AllGather), format!("{}, collnetdirect simple", of("ring")));
        assert_eq!(left(&forced, Func::AllReduce), format!("{}, collnetdirect simple", of("tree")));
        assert_eq!(left(&forced, Func::Broadcast), of("ring"));
        let forced = Forced::default().with_protocols("LL,Simple;allreduce:^LL").unwrap();
        assert!(!forced.allows_protocol(Func::Reduce, Protocol::LL128));
        assert!(forced.allows_protocol(Func::AllReduce, Protocol::LL128));
        assert!(!forced.allows_protocol(Func::AllReduce, Protocol::LL));
        let forced = Forced::default().with_protocols("^LL128;allreduce:LL128").unwrap();
        assert!(!forced.allows_protocol(Func::Broadcast, Protocol::LL128));
        assert!(forced.names_protocol(Func::AllReduce, Protocol::LL128));
        assert!(!forced.names_protocol(Func::Broadcast, Protocol::LL));
    }

    #[test]
    fn what_is_no_list_says_what_is() {
        for (text, expected) in [
            ("rings", ListError::Algorithm),
            ("", ListError::Syntax),
            ("ring,", ListError::Syntax),
            ("ring;tree", ListError::Syntax),
            ("ring,^tree", ListError::Syntax),
            ("allreduce:tree:ring", ListError::Syntax),
            ("alltoall:ring", ListError::Function),
            ("nvls", ListError::Foreign(0)),
            ("ring;allreduce:PAT", ListError::Foreign(2)),
            ("nvlstree,pat", ListError::Foreign(1)),
            ("pat,rings", ListError::Algorithm),
            (&format!("^{}", SPECS.map(|spec| spec.name()).join(",")), ListError::AllExcluded),
        ] {
            assert_eq!(Forced::default().with_algorithms(text), Err(expected), "{text}");
        }
        assert_eq!(Forced::default().with_protocols("LL256"), Err(ListError::Protocol));
        assert_eq!(Forced::default().with_protocols("^LL,LL128,Simple"), Err(ListError::AllExcluded));
    }

    #[test]
    fn a_wish_that_a_function_cannot_fulfil_is_not_heard() {
        let rings = Candidates::of(|candidate| candidate.algorithm == Algorithm::Ring);
        let forced = Forced::only(Some(Algorithm::Tree), Some(Protocol::LL128));
        assert_eq!(forced.narrow(Func::Broadcast, rings).to_string(), "ring ll128");
        let direct = Candidates::of(|c| c == Candidate::new(Algorithm::OneShot, Protocol::LL));
        let both = Candidates::of(|c| rings.has(c) || direct.has(c));
        let forced = Forced::only(Some(Algorithm::OneShot), Some(Protocol::Simple));
        assert_eq!(forced.narrow(Func::AllGather, both).to_string(), "oneshot ll");
        assert_eq!(forced.narrow(Func::Barrier, rings), rings.and(Candidates::by(Protocol::Simple)));
    }

    #[test]
    fn an_order_that_cannot_be_obeyed_names_the_variable_and_what_is_possible() {
        let offered = |func| {
            Candidates::of(|c| {
                c.algorithm == Algorithm::Ring
                    || (func == Func::AllReduce
                        && c.algorithm == Algorithm::OneShot
                        && c.protocol != Protocol::LL128)
            })
        };
        assert_eq!(algorithms("tree;allreduce:ring").check(offered, |_| String::new()), Ok(()));
        let said = |forced: Forced| forced.check(offered, |_| String::new()).unwrap_err().to_string();
        let order = said(algorithms("broadcast:tree"));
        assert!(order.starts_with("NCCL_ALGO: broadcast has none"), "{order}");
        assert!(order.ends_with("possible are ring ll, ring ll128, ring simple"), "{order}");
        let both = said(Forced::only(Some(Algorithm::OneShot), Some(Protocol::LL128)));
        assert!(both.starts_with("NCCL_ALGO and NCCL_PROTO: all_reduce"), "{both}");
        assert!(said(algorithms("tree")).contains("oneshot ll, oneshot simple"));
    }

    #[test]
    fn messages_follow_the_list_without_a_function() {
        let forced = Forced::default().with_protocols("^LL;allreduce:LL").unwrap();
        assert_eq!(forced.protocol(Func::Send, Protocol::LL), Protocol::LL128);
        assert_eq!(forced.protocol(Func::AllReduce, Protocol::Simple), Protocol::LL);
        assert_eq!(Forced::default().protocol(Func::Send, Protocol::LL), Protocol::LL);
    }

    #[test]
    fn trees_are_wanted_by_name_or_for_lack_of_rings() {
        for (text, wanted) in
            [("tree", true), ("ring,tree", true), ("^ring", true), ("^direct", false), ("ring", false)]
        {
            assert_eq!(algorithms(text).wants_trees(), wanted, "{text}");
        }
        assert!(!Forced::default().wants_trees());
    }
}
