//! Layer: xtask / stages.
//! Takes: the library, the plugin and the tool that the stage `tests` built, and a bundle without kernels.
//! Gives: the packages made of them, each installed where nothing else is, and used by a C program, the tool and Python.
//! Never: changes this machine but for installing missing Debian packages; needs a GPU.

use super::Outcome;
use crate::beside;
use crate::cmd::Cmd;
use crate::counts::Tally;
use crate::package::{self, Format, LIBRARY, Options, PLUGIN, TOOL, VERSION};
use crate::ptx;
use crate::tools::{apt_install, root, target_dir};
use anyhow::{Context, Result, bail, ensure};
use std::env::consts::ARCH;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

const USE: &str = include_str!("use.c");
const CHECK: &str = include_str!("check.py");

pub fn all() -> Result<Outcome> {
    let work = target_dir().join("package-test");
    // What an earlier run installed must not pass for this one's.
    let _ = fs::remove_dir_all(&work);
    fs::create_dir_all(&work)?;
    let options = Options {
        bundle: Some(work.join("oxccl.oxptx")),
        out: Some(work.join("dist")),
        format: vec![Format::Tar, Format::Deb, Format::Wheel],
        programs: Some(programs(&work)?),
    };
    fs::write(work.join("oxccl.oxptx"), ptx::without_kernels()?)?;
    fs::write(work.join("use.c"), USE)?;
    fs::write(work.join("check.py"), CHECK)?;
    ensure!(package::package(&options)?, "a bundle without kernels has nothing to complain of");
    let mut tally = Tally::default();
    for (name, tools, test) in TESTS {
        if let Some(reason) = tools.iter().find_map(missing) {
            beside::note(format_args!("package: {name} is not tried: {reason}"));
            tally.skipped += 1;
            continue;
        }
        tally += match test(&work) {
            Ok(()) => Tally::ONE_PASSED,
            Err(error) => {
                beside::note(format_args!("package: {name}: {error:#}"));
                Tally::ONE_FAILED
            }
        };
    }
    Ok(Outcome::of(tally.failed == 0, tally))
}

