//! Layer: aggregate.
//! Takes: `oxccl aggregate`'s command line, and the secret of the environment.
//! Gives: an aggregator that serves until the process is ended.
//! Never: serves without a secret.

use crate::complain::complain;
use crate::say::say;
use clap::Args;
use oxccl::bootstrap::Cancel;
use oxccl::net::aggregate::{Server, ServerConfig};
use oxccl::net::plugin::PluginConfig;
use oxccl::net::{self, NetConfig, NetError};
use oxccl::{Config, ConfigError};
use std::net::SocketAddr;
use std::process::ExitCode;

/// Bits of a number of bytes below a MiB.
const MIB_BITS: u32 = 20;
/// 1 EiB.
const MEMORY_MAX_MIB: u64 = 1 << 40;

/// Options of `oxccl aggregate`.
#[derive(Args)]
pub struct AggregateArgs {
    /// Where to listen; ranks name it in OXCCL_AGGREGATOR
    #[arg(long, value_name = "ADDR:PORT", default_value = "0.0.0.0:28040")]
    listen: SocketAddr,
    /// Most memory for buffers of all jobs, in MiB; a job takes up to 2 MiB for each of its heads
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..=MEMORY_MAX_MIB))]
    memory: u64,
    /// A network (IB) by which the data of ranks go that have OXCCL_AGGREGATOR_NET set; NCCL_IB_HCA says over which of its ports
    #[arg(long, value_name = "NETWORK")]
    net: Option<String>,
}

/// Why it does not serve.
#[derive(Debug, thiserror::Error)]
enum AggregateError {
    #[error("{0}")]
    Secret(String),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Net(#[from] NetError),
    #[error("printing: {}", oxccl::os::describe(.0))]
    Print(#[from] std::io::Error),
}

/// Serves.
pub fn aggregate(args: &AggregateArgs) -> ExitCode {
    match serve(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain("aggregate", error);
            ExitCode::FAILURE
        }
    }
}

fn serve(args: &AggregateArgs) -> Result<(), AggregateError> {
    let secret = Config::aggregator_secret().map_err(AggregateError::Secret)?;
    let config = Config::from_env()?;
    let (encrypt, peer_dead_after) = (config.net.socket.encrypt, config.net.socket.peer_dead_after);
    let memory_max_bytes = args.memory << MIB_BITS;
    let plugins = PluginConfig::parse("none");
    let named = |name: &String| NetConfig { name: Some(name.clone()), plugins, ..config.net };
    let net = args.net.as_ref().map(|name| net::find(&named(name))).transpose()?;
    let usual = ServerConfig::new(args.listen, secret);
    let server = Server::bind(ServerConfig { memory_max_bytes, peer_dead_after, encrypt, net, ..usual })?;
    say(&format!("listening at {}\n", server.local_addr()))?;
    // The server runs until its process ends: connections close with that, and every head sees it at once.
    Ok(server.serve(&Cancel::default())?)
}
