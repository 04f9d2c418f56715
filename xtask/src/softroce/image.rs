//! The guest's file system for one run: what every guest has, and the job's program with its libraries.

use super::cpio::Archive;
use super::job::Job;
use super::store::Store;
use crate::cmd::Cmd;
use crate::tools::root;
use anyhow::{Context, Result, bail};
use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};

const INIT: &str = include_str!("init.sh");
/// What the guest needs of the kernel; their dependencies are found in modules.dep.
const MODULES: [&str; 6] = ["veth", "crc32_generic", "crc32c_generic", "ib_uverbs", "rdma_cm", "rdma_rxe"];
const TOOLS: [(&str, &str); 2] = [("bin/ip", "/sbin/ip"), ("bin/rdma", "/sbin/rdma")];
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
const RXE: &str = "libibverbs/librxe-rdmav34.so";
/// libibverbs looks for drivers at the path that it was built with.
const DRIVERS: &str = "/usr/lib/x86_64-linux-gnu";

/// Writes the initramfs of `job` to `path`.
pub fn write(store: &Store, job: &Job, path: &Path) -> Result<()> {
    let mut image = Image { store, archive: Archive::new(BufWriter::new(File::create(path)?)) };
    for directory in ["/proc", "/sys", "/dev", "/tmp", "/root", "/job"] {
        image.archive.directory(directory)?;
    }
    image.archive.text("/init", INIT.as_bytes())?;
    image.archive.text("/etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n")?;
    image.archive.text("/etc/hosts", b"127.0.0.1 localhost\n")?;
    image.archive.file("/bin/busybox", &store.guest.join("bin/busybox"))?;
    image.modules()?;
    for (from, to) in TOOLS {
        let below = [store.guest.join(from), store.guest.join("usr").join(from)];
        let from =
            below.iter().find(|path| path.exists()).with_context(|| format!("no {from} in iproute2"))?;
        image.program(to, from)?;
    }
    image.verbs()?;
    for file in job.runs.iter().map(|run| &run.program).chain(&job.files) {
        image.program(text(file)?, file)?;
    }
    image.archive.text("/job/run.sh", script(job)?.as_bytes())?;
    image.archive.finish()
}

struct Image<'a> {
    store: &'a Store,
    archive: Archive<BufWriter<File>>,
}

impl Image<'_> {
    /// Modules in the order in which they can be loaded.
    fn modules(&mut self) -> Result<()> {
        let dependencies = fs::read_to_string(self.store.modules.join("modules.dep"))?;
        let order = load_order(&dependencies, &MODULES)?;
        let mut names = String::new();
        for path in order {
            let name = path.rsplit('/').next().unwrap_or(path);
            self.archive.file(&format!("/modules/{name}"), &self.store.modules.join(path))?;
            names.push_str(name);
            names.push('\n');
        }
        self.archive.text("/etc/modules", names.as_bytes())
    }

    /// libibverbs, which programs load by name, and its driver for rxe.
    fn verbs(&mut self) -> Result<()> {
        let libraries = self.store.guest.join(LIBRARIES);
        self.program("/lib/libibverbs.so.1", &libraries.join("libibverbs.so.1"))?;
        self.program(&format!("{DRIVERS}/{RXE}"), &libraries.join(RXE))?;
        self.archive.text("/etc/libibverbs.d/rxe.driver", b"driver rxe\n")
    }

    /// A program or library of the host or of the unpacked packages, and what it is linked with.
    fn program(&mut self, to: &str, from: &Path) -> Result<()> {
        self.archive.file(to, from)?;
        let ldd = Cmd::new("ldd").env("LC_ALL", "C").env("LD_LIBRARY_PATH", self.store.library_path());
        // Scripts and static programs are refused by ldd; they need no libraries.
        let Some(list) = ldd.arg(text(from)?).probe(&root()) else { return Ok(()) };
        let needed = linked(&list).with_context(|| format!("{} cannot run", from.display()))?;
        for library in needed {
            let name =
                library.file_name().and_then(|name| name.to_str()).context("a library without a name")?;
            let dir = if name.starts_with("ld-linux") { "/lib64" } else { "/lib" };
            self.archive.file(&format!("{dir}/{name}"), &library)?;
        }
        Ok(())
    }
}

