//! The settings that must be equal on all ranks.

use super::Config;
use crate::connect::Setting;
use crate::plan::ChannelLimits;
use crate::topology::TopologySettings;
use crate::transport::Allowed;
use crate::transport::p2p::P2pSettings;
use crate::wire::digest;
use std::fmt::Display;

impl Config {
    /// Those of ranks on CPUs: a variable that means something else there is not shown twice.
    pub(crate) fn must_agree_on_cpus(&self) -> Vec<Setting> {
        let matters = |setting: &Setting| !setting.name.ends_with(OF_GPUS);
        self.must_agree().into_iter().filter(matters).collect()
    }

    /// Those of ranks on GPUs.
    pub(crate) fn must_agree_on_gpus(&self) -> Vec<Setting> {
        let matters = |setting: &Setting| !OF_CPUS.contains(&setting.name);
        self.must_agree().into_iter().filter(matters).collect()
    }

    /// All: what ranks compare, and what an error shows when they differ.
    pub(crate) fn must_agree(&self) -> Vec<Setting> {
        let mut all = vec![
            Setting { name: "NCCL_ALGO", value: self.forced.algorithms_text() },
            Setting { name: "NCCL_PROTO", value: self.forced.protocols_text() },
            flag("OXCCL_DETERMINISTIC", self.deterministic),
            Setting { name: "the tables in OXCCL_TUNE_FILE", value: self.tables() },
        ];
        all.extend(self.ways());
        let ChannelLimits { min, max, threads } = self.channels;
        let TopologySettings { p2p_level, gdr_level, cross_nic, rings, .. } = &self.topology;
        all.extend([
            Setting { name: "NCCL_BUFFSIZE", value: self.buffer_bytes.to_string() },
            optional("NCCL_BUFFSIZE of GPUs", self.device_buffer_bytes),
            optional("OXCCL_CMA_MIN_BYTES", self.cma_min_bytes),
            optional("OXCCL_OUTBOX", self.outbox.map(u8::from)),
            optional("NCCL_MIN_NCHANNELS", min),
            optional("NCCL_MAX_NCHANNELS", max),
            optional("NCCL_NTHREADS", threads),
            Setting { name: "NCCL_CTA_POLICY", value: format!("{:?}", self.cta_policy.unwrap_or_default()) },
            optional("OXCCL_SYMMETRIC", self.symmetric.map(u8::from)),
            optional("NCCL_P2P_LEVEL", *p2p_level),
            optional("NCCL_NET_GDR_LEVEL", *gdr_level),
            Setting { name: "NCCL_CROSS_NIC", value: cross_nic.to_string() },
            optional("NCCL_RINGS", rings.as_ref().map(|rings| rings_text(rings))),
        ]);
        all
    }

    /// The ways that data may go.
    fn ways(&self) -> Vec<Setting> {
        let Allowed { in_process, shm, tcp, net } = self.transports;
        let P2pSettings { enabled, cumem, shares_gpus, .. } = self.p2p;
        let ways = [("inproc", in_process), ("shm", shm), ("tcp", tcp), ("net", net)];
        let ways: Vec<&str> =
            ways.into_iter().filter(|(_, allowed)| *allowed).map(|(name, _)| name).collect();
        let coll = &self.net.coll;
        let net = self.net.name.as_ref().map(|name| name.to_ascii_lowercase());
        // The network first: that it has a name decides on streams.
        vec![
            optional(Setting::NETWORK, net),
            Setting {
                name: "what NCCL_NET, OXCCL_TRANSPORT, NCCL_P2P_DISABLE and NCCL_SHM_DISABLE allow",
                value: ways.join(","),
            },
            flag("NCCL_P2P_DISABLE of GPUs", !enabled),
            flag("NCCL_CUMEM_ENABLE", cumem),
            flag("OXCCL_DUPLICATE_GPUS", shares_gpus),
            flag("OXCCL_ENCRYPT", self.net.socket.encrypt),
            flag("NCCL_COLLNET_ENABLE", coll.enabled),
            Setting { name: "NCCL_COLLNET_NODE_THRESHOLD", value: coll.hosts_min.to_string() },
        ]
    }

    /// A file is known by what choices depend on: comments may differ.
    fn tables(&self) -> String {
        match &self.tuned {
            Some(tuned) => {
                let key = tuned.key();
                format!("{} tables, digest {:016x}", key.len(), digest(&key))
            }
            None => UNSET.to_owned(),
        }
    }
}

/// How names of settings end that matter to GPUs alone.
const OF_GPUS: &str = " of GPUs";
/// Settings that do not matter to GPUs.
const OF_CPUS: [&str; 3] = ["NCCL_BUFFSIZE", "OXCCL_CMA_MIN_BYTES", "OXCCL_OUTBOX"];

/// What is said of a variable without a value.
const UNSET: &str = "unset";

fn optional(name: &'static str, value: Option<impl Display>) -> Setting {
    Setting { name, value: value.map_or_else(|| UNSET.to_owned(), |value| value.to_string()) }
}

pub(in crate::api) fn flag(name: &'static str, value: bool) -> Setting {
    Setting { name, value: u8::from(value).to_string() }
}

fn rings_text(rings: &[Vec<oxccl_shared::abi::Rank>]) -> String {
    let ring = |ring: &Vec<oxccl_shared::abi::Rank>| {
        ring.iter().map(|rank| rank.0.to_string()).collect::<Vec<_>>().join(" ")
    };
    rings.iter().map(ring).collect::<Vec<_>>().join(" | ")
}