/// A program that a test needs, how to see that it is there, and the Debian package that has it.
type Tool = (&'static str, &'static str, &'static str);

const PKG_CONFIG: Tool = ("pkg-config", "--version", "pkgconf");

type Test = fn(&Path) -> Result<()>;

const TESTS: [(&str, &[Tool], Test); 3] = [
    ("the tarball", &[PKG_CONFIG, ("xz", "--version", "xz-utils")], tarball),
    ("the Debian package", &[PKG_CONFIG, ("dpkg", "--version", "dpkg")], debian),
    ("the wheel", &[("python3", "-c 'import venv,ensurepip'", "python3-venv")], wheel),
];

/// Why a tool cannot be had.
fn missing((program, arguments, debian): &Tool) -> Option<String> {
    let is_there = || shell(&root(), &format!("{program} {arguments}")).probe(&root()).is_some();
    if is_there() {
        return None;
    }
    // On another system than Debian, what manages its packages is missing for good.
    let installed = apt_install(debian);
    if is_there() {
        None
    } else {
        Some(installed.err().map_or_else(|| format!("no {program}"), |error| format!("{error:#}")))
    }
}

/// A folder with library, plugin and tool, as the stage `tests` has built them.
fn programs(work: &Path) -> Result<PathBuf> {
    // As that stage builds them: with its profile, the whole workspace named, and, by an example, the features of tests.
    let line = "build --profile test --workspace --locked --lib --bins --example device_all_reduce \
                --message-format json-render-diagnostics";
    let built = Cmd::cargo().args(line).deadline(Duration::from_secs(1500)).quiet().run(&root())?;
    if !built.success {
        bail!("{}", built.text);
    }
    let folder = work.join("programs");
    fs::create_dir(&folder)?;
    for (name, file) in [("nccl", LIBRARY), ("nccl_net_oxccl", PLUGIN), ("oxccl", TOOL)] {
        let path = built.text.lines().find_map(|line| artifact(line, name, file));
        let path = path.with_context(|| format!("cargo built no {file}"))?;
        symlink(path, folder.join(file))?;
    }
    Ok(folder)
}

/// The file that one of cargo's messages names, if it is this one of this target.
fn artifact(line: &str, target: &str, file: &str) -> Option<PathBuf> {
    let message: serde_json::Value = serde_json::from_str(line).ok()?;
    let is_it =
        message.get("target")?.get("name")? == target && message.get("profile")?.get("test")? == false;
    let mut files =
        message.get("filenames")?.as_array()?.iter().filter_map(|path| path.as_str().map(PathBuf::from));
    files.find(|path| is_it && path.file_name().is_some_and(|name| name == file))
}

/// A command line whose processes have none of our variables.
fn shell(folder: &Path, line: &str) -> Cmd {
    let path = std::env::var("PATH").unwrap_or_default();
    let line = format!("cd \"{}\" && {line}", folder.display());
    Cmd::new("env").arg("-i").arg(format!("PATH={path}")).arg("HOME=/nonexistent").args("sh -e -c").arg(line)
}

/// What it printed. The error says what it printed, too.
fn run(folder: &Path, line: &str) -> Result<String> {
    let command = shell(folder, line);
    let output = command.run(&root())?;
    ensure!(output.success, "`{line}` failed: {}", output.text.trim());
    Ok(output.text)
}

/// The one file in `dist` that ends so.
fn made(work: &Path, end: &str) -> Result<PathBuf> {
    let files = fs::read_dir(work.join("dist"))?.filter_map(|entry| Some(entry.ok()?.path()));
    let mut files = files.filter(|path| path.to_string_lossy().ends_with(end));
    files.next().with_context(|| format!("no package ends in {end}"))
}

/// Compiles the C program with what pkg-config says, runs it, and demands that it runs on this library.
fn compile_and_run(folder: &Path, search: &str, variables: &str, library: &Path) -> Result<()> {
    let flags = format!("$({search} pkg-config --cflags --libs oxccl)");
    for compiler in ["cc", "c++ -xc++"] {
        run(folder, &format!("{compiler} -Wall -Wextra -Werror -o used ../use.c -xnone {flags} -ldl"))?;
        let said = run(folder, &format!("{variables} ./used"))?;
        let library = fs::canonicalize(library).with_context(|| library.display().to_string())?;
        ensure!(said.trim() == format!("library {}", library.display()), "another library was used: {said}");
    }
    Ok(())
}

/// The tool says its version and finds the kernels of its package, and sums on CPUs.
fn use_tool(folder: &Path, tool: &str) -> Result<()> {
    let version = run(folder, &format!("{tool} --version"))?;
    let kernels = version.lines().find_map(|line| line.strip_prefix("kernels: ")).unwrap_or_default();
    let is_ours = kernels.contains(&*folder.to_string_lossy()) && !kernels.contains("not ");
    ensure!(version.starts_with(&format!("oxccl {VERSION}\n")) && is_ours, "{version}");
    let sums = run(folder, &format!("{tool} perf all-reduce --ranks 2 -b 8 -e 8 -n 1 -c 1"))?;
    ensure!(sums.contains("# Out of bounds values : 0 OK"), "{sums}");
    Ok(())
}

/// The tool's ranks meet over the package's plugin: nobody else has a network of that name.
fn use_plugin(folder: &Path, tool: &str, plugin: &str) -> Result<()> {
    let variables = format!("NCCL_SOCKET_IFNAME=lo NCCL_NET_PLUGIN=\"$PWD/{plugin}\" NCCL_NET=OxCCL");
    let said = run(
        folder,
        &format!("{variables} {tool} perf all-reduce --ranks 2 --transport net -b 8 -e 8K -f 1024 -n 1 -c 1"),
    )?;
    ensure!(said.contains("# Out of bounds values : 0 OK"), "{said}");
    Ok(())
}

fn tarball(work: &Path) -> Result<()> {
    let (folder, archive) = (work.join("tar"), made(work, ".tar.xz")?);
    fs::create_dir(&folder)?;
    run(&folder, &format!("tar -xJf \"{}\"", archive.display()))?;
    // It works where it is moved to.
    run(&folder, "mv oxccl-* moved")?;
    let search = "PKG_CONFIG_PATH=moved/lib/pkgconfig";
    compile_and_run(&folder, search, "", &folder.join("moved/lib/libnccl.so"))?;
    use_tool(&folder, "moved/bin/oxccl")?;
    use_plugin(&folder, "moved/bin/oxccl", "moved/lib/libnccl-net-oxccl.so")
}

fn debian(work: &Path) -> Result<()> {
    let (folder, archive) = (work.join("deb"), made(work, ".deb")?);
    fs::create_dir_all(folder.join("root/var/lib/dpkg/info"))?;
    fs::create_dir(folder.join("root/var/lib/dpkg/updates"))?;
    fs::write(folder.join("root/var/lib/dpkg/status"), "")?;
    let dpkg =
        "dpkg --root=root --force-not-root --force-bad-path --ignore-depends=libc6,libgcc-s1 --log=/dev/null";
    run(&folder, &format!("{dpkg} --install \"{}\"", archive.display()))?;
    let listed = run(&folder, &format!("{dpkg} --listfiles oxccl"))?;
    // NVIDIA's package has its library and header there.
    for theirs in [format!("/usr/lib/{ARCH}-linux-gnu/libnccl"), "/usr/include/nccl".into()] {
        ensure!(!listed.contains(&theirs), "{theirs} is NVIDIA's: {listed}");
    }
    let search = format!("PKG_CONFIG_LIBDIR=root/usr/lib/{ARCH}-linux-gnu/pkgconfig");
    let flags = run(&folder, &format!("{search} pkg-config --libs oxccl"))?;
    ensure!(
        flags.contains("-Wl,-rpath,/usr/lib/oxccl"),
        "an installed program would not find the library: {flags}"
    );
    let search = format!("{search} PKG_CONFIG_SYSROOT_DIR=\"$PWD/root\"");
    let variables = "LD_LIBRARY_PATH=root/usr/lib/oxccl";
    compile_and_run(&folder, &search, variables, &folder.join("root/usr/lib/oxccl/libnccl.so.2"))?;
    use_tool(&folder, "root/usr/bin/oxccl")?;
    use_plugin(&folder, "root/usr/bin/oxccl", "root/usr/lib/oxccl/libnccl-net-oxccl.so")?;
    run(&folder, &format!("{dpkg} --purge oxccl"))?;
    ensure!(!folder.join("root/usr/lib/oxccl").exists(), "files stay after the package is purged");
    Ok(())
}

fn wheel(work: &Path) -> Result<()> {
    let (folder, wheel) = (work.join("wheel"), made(work, ".whl")?);
    fs::create_dir(&folder)?;
    run(&folder, "python3 -m venv env")?;
    let pip = "env/bin/python -m pip install --no-index --disable-pip-version-check --no-cache-dir";
    run(&folder, &format!("{pip} \"{}\"", wheel.display()))?;
    let said = run(&folder, "env/bin/python ../check.py")?;
    ensure!(said.lines().last().is_some_and(|line| line.starts_with("ok ")), "{said}");
    // The command of the same name, as a shell finds it.
    use_tool(&folder, "env/bin/oxccl")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_found_among_cargos_messages() {
        let line = |name: &str, test: bool| {
            format!(
                r#"{{"target":{{"name":"{name}"}},"profile":{{"test":{test}}},"filenames":["/t/libnccl.rlib","/t/libnccl.so"]}}"#
            )
        };
        assert_eq!(artifact(&line("nccl", false), "nccl", LIBRARY), Some("/t/libnccl.so".into()));
        assert_eq!(artifact(&line("nccl", true), "nccl", LIBRARY), None);
        assert_eq!(artifact(&line("other", false), "nccl", LIBRARY), None);
    }
}
