//! Layer: topo.
//! Takes: `oxccl topo`'s command line; a topology file, or this machine, with GPUs or without.
//! Gives: what the library makes of the machine, in the form asked for.
//! Never: a communicator, or a GPU where there is a file.

mod args;
mod machine;
mod models;
mod words;
mod processors;
mod explain;
mod runs;
mod text;
mod log;
mod svg;

pub use args::TopoArgs;

use crate::complain::complain;
use crate::out::{self, OutError};
use crate::say::say;
use crate::words::count;
use machine::Machine;
use oxccl::Config;
use oxccl::os::describe;
use oxccl::topology::detect::{self, NvmlError};
use oxccl::topology::search::Graphs;
use oxccl::topology::xml::{
    XmlError, read_graphs, read_text, read_text_from, read_topology, write_graphs, write_topology,
};
use oxccl::topology::{Inventory, JoinError, PathPolicy, Paths, System, SystemError};
use oxccl_shared::abi::Rank;
use runs::Runs;
use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Why there is nothing to show.
#[derive(Debug, thiserror::Error)]
enum TopoError {
    #[error("printing: {}", describe(.0))]
    Print(#[from] std::io::Error),
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: std::io::Error },
    #[error("{}: {error}", path.display())]
    Out { path: PathBuf, error: OutError },
    #[error("{}: {source}", path.display())]
    Xml { path: PathBuf, source: XmlError },
    #[error(transparent)]
    Nvml(#[from] NvmlError),
    #[error("{of}: {source}")]
    System { of: String, source: SystemError },
    #[error(transparent)]
    Join(#[from] JoinError),
    #[error(transparent)]
    Explain(#[from] explain::ExplainError),
    #[error("{0}: there are no channels without GPUs; --file takes a machine that has some")]
    NoGpus(&'static str),
    #[error("{option}: {} names no GPU, and there are no channels without; --skeleton takes it on a machine with GPUs", path.display())]
    NoGpusIn { option: &'static str, path: PathBuf },
    #[error(transparent)]
    Outputs(OutError),
    #[error(
        "--graph-xml: the GPUs of ranks {first} and {second} have one number (dev), by which such a file would name both"
    )]
    SameDev { first: Rank, second: Rank },
    #[error("{option}: {} has no channels; {}", path.display(), WhyNoGpus::Skeleton(*gpus))]
    Skeleton { option: &'static str, path: PathBuf, gpus: usize },
}

/// `oxccl topo`.
pub fn topo(args: &TopoArgs) -> ExitCode {
    match run(args).and_then(|text| Ok(say(&text)?)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain("topo", error);
            ExitCode::FAILURE
        }
    }
}

/// What is to be printed, and written where. Nothing is before all of it is known: of a call that fails no file is left.
#[derive(Default)]
struct Outputs {
    text: String,
    files: Vec<(PathBuf, String)>,
}

impl Outputs {
    /// `-` prints.
    fn put(&mut self, path: &Path, text: String) {
        match path == Path::new("-") {
            true => self.text += &text,
            false => self.files.push((path.to_owned(), text)),
        }
    }

    /// Writes all files or none. What was written is said where it does not end up in what is printed.
    fn end(self) -> Result<String, TopoError> {
        let files: Vec<(&Path, &str)> =
            self.files.iter().map(|(path, text)| (path.as_path(), text.as_str())).collect();
        out::replace_all(&files)
            .map_err(|(at, error)| TopoError::Out { path: self.files[at].0.clone(), error })?;
        let written: String = files.iter().map(|(path, _)| format!("wrote {}\n", path.display())).collect();
        if !self.text.is_empty() && !written.is_empty() {
            // Nobody may read it any more.
            let _ = std::io::stderr().write_all(written.as_bytes());
            return Ok(self.text);
        }
        Ok(self.text + &written)
    }
}

/// The text to print.
fn run(args: &TopoArgs) -> Result<String, TopoError> {
    out::distinct(args.outputs()).map_err(TopoError::Outputs)?;
    let Looked { name, mut inventory, policy, why_no_gpus } = look(args)?;
    inventory.number_ranks();
    let mut out = Outputs::default();
    if let Some(path) = &args.xml {
        out.put(path, write_topology(&inventory));
    }
    match why_no_gpus {
        Some(why) => without_gpus(args, &name, &inventory, &why, &mut out)?,
        None => with_gpus(args, &name, inventory, &args.policy(policy), &mut out)?,
    }
    out.end()
}

fn with_gpus(
    args: &TopoArgs,
    name: &str,
    mut inventory: Inventory,
    policy: &PathPolicy,
    out: &mut Outputs,
) -> Result<(), TopoError> {
    if !args.explain.is_empty() {
        let gpus = inventory.gpus().iter().filter(|(_, gpu)| gpu.rank.is_some()).count();
        let mut some = inventory.clone();
        some.first_ranks(explain::ranks_of_host(args, gpus)?);
        out.text += &explain::on_gpus(args, &machine(args, name, &some, policy)?)?;
    }
    if !args.explain.is_empty() && args.graph_xml.is_none() && args.log.is_none() && args.svg.is_none() {
        return Ok(());
    }
    // A file may be that of a host whose ranks do not begin at 0.
    inventory.first_ranks(u32::MAX);
    let machine = machine(args, name, &inventory, policy)?;
    if let Some(path) = &args.graph_xml {
        if let Some([first, second]) = machine.system.one_dev_of_two() {
            return Err(TopoError::SameDev { first, second });
        }
        out.put(path, write_graphs(machine.graphs.all(), &machine.system));
    }
    if let Some(path) = &args.log {
        out.put(path, log::lines(&machine, args.nccl)?);
    }
    if let Some(path) = &args.svg {
        out.put(path, svg::draw(&machine, &Runs::new(&machine)?));
    }
    if !args.asks() {
        out.text += &text::page(&machine, &Runs::new(&machine)?);
    }
    Ok(())
}

/// A file, or standard input.
fn read(path: &Path) -> Result<String, TopoError> {
    let text = match path == Path::new("-") {
        true => read_text_from(std::io::stdin().lock()),
        false => read_text(path),
    };
    text.map_err(|source| TopoError::File { path: path.to_owned(), source })
}

fn read_inventory(path: &Path) -> Result<Inventory, TopoError> {
    read_topology(&read(path)?).map_err(|source| TopoError::Xml { path: path.to_owned(), source })
}

/// Why there are no GPUs with ranks.
#[derive(Debug)]
enum WhyNoGpus {
    /// This machine shows none, for a reason.
    Here(String),
    /// A file has none.
    InFile,
    /// A file has so many devices that are GPUs by their class, and says no more of them.
    Skeleton(usize),
}

impl fmt::Display for WhyNoGpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WhyNoGpus::Here(why) => write!(
                f,
                "{why}: ranks here are threads of processors.\n\
                 --file X.xml shows a machine with GPUs, as NCCL_TOPO_DUMP_FILE wrote it there"
            ),
            WhyNoGpus::InFile => f.write_str(
                "the file names no GPU: ranks there are threads of processors, or --skeleton takes the file on a machine with GPUs",
            ),
            WhyNoGpus::Skeleton(gpus) => write!(
                f,
                "the file is a skeleton, whose {} the machine itself must describe: --skeleton takes it there",
                count(*gpus, "GPU")
            ),
        }
    }
}

