//! `oxccl aggregate` as a program: when it serves, and why it does not.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};

fn aggregate(listen: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oxccl"));
    command.env_clear().args(["aggregate", "--listen", listen]);
    command
}

/// Ended when dropped.
struct Serving(Child);

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn refused(mut command: Command) -> String {
    let Output { status, stderr, .. } = command.output().unwrap();
    let said = String::from_utf8_lossy(&stderr).into_owned();
    assert_eq!(status.code(), Some(1), "{said}");
    said
}

#[test]
fn it_says_where_it_listens_or_why_it_does_not() {
    let secret = ("OXCCL_COMM_SECRET", "5f0c3b7f7d2e4c0d9a61e8a4b3c2d1e05f0c3b7f7d2e4c0d9a61e8a4b3c2d1e0");
    let said = refused(aggregate("127.0.0.1:0"));
    assert!(said.contains("OXCCL_COMM_SECRET"), "{said}");
    let mut command = aggregate("127.0.0.1:0");
    let mut serving = Serving(command.env(secret.0, secret.1).stdout(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(serving.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let addr = line.trim().strip_prefix("listening at ").expect("where it listens").to_owned();
    std::net::TcpStream::connect(&addr).expect("it listens there");
    let mut command = aggregate(&addr);
    command.env(secret.0, secret.1);
    let said = refused(command);
    assert!(said.contains(&addr), "{said}");
}

/// A server without memory refused every job, and one of 2^44 MiB counted as one without.
#[test]
fn memory_that_no_job_fits_into_or_no_machine_has_is_refused() {
    for mib in ["0", "17592186044416", "-1"] {
        let mut command = aggregate("127.0.0.1:0");
        let output = command.arg(format!("--memory={mib}")).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("--memory") && said.contains(mib), "{said}");
    }
}
