//! Layer: tests.
//! Takes: topology files, real and hostile.
//! Gives: proof that what is read can be written and read again, and that bad files end in errors that name the place.
//! Never: a panic, whatever the file.

use oxccl::topology::search::{Graphs, SearchConfig};
use oxccl::topology::xml::{
    XmlError, read_graphs, read_text_from, read_topology, write_graphs, write_topology,
};
use oxccl::topology::{
    BusId, C2c, Cpu, Device, Gpu, Inventory, Net, Nic, NvLink, PathPolicy, Paths, Pci, System, SystemError,
    Tables,
};
use oxccl_shared::abi::Rank;
use proptest::prelude::*;

const FILES: [(&str, &str); 8] = [
    ("h200x4", include_str!("fixtures/topology/h200x4.xml")),
    ("h200x8", include_str!("fixtures/topology/h200x8.xml")),
    ("dgx1v", include_str!("fixtures/topology/dgx1v.xml")),
    ("rtx3090x8", include_str!("fixtures/topology/rtx3090x8.xml")),
    ("oci-h100", include_str!("fixtures/topology/oci-h100.xml")),
    ("azure-ndv4", include_str!("fixtures/topology/azure-ndv4.xml")),
    ("aws-p4d", include_str!("fixtures/topology/aws-p4d.xml")),
    ("aws-p5", include_str!("fixtures/topology/aws-p5.xml")),
];

#[test]
fn real_files_survive_writing() {
    for (name, text) in FILES {
        let inventory = read_topology(text).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(read_topology(&write_topology(&inventory)), Ok(inventory), "{name}");
    }
}

/// What NCCL dumped is what we write, but for what later versions of the format add.
#[test]
fn a_dump_of_nccl_is_written_as_it_was() {
    let text = FILES[1].1;
    let plain = |text: &str| -> Vec<String> { text.lines().map(|line| line.trim_end().to_owned()).collect() };
    let written = plain(&write_topology(&read_topology(text).unwrap()));
    assert_eq!(written.len(), plain(text).len());
    for (ours, theirs) in written.iter().zip(plain(text)) {
        // NCCL writes what it finds in the order in which it finds it; the order of <net>'s attributes is ours.
        if !ours.contains("<net ") {
            assert_eq!(*ours, theirs);
        }
    }
}

#[test]
fn graphs_survive_writing() {
    let system = System::new(&read_topology(FILES[4].1).unwrap(), Tables::Current).unwrap();
    let paths = Paths::new(&system, &PathPolicy::default());
    let graphs = Graphs::search(&system, &paths, &SearchConfig::default());
    let text = write_graphs(graphs.all(), &system);
    let mut read = read_graphs(&text, &system).unwrap();
    for (read, graph) in read.iter_mut().zip(graphs.all()) {
        read.hops = graph.hops;
    }
    assert_eq!(read.iter().collect::<Vec<_>>(), graphs.all());
}

#[test]
fn a_skeleton_without_gpus_says_so() {
    let inventory = read_topology(FILES[5].1).unwrap();
    let error = System::new(&inventory, Tables::Current).unwrap_err();
    assert_eq!(error, SystemError::NoGpus { gpu_class_devices: 8 });
}

/// `text` fails with `message`.
fn refused(text: &str, message: &str) {
    let error = read_topology(text).expect_err(text).to_string();
    assert!(error.contains(message), "{error:?} should contain {message:?}");
}

fn in_system(inside: &str) -> String {
    format!("<system version=\"1\">\n{inside}\n</system>")
}

#[test]
fn bad_files_name_the_line_and_the_attribute() {
    refused("", "line 1: the file is empty or has no element, expected <system>");
    refused("<!-- later -->", "line 1: the file is empty or has no element");
    refused("<graphs/>", "root element is <graphs>, expected <system>");
    refused("<system>\n<cpu numaid=\"0\">\n</system>", "line 3");
    refused(&in_system("<cpu/>"), "line 2: <cpu> lacks the attribute numaid");
    refused(
        &in_system("<cpu numaid=\"zero\"/>"),
        "line 2: <cpu numaid=\"zero\">: expected a NUMA node's number",
    );
    refused(&in_system("<cpu numaid=\"99999999999999999999\"/>"), "numaid");
    refused(
        &in_system("<cpu numaid=\"0\"/>\n<cpu numaid=\"0\"/>"),
        "line 3: numaid=\"0\" was already given on line 2",
    );
    let pci = |inside: &str| in_system(&format!("<cpu numaid=\"0\">\n{inside}\n</cpu>"));
    refused(&pci("<pci busid=\"here\"/>"), "line 3: <pci busid=\"here\">: expected a PCI address");
    refused(&pci("<pci class=\"0x060400\"/>"), "line 3: <pci> lacks the attribute busid");
    let twice = "<pci busid=\"0000:01:00.0\"/>\n<pci busid=\"01:00.0\"/>";
    refused(&pci(twice), "line 4: busid=\"01:00.0\" was already given on line 3");
    refused(&pci("<pci busid=\"0000:01:00.0\" class=\"gpu\"/>"), "class=\"gpu\"");
    let gpu = |inside: &str| pci(&format!("<pci busid=\"0000:01:00.0\">\n<gpu {inside}</gpu></pci>"));
    refused(&gpu("sm=\"-90\">"), "line 4: <gpu sm=\"-90\">");
    refused(&gpu("gdr=\"yes\">"), "expected 0 or 1");
    refused(&gpu("rank=\"0\">\n<nvlink count=\"1\"/>"), "line 5: <nvlink> lacks the attribute target");
    refused(&gpu("rank=\"0\">\n<nvlink target=\"0000:02:00.0\" count=\"1e9\"/>"), "count=\"1e9\"");
    refused(&gpu("dev=\"0\" dev=\"1\">"), "line 4");
    let net = |attributes: &str| pci(&format!("<nic><net {attributes}/></nic>"));
    refused(&net("dev=\"0\" latency=\"NaN\""), "latency=\"NaN\"");
    refused(&net("dev=\"0\" speed=\"fast\""), "speed=\"fast\"");
}

