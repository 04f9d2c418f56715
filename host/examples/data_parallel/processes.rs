//! Starting the ranks of an example: processes of this program, with its arguments.

use std::error::Error;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// Starts `ranks` processes, to each of which `introduce` says by the environment who it is, and gives what rank 0 prints, line by line.
pub fn run(
    ranks: u32,
    introduce: impl Fn(&mut Command, u32),
    mut line: impl FnMut(&str),
) -> Result<(), Box<dyn Error>> {
    let mut children = Vec::new();
    for rank in 0..ranks {
        let output = if rank == 0 { Stdio::piped() } else { Stdio::null() };
        children.push(start(output, |command| introduce(command, rank))?);
    }
    if let Some(output) = children[0].stdout.take() {
        for text in BufReader::new(output).lines() {
            line(&text?);
        }
    }
    // One that fails makes the others fail, with an error that names it: all of them end.
    let mut failed = Vec::new();
    for (rank, child) in children.iter_mut().enumerate() {
        let status = child.wait()?;
        if !status.success() {
            failed.push(format!("rank {rank}: {status}"));
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(failed.join(", ").into()) }
}

/// Starts one process.
pub fn start(output: Stdio, introduce: impl FnOnce(&mut Command)) -> std::io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(std::env::args_os().skip(1)).stdout(output);
    introduce(&mut command);
    command.spawn()
}
