//! The command line.

use super::otlp::Endpoint;
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

/// Options of `oxccl status`.
#[derive(Args)]
pub struct StatusArgs {
    /// Ask a job of another host at its RAS port (NCCL_RAS_ADDR)
    #[arg(value_name = "HOST:PORT", conflicts_with_all = ["pid", "all", "dump"])]
    pub address: Option<String>,
    /// Ask this process alone
    #[arg(long, value_name = "N", conflicts_with = "all")]
    pub pid: Option<u32>,
    /// Ask all processes of this user on this host (for root: of all users); the default
    #[arg(long)]
    pub all: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Print the counters as Prometheus reads them (OpenMetrics)
    #[arg(long, conflicts_with_all = ["json", "last"])]
    pub prometheus: bool,
    /// Push the same counters to an OpenTelemetry collector (OTLP over HTTP)
    #[arg(long, value_name = "http://HOST[:PORT][/PATH]", conflicts_with_all = ["json", "last", "prometheus"])]
    pub otlp: Option<Endpoint>,
    /// Ask again after so many seconds, until interrupted
    #[arg(long, value_name = "SECS", value_parser = interval)]
    pub watch: Option<Duration>,
    /// How long the processes wait for the other ranks of their communicators; 0: these are not asked
    #[arg(long, value_name = "SECS", default_value = "1", value_parser = seconds)]
    timeout: Duration,
    /// Show so many of each communicator's latest operations
    #[arg(long, value_name = "N", default_value_t = 0)]
    last: usize,
    /// Write the flight records to files oxccl_flight_rank_N in this folder instead, which is made if it is not there
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["json", "watch", "last", "prometheus", "otlp"])]
    pub dump: Option<PathBuf>,
}

/// Operations that a communicator remembers.
const REMEMBERED: usize = 4096;

impl StatusArgs {
    /// How many of a communicator's latest operations to show, of those that it remembers.
    pub fn last(&self) -> usize {
        self.last.min(REMEMBERED)
    }

    /// How long other ranks have.
    pub fn timeout(&self) -> Duration {
        self.timeout.min(Duration::from_secs(30))
    }
}

/// Between two questions.
const WATCHES_EVERY_MIN: Duration = Duration::from_millis(10);

fn seconds(text: &str) -> Result<Duration, &'static str> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.ok_or("a number of seconds was expected")
}

/// Without a pause every process of the job, and this one, would do nothing but ask and answer.
fn interval(text: &str) -> Result<Duration, &'static str> {
    let interval = seconds(text)?;
    if interval < WATCHES_EVERY_MIN { Err("at least 0.01 s was expected") } else { Ok(interval) }
}
