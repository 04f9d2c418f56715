//! Layer: topo.
//! Takes: the command line.
//! Gives: [`TopoArgs`], and the library's settings that follow from them.
//! Never: the environment, but for NCCL_TOPO_FILE, which the library reads as well.
//!
//! Outputs add up: each goes to its file, or is printed.

use crate::cli::whole;
use clap::{Args, ValueEnum};
use oxccl::topology::search::SearchConfig;
use oxccl::topology::{PathKind, PathPolicy, Tables};
use oxccl_shared::abi::DataType;
use std::path::{Path, PathBuf};

/// Options of `oxccl topo`.
#[derive(Args, Clone, Debug)]
pub struct TopoArgs {
    /// Topology in NCCL's format, as NCCL_TOPO_DUMP_FILE writes it, in place of this machine; - is standard input.
    #[arg(long, value_name = "FILE.xml")]
    pub file: Option<PathBuf>,
    /// Skeleton in NCCL's format that this machine's devices are put into. Default: what NCCL_TOPO_FILE names.
    #[arg(long, value_name = "FILE.xml", conflicts_with = "file")]
    pub skeleton: Option<PathBuf>,
    /// Graphs in NCCL's format, as NCCL_GRAPH_DUMP_FILE writes them, in place of those searched.
    #[arg(long, value_name = "FILE.xml")]
    pub graph_file: Option<PathBuf>,
    /// The topology in NCCL's format, printed or (--xml=FILE) written.
    #[arg(long, value_name = "FILE.xml", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    pub xml: Option<PathBuf>,
    /// The graphs in NCCL's format, printed or (--graph-xml=FILE) written.
    #[arg(long, value_name = "FILE.xml", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    pub graph_xml: Option<PathBuf>,
    /// Channels, rings and trees as the NCCL of --nccl logs them, printed or (--log=FILE) written.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    pub log: Option<PathBuf>,
    /// Draw the machine and its channels; - prints the drawing.
    #[arg(long, value_name = "FILE.svg")]
    pub svg: Option<PathBuf>,
    /// Explain how a call of so many bytes is carried out, such as all-reduce 4M: every algorithm and protocol with its modelled time,
    /// what is excluded and why, what is chosen and by which setting.
    #[arg(long, num_args = 2, value_names = ["COLLECTIVE", "BYTES"])]
    pub explain: Vec<String>,
    /// With --explain: ranks, on each host's first GPUs. Default: one for each GPU, or for each processor where there is no GPU.
    #[arg(long, value_name = "N", requires = "explain", value_parser = whole(1..=65536))]
    pub ranks: Option<u32>,
    /// With --explain: type of the elements.
    #[arg(long, value_name = "TYPE", default_value = "float", value_parser = datatype)]
    pub datatype: DataType,
    /// With --explain: algorithms, as NCCL_ALGO has them.
    #[arg(long, value_name = "LIST", requires = "explain")]
    pub algo: Option<String>,
    /// With --explain: protocols, as NCCL_PROTO has them.
    #[arg(long, value_name = "LIST", requires = "explain")]
    pub proto: Option<String>,
    /// With --explain: results have the same bits whatever the length, as with OXCCL_DETERMINISTIC=1.
    #[arg(long, requires = "explain")]
    pub deterministic: bool,
    /// With --explain: a tuning file, as OXCCL_TUNE_FILE names one.
    #[arg(long, value_name = "FILE", requires = "explain")]
    pub tune: Option<PathBuf>,
    /// With --explain, without GPUs: ranks are connected by streams only.
    #[arg(long, requires = "explain")]
    pub streams: bool,
    /// Machines of this kind in the communicator; with more than one, channels use NICs.
    #[arg(long, default_value_t = 1, value_parser = whole(1..=4096))]
    pub hosts: u32,
    /// Farthest path over which GPUs access each other's memory (NCCL_P2P_LEVEL).
    #[arg(long, value_name = "KIND", value_parser = kind)]
    pub p2p_level: Option<PathKind>,
    /// Farthest path over which NICs access GPU memory (NCCL_NET_GDR_LEVEL).
    #[arg(long, value_name = "KIND", value_parser = kind)]
    pub gdr_level: Option<PathKind>,
    /// Whether rings may enter and leave by different NICs: 0 never, 1 always, 2 if better (NCCL_CROSS_NIC).
    #[arg(long, default_value_t = 2, value_parser = whole(0..=2))]
    pub cross_nic: u32,
    /// Also channels that reduce in the network (NCCL_COLLNET_ENABLE).
    #[arg(long)]
    pub collnet: bool,
    /// No channels that reduce in NVSwitches (NCCL_NVLS_ENABLE=0).
    #[arg(long)]
    pub no_nvls: bool,
    /// The NCCL whose bandwidths, and whose names in --log, these are.
    #[arg(long, value_enum, default_value_t = Release::Current)]
    pub nccl: Release,
}

/// `--nccl`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Release {
    /// 2.27.7 and later: --log names GPUs by their bus
    Current,
    /// 2.14 to 2.27.6: --log names GPUs by their rank
    #[value(name = "2.27")]
    V227,
    /// Up to 2.13
    #[value(name = "2.13")]
    V213,
}

impl TopoArgs {
    /// Whether an output is asked for; else there is a page.
    pub fn asks(&self) -> bool {
        self.outputs().into_iter().any(|(_, path)| path.is_some()) || !self.explain.is_empty()
    }

    /// Where outputs go, each by its option.
    pub fn outputs(&self) -> [(&'static str, Option<&Path>); 4] {
        [
            ("--xml", self.xml.as_deref()),
            ("--graph-xml", self.graph_xml.as_deref()),
            ("--log", self.log.as_deref()),
            ("--svg", self.svg.as_deref()),
        ]
    }

    pub fn tables(&self) -> Tables {
        match self.nccl {
            Release::Current | Release::V227 => Tables::Current,
            Release::V213 => Tables::Nccl213,
        }
    }

    /// What describes the machine that is called so: its file, or itself.
    pub fn described_by(&self, name: &str) -> String {
        let file = self.file.as_deref().filter(|path| *path != Path::new("-"));
        file.map_or_else(|| name.to_owned(), |path| path.display().to_string())
    }

    /// What the machine allows, and what the user wants.
    pub fn policy(&self, machine: PathPolicy) -> PathPolicy {
        PathPolicy { p2p_level: self.p2p_level, gdr_level: self.gdr_level, ..machine }
    }

    pub fn search(&self) -> SearchConfig {
        SearchConfig {
            tables: self.tables(),
            cross_nic: self.cross_nic,
            collnet: self.collnet,
            nvls: !self.no_nvls,
        }
    }
}

fn datatype(text: &str) -> Result<DataType, String> {
    DataType::from_name(text)
        .ok_or_else(|| "expected a type as nccl-tests names it, such as float or half".into())
}

fn kind(text: &str) -> Result<PathKind, String> {
    let expected = || "expected LOC, NVL, NVB, C2C, PIX, PXB, P2C, PXN, PHB or SYS".to_owned();
    text.to_ascii_uppercase().parse().ok().filter(|kind| *kind <= PathKind::Sys).ok_or_else(expected)
}