/// The machine to show.
struct Looked {
    /// As a title.
    name: String,
    inventory: Inventory,
    /// What the devices allow.
    policy: PathPolicy,
    why_no_gpus: Option<WhyNoGpus>,
}

fn look(args: &TopoArgs) -> Result<Looked, TopoError> {
    if let Some(path) = &args.file {
        let name = match path == Path::new("-") {
            true => "standard input".to_owned(),
            false => path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default(),
        };
        let (inventory, policy) = (read_inventory(path)?, PathPolicy::default());
        let why_no_gpus = inventory.gpus().is_empty().then(|| match processors::gpus_below(&inventory) {
            0 => WhyNoGpus::InFile,
            gpus => WhyNoGpus::Skeleton(gpus),
        });
        return Ok(Looked { name, inventory, policy, why_no_gpus });
    }
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let named = || Config::variable("NCCL_TOPO_FILE").filter(|path| !path.is_empty()).map(PathBuf::from);
    let (path, name) = match (&args.skeleton, named()) {
        (Some(path), _) => (Some(path.clone()), name),
        (None, Some(path)) => (Some(path.clone()), format!("{name} with NCCL_TOPO_FILE={}", path.display())),
        (None, None) => (None, name),
    };
    let skeleton = path.as_deref().map_or_else(|| Ok(Inventory::new()), read_inventory)?;
    let why = match detect::host(skeleton.clone()) {
        Ok((inventory, policy)) if !inventory.gpus().is_empty() => {
            return Ok(Looked { name, inventory, policy, why_no_gpus: None });
        }
        Ok(_) => "NVIDIA's library is here and knows no GPU".to_owned(),
        // A host without the library has no GPUs: its ranks are threads of processors.
        Err(NvmlError::Load(why)) => format!("no NVIDIA library was found ({why})"),
        Err(error) => return Err(error.into()),
    };
    let (inventory, policy) = (detect::host_without_gpus(skeleton), PathPolicy::default());
    Ok(Looked { name, inventory, policy, why_no_gpus: Some(WhyNoGpus::Here(why)) })
}