/// Files of `wanted` and of all that they depend on, dependencies first. A line of modules.dep is a file, a colon, and what it
/// depends on, the nearest first.
fn load_order<'a>(dependencies: &'a str, wanted: &[&str]) -> Result<Vec<&'a str>> {
    let mut order: Vec<&str> = Vec::new();
    for name in wanted {
        let is_wanted = |file: &str| {
            let stem = file.rsplit('/').next().unwrap_or(file).replace('-', "_");
            stem.split('.').next() == Some(name)
        };
        let mut lines = dependencies.lines().filter_map(|line| line.split_once(':'));
        let Some((file, needs)) = lines.find(|(file, _)| is_wanted(file)) else {
            bail!("the kernel has no module {name}");
        };
        let chain = needs.split_whitespace().rev().chain([file]);
        for file in chain {
            if !order.contains(&file) {
                order.push(file);
            }
        }
    }
    Ok(order)
}

/// The files in what ldd printed.
fn linked(list: &str) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for line in list.lines().map(str::trim) {
        match line.split_once(" => ") {
            Some((name, "not found")) => {
                bail!("its library {name} is neither here nor among the guest's packages")
            }
            Some((_, target)) => files.extend(target.split(" (").next().map(PathBuf::from)),
            None => {
                files.extend(line.split(" (").next().filter(|name| name.starts_with('/')).map(PathBuf::from))
            }
        }
    }
    Ok(files)
}

/// What the guest's init starts.
fn script(job: &Job) -> Result<String> {
    let mut script = String::new();
    for (name, value) in &job.envs {
        script.push_str(&format!("export {name}={}\n", quoted(value)));
    }
    for run in &job.runs {
        script.push_str(&quoted(text(&run.program)?));
        for arg in &run.args {
            script.push(' ');
            script.push_str(&quoted(arg));
        }
        script.push_str(" || exit $?\n");
    }
    Ok(script)
}

/// For a POSIX shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("{} is not text", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::softroce::Run;

    #[test]
    fn dependencies_are_loaded_first_and_once() {
        let dependencies = "k/veth.ko:\nk/rdma_rxe.ko: k/udp-tunnel.ko k/ib_uverbs.ko k/ib_core.ko\n\
                            k/udp-tunnel.ko:\nk/ib_uverbs.ko: k/ib_core.ko\nk/ib_core.ko:\n";
        let order = load_order(dependencies, &["ib_uverbs", "rdma_rxe", "udp_tunnel"]).unwrap();
        assert_eq!(order, ["k/ib_core.ko", "k/ib_uverbs.ko", "k/udp-tunnel.ko", "k/rdma_rxe.ko"]);
        let error = load_order(dependencies, &["mlx5_ib"]).unwrap_err();
        assert!(error.to_string().contains("mlx5_ib"));
    }

    #[test]
    fn libraries_are_read_from_ldd_and_a_missing_one_is_named() {
        let list = "\tlinux-vdso.so.1 (0x7ff)\n\tlibm.so.6 => /lib/libm.so.6 (0x7f)\n\t/lib64/ld-linux-x86-64.so.2 (0x7f)\n";
        let paths = ["/lib/libm.so.6", "/lib64/ld-linux-x86-64.so.2"].map(PathBuf::from);
        assert_eq!(linked(list).unwrap(), paths);
        assert!(linked("\tlibx.so => not found\n").unwrap_err().to_string().contains("libx.so"));
    }

    #[test]
    fn arguments_reach_the_program_as_they_are() {
        let run = Run { program: "/p".into(), args: vec!["it's".into(), "$HOME".into()] };
        let envs = vec![("A".into(), "b c".into())];
        let job = Job { runs: vec![run], envs, ..Job::default() };
        assert_eq!(script(&job).unwrap(), "export A='b c'\n'/p' 'it'\\''s' '$HOME' || exit $?\n");
    }
}
