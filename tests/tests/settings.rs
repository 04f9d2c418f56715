//! Everything that the environment can say a program can say too: each documented variable has its field of `Config`.

use oxccl::api::settings::{
    AddressRange, AggregatorConfig, Allowed, Dump, HcaFilter, InterfaceFilter, Level, PathKind, PluginConfig,
    Subsystems,
};
use oxccl::{Algorithm, Cma, Config, CtaPolicy, PluginName, Protocol, Rank, SlotStores, TransportKind};
use std::collections::BTreeSet;
use std::time::Duration;

/// A variable and what else has to be set for it to mean something; and the same in code.
struct Row(&'static [(&'static str, &'static str)], fn(&mut Config));

const ROWS: &[Row] = &[
    Row(&[("OXCCL_TIMEOUT", "1.5")], |c| c.timeout = Duration::from_millis(1500)),
    Row(&[("OXCCL_STALL_WARN", "0.5")], |c| c.stall_warn = Some(Duration::from_millis(500))),
    Row(&[("OXCCL_STATUS", "0")], |c| c.status = false),
    Row(&[("NCCL_RAS_ENABLE", "0")], |c| c.ras = None),
    Row(&[("NCCL_RAS_ADDR", "[::1]:9999")], |c| c.ras = Some("[::1]:9999".into())),
    Row(&[("OXCCL_FLIGHT_FILE", "/x/rank_")], |c| c.flight_file = Some("/x/rank_".into())),
    Row(&[("OXCCL_FLIGHT_SIGNAL", "1")], |c| c.flight_signal = true),
    Row(&[("OXCCL_FLIGHT_TIMES", "1")], |c| c.flight_times = true),
    Row(&[("OXCCL_OUTAGE", "7")], |c| {
        c.bootstrap.peer_dead_after = Duration::from_secs(7);
        c.net.socket.peer_dead_after = c.bootstrap.peer_dead_after;
    }),
    Row(&[("OXCCL_DETERMINISTIC", "1")], |c| c.deterministic = true),
    Row(&[("OXCCL_SYMMETRIC", "0")], |c| c.symmetric = Some(false)),
    Row(&[("OXCCL_TILE_KIB", "32")], |c| c.tile_kib = Some(32)),
    Row(&[("OXCCL_PDL", "0")], |c| c.dependent_launch = false),
    Row(&[("NCCL_RUNTIME_CONNECT", "0")], |c| c.runtime_connect = false),
    Row(&[("OXCCL_BOOTSTRAP_TIMEOUT", "7")], |c| c.bootstrap.timeout = Duration::from_secs(7)),
    Row(&[("NCCL_SOCKET_IFNAME", "eth,ib")], |c| {
        c.bootstrap.interfaces = InterfaceFilter::parse("eth,ib");
        c.net.socket.interfaces = c.bootstrap.interfaces.clone();
    }),
    Row(&[("NCCL_SOCKET_FAMILY", "AF_INET6")], |c| {
        c.bootstrap.prefer_ipv6 = Some(true);
        c.net.socket.ipv6 = Some(true);
    }),
    Row(&[("NCCL_ALGO", "ring,tree")], |c| c.forced = c.forced.with_algorithms("ring,tree").unwrap()),
    Row(&[("NCCL_ALGO", "ring")], |c| c.forced = c.forced.with_algorithm(Algorithm::Ring)),
    Row(&[("NCCL_PROTO", "LL")], |c| c.forced = c.forced.with_protocol(Protocol::LL)),
    Row(&[("OXCCL_TUNE_FILE", "t.toml")], |c| c.tune_file = Some("t.toml".into())),
    Row(&[("OXCCL_TRANSPORT", "shm")], |c| c.transports = Allowed::only(TransportKind::Shm)),
    Row(&[("NCCL_P2P_DISABLE", "1")], |c| {
        (c.transports.in_process, c.p2p.enabled) = (false, false);
        c.topology.p2p_level = Some(PathKind::Loc);
    }),
    Row(&[("NCCL_SHM_DISABLE", "1")], |c| c.transports.shm = false),
    Row(&[("NCCL_CUMEM_ENABLE", "0")], |c| c.p2p.cumem = false),
    Row(&[("OXCCL_DUPLICATE_GPUS", "1")], |c| c.p2p.shares_gpus = true),
    Row(&[("NCCL_HOSTID", "a")], |c| c.host_id = Some("a".into())),
    Row(&[("NCCL_BUFFSIZE", "65536")], |c| {
        (c.buffer_bytes, c.device_buffer_bytes) = (65536, Some(65536));
    }),
    Row(&[("NCCL_MIN_NCHANNELS", "2")], |c| c.channels.min = Some(2)),
    Row(&[("NCCL_MIN_NRINGS", "2")], |c| c.channels.min = Some(2)),
    Row(&[("NCCL_MIN_CTAS", "2")], |c| c.channels.min = Some(2)),
    Row(&[("NCCL_MAX_NCHANNELS", "3")], |c| c.channels.max = Some(3)),
    Row(&[("NCCL_MAX_NRINGS", "3")], |c| c.channels.max = Some(3)),
    Row(&[("NCCL_MAX_CTAS", "3")], |c| c.channels.max = Some(3)),
    Row(&[("NCCL_CTA_POLICY", "2")], |c| c.cta_policy = Some(CtaPolicy::Zero)),
    Row(&[("NCCL_CTA_POLICY", "1")], |c| c.cta_policy = Some(CtaPolicy::Efficiency)),
    Row(&[("NCCL_CGA_CLUSTER_SIZE", "2")], |c| c.cluster_size = Some(2)),
    Row(&[("NCCL_NTHREADS", "128")], |c| c.channels.threads = Some(128)),
    Row(&[("OXCCL_PTX_PATH", "k.pack")], |c| c.ptx_path = Some("k.pack".into())),
    Row(&[("NCCL_NET", "Socket")], |c| {
        (c.net.name, c.transports.tcp) = (Some("Socket".into()), false);
    }),
    Row(&[("NCCL_TUNER_PLUGIN", "fast")], |c| c.tuner = PluginName { name: Some("fast".into()) }),
    Row(&[("NCCL_PROFILER_PLUGIN", "all")], |c| c.profiler = PluginName { name: Some("all".into()) }),
    Row(&[("NCCL_TUNER_PLUGIN", "none")], |c| c.tuner = PluginName { name: Some(String::new()) }),
    Row(&[("NCCL_NET_PLUGIN", "a,b")], |c| {
        c.net.plugins = PluginConfig { names: Some(vec!["a".into(), "b".into()]) };
    }),
    Row(&[("NCCL_COLLNET_ENABLE", "1")], |c| c.net.coll.enabled = true),
    Row(&[("NCCL_COLLNET_NODE_THRESHOLD", "5")], |c| c.net.coll.hosts_min = 5),
    Row(&[("OXCCL_AGGREGATOR", "a:1,b:1")], |c| {
        c.net.coll.aggregators = Some(AggregatorConfig {
            servers: vec!["a:1".into(), "b:1".into()],
            secret: Config::aggregator_secret(),
            connect_timeout: c.net.socket.connect_timeout,
            peer_dead_after: c.bootstrap.peer_dead_after,
            net: None,
        });
    }),
    Row(&[("OXCCL_AGGREGATOR_NET", "IB"), ("OXCCL_AGGREGATOR", "a:1")], |c| {
        c.net.coll.aggregators = Some(AggregatorConfig {
            servers: vec!["a:1".into()],
            secret: Config::aggregator_secret(),
            connect_timeout: c.net.socket.connect_timeout,
            peer_dead_after: c.bootstrap.peer_dead_after,
            net: Some("IB".into()),
        });
    }),
    Row(&[("OXCCL_SLOT_STORES", "streamed")], |c| c.slot_stores = SlotStores::Streamed),
    Row(&[("OXCCL_PING_PONG", "0")], |c| c.ping_pong = false),
    Row(&[("OXCCL_OUTBOX", "1")], |c| c.outbox = Some(true)),
    Row(&[("OXCCL_CMA", "0")], |c| c.cma = Cma::Off),
    Row(&[("OXCCL_CMA", "1")], |c| c.cma = Cma::Permit),
    Row(&[("OXCCL_CMA_MIN_BYTES", "4096")], |c| c.cma_min_bytes = Some(4096)),
    Row(&[("OXCCL_ENCRYPT", "1")], |c| c.net.socket.encrypt = true),
    Row(&[("NCCL_SOCKET_NTHREADS", "3"), ("NCCL_NSOCKS_PERTHREAD", "2")], |c| c.net.socket.data_sockets = 6),
    Row(&[("NCCL_NSOCKS_PERTHREAD", "2"), ("NCCL_SOCKET_NTHREADS", "1")], |c| c.net.socket.data_sockets = 2),
    Row(&[("OXCCL_PROXY_THREADS", "2")], |c| c.net.proxy_threads = Some(2)),
    Row(&[("NCCL_DEBUG", "INFO")], |c| c.log.level = Level::Info),
    Row(&[("NCCL_DEBUG_SUBSYS", "NET")], |c| c.log.subsystems = Subsystems::parse("NET").unwrap()),
    Row(&[("NCCL_DEBUG_FILE", "log.%p")], |c| c.log.file = Some("log.%p".into())),
    Row(&[("NCCL_COMM_BLOCKING", "0")], |c| c.blocking = Some(false)),
    Row(&[("NCCL_TOPO_FILE", "t.xml")], |c| c.topology.file = Some("t.xml".into())),
    Row(&[("NCCL_TOPO_DUMP_FILE", "d.xml")], |c| c.topology.dump = dump("d.xml", 0)),
    Row(&[("NCCL_TOPO_DUMP_FILE_RANK", "3"), ("NCCL_TOPO_DUMP_FILE", "d.xml")], |c| {
        c.topology.dump = dump("d.xml", 3);
    }),
    Row(&[("NCCL_GRAPH_FILE", "g.xml")], |c| c.topology.graph_file = Some("g.xml".into())),
    Row(&[("NCCL_GRAPH_DUMP_FILE", "g.xml")], |c| c.topology.graph_dump = dump("g.xml", 0)),
    Row(&[("NCCL_GRAPH_DUMP_FILE_RANK", "1"), ("NCCL_GRAPH_DUMP_FILE", "g.xml")], |c| {
        c.topology.graph_dump = dump("g.xml", 1);
    }),
    Row(&[("NCCL_P2P_LEVEL", "NVL")], |c| c.topology.p2p_level = Some(PathKind::Nvl)),
    Row(&[("NCCL_NET_GDR_LEVEL", "PHB")], |c| c.topology.gdr_level = Some(PathKind::Phb)),
    Row(&[("NCCL_NET_GDR_READ", "1")], |c| c.net.gdr.read = Some(true)),
    Row(&[("NCCL_NET_GDR_C2C", "0")], |c| c.net.gdr.c2c = false),
    Row(&[("NCCL_DMABUF_ENABLE", "0")], |c| c.net.gdr.dma_buf = false),
    Row(&[("NCCL_GDR_FLUSH_DISABLE", "1")], |c| c.net.gdr.flush = Some(false)),
    Row(&[("NCCL_NET_FORCE_FLUSH", "1")], |c| c.net.gdr.flush = Some(true)),
    Row(&[("NCCL_CROSS_NIC", "1")], |c| c.topology.cross_nic = 1),
    Row(&[("NCCL_RINGS", "0 1|1 0")], |c| {
        c.topology.rings = Some(vec![vec![Rank(0), Rank(1)], vec![Rank(1), Rank(0)]]);
    }),
    Row(&[("NCCL_IGNORE_CPU_AFFINITY", "1")], |c| c.topology.ignore_cpu_affinity = true),
    Row(&[("NCCL_IB_DISABLE", "1")], |c| c.net.ib.disabled = true),
    Row(&[("NCCL_IB_HCA", "=mlx5_0:1")], |c| c.net.ib.hca = HcaFilter::parse("=mlx5_0:1")),
    Row(&[("NCCL_IB_GID_INDEX", "3")], |c| c.net.ib.gid_index = Some(3)),
    Row(&[("NCCL_IB_ROCE_VERSION_NUM", "1")], |c| c.net.ib.roce_version = 1),
    Row(&[("NCCL_IB_ADDR_FAMILY", "AF_INET6")], |c| c.net.ib.prefer_ipv6 = true),
    Row(&[("NCCL_IB_ADDR_RANGE", "10.1.0.0/16")], |c| {
        c.net.ib.address_range = AddressRange::parse("10.1.0.0/16");
    }),
    Row(&[("NCCL_IB_TIMEOUT", "18")], |c| c.net.ib.timeout = 18),
    Row(&[("NCCL_IB_RETRY_CNT", "3")], |c| c.net.ib.retry_count = 3),
    Row(&[("NCCL_IB_PKEY", "1")], |c| c.net.ib.pkey_index = 1),
    Row(&[("NCCL_IB_SL", "2")], |c| c.net.ib.service_level = 2),
    Row(&[("NCCL_IB_TC", "106")], |c| c.net.ib.traffic_class = 106),
    Row(&[("NCCL_IB_QPS_PER_CONNECTION", "4")], |c| c.net.ib.queue_pairs = 4),
    Row(&[("NCCL_IB_SPLIT_DATA_ON_QPS", "1")], |c| c.net.ib.split_data = true),
    Row(&[("NCCL_IB_PCI_RELAXED_ORDERING", "0")], |c| c.net.ib.relaxed_ordering = false),
    Row(&[("NCCL_IB_ADAPTIVE_ROUTING", "1")], |c| c.net.ib.adaptive_routing = Some(true)),
    Row(&[("NCCL_IB_AR_THRESHOLD", "100")], |c| c.net.ib.adaptive_threshold_bytes = 100),
];

/// Variables that are no setting of a communicator, and what a program has instead.
const ELSEWHERE: &[(&str, &str)] = &[
    ("OXCCL_RANK", "Builder::rank"),
    ("OXCCL_NRANKS", "Builder::ranks"),
    ("OXCCL_LOCAL_RANK", "DeviceCommunicatorBuilder::device, for which it stands"),
    ("OXCCL_COMM_ID", "Builder::unique_id; for an address that all know: api::launcher::LaunchEnv"),
    ("NCCL_COMM_ID", "as OXCCL_COMM_ID"),
    ("NCCL_CONF_FILE", "a file of variables: Config has what they say"),
    ("OXCCL_COMM_SECRET", "UniqueId::create makes a random one"),
    ("OXCCL_COMM_SECRET_FILE", "as OXCCL_COMM_SECRET"),
    (
        "OXCCL_REQUIRE_SECRET",
        "as OXCCL_COMM_SECRET; api::launcher::LaunchEnv takes all three from any source",
    ),
    ("OXCCL_LOG", "of the tool oxccl: a program sets a subscriber of its own"),
    ("NCCL_IB_MERGE_NICS", "not built, as the page says"),
];

const PAGES: [(&str, &str); 2] = [
    ("env-vars.md", include_str!("../../docs/env-vars.md")),
    ("infiniband.md", include_str!("../../docs/infiniband.md")),
];

fn dump(path: &str, rank: u32) -> Option<Dump> {
    Some(Dump { path: path.into(), rank: Rank(rank) })
}

/// The library's variables that a page names.
fn variables(text: &str) -> BTreeSet<&str> {
    let is_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    let names = text.split('`').skip(1).step_by(2).map(|code| code.split('=').next().unwrap_or(code));
    let is_ours = |name: &&str| {
        let own = name.strip_prefix("NCCL_").or_else(|| name.strip_prefix("OXCCL_"));
        own.is_some_and(|own| !own.is_empty() && own.chars().all(is_name))
    };
    names.filter(is_ours).collect()
}

#[test]
fn every_documented_variable_can_be_said_in_code() {
    let known: BTreeSet<&str> =
        ROWS.iter().map(|row| row.0[0].0).chain(ELSEWHERE.iter().map(|(name, _)| *name)).collect();
    let mut documented = BTreeSet::new();
    for (page, text) in PAGES {
        let missing: Vec<_> = variables(text).difference(&known).copied().collect();
        assert!(
            missing.is_empty(),
            "docs/{page} names {missing:?}: no row here says what a program sets instead"
        );
        documented.extend(variables(text));
    }
    let gone: Vec<_> = known.difference(&documented).collect();
    assert!(gone.is_empty(), "no page documents {gone:?}");
    for variable in oxccl::net::ib::IbConfig::VARIABLES {
        assert!(documented.contains(variable), "docs/infiniband.md does not name {variable}");
    }
}

#[test]
fn a_field_and_its_variable_are_the_same() {
    let default = format!("{:?}", Config::default());
    for Row(pairs, set) in ROWS {
        let lookup = |name: &str| pairs.iter().find(|pair| pair.0 == name).map(|pair| pair.1.to_owned());
        let read = Config::from_lookup(&lookup).unwrap_or_else(|error| panic!("{error}"));
        let mut said = Config::default();
        set(&mut said);
        assert_eq!(format!("{read:?}"), format!("{said:?}"), "{pairs:?}");
        assert_ne!(format!("{said:?}"), default, "{pairs:?} says nothing");
    }
}
