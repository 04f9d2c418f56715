//! Files of real machines with something broken in them: refused, or searched as whatever they describe now.

use super::checks::{check_tree, is_permutation};
use oxccl::plan::tuning::{Forced, Machine};
use oxccl::plan::{Call, ChannelLimits, Facts, plan};
use oxccl::topology::xml::read_topology;
use oxccl::topology::{Channels, Graphs, PathPolicy, Paths, SearchConfig, Summary, System, Tables};
use oxccl::{DataType, Func, Rank, RedOp};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use std::ops::Range;

const MACHINES: [&str; 6] = [
    include_str!("../fixtures/topology/dgx1v.xml"),
    include_str!("../fixtures/topology/h200x8.xml"),
    include_str!("../fixtures/topology/rtx3090x8.xml"),
    include_str!("../fixtures/topology/made-up-11.xml"),
    include_str!("../fixtures/topology/oci-h100.xml"),
    include_str!("../fixtures/topology/azure-ndv4.xml"),
];

/// What is done to a file.
#[derive(Clone, Debug)]
enum Harm {
    DropAttribute(Index),
    Value(Index, &'static str),
    /// The value of another attribute, anywhere.
    Copy(Index, Index),
    DropElement(Index),
    RepeatElement(Index),
    /// GPUs after this one have no rank.
    KeepGpus(usize),
}

fn harm() -> impl Strategy<Value = Harm> {
    let index = any::<Index>;
    const VALUES: [&str; 9] = ["0", "-1", "-2147483648", "", "1", "1048576", "1e30", "nan", "0x060400"];
    prop_oneof![
        index().prop_map(Harm::DropAttribute),
        (index(), select(&VALUES[..])).prop_map(|(at, value)| Harm::Value(at, value)),
        (index(), index()).prop_map(|(at, from)| Harm::Copy(at, from)),
        index().prop_map(Harm::DropElement),
        index().prop_map(Harm::RepeatElement),
        (0usize..4).prop_map(Harm::KeepGpus),
    ]
}

/// Where attributes are, each with its value: from the blank before the name to the quotation mark behind.
fn attributes(text: &str) -> Vec<(Range<usize>, Range<usize>)> {
    let mut found = Vec::new();
    for (equals, _) in text.match_indices("=\"") {
        let start = text[..equals].rfind(' ').unwrap_or(equals);
        let end = text[equals + 2..].find('"').map_or(text.len(), |len| equals + 2 + len);
        found.push((start..(end + 1).min(text.len()), equals + 2..end));
    }
    found
}

/// Elements without others inside, each a line of its own.
fn elements(text: &str) -> Vec<Range<usize>> {
    let mut lines = text.split_inclusive('\n').scan(0, |at, line| {
        *at += line.len();
        Some((*at - line.len()..*at, line))
    });
    std::iter::from_fn(|| lines.next())
        .filter(|(_, line)| line.trim_end().ends_with("/>"))
        .map(|(at, _)| at)
        .collect()
}

fn apply(text: &mut String, harm: &Harm) {
    let pick = |index: &Index, text: &str| {
        let all = attributes(text);
        (!all.is_empty()).then(|| all[index.index(all.len())].clone())
    };
    let line = |index: &Index, text: &str| {
        let all = elements(text);
        (!all.is_empty()).then(|| all[index.index(all.len())].clone())
    };
    match harm {
        Harm::DropAttribute(at) => {
            if let Some((whole, _)) = pick(at, text) {
                text.replace_range(whole, "");
            }
        }
        Harm::Value(at, value) => {
            if let Some((_, range)) = pick(at, text) {
                text.replace_range(range, value);
            }
        }
        Harm::Copy(at, from) => {
            if let (Some((_, range)), Some((_, from))) = (pick(at, text), pick(from, text)) {
                let value = text[from].to_owned();
                text.replace_range(range, &value);
            }
        }
        Harm::DropElement(at) => {
            if let Some(range) = line(at, text) {
                text.replace_range(range, "");
            }
        }
        Harm::RepeatElement(at) => {
            if let Some(range) = line(at, text) {
                let again = text[range.clone()].to_owned();
                text.insert_str(range.end, &again);
            }
        }
        Harm::KeepGpus(count) => {
            let ranks: Vec<_> = text.match_indices(" rank=\"").map(|(at, _)| at + 7).collect();
            for at in ranks.into_iter().skip(*count).rev() {
                let end = text[at..].find('"').map_or(text.len(), |len| at + len);
                text.replace_range(at..end, "-1");
            }
        }
    }
}

/// Everything that a communicator would make of it; `None` if the file is refused.
fn search(text: &str, is_alone: bool) -> Option<()> {
    let mut inventory = read_topology(text).ok()?;
    inventory.number_ranks();
    inventory.first_ranks(u32::MAX);
    let system = System::new(&inventory, Tables::Current).ok()?;
    let system = if is_alone { system.without_network() } else { system };
    let paths = Paths::new(&system, &PathPolicy::default());
    let graphs = Graphs::search(&system, &paths, &SearchConfig { collnet: true, ..SearchConfig::default() });
    let gpus = system.gpus.len();
    let agreed = Summary::new(&system, &paths, &graphs).of_hosts(if is_alone { 1 } else { 2 });
    let channels = Channels::join(&agreed.hosts).unwrap_or_else(|error| panic!("{error}: {graphs:?}"));
    let nranks = gpus * agreed.hosts.len();
    channels.rings.iter().for_each(|ring| assert!(is_permutation(ring, nranks), "{ring:?}"));
    channels.trees.iter().for_each(|tree| check_tree(tree));
    let sm = system.sm_min();
    let facts = Facts::of_gpus(nranks as u32, (sm, 80), Forced::default(), ChannelLimits::default(), None)
        .on(Machine::of_agreed(sm, &agreed), &channels.rings);
    for count in [0, 1, 1 << 20] {
        let call = Call { func: Func::AllReduce, dtype: DataType::F32, op: RedOp::Sum, root: Rank(0), count };
        assert!(plan(&call, &facts).channels > 0);
        for line in facts.explain(&call).lines {
            let is_time = |estimate: oxccl::plan::tuning::Estimate| estimate.time_us.is_finite();
            assert!(line.estimate.is_none_or(is_time), "{line:?} on {:?}", facts.machine);
        }
    }
    Some(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_file_with_harm_done_is_refused_or_searched(
        machine in select(&MACHINES[..]),
        harms in proptest::collection::vec(harm(), 1..5),
        is_alone: bool,
    ) {
        let mut text = machine.to_owned();
        harms.iter().for_each(|harm| apply(&mut text, harm));
        search(&text, is_alone);
    }
}

/// The harm that is done above is no excuse for refusing everything.
#[test]
fn files_without_harm_are_searched() {
    for (machine, is_skeleton) in MACHINES.into_iter().zip([false, false, false, false, false, true]) {
        for is_alone in [true, false] {
            assert_eq!(search(machine, is_alone).is_none(), is_skeleton);
        }
    }
}

/// Found by the test above: a GPU below what looks like a display adapter was skipped, and no ring had its rank.
#[test]
fn a_gpu_that_is_out_of_reach_is_named() {
    let file = |class: &str| {
        format!(
            "<system version=\"1\"><cpu numaid=\"0\"><pci busid=\"0000:01:00.0\" class=\"{class}\">\
             <pci busid=\"0000:02:00.0\" class=\"0x030200\"><gpu dev=\"0\" sm=\"80\" rank=\"0\"/></pci></pci>\
             <pci busid=\"0000:03:00.0\" class=\"0x030200\"><gpu dev=\"1\" sm=\"80\" rank=\"1\"/></pci></cpu></system>"
        )
    };
    let system = |class| System::new(&read_topology(&file(class)).unwrap(), Tables::Current);
    assert_eq!(system("0x060400").unwrap().gpus.len(), 2);
    let said = system("0x030000").unwrap_err().to_string();
    assert!(said.contains("GPU 0000:02:00.0 of rank 0"), "{said}");
}
