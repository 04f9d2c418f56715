//! `proxy_steps idle|send|recv COUNT`: so many turns or steps of a proxy, for callgrind: the difference between two counts is the
//! instructions of one, the same on every run.

#[path = "../benches/proxy_parts/mod.rs"]
mod proxy_parts;

use oxccl_shared::abi::Func;
use proxy_parts::Bed;
use std::process::ExitCode;

/// More steps than are ever measured.
const MANY: u64 = 1 << 40;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    let [_, what, count] = args.as_slice() else { return usage() };
    let Ok(count) = count.parse::<u64>() else { return usage() };
    let mut bed = Bed::new(8, MANY);
    match what.as_str() {
        "idle" => (0..count).for_each(|_| {
            bed.progress.do_work();
        }),
        "send" => {
            bed.give(Func::Send, MANY);
            (0..count).for_each(|_| bed.send_step());
        }
        "recv" => {
            bed.give(Func::Recv, MANY);
            (0..count).for_each(|_| bed.recv_step());
        }
        _ => return usage(),
    }
    ExitCode::SUCCESS
}

fn usage() -> ExitCode {
    eprintln!("usage: proxy_steps idle|send|recv COUNT");
    ExitCode::FAILURE
}
