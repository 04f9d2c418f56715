//! What a measurement was taken on.

use serde::Serialize;

/// This machine.
#[derive(Clone, Serialize)]
pub struct Machine {
    pub host: String,
    /// Kernel name, release and architecture.
    pub system: String,
    pub processor: String,
    /// Processors of the machine, whatever this process is bound to.
    pub processors: usize,
    pub memory_bytes: u64,
    /// The model of the GPUs, where ranks are GPUs.
    pub gpu: Option<String>,
}

impl Machine {
    pub fn here(gpu: Option<String>) -> Machine {
        let uname = rustix::system::uname();
        let text = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
        let system = [uname.sysname(), uname.release(), uname.machine()].map(text).join(" ");
        let info = rustix::system::sysinfo();
        let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let models = || cpus.lines().filter(|line| line.starts_with("model name"));
        let model = models().next().and_then(|line| Some(line.split_once(':')?.1.trim().to_string()));
        Machine {
            host: text(uname.nodename()),
            system,
            processor: model.unwrap_or_else(|| "unknown processor".into()),
            processors: models().count().max(1),
            memory_bytes: info.totalram as u64 * u64::from(info.mem_unit),
            gpu,
        }
    }

    /// What the ranks run on.
    pub fn device_or_processor(&self) -> &str {
        self.gpu.as_ref().unwrap_or(&self.processor)
    }
}
