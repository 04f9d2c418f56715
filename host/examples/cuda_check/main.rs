//! Checks a host's GPUs, driver and peer access as OxCCL uses them: a line per check, exit status 1 if one fails.
//!
//! ```text
//! cargo run --release -p oxccl --example cuda_check
//! ```

mod checks;
mod arenas;

use arenas::{Layout, Way};
use checks::Said;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    if arenas::run_child(|line| println!("{line}")) {
        return ExitCode::SUCCESS;
    }
    if let Err(error) = oxccl::cuda::Driver::get() {
        println!("FAIL  driver: {error}");
        return ExitCode::FAILURE;
    }
    let mut failed = 0;
    let mut say = |name: &str, said: Said| match said {
        Ok(text) => println!("ok    {name}: {text}"),
        Err(error) => {
            failed += 1;
            println!("FAIL  {name}: {error}");
        }
    };
    for (name, check) in checks::DEVICE {
        say(name, check());
    }
    for way in Way::ALL {
        say(&format!("arena of threads, {way:?}"), arenas::threads(way));
        for layout in Layout::ALL {
            let said = arenas::processes(way, layout, this_program);
            say(&format!("arena of processes, {way:?}, {layout:?}"), said);
        }
    }
    say("a kernel that faults", arenas::fault(this_program));
    println!("{failed} failed");
    ExitCode::from(u8::from(failed > 0))
}

fn this_program() -> Command {
    Command::new(std::env::current_exe().unwrap_or_else(|_| "cuda_check".into()))
}