/// NCCL 2.28 writes a network device without a PCI device (docker0, tun0) below the CPU of every rank. Such a dump was refused.
#[test]
fn a_virtual_interface_below_the_cpu_of_each_rank_is_one() {
    let cpu = |numa: u32, net: &str| format!("<cpu numaid=\"{numa}\">\n<nic>\n{net}\n</nic>\n</cpu>\n");
    let docker = r#"<net name="docker0" dev="1" latency="0" speed="10000" port="0" guid="0x1" maxconn="65536" gdr="0"/>"#;
    let read = |cpus: &[String]| read_topology(&in_system(&cpus.concat()));
    let inventory =
        read(&[cpu(0, docker), cpu(1, docker), cpu(2, r#"<net name="docker0" dev="1"/>"#)]).unwrap();
    let nics: Vec<usize> = inventory.cpus.iter().map(|cpu| cpu.devices.len()).collect();
    assert_eq!(nics, [1, 0, 0], "the first one stays");
    assert_eq!(read_topology(&write_topology(&inventory)), Ok(inventory));
    for (attribute, other, values) in [
        ("name", docker.replace("docker0", "tun0"), "docker0 instead of tun0"),
        ("speed", docker.replace("10000", "25000"), "10000 instead of 25000"),
        ("guid", docker.replace("0x1", "0x2"), "0x1 instead of 0x2"),
        ("gdr", docker.replace("gdr=\"0\"", "gdr=\"1\""), "0 instead of 1"),
    ] {
        let error = read(&[cpu(0, docker), cpu(1, &other)]).unwrap_err().to_string();
        let expected =
            format!("line 9: dev=\"1\" was already given on line 4, where its {attribute} is {values}");
        assert_eq!(error, expected);
    }
    // On another host it is another device.
    let host = |hash: u32, net: &str| cpu(0, net).replace("<cpu", &format!("<cpu host_hash=\"{hash:#x}\""));
    assert!(read(&[host(1, docker), host(2, &docker.replace("docker0", "tun0"))]).is_ok());
}

/// The reader said that the stream did not contain valid UTF-8, and nothing of where.
#[test]
fn other_encodings_are_refused_by_line() {
    let error =
        read_text_from(&b"<system version=\"1\">\n<cpu vendor=\"\xe9\"/>\n</system>"[..]).unwrap_err();
    assert_eq!(error.to_string(), "line 2: the byte 0xe9 is no UTF-8, in which topology files are");
    let utf16 = read_text_from(&b"\xff\xfe<\0"[..]).unwrap_err();
    assert!(utf16.to_string().starts_with("line 1: the byte 0xff"), "{utf16}");
    // Cut at a character or not, a file that is too long says so.
    let long = "ä".repeat(9 << 20);
    let text = read_text_from(format!("x{long}").as_bytes()).unwrap();
    assert!(read_topology(&text).unwrap_err().to_string().contains("bytes"));
}

#[test]
fn files_that_make_much_of_little_are_refused() {
    let bomb =
        "<!DOCTYPE x [<!ENTITY a \"aaaa\"><!ENTITY b \"&a;&a;\">]><system><cpu numaid=\"&b;\"/></system>";
    refused(bomb, "document types are not read");
    refused("<system><cpu numaid=\"&b;\"/></system>", "line 1");
    let deep = (0..100_000).map(|i| format!("<pci busid=\"0000:{:02x}:00.0\">", i % 256)).collect::<String>();
    refused(&in_system(&format!("<cpu numaid=\"0\">{deep}")), "elements inside each other");
    let many = "<cpu numaid=\"0\"/>".repeat(100_000);
    refused(&in_system(&many), "elements");
    refused(&in_system(&format!("<cpu numaid=\"0\" vendor=\"{}\"/>", "x".repeat(300))), "at most 255");
    let attributes = (0..40).map(|i| format!(" a{i}=\"\"")).collect::<String>();
    refused(&in_system(&format!("<cpu{attributes}/>")), "attributes");
    refused(&" ".repeat(17 << 20), "bytes");
}

#[test]
fn links_that_lead_nowhere() {
    let gpu = |bus: &str, rank: u32, inside: &str| {
        format!(
            "<pci busid=\"{bus}\" class=\"0x030200\"><gpu dev=\"{rank}\" sm=\"70\" rank=\"{rank}\">{inside}</gpu></pci>"
        )
    };
    let build = |inside: String| {
        System::new(
            &read_topology(&in_system(&format!("<cpu numaid=\"0\">{inside}</cpu>"))).unwrap(),
            Tables::Current,
        )
    };
    let to = |bus: &str| format!("<nvlink target=\"{bus}\" count=\"2\" tclass=\"0x030200\"/>");
    let (a, b) = ("0000:01:00.0", "0000:02:00.0");
    let one_way = build(gpu(a, 0, &to(b)) + &gpu(b, 1, ""));
    assert!(matches!(one_way, Err(SystemError::OneWay { .. })), "{one_way:?}");
    // A missing peer is not in this communicator; a GPU is no peer of itself.
    assert!(build(gpu(a, 0, &to("0000:99:00.0"))).is_ok());
    assert!(build(gpu(a, 0, &to(a))).is_ok());
    let dangling = build(format!(
        "<pci busid=\"0000:09:00.0\"><pcilink target=\"0000:77:00.0\"/></pci>{}",
        gpu(a, 0, "")
    ));
    assert!(matches!(dangling, Err(SystemError::Dangling { .. })), "{dangling:?}");
}

#[test]
fn graphs_that_do_not_fit_are_refused() {
    let system = System::new(&read_topology(FILES[0].1).unwrap(), Tables::Current).unwrap().without_network();
    let graph = |channels: usize, inside: &str| {
        format!(
            "<graphs version=\"1\">\n<graph id=\"0\" pattern=\"4\" nchannels=\"{channels}\">\n{inside}</graph></graphs>"
        )
    };
    let lane = |gpus: &[u32]| {
        gpus.iter().fold("<channel>".to_owned(), |lane, gpu| lane + &format!("<gpu dev=\"{gpu}\"/>"))
            + "</channel>"
    };
    let error = |text: &str| read_graphs(text, &system).expect_err(text).to_string();
    assert!(read_graphs(&graph(1, &lane(&[3, 1, 0, 2])), &system).is_ok());
    assert!(
        error(&graph(1, &lane(&[0, 1, 2])))
            .contains("line 3: <channel gpu=\"[0, 1, 2]\">: expected each GPU")
    );
    assert!(error(&graph(1, &lane(&[0, 1, 2, 2]))).contains("each GPU of this system once"));
    assert!(error(&graph(1, &lane(&[0, 1, 2, 9]))).contains("a GPU of this system"));
    assert!(error(&graph(2, &lane(&[0, 1, 2, 3]))).contains("line 2"));
    assert!(error("<graphs><graph id=\"7\" pattern=\"4\"/></graphs>").contains("id=\"7\""));
    assert!(matches!(
        read_graphs(&graph(65, &lane(&[0, 1, 2, 3]).repeat(65)), &system),
        Err(XmlError::Limit { .. })
    ));
}

/// Of NVLS NCCL writes only the head since 2.22; before, the head and then rank 0 once for each other GPU. Both were refused.
#[test]
fn graphs_of_heads_are_read_as_nccl_writes_them() {
    let system = System::new(&read_topology(FILES[0].1).unwrap(), Tables::Current).unwrap().without_network();
    let graph = |id: u32, lanes: &[&[u32]]| {
        let lane = |gpus: &&[u32]| {
            let gpus: String =
                gpus.iter().map(|gpu| format!("<gpu dev=\"{gpu:#x}\" rank=\"{gpu}\"/>")).collect();
            format!("<channel>{gpus}</channel>")
        };
        let pattern = if id == 3 { 5 } else { 6 };
        format!(
            "<graphs version=\"1\"><graph id=\"{id}\" pattern=\"{pattern}\" crossnic=\"0\" nchannels=\"{}\" speedintra=\"40\" \
             speedinter=\"60\" latencyinter=\"0\" typeintra=\"NVL\" typeinter=\"PIX\" samechannels=\"0\">{}</graph></graphs>",
            lanes.len(),
            lanes.iter().map(lane).collect::<String>()
        )
    };
    let heads = |text: &str| -> Vec<Vec<Rank>> {
        let graphs = read_graphs(text, &system).unwrap();
        graphs[0].lanes.iter().map(|lane| lane.gpus.clone()).collect()
    };
    let expected =
        [[0, 1, 2, 3], [1, 0, 2, 3], [2, 0, 1, 3], [3, 0, 1, 2]].map(|lane| lane.map(Rank).to_vec());
    let today: [&[u32]; 4] = [&[0], &[1], &[2], &[3]];
    assert_eq!(heads(&graph(3, &today)), expected);
    let before: [&[u32]; 4] = [&[0, 0, 0, 0], &[1, 0, 0, 0], &[2, 0, 0, 0], &[3, 0, 0, 0]];
    assert_eq!(heads(&graph(3, &before)), expected);
    assert_eq!(heads(&graph(4, &before)), expected);
    let error = |text: &str| read_graphs(text, &system).expect_err(text).to_string();
    assert!(error(&graph(3, &[&[]])).contains("each GPU of this system once"));
    assert!(error(&graph(3, &[&[9]])).contains("a GPU of this system"));
    // And so they are written.
    let read = read_graphs(&graph(3, &today), &system).unwrap();
    let written = write_graphs(&read, &system);
    assert_eq!(written.matches("<gpu ").count(), 4, "{written}");
    assert_eq!(read_graphs(&written, &system).unwrap(), read);
}

fn text() -> impl Strategy<Value = Option<String>> {
    proptest::option::of("[ -~&&[^ ]][ -~äß]{0,20}")
}

prop_compose! {
    fn any_net(dev: u32)(name in text(), speed in proptest::option::of(0u32..500_000), port in proptest::option::of(0u32..4),
        latency in proptest::option::of(0f32..10.0), guid: Option<u64>, gdr: Option<bool>, coll: Option<bool>,
        rail in proptest::option::of(0u32..8)) -> Net {
        Net { name, dev: Some(dev), speed_mbits: speed, port, latency_us: latency, guid, connections_max: Some(dev),
            gdr, coll, rail, plane: rail }
    }
}

/// A host with switches, GPUs and NICs in random places; ids come from a counter, so they are all different.
fn any_inventory() -> impl Strategy<Value = Inventory> {
    let slot = (0u8..4, any::<Option<u16>>(), text(), proptest::option::of(0u32..32));
    let cpu = (
        proptest::collection::vec(slot, 0..8),
        text(),
        proptest::option::of("[0-9a-f,]{1,20}"),
        any::<Option<u64>>(),
    );
    (proptest::collection::vec(cpu, 0..4), any_net(7)).prop_map(|(cpus, net)| {
        let mut next = 0u32;
        let cpu = |(i, (slots, vendor, affinity, host_hash)): (usize, (Vec<_>, _, _, _))| {
            let mut devices = Vec::new();
            for (kind, device, link_speed, link_width) in slots {
                next += 1;
                let pci = Pci { device, link_speed, link_width, ..Pci::new(BusId(u64::from(next) << 12)) };
                let links =
                    vec![NvLink { target: BusId(0x1000), count: next, target_class: Some(0x06_8000) }];
                let gpu = Gpu {
                    rank: Some(Rank(next)),
                    gdr: Some(true),
                    nvlinks: links,
                    c2c: vec![C2c { bw_mbytes: 5, count: 2 }],
                    ..Gpu::default()
                };
                let nic = Nic { nets: vec![Net { dev: Some(next), ..net.clone() }] };
                let inner = Pci::new(BusId(u64::from(next) << 12 | 0x10));
                devices.push(match kind {
                    0 => Device::Pci(pci),
                    1 => Device::Pci(Pci { devices: vec![Device::Gpu(gpu)], ..pci }),
                    2 => Device::Nic(nic),
                    _ => Device::Pci(Pci {
                        devices: vec![Device::Pci(inner), Device::PciLink(BusId(0x1000)), Device::Nic(nic)],
                        ..pci
                    }),
                });
            }
            Cpu { numa_id: i as i32 - 1, vendor, affinity, host_hash, devices, ..Cpu::default() }
        };
        Inventory { version: 1, cpus: cpus.into_iter().enumerate().map(cpu).collect() }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_is_read(inventory in any_inventory()) {
        prop_assert_eq!(read_topology(&write_topology(&inventory)), Ok(inventory));
    }

    #[test]
    fn damaged_files_never_panic(at in 0usize..3000, with in "[ -~\n]{0,8}", file in 0usize..FILES.len()) {
        let text = FILES[file].1;
        let at = at.min(text.len());
        let damaged = format!("{}{with}{}", &text[..at], text.get(at + with.len()..).unwrap_or_default());
        if let Ok(inventory) = read_topology(&damaged) {
            drop(System::new(&inventory, Tables::Current));
        }
    }
}