/// A machine that has processors and network devices.
fn without_gpus(
    args: &TopoArgs,
    name: &str,
    inventory: &Inventory,
    why: &WhyNoGpus,
    out: &mut Outputs,
) -> Result<(), TopoError> {
    let asked = [
        (!args.explain.is_empty(), "--explain"),
        (args.log.is_some(), "--log"),
        (args.graph_xml.is_some(), "--graph-xml"),
        (args.graph_file.is_some(), "--graph-file"),
    ];
    for option in asked.into_iter().filter(|(is_asked, _)| *is_asked).map(|(_, option)| option) {
        match (option, why, &args.file) {
            (_, WhyNoGpus::Skeleton(gpus), Some(path)) => {
                return Err(TopoError::Skeleton { option, path: path.clone(), gpus: *gpus });
            }
            ("--explain", _, file) => {
                let known = file.as_ref().map(|_| processors::count_of(inventory)).filter(|count| *count > 0);
                out.text += &explain::on_cpus(args, known)?;
            }
            (_, _, Some(path)) => return Err(TopoError::NoGpusIn { option, path: path.clone() }),
            (_, _, None) => return Err(TopoError::NoGpus(option)),
        }
    }
    if let Some(path) = &args.svg {
        out.put(path, svg::draw_without_gpus(name, inventory));
    }
    if !args.asks() {
        out.text += &processors::page(name, inventory, &why.to_string());
    }
    Ok(())
}

fn machine(
    args: &TopoArgs,
    name: &str,
    inventory: &Inventory,
    policy: &PathPolicy,
) -> Result<Machine, TopoError> {
    let system = System::new(inventory, args.tables());
    let mut system = system.map_err(|source| TopoError::System { of: args.described_by(name), source })?;
    if args.hosts < 2 {
        system = system.without_network();
    }
    let paths = Paths::new(&system, policy);
    let mut graphs = Graphs::search(&system, &paths, &args.search());
    if let Some(path) = &args.graph_file {
        let read = read_graphs(&read(path)?, &system)
            .map_err(|source| TopoError::Xml { path: path.clone(), source })?;
        read.into_iter().filter(|graph| !graph.lanes.is_empty()).for_each(|graph| graphs.replace(graph));
    }
    Ok(Machine { name: name.to_owned(), system, paths, graphs, hosts: args.hosts })
}
