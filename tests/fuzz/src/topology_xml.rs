//! Topology files come from users, cloud providers and other libraries.

use oxccl::topology::search::{Graphs, SearchConfig};
use oxccl::topology::xml::{read_graphs, read_topology, write_graphs, write_topology};
use oxccl::topology::{PathPolicy, Paths, System, Tables};

/// Any text is refused, or is a topology that survives writing; one that is a system has channels that survive it too.
pub fn topology_xml(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let inventory = match read_topology(text) {
        Ok(inventory) => inventory,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    assert_eq!(read_topology(&write_topology(&inventory)).as_ref(), Ok(&inventory));
    let Ok(system) = System::new(&inventory, Tables::Current) else { return };
    let paths = Paths::new(&system, &PathPolicy::default());
    let graphs = Graphs::search(&system, &paths, &SearchConfig::default());
    assert!(!graphs.ring.lanes.is_empty(), "any system has a ring");
    if let Ok(read) = read_graphs(&write_graphs(graphs.all(), &system), &system) {
        assert!(read.iter().zip(graphs.all()).all(|(read, graph)| read.lanes == graph.lanes));
    }
}
