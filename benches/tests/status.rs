//! `oxccl status` as a program: the counters of a live job arrive at a collector.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A job that lasts until this is dropped.
struct Job(Child);

impl Job {
    fn start() -> Job {
        let mut command = Command::new(env!("CARGO_BIN_EXE_oxccl"));
        command.args(["perf", "all-reduce", "--threads", "2", "--sizes", "1K", "--rounds", "1000000"]);
        Job(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    /// Asks until it answers.
    fn status(&self, options: &[&str]) -> std::process::Output {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let mut command = Command::new(env!("CARGO_BIN_EXE_oxccl"));
            let command =
                command.args(["status", "--timeout", "0", "--pid", &self.0.id().to_string()]).args(options);
            let output = command.output().unwrap();
            let is_early = String::from_utf8_lossy(&output.stderr).contains("no communicator");
            if !is_early || Instant::now() > deadline {
                return output;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn counters_are_pushed_and_a_collector_that_is_not_there_is_named() {
    let job = Job::start();
    let deadline = Instant::now() + Duration::from_secs(30);
    while !String::from_utf8_lossy(&job.status(&["--json"]).stdout).contains("\"sent_slots\"") {
        assert!(Instant::now() < deadline, "its ranks do not meet");
    }
    // Ranks meet before their first operation.
    while !String::from_utf8_lossy(&job.status(&["--prometheus"]).stdout).contains("all_reduce") {
        assert!(Instant::now() < deadline, "they do not begin");
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let collector = std::thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let (mut said, mut buffer) = (Vec::new(), [0; 4096]);
        let find = |said: &[u8], what: &[u8]| said.windows(what.len()).position(|found| found == what);
        // The head says how long the rest is.
        let whole = |said: &[u8]| {
            let head = find(said, b"\r\n\r\n")?;
            let text = String::from_utf8_lossy(&said[..head]).to_ascii_lowercase();
            let length =
                text.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok())?;
            Some(head + 4 + length)
        };
        while whole(&said).is_none_or(|whole| said.len() < whole) {
            let count = stream.read(&mut buffer).unwrap();
            assert!(count > 0, "it has ended early");
            said.extend_from_slice(&buffer[..count]);
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
        said
    });
    let output = job.status(&["--otlp", &endpoint]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains(&format!("values of 1 processes are at {endpoint}/v1/metrics")), "{text}");
    let said = collector.join().unwrap();
    // Names are in the message as they are.
    for name in ["oxccl.calls_done", "oxccl.peer_sent_slots", "oxccl.refusals", "service.name", "all_reduce"]
    {
        assert!(said.windows(name.len()).any(|found| found == name.as_bytes()), "{name}");
    }
    // Nobody listens there any more.
    let since = Instant::now();
    let output = job.status(&["--otlp", &endpoint]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && error.contains(&endpoint), "{error}");
    assert!(since.elapsed() < Duration::from_secs(20), "{:?}", since.elapsed());
    let output = job.status(&["--otlp", "https://127.0.0.1:1"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("no TLS"), "{output:?}");
}

fn end_of(mut tool: Child) -> std::process::ExitStatus {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(status) = tool.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > deadline {
            tool.kill().unwrap();
            tool.wait().unwrap();
            panic!("it goes on");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_watch_ends_with_its_reader_and_with_its_process() {
    let mut job = Job::start();
    let pid = job.0.id().to_string();
    let watch = |out: Stdio| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_oxccl"));
        let command = command.args(["status", "--timeout", "0", "--watch", "0.05", "--pid", &pid]);
        command.stdout(out).stderr(Stdio::null()).spawn().unwrap()
    };
    let mut unread = watch(Stdio::piped());
    drop(unread.stdout.take());
    end_of(unread);
    let read = watch(Stdio::null());
    job.0.kill().unwrap();
    job.0.wait().unwrap();
    assert!(!end_of(read).success());
    let output = job.status(&[]);
    assert!(String::from_utf8_lossy(&output.stderr).contains(&format!("there is no process {pid}")));
}

/// It once asked without a pause.
#[test]
fn a_watch_pauses_between_questions() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oxccl"));
    let output = command.args(["status", "--watch", "0"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("at least 0.01 s"));
}
